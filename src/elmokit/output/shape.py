"""How the vectors of a sentence become rows of one flat array, the order in which they are kept on disk.

T tokens, L+1 layers, D dimensions. A row is a token, or a whole sentence where the vectors are pooled:

    given for a sentence            rows
    [T, D]       one layer          [T, D]
    [L+1, T, D]  all layers         [T, L+1, D]
    [D]          pooled             [1, D]
    [L+1, D]     pooled, all        [1, L+1, D]

Tokens come before layers, so that a sentence is one contiguous piece of the flat array whatever its length.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Shape:
    """What every sentence of one output has in common."""

    pooled: bool
    """One vector a sentence instead of one a token."""
    layers: int | None
    """L+1 where all layers are kept, None where there is one."""
    dim: int
    """D, the size of a vector."""

    @classmethod
    def of(cls, vectors: npt.NDArray[Any], pooled: bool) -> "Shape":
        """The shape that one sentence's vectors show."""
        one, every = ("[D]", "[L+1, D]") if pooled else ("[T, D]", "[L+1, T, D]")
        low = 1 if pooled else 2
        if vectors.ndim not in (low, low + 1):
            kind = "pooled vectors" if pooled else "vectors"
            raise ValueError(f"{kind} must have the shape {one} or {every}, got {vectors.shape}")
        return cls(pooled, vectors.shape[0] if vectors.ndim > low else None, vectors.shape[-1])

    @property
    def row(self) -> tuple[int, ...]:
        """The shape of one row: (D,) or (L+1, D)."""
        return (self.dim,) if self.layers is None else (self.layers, self.dim)

    @property
    def row_bytes(self) -> int:
        """The size of one row in float32."""
        return 4 * math.prod(self.row)

    def rows(self, tokens: int) -> int:
        """How many rows a sentence of so many tokens takes."""
        return 1 if self.pooled else tokens

    def to_rows(self, vectors: npt.NDArray[Any], tokens: int) -> Vectors:
        """A sentence's vectors as contiguous little-endian rows."""
        if Shape.of(vectors, self.pooled) != self:
            raise ValueError(f"vectors of a sentence must be like those before ({self}), got {vectors.shape}")
        if not self.pooled and vectors.shape[-2] != tokens:
            raise ValueError(f"a sentence of {tokens} tokens must have as many vectors, got {vectors.shape}")
        ordered = vectors[np.newaxis] if self.pooled else vectors if self.layers is None else vectors.swapaxes(0, 1)
        return np.ascontiguousarray(ordered, dtype="<f4")

    def from_rows(self, rows: Vectors) -> Vectors:
        """The vectors of one sentence, as they were given, from its rows."""
        if self.pooled:
            return rows.reshape(self.row)
        return rows if self.layers is None else np.ascontiguousarray(rows.swapaxes(0, 1))

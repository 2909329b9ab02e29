"""The sentences and vectors that a writer turns into a file, and their order and dtype on the disk.

T tokens, L+1 layers, D dimensions. All vectors are rows of one flat array; a row is a token, or a whole sentence if the
vectors are pooled:

    vectors of a sentence           rows
    [T, D]       one layer          [T, D]
    [L+1, T, D]  all layers         [T, L+1, D]
    [D]          pooled             [1, D]
    [L+1, D]     pooled, all        [1, L+1, D]

Tokens come before layers, so that each sentence is one contiguous part of the flat array.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import ElmoError

Vectors = NDArray[np.float32]
Store = Literal["float32", "float16"]
"""The dtype of the vectors on the disk."""
DTYPES: dict[Store, str] = {"float32": "<f4", "float16": "<f2"}
VECTORS, TEXTS = "vectors.bin", "sentences.jsonl"
BLOCK_BYTES = 8 << 20
_BATCH = 1024
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class VectorShape:
    """The shape and dtype that all vectors of one output have in common."""

    pooled: bool
    """One vector per sentence instead of one per token."""
    layers: int | None
    """L+1 if all layers are stored, None for one layer."""
    dim: int
    """D, the size of a vector."""
    store: Store = "float32"
    """The dtype on the disk."""

    @classmethod
    def of(cls, vectors: NDArray[Any], pooled: bool, store: Store = "float32") -> VectorShape:
        """The shape of one sentence's vectors."""
        one_layer, all_layers = ("[D]", "[L+1, D]") if pooled else ("[T, D]", "[L+1, T, D]")
        ndim = 1 if pooled else 2
        if vectors.ndim not in (ndim, ndim + 1):
            kind = "pooled vectors" if pooled else "vectors"
            raise ValueError(f"{kind} must have the shape {one_layer} or {all_layers}, got {vectors.shape}")
        return cls(pooled, vectors.shape[0] if vectors.ndim > ndim else None, vectors.shape[-1], store)

    @property
    def dtype(self) -> str:
        """The little-endian dtype on the disk, as a numpy name."""
        return DTYPES[self.store]

    @property
    def row(self) -> tuple[int, ...]:
        """The shape of one row: (D,) or (L+1, D)."""
        return (self.dim,) if self.layers is None else (self.layers, self.dim)

    def rows(self, tokens: int) -> int:
        """The number of rows of a sentence with this number of tokens."""
        return 1 if self.pooled else tokens

    def to_rows(self, vectors: NDArray[Any], tokens: int) -> Vectors:
        """The vectors of one sentence as contiguous little-endian rows."""
        if VectorShape.of(vectors, self.pooled, self.store) != self:
            raise ValueError(f"the vectors of all sentences must have the shape {self}, got {vectors.shape}")
        if not self.pooled and vectors.shape[-2] != tokens:
            raise ValueError(f"a sentence of {tokens} tokens must have {tokens} vectors, got the shape {vectors.shape}")
        ordered = vectors[np.newaxis] if self.pooled else vectors if self.layers is None else vectors.swapaxes(0, 1)
        with np.errstate(over="ignore"):
            rows = np.ascontiguousarray(ordered, dtype=self.dtype)
        if self.store == "float16" and not np.array_equal(np.isfinite(rows), np.isfinite(ordered)):
            raise ElmoError(
                f"store must be float32 for values above 65,504, the largest float16, got {np.abs(ordered).max():g}",
                "store",
            )
        return rows

    def from_rows(self, rows: Vectors) -> Vectors:
        """The vectors of one sentence in their original shape, as float32."""
        rows = rows.astype(np.float32, copy=False)
        if self.pooled:
            return rows.reshape(self.row)
        return rows if self.layers is None else np.ascontiguousarray(rows.swapaxes(0, 1))


@dataclass(frozen=True)
class SentenceVectors:
    """All sentences of an output with their vectors, read from the disk in the order of the input."""

    folder: Path
    shown: Path
    """The path of the folder in messages."""
    sentences: int
    tokens: int
    shape: VectorShape
    settings: Mapping[str, object]
    """The settings with which the vectors were made: model, layer and so on."""

    @property
    def rows(self) -> int:
        """The number of rows of the flat array: one per token, or one per sentence if pooled."""
        return self.sentences if self.shape.pooled else self.tokens

    def texts(self) -> Iterator[tuple[str, list[str]]]:
        """The text and the tokens of each sentence."""
        with (self.folder / TEXTS).open("rb") as file:
            for _ in range(self.sentences):
                line = file.readline()
                if not line:
                    raise self._damaged(TEXTS)
                text, tokens = json.loads(line)
                yield text, tokens

    def batches(self) -> Iterator[tuple[list[str], list[list[str]], NDArray[np.int64]]]:
        """Batches of sentences: their texts, their tokens, and the position after each sentence among all tokens."""
        texts, end = self.texts(), 0
        while batch := list(itertools.islice(texts, _BATCH)):
            sentences, tokens = map(list, zip(*batch, strict=True))
            ends = end + np.cumsum([len(words) for words in tokens], dtype="<i8")
            yield sentences, tokens, ends
            end = int(ends[-1])

    def blocks(self) -> Iterator[Vectors]:
        """The flat array [rows, D] or [rows, L+1, D] in blocks of a few megabytes."""
        step = max(1, BLOCK_BYTES // max(1, 4 * math.prod(self.shape.row)))
        with (self.folder / VECTORS).open("rb", buffering=0) as file:
            for start in range(0, self.rows, step):
                yield self._read(file, min(step, self.rows - start))

    def items(self) -> Iterator[tuple[str, list[str], Vectors]]:
        """The text, the tokens and the rows of each sentence; `shape.from_rows` turns rows into vectors."""
        with (self.folder / VECTORS).open("rb", buffering=1 << 20) as file:
            for text, tokens in self.texts():
                yield text, tokens, self._read(file, self.shape.rows(len(tokens)))

    def _read(self, file: IO[bytes], rows: int) -> Vectors:
        block = np.empty((rows, *self.shape.row), dtype=self.shape.dtype)
        if block.size:
            view = block.data.cast("B")
            while view:
                got = file.readinto(view)  # type: ignore[attr-defined]  # files have it, typeshed's IO does not
                if not got:
                    raise self._damaged(VECTORS)
                view = view[got:]
        return block

    def _damaged(self, name: str) -> ElmoError:
        return ElmoError(f"{self.shown / name} is shorter than state.json records: delete {self.shown} and start again")


def shortest_decimals(vector: NDArray[Any]) -> list[str]:
    """The shortest decimals of the numbers [D] that give the same numbers when read as float64 and rounded."""
    # The one float32 (and its negative) whose shortest decimal, read as a float64, rounds to a neighbour.
    return [number.replace("7.038531e-26", "7.0385307e-26") for number in map(str, vector)]


def without_surrogates(text: str) -> str:
    """The text with U+FFFD for each lone surrogate, which UTF-8 cannot encode."""
    return _SURROGATE.sub("\ufffd", text)


def as_tokens(value: Any) -> list[str]:  # noqa: ANN401 - from a file
    """A value from a file, refused if it is not a list of words."""
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise ValueError(f"tokens must be a list of words, got {type(value).__name__}")
    return value

"""Checks that two systems compute the same function, which a comparison of speeds requires."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Agreement:
    """The differences between vectors and the exact vectors."""

    relative: float
    """The norm of all differences over the norm of all vectors."""
    mean_cosine: float
    worst_cosine: float
    """The smallest cosine of a token."""

    def summary(self) -> str:
        """The differences as text."""
        return f"off by {self.relative:.1e}, cosine {self.mean_cosine:.6f}, worst token {self.worst_cosine:.6f}"


@dataclass(frozen=True)
class Tolerance:
    """The allowed differences, and their cause."""

    relative: float
    mean_cosine: float
    worst_cosine: float
    why: str
    """The cause of the differences."""

    def allows(self, found: Agreement) -> bool:
        """Whether the differences are small enough; NaN is not."""
        return (
            found.relative <= self.relative
            and found.mean_cosine >= self.mean_cosine
            and found.worst_cosine >= self.worst_cosine
        )


TOLERANCES = {
    "float32": Tolerance(1e-4, 0.999999, 0.99999, "the order of summation"),
    "tf32": Tolerance(1e-2, 0.9999, 0.999, "products of 10 bits"),
    "bfloat16": Tolerance(5e-2, 0.999, 0.99, "numbers with a mantissa of 8 bits"),
    "int8": Tolerance(1e-1, 0.999, 0.99, "int8 weights"),
    "peer's int8": Tolerance(0.5, 0.95, 0.7, "int8 weights and inputs, as the peer's own tools make them"),
}


def compare(found: Sequence[NDArray[np.floating]], exact: Sequence[NDArray[np.floating]]) -> Agreement:
    """Compare the vectors of sentences [T, D] with the exact vectors."""
    if [a.shape for a in found] != [a.shape for a in exact]:
        return Agreement(float("inf"), -1.0, -1.0)
    a, b = (np.concatenate([part.astype(np.float64) for part in side]) for side in (found, exact))
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    cosines = (a * b).sum(axis=1) / np.maximum(norms, np.finfo(np.float64).tiny)
    if not np.isfinite(a).all():
        return Agreement(float("inf"), -1.0, -1.0)
    return Agreement(float(np.linalg.norm(a - b) / np.linalg.norm(b)), float(cosines.mean()), float(cosines.min()))

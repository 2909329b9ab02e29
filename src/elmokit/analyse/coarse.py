"""A small picture of every vector of an index, for a first look at all of them: a few numbers in one byte each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elmokit.analyse.vectors import Codes, Floats, Packed, products

FROM_ROWS = 200_000
"""Smaller indexes are searched exactly."""
SIZE = 96
"""Numbers a vector."""
CANDIDATES, CANDIDATE_SHARE = 2000, 0.001
"""At least so many of the best by the picture, and this share of all rows, are compared exactly."""
_SAMPLE = 20_000
_LARGEST = 127


@dataclass(frozen=True, eq=False)
class Projection:
    """The directions in which the vectors differ most, and the step of a byte in each."""

    directions: Floats
    """[D, C]"""
    steps: Floats
    """[C]"""

    @classmethod
    def of(cls, vectors: Packed, seed: int = 0) -> Projection:
        """The best directions for products among the vectors, from a sample of them."""
        rows = len(vectors.codes)
        chosen = np.sort(np.random.default_rng(seed).choice(rows, min(rows, _SAMPLE), replace=False))
        sample = Packed(vectors.codes[chosen], vectors.scales[chosen]).unpack()
        # Not centred: products, not distances from the mean, are what has to stay.
        _, axes = np.linalg.eigh((sample.T @ sample).astype(np.float64))
        directions = np.ascontiguousarray(axes[:, ::-1][:, :SIZE]).astype(np.float32)
        reach = np.abs(sample @ directions).max(axis=0, initial=0.0)
        return cls(directions, np.maximum(reach, 1e-6).astype(np.float32) / _LARGEST)

    def project(self, vectors: Packed) -> Codes:
        """Vectors as bytes, [N, C]."""
        steps = np.rint(vectors.unpack() @ self.directions / self.steps)
        return np.asarray(np.clip(steps, -_LARGEST, _LARGEST), dtype=np.int8)

    def scores(self, codes: Codes, query: Floats) -> NDArray[np.float32]:
        """About the cosine of a query [D] of length 1 with each vector, [N]."""
        return products(codes, (query @ self.directions * self.steps).astype(np.float32))

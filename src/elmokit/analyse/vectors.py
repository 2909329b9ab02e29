"""Vectors of length 1 in one byte a number, compared by cosine."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Codes = NDArray[np.int8]
BLOCK_NUMBERS = 1 << 18
"""Numbers that are turned into float32 at once: they stay in the processor's cache, and are too few for the BLAS to
share them among threads, which on a busy machine costs many times what it saves."""
_LARGEST = 127


class Packed(NamedTuple):
    """N vectors of length 1: `codes` times `scales`."""

    codes: Codes
    """[N, D]"""
    scales: Floats
    """[N]"""

    def unpack(self) -> Floats:
        """The vectors, [N, D]."""
        return np.asarray(self.codes.astype(np.float32) * self.scales[:, None], dtype=np.float32)


def pack(vectors: Floats) -> Packed:
    """Vectors of any length [N, D] → codes and scales; a vector of zeros stays one."""
    largest = np.abs(vectors).max(axis=1, initial=0.0)
    safe = np.where(largest > 0, largest, 1.0)
    codes = np.rint(vectors * (_LARGEST / safe)[:, None]).astype(np.int8)
    # Not the largest number over 127, but what makes the length of the packed vector 1, so a product is a cosine.
    lengths = np.sqrt(np.square(codes.astype(np.float32)).sum(axis=1))
    scales = np.where(lengths > 0, 1.0 / np.maximum(lengths, 1.0), 0.0)
    return Packed(codes, scales.astype(np.float32))


def normalised(vectors: Floats) -> Floats:
    """The same with length 1, along the last axis; zeros stay zeros."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1.0), dtype=np.float32)


def products(codes: Codes, query: Floats) -> Floats:
    """Codes [N, D] times a query [D] → [N], block by block, so that a memory map of any size can be read."""
    scores = np.empty(len(codes), dtype=np.float32)
    rows = max(BLOCK_NUMBERS // max(codes.shape[1], 1), 1)
    for start in range(0, len(codes), rows):
        block = codes[start : start + rows].astype(np.float32)
        np.dot(block, query, out=scores[start : start + len(block)])
    return scores


def best(scores: Floats, k: int) -> NDArray[np.int64]:
    """The places of the k largest scores, best first; equal ones in order of place."""
    if k < len(scores):
        bar = np.partition(scores, len(scores) - k)[len(scores) - k]
        places = np.flatnonzero(scores >= bar)
    else:
        places = np.arange(len(scores))
    return places[np.argsort(-scores[places], kind="stable")][:k]

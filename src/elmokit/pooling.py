"""One vector from the vectors of a sentence's tokens."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import ElmoError

Pool = Literal["mean", "max", "first", "last"]
_POOLS = ("mean", "max", "first", "last")


def check_pool(pool: str | None) -> None:
    """Refuse a pool that is none of the four."""
    if pool is not None and pool not in _POOLS:
        raise ElmoError(f"pool must be one of {', '.join(_POOLS)}, got {pool!r}")


def pool_tokens(vectors: NDArray[np.float32], pool: Pool) -> NDArray[np.float32]:
    """[..., T, D] → [..., D]; a sentence without tokens gives zeros."""
    if vectors.shape[-2] == 0:
        return np.zeros((*vectors.shape[:-2], vectors.shape[-1]), np.float32)
    if pool == "first":
        return vectors[..., 0, :]
    if pool == "last":
        return vectors[..., -1, :]
    pooled: NDArray[np.float32] = vectors.max(axis=-2) if pool == "max" else vectors.mean(axis=-2)
    return pooled

"""Layers and pooling as users name them, and batches of sentences of similar length. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import ElmoError

Vectors = NDArray[np.float32]
Layer = Literal["mix", "top", "all"] | int
"""The vectors to return: the mix of the layers, the top layer, all layers, or one by its number from 0."""
Pool = Literal["mean", "max", "first", "last"]
"""How the vectors of a sentence's tokens are combined into one."""


def check_layer(layer: Layer, n_layers: int, *, single: bool = False) -> None:
    """Refuse a layer that a model with `n_layers` layers does not have, and with `single` also "all"."""
    names = ("mix", "top") if single else ("mix", "top", "all")
    if layer in names or (type(layer) is int and 0 <= layer < n_layers):
        return
    if isinstance(layer, bool | str) or not isinstance(layer, SupportsIndex) or not 0 <= layer < n_layers:
        raise ElmoError(f"layer must be {', '.join(names)} or 0 to {n_layers - 1}, got {layer!r}", "layer")


def batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Indices of sentences, similar lengths together; a batch exceeds the budget only if one sentence alone does."""
    batch: list[int] = []
    total = 0
    for number in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and total + lengths[number] > batch_tokens:
            yield batch
            batch, total = [], 0
        batch.append(number)
        total += lengths[number]
    if batch:
        yield batch


def pool_tokens(vectors: Vectors, pool: Pool) -> Vectors:
    """[..., T, D] → [..., D]; a sentence without tokens gives zeros."""
    if vectors.shape[-2] == 0:
        return np.zeros((*vectors.shape[:-2], vectors.shape[-1]), np.float32)
    if pool == "first":
        return vectors[..., 0, :]
    if pool == "last":
        return vectors[..., -1, :]
    pooled: Vectors = vectors.max(axis=-2) if pool == "max" else vectors.mean(axis=-2)
    return pooled

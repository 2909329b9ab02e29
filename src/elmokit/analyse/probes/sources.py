"""Sources of the vectors for a probe: the layers of an Elmo, or other vectors to compare with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from elmokit.analyse.index import check_stateless
from elmokit.elmo import Elmo
from elmokit.errors import ElmoError

Vectors = NDArray[np.float32]
Tokens = Sequence[str]
T = TypeVar("T")


class LayerSource(Protocol):
    """A model that gives each token of a sentence K vectors, one for each of its layers."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the K layers, from the bottom."""

    @property
    def size(self) -> int:
        """The size of the vectors, D."""

    @property
    def device(self) -> torch.device:
        """The device on which a probe of this source computes."""

    def stream(self, sentences: Iterable[Tokens]) -> Iterator[Vectors]:
        """An array [K, T, D] for each sentence, in order, with bounded memory."""


class ElmoSource:
    """All layers of an Elmo, named "0", "1" and so on."""

    def __init__(self, elmo: Elmo, batch_tokens: int | None = None) -> None:
        check_stateless(elmo, "a probe")
        self.elmo, self.batch_tokens = elmo, batch_tokens
        self.names = tuple(str(layer) for layer in range(elmo.config.n_outputs))
        self.size = elmo.config.vector_size

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.elmo.device

    def progress(self, done: int, total: int | None) -> None:
        """Called with the number of sentences whose vectors are computed, and their total if it is known."""

    def stream(self, sentences: Iterable[Tokens]) -> Iterator[Vectors]:
        """An array [L+1, T, D] for each sentence."""
        return self.elmo.stream(sentences, layer="all", batch_tokens=self.batch_tokens)


def evenly(items: Sequence[T], limit: int | None) -> Sequence[T]:
    """At most `limit` items, spread evenly over all of them, because a file may be sorted."""
    if limit is None or limit >= len(items):
        return items
    if limit < 1:
        raise ElmoError(f"limit must be at least 1, got {limit}", "limit")
    return [items[number * len(items) // limit] for number in range(limit)]


def source_of(given: Elmo | LayerSource) -> LayerSource:
    """The source of an Elmo; another source is returned unchanged."""
    return ElmoSource(given) if isinstance(given, Elmo) else given


def with_mean(source: LayerSource) -> tuple[str, ...]:
    """The names of the layers, followed by "mean" if there are several."""
    return (*source.names, "mean") if len(source.names) > 1 else source.names


def append_mean(layers: Vectors) -> Vectors:
    """The layers [K, …] followed by their mean, [K+1, …]; a single layer is returned unchanged."""
    return layers if len(layers) == 1 else np.concatenate([layers, layers.mean(axis=0, keepdims=True)])

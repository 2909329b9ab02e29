"""What a probe examines: the layers of an Elmo, or static vectors to compare with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from elmokit.elmo import Elmo
from elmokit.errors import ElmoError

Vectors = NDArray[np.float32]
Tokens = Sequence[str]
T = TypeVar("T")


class LayerSource(Protocol):
    """Anything that gives each token of a sentence K vectors, one for each of its layers."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the K layers, from the bottom."""

    @property
    def size(self) -> int:
        """D, the numbers in a vector."""

    @property
    def device(self) -> torch.device:
        """Where a probe of it computes."""

    def stream(self, sentences: Iterable[Tokens]) -> Iterator[Vectors]:
        """Sentences → arrays [K, T, D] one by one, in order, with bounded memory."""


class ElmoSource:
    """All layers of an Elmo, from "0"."""

    def __init__(self, elmo: Elmo, batch_tokens: int | None = None) -> None:
        if elmo.boundaries or elmo.state == "carry":
            raise ElmoError(
                "a probe needs a model without boundaries that starts every sentence from zero, got "
                f"boundaries={elmo.boundaries}, state={elmo.state!r}: load it without them"
            )
        self.elmo, self.batch_tokens = elmo, batch_tokens
        self.names = tuple(str(layer) for layer in range(elmo.config.n_outputs))
        self.size = elmo.config.vector_size

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.elmo.device

    def progress(self, done: int, total: int | None) -> None:
        """Called with the number of sentences whose vectors are computed, and with that of all if it is known."""

    def stream(self, sentences: Iterable[Tokens]) -> Iterator[Vectors]:
        """Sentences → arrays [L+1, T, D]."""
        return self.elmo.stream(sentences, layer="all", batch_tokens=self.batch_tokens)


class StaticSource:
    """One vector per word whatever its context, as in GloVe; a word without one gets zeros."""

    def __init__(self, words: Sequence[str], vectors: Vectors, *, lower: bool = True) -> None:
        """`vectors` [V, D] in the order of `words`; with `lower`, a word is also looked up in lower case."""
        if vectors.ndim != 2 or len(words) != len(vectors):
            raise ElmoError(
                f"vectors must have one row per word, got {vectors.shape} for {len(words):,} words", "vectors"
            )
        self.names = ("static",)
        self.size = int(vectors.shape[1])
        self.device = torch.device("cpu")
        self._rows = {word: row for row, word in enumerate(words)}
        self._vectors, self._lower = vectors, lower

    def stream(self, sentences: Iterable[Tokens]) -> Iterator[Vectors]:
        """Sentences → arrays [1, T, D]."""
        for tokens in sentences:
            found = np.zeros((1, len(tokens), self.size), np.float32)
            for position, token in enumerate(tokens):
                row = self._rows.get(token)
                if row is None and self._lower:
                    row = self._rows.get(token.lower())
                if row is not None:
                    found[0, position] = self._vectors[row]
            yield found


def evenly(items: Sequence[T], limit: int | None) -> Sequence[T]:
    """At most `limit` items, taken evenly from all of them, since a file may be sorted."""
    if limit is None or limit >= len(items):
        return items
    if limit < 1:
        raise ElmoError(f"limit must be at least 1, got {limit}", "limit")
    return [items[number * len(items) // limit] for number in range(limit)]


def source_of(given: Elmo | LayerSource) -> LayerSource:
    """An Elmo as a source; a source as it is."""
    return ElmoSource(given) if isinstance(given, Elmo) else given


def with_mean(source: LayerSource) -> tuple[str, ...]:
    """The names of the layers, and "mean" after them if there are several."""
    return (*source.names, "mean") if len(source.names) > 1 else source.names


def append_mean(layers: Vectors) -> Vectors:
    """[K, …] → [K+1, …] with the mean of the layers after them; a single layer stays [1, …]."""
    return layers if len(layers) == 1 else np.concatenate([layers, layers.mean(axis=0, keepdims=True)])

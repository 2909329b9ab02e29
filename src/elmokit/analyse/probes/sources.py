"""What a probe looks into: the layers of an Elmo, or static vectors to hold against them."""

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


class Source(Protocol):
    """Anything that gives each token of a sentence K vectors, one for each of its layers."""

    @property
    def names(self) -> tuple[str, ...]:
        """The K layers' names, from the bottom."""

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
            raise ElmoError("a probe needs a vector a token that its sentence alone decides: load the model as it is")
        self.elmo, self.batch_tokens = elmo, batch_tokens
        self.names = tuple(str(layer) for layer in range(elmo.config.n_outputs))
        self.size = elmo.config.vector_size

    @property
    def device(self) -> torch.device:
        """Where the model lies."""
        return self.elmo.device

    def progress(self, done: int, total: int | None) -> None:
        """Called with the number of sentences whose vectors are computed, and of all that will be where it is known."""

    def stream(self, sentences: Iterable[Tokens]) -> Iterator[Vectors]:
        """Sentences → arrays [L+1, T, D]."""
        return self.elmo.stream(sentences, layer="all", batch_tokens=self.batch_tokens)


class StaticSource:
    """One vector a word whatever stands around it, as GloVe's; a word that has none gets zeros."""

    def __init__(self, words: Sequence[str], vectors: Vectors, *, lower: bool = True) -> None:
        """`vectors` [V, D] in the order of `words`; with `lower`, a word is also looked up in lower case."""
        if vectors.ndim != 2 or len(words) != len(vectors):
            raise ElmoError(f"static vectors must have a row a word, got {vectors.shape} for {len(words):,} words")
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
    """At most so many of the items, taken evenly from all of them: a file may be sorted."""
    if limit is None or limit >= len(items):
        return items
    if limit < 1:
        raise ElmoError(f"limit must be at least 1, got {limit}")
    return [items[number * len(items) // limit] for number in range(limit)]


def source_of(given: Elmo | Source) -> Source:
    """An Elmo as a source; a source as it is."""
    return ElmoSource(given) if isinstance(given, Elmo) else given


def with_mean(source: Source) -> tuple[str, ...]:
    """The layers' names and, where there are several, "mean" after them."""
    return (*source.names, "mean") if len(source.names) > 1 else source.names


def append_mean(layers: Vectors) -> Vectors:
    """[K, …] → [K+1, …], the mean of the layers after them; one layer alone is its own mean and stays [1, …]."""
    return layers if len(layers) == 1 else np.concatenate([layers, layers.mean(axis=0, keepdims=True)])

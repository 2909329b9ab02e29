"""A model whose vectors say which of a few topics a sentence is about, so that what an index should find is known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from zlib import crc32

import numpy as np

from elmokit.corpus.prepared import PreparedCorpus

TOPICS = ("river", "money", "stage")
SIZE = 16


class TopicModel:
    """The part of `Elmo` that an index uses; counts the sentences that it encodes."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.where, self.boundaries, self.state = "stand-in", False, "zero"
        self.config = SimpleNamespace(n_outputs=3, vector_size=SIZE)
        self.encoded = 0
        self._stop_after = stop_after

    def fingerprint(self, *, mixes: bool = False) -> str:
        return self.where

    def stream(self, sentences: Iterable[list[str]], *, layer: object, batch_tokens: int = 0) -> Iterator[np.ndarray]:
        for tokens in sentences:
            if self._stop_after is not None and self.encoded >= self._stop_after:
                raise KeyboardInterrupt
            self.encoded += 1
            yield vectors_of(tokens)


def vectors_of(tokens: list[str]) -> np.ndarray:
    """[T, 16]: the topic, a little of the word itself, a little noise that the sentence decides."""
    random = np.random.default_rng(crc32(" ".join(tokens).encode()))
    values = 0.1 * random.standard_normal((len(tokens), SIZE))
    for number, topic in enumerate(TOPICS):
        values[:, number] += 2.0 * (topic in tokens)
    for place, token in enumerate(tokens):
        values[place, 3 + crc32(token.encode()) % (SIZE - 3)] += 0.5
    return values.astype(np.float32)


def sentences(count: int = 60) -> list[list[str]]:
    """Sentences about each topic in turn, all of them with the word `bank` in a place of its own."""
    made = []
    for number in range(count):
        topic = TOPICS[number % 2]
        made.append(f"the {topic} word{number % 7} has a bank of {'x ' * (number % 5)}number{number} .".split())
    return made


def prepared(folder: Path, rows: list[list[str]] | None = None) -> PreparedCorpus:
    return PreparedCorpus.from_sentences(sentences() if rows is None else rows, folder)

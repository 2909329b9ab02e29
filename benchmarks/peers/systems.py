"""What a system is to the benchmarks: something that turns a batch of tokenised sentences into vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Batch = Sequence[Sequence[str]]
Vectors = NDArray[np.float32]


class System(Protocol):
    """One of the systems that are compared, with its model loaded."""

    facts: dict[str, str]
    """Versions, and what it chose."""

    def fresh(self) -> None:
        """Forget the words of earlier batches."""

    def encode(self, batch: Batch) -> list[Vectors]:
        """The mean of all layers of each sentence, [T, D], as one batch."""

    def encode_all(self, sentences: Batch) -> list[Vectors]:
        """The same of any number of sentences, in the batches that suit the system."""


def by_length(system: System, sentences: Batch, size: int = 64) -> list[Vectors]:
    """Batches of like lengths, which any user of a system without batches of its own can make."""
    order = sorted(range(len(sentences)), key=lambda index: -len(sentences[index]))
    found: dict[int, Vectors] = {}
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        found.update(zip(chosen, system.encode([sentences[index] for index in chosen]), strict=True))
    return [found[index] for index in range(len(sentences))]


TITLES = {
    "allennlp": "AllenNLP 2.10.1",
    "loop": "a loop of AllenNLP's structure",
    "float32": "float32",
    "int8": "int8",
    "packed": "packed torch",
    "reference": "reference",
}
"""What the columns are called."""


def loader(name: str) -> Callable[[str], System]:
    """What makes a system of that name from a model; only what it needs is imported."""
    if name == "allennlp":
        from peers.allennlp_elmo import AllenNlp

        return AllenNlp
    if name == "loop" or name == "reference":
        from peers.plain import Plain

        return partial(Plain, structure=name)
    from peers.ours import Ours

    return partial(Ours, dtype="int8" if name == "int8" else "float32", path="packed" if name == "packed" else None)

"""The interface of a system: it turns a batch of tokenised sentences into vectors."""

from __future__ import annotations

import os
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
    """Versions, and choices of the system."""

    def fresh(self) -> None:
        """Forget the words of earlier batches, if the system caches words."""

    def encode(self, batch: Batch) -> list[Vectors]:
        """The vectors of each sentence's words, [T, D], as one batch: an LSTM's mean of layers, or the top layer."""

    def encode_all(self, sentences: Batch, size: int = 64) -> list[Vectors]:
        """The vectors of any number of sentences; a system without its own batches computes `size` at a time."""


def by_length(system: System, sentences: Batch, size: int) -> list[Vectors]:
    """The vectors of all sentences in batches of similar lengths, for a system without its own batches."""
    order = sorted(range(len(sentences)), key=lambda index: -len(sentences[index]))
    found: dict[int, Vectors] = {}
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        found.update(zip(chosen, system.encode([sentences[index] for index in chosen]), strict=True))
    return [found[index] for index in range(len(sentences))]


TITLES = {
    "allennlp": "AllenNLP 2.10.1",
    "loop": "a loop of AllenNLP's structure",
    "minilm-onnx": "MiniLM, onnxruntime float32",
    "minilm-onnx-int8": "MiniLM, onnxruntime int8",
    "minilm-transformers": "MiniLM, transformers",
    "float32": "float32",
    "int8": "int8",
    "packed": "torch, no C compiler",
    "reference": "reference",
}
"""The titles of the columns."""
MINILM = tuple(name for name in TITLES if name.startswith("minilm"))
"""Systems that run all-MiniLM-L6-v2."""


def loader(name: str) -> Callable[[str], System]:
    """A function that creates a system from a model; only the packages of that system are imported."""
    if name == "allennlp":
        from peers.allennlp_elmo import AllenNlp

        return AllenNlp
    if name in MINILM:
        from peers.minilm import MiniLmOnnx, MiniLmTransformers

        if name == "minilm-transformers":
            import torch  # noqa: F401 - imported before the loading of a model is timed
            import transformers  # type: ignore[import-not-found,unused-ignore]  # noqa: F401

            return MiniLmTransformers
        import onnxruntime  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
        import tokenizers  # type: ignore[import-not-found,unused-ignore]  # noqa: F401

        return partial(MiniLmOnnx, dtype="int8" if name == "minilm-onnx-int8" else "float32")
    if name == "loop" or name == "reference":
        from peers.plain import Plain

        return partial(Plain, structure=name)
    from peers.ours import Ours

    if name == "packed":
        os.environ["ELMOKIT_NATIVE"] = "0"
    return partial(Ours, dtype="int8" if name == "int8" else "float32", path="packed" if name == "packed" else None)

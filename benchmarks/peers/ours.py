"""elmokit, called as its users do: `Elmo.encode`, with the path that it chooses or with a forced path."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from elmokit import Elmo, __version__
from elmokit.ops.paths import PathName, forced
from peers.systems import Batch, Vectors

EVERYTHING = 2**31
"""More tokens than any batch has, so that a batch is not split."""


class Ours:
    """An Elmo of one dtype."""

    def __init__(self, model: str, dtype: str, *, path: PathName | None = None, device: str = "cpu") -> None:
        self.elmo = Elmo.load(model, device=device, dtype=dtype)
        self.path = path
        self.facts = {"elmokit": __version__, "torch": torch.__version__, "path": self._choice()}

    def _choice(self) -> str:
        with self._path():
            return self.elmo.explain()

    def fresh(self) -> None:
        """Clear the cache of words."""
        self.elmo.type_cache.clear()

    def encode(self, batch: Batch) -> list[Vectors]:
        """The vectors of each sentence, [T, D]: by default an LSTM's mix, a Transformer's last block."""
        with self._path():
            vectors: list[Vectors] = self.elmo.encode(batch, batch_tokens=EVERYTHING)
        return vectors

    def encode_all(self, sentences: Batch, size: int = 64) -> list[Vectors]:
        """The vectors of all sentences, in elmokit's own batches."""
        with self._path():
            vectors: list[Vectors] = self.elmo.encode(sentences)
        return vectors

    def _path(self) -> AbstractContextManager[None]:
        return nullcontext() if self.path is None else forced(self.path)

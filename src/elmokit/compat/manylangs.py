"""ELMoForManyLangs' `Embedder`: change the import to `from elmokit.compat.manylangs import Embedder`.

    embedder = Embedder("zhs.model")
    vectors = embedder.sents2elmo([["今", "天"]], output_layer=-2)

Arguments and shapes are the same. ELMoForManyLangs computed its batches in random order and carried state between them,
so its vectors changed from run to run. Here every sentence starts from zero and always has the same vectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from elmokit.compat.load import load_elmo, token_lists
from elmokit.errors import ElmoError

__all__ = ["Embedder"]

AVERAGE, ALL = -1, -2
"""Values of `output_layer` that are not the number of a layer."""


class Embedder:
    """A model of ELMoForManyLangs, or any other model that elmokit loads.

    `batch_size` has no effect: batches have a token budget.

    >>> Embedder("zhs.model").sents2elmo([["今", "天"]])[0].shape  # doctest: +SKIP
    (2, 1024)
    """

    def __init__(
        self, model_dir: str | Path, batch_size: int = 64, *, device: str | torch.device | None = None
    ) -> None:
        self.model_dir, self.batch_size = model_dir, batch_size
        self.elmo = load_elmo(model_dir, device=device)
        self.use_cuda = self.elmo.device.type == "cuda"

    def sents2elmo(self, sents: Iterable[Sequence[str]], output_layer: int = AVERAGE) -> list[NDArray[np.float32]]:
        """Lists of words → a float32 array [T, D] for each sentence, in order.

        `output_layer` is -1 for the mean of all layers, -2 for all layers [L+1, T, D], or the number of a layer; layer
        0 is the word encoder.
        """
        most = self.elmo.config.n_outputs - 1
        if output_layer not in (ALL, AVERAGE, *range(most + 1)):
            raise ElmoError(f"output_layer must be -2, -1 or 0 to {most}, got {output_layer!r}", "output_layer")
        sentences = token_lists(sents, "sents")
        if output_layer >= 0:
            return self.elmo.encode(sentences, layer=output_layer)
        layers = self.elmo.stream(sentences, layer="all")
        return list(layers) if output_layer == ALL else [array.mean(axis=0) for array in layers]

"""AllenNLP's Elmo module, called as its users do: tokens → character ids → the mix of the layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from peers import stand_ins
from peers.systems import Batch, Vectors, by_length

stand_ins.install()
from allennlp.modules.elmo import Elmo, batch_to_ids  # type: ignore[import-not-found]  # noqa: E402
from allennlp.version import VERSION  # type: ignore[import-not-found]  # noqa: E402


class AllenNlp:
    """One mix, without dropout; the carried state is reset before each batch, so that the vectors can be compared."""

    def __init__(self, model: str) -> None:
        folder = Path(model)
        self.elmo = Elmo(str(folder / "options.json"), str(folder / "weights.hdf5"), 1, dropout=0.0).eval()
        self.facts = {"AllenNLP": VERSION, "its torch": torch.__version__, "its numpy": np.__version__}

    def fresh(self) -> None:
        """Do nothing: AllenNLP caches no words."""

    @torch.no_grad()
    def encode(self, batch: Batch) -> list[Vectors]:
        """The mix of the layers of each sentence, [T, D]."""
        self.elmo._elmo_lstm._elmo_lstm.reset_states()
        values = self.elmo(batch_to_ids(batch))["elmo_representations"][0].numpy()
        return [values[row, : len(tokens)] for row, tokens in enumerate(batch)]

    def encode_all(self, sentences: Batch, size: int = 64) -> list[Vectors]:
        """The vectors of all sentences, in batches of similar lengths."""
        return by_length(self, sentences, size)

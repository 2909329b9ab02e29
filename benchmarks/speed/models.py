"""Random models of the released sizes from a seed, written in the formats of the systems."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from elmokit import BiLM, Elmo, ElmoConfig
from elmokit.config import CharacterConfig, LstmConfig, TransformerConfig
from elmokit.errors import ElmoError
from elmokit.formats.checkpoint import Checkpoint

FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
SIZES = {"small": (1024, 128, 1), "medium": (2048, 256, 1), "original": (4096, 512, 2)}
"""Cell size, output size and number of highways of the released models."""
TRANSFORMER_FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 256))
TRANSFORMERS = {"transformer": TransformerConfig(384), "tiny-transformer": TransformerConfig(24, 2, 2, 32, 4, 8, 1)}
"""The configuration of the Transformer models, and a tiny one for tests."""


@dataclass(frozen=True)
class ModelFolders:
    """One model in the formats of the systems."""

    elmokit: Path
    bilm: Path | None
    """None for a model that AllenNLP cannot run."""
    int8: Path | None
    """None if int8 weights cannot be saved; the model is then quantised while it is loaded."""
    config: ElmoConfig

    def of(self, system: str) -> Path:
        """The folder that a system loads."""
        if system == "allennlp":
            if self.bilm is None:
                raise ElmoError(f"AllenNLP has no context encoder of the kind {self.config.context.kind}")
            return self.bilm
        return self.int8 if system == "int8" and self.int8 is not None else self.elmokit


def config_of(size: str) -> ElmoConfig:
    """The configuration of a released model, or of a tiny one for tests."""
    if size == "tiny":
        return ElmoConfig(LstmConfig(24, 8), CharacterConfig(((1, 4), (2, 8)), n_highway=1))
    if size in TRANSFORMERS:
        return ElmoConfig(TRANSFORMERS[size], CharacterConfig(TRANSFORMER_FILTERS, n_highway=1))
    cell, output, highways = SIZES[size]
    return ElmoConfig(LstmConfig(cell, output), CharacterConfig(FILTERS, n_highway=highways))


def random_weights(config: ElmoConfig, seed: int) -> dict[str, Tensor]:
    """Random normal weights, scaled so that a product is about as large as its input, as in trained models."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {name: value.shape for name, value in BiLM.shell(config).state_dict().items()}
    weights = {}
    for name, shape in shapes.items():
        inputs = 1 if name.endswith("embedding.weight") else shape[1:].numel() if len(shape) > 1 else shape[0]
        weights[name] = torch.randn(shape, generator=generator) / inputs**0.5
    weights["token_encoder.char_cnn.embedding.weight"][0] = 0
    return weights


def write(model: str, seed: int, folder: Path, *, int8: bool = True) -> ModelFolders:
    """Write a random model of a size, or an existing model, into a folder in every format."""
    if model in SIZES or model in TRANSFORMERS or model == "tiny":
        config = config_of(model)
        elmo = Elmo(Checkpoint(config, random_weights(config, seed), kind="elmokit", where=f"random, seed {seed}"))
    else:
        elmo = Elmo.load(model, device="cpu")
    elmo.save(folder / "elmokit")
    bilm = folder / "bilm" if isinstance(elmo.config.context, LstmConfig) else None
    if bilm is not None:
        elmo.save(bilm, format="bilm")
    return ModelFolders(folder / "elmokit", bilm, _write_int8(folder) if int8 else None, elmo.config)


def _write_int8(folder: Path) -> Path | None:
    try:
        Elmo.load(folder / "elmokit", device="cpu", dtype="int8").save(folder / "int8")
    except ElmoError:
        return None
    return folder / "int8"

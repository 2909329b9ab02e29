"""Small models and sentences for the tests of AllenNLP's call signatures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from elmokit.compat.allennlp import (
    batch_to_ids,
)
from elmokit.config import CharacterConfig, ElmoConfig, LstmConfig, WordConfig
from elmokit.formats.checkpoint import Checkpoint
from elmokit.model.bilm import BiLM
from elmokit.text.vocab import Vocabulary

VOCAB = ["<S>", "</S>", "<UNK>", "the", "river", "bank"]
CHARACTERS = CharacterConfig(filters=((1, 4), (3, 9)), embedding_size=5, n_highway=2)
CONFIG = ElmoConfig(LstmConfig(cell_size=11, output_size=6), CHARACTERS)
# Models that AllenNLP could not load, or not without an edit.
CONFIGS = {
    "plain": CONFIG,
    "one layer": replace(CONFIG, context=replace(CONFIG.lstm, n_layers=1)),
    "no skip connections, no clips": replace(
        CONFIG, context=replace(CONFIG.lstm, skip_connections=False, cell_clip=None, projection_clip=None)
    ),
    "no projections": ElmoConfig(LstmConfig(13, 13, projection=False), CHARACTERS, token_projection=False),
    "no highway, short words": replace(CONFIG, characters=replace(CHARACTERS, n_highway=0, max_characters=9)),
    "long words": replace(CONFIG, characters=replace(CHARACTERS, max_characters=60)),
    "forward only": replace(CONFIG, bidirectional=False),
    "word ids": ElmoConfig(LstmConfig(11, 6), words=WordConfig(len(VOCAB), 6), token_projection=False),
}
BATCHES = [
    [["the", "river", "bank"], ["a"], ["of", "money"]],
    [["one"], ["two", "banks"], ["x" * 70, "é", "中国"], [], ["the", "the"]],
    [["a", "b"], ["c"]],
    [["d"], ["the", "river", "bank", "."], ["e", "f"], ["g"], ["h"], ["i"]],
]
CACHED = ["@@PADDING@@", "@@UNKNOWN@@", "the", "river", "bank"]


def checkpoint(config: ElmoConfig = CONFIG, seed: int = 0) -> Checkpoint:
    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: torch.randn(value.shape, generator=generator) * 1.5 / value.shape[-1] ** 0.5
        for name, value in BiLM(config).state_dict().items()
    }
    for name in weights:
        if name.endswith(("embedding.weight", "words.weight")):
            weights[name][0] = 0
    vocab = Vocabulary(VOCAB) if config.words else None
    return Checkpoint(config, weights, kind="test", where="test", vocab=vocab)


def vectors_of(layers: torch.Tensor, batch: list[list[str]]) -> list[np.ndarray]:
    """[L+1, B, T+2, D] → [L+1, T, D] a sentence."""
    return [layers[:, row, 1 : len(tokens) + 1].detach().numpy() for row, tokens in enumerate(batch)]


def close(one, two, atol=1e-6):
    torch.testing.assert_close(torch.as_tensor(one), torch.as_tensor(two), atol=atol, rtol=1e-5)


def run(model, batch=BATCHES[0]):
    return torch.stack(model(batch_to_ids(batch))["activations"]).detach()

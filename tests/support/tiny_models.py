"""Tiny models made of random numbers, for tests that need the pieces and not only an Elmo."""

from __future__ import annotations

import torch

from elmokit import BiLM, ElmoConfig
from elmokit.config import CharacterConfig, LstmConfig, TransformerConfig, WordConfig
from elmokit.formats.checkpoint import Checkpoint
from elmokit.model.language_model import LmHead
from elmokit.text.vocab import Vocabulary

WORDS = ["<S>", "</S>", "<UNK>", "the", "bank", "river", "money", "of", "a", "."]


def tiny_config(**changes) -> ElmoConfig:
    """Awkward sizes on purpose: nothing is a multiple of 16."""
    characters = CharacterConfig(filters=((1, 3), (2, 5), (3, 7)), embedding_size=5, n_highway=1)
    values = {"context": LstmConfig(cell_size=13, output_size=6), "characters": characters, **changes}
    return ElmoConfig(**values)


def transformer_config(**changes) -> ElmoConfig:
    """Two layers above the tokens; sentences of more than five words are longer than the attention's window."""
    shape = TransformerConfig(12, n_blocks=4, n_heads=3, inner_size=10, window=4, softmax_size=6)
    return tiny_config(**{"context": shape, **changes})


def word_config(**changes) -> ElmoConfig:
    values = {"context": LstmConfig(cell_size=13, output_size=6), "words": WordConfig(len(WORDS), 6), **changes}
    return ElmoConfig(**{"token_projection": False, **values})


def tiny_checkpoint(
    config: ElmoConfig | None = None, *, head: bool = False, seed: int = 0, scale: float = 2.0
) -> Checkpoint:
    """A model whose numbers are large enough that clips clip and mistakes show."""
    config = config or tiny_config()
    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: torch.randn(value.shape, generator=generator) * scale / max(1, value.shape[-1]) ** 0.5
        for name, value in BiLM(config).state_dict().items()
    }
    for name in weights:
        if name.endswith(("embedding.weight", "words.weight")):
            weights[name][0] = 0
    vocab = Vocabulary(WORDS) if head or config.words else None
    shapes = LmHead(10, config.context.prediction_size).state_dict()
    softmax = {name: torch.randn(value.shape, generator=generator) for name, value in shapes.items()}
    return Checkpoint(config, weights, kind="elmokit", where="memory", vocab=vocab, head=softmax if head else {})

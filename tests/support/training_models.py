"""Corpora and networks in training, small and made of random numbers."""

from __future__ import annotations

import random
from pathlib import Path

import torch

from elmokit.config import ElmoConfig
from elmokit.corpus.prepared import PreparedCorpus
from elmokit.formats.checkpoint import Checkpoint
from elmokit.model.bilm import BiLM
from elmokit.model.language_model import LmHead
from elmokit.pretrain.network import LanguageModelNetwork
from elmokit.pretrain.sentences import Sentences, TypeTable
from elmokit.pretrain.windows import WindowReader
from support.tiny_models import tiny_checkpoint

WORDS = ["the", "bank", "river", "money", "of", "a", ".", "zebra", "naïve", "日本語", "🙂", "x" * 70]
"""Words of tiny_models' vocabulary, and some that it does not have."""


def random_sentences(lengths, *, seed: int = 0) -> list[list[str]]:
    draw = random.Random(seed)
    return [[draw.choice(WORDS) for _ in range(length)] for length in lengths]


def corpus_of(sentences, folder: Path) -> PreparedCorpus:
    return PreparedCorpus.from_sentences(sentences, folder / "corpus")


def network_of(model: Checkpoint, **arguments) -> LanguageModelNetwork:
    """A checkpoint with a softmax as the network of training, in its evaluation mode."""
    bilm, head = BiLM(model.config), LmHead(*model.head["weight"].shape)
    bilm.load_state_dict(model.weights)
    head.load_state_dict(model.head)
    return LanguageModelNetwork(bilm, head, **arguments).eval()


def table_of(model: Checkpoint, corpus: PreparedCorpus) -> TypeTable:
    characters = model.config.characters
    widest = max(width for width, _ in characters.filters) if characters else 0
    return TypeTable(corpus, model.vocab, model.indexer(), widest_filter=widest, directions=model.config.n_directions)


def windows_of(corpus: PreparedCorpus, *, rows: int, window: int, **arguments):
    """All windows of one reading of a corpus."""
    reader = WindowReader(Sentences(corpus), rows=rows, window=window, endless=False, **arguments)
    for plan in reader.plans():
        yield reader.fill(plan, range(rows))


def gradients_of(network: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad for name, p in network.named_parameters() if p.grad is not None}


def evaluation_parts(folder: Path, lengths, config: ElmoConfig | None = None):
    """A model, sentences of these lengths, and what a perplexity over them takes: network, table of types, reading."""
    model, sentences = tiny_checkpoint(config, head=True), random_sentences(lengths, seed=2)
    corpus = corpus_of(sentences, folder)
    return model, sentences, network_of(model), table_of(model, corpus), Sentences(corpus)

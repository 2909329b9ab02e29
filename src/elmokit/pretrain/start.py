"""What a run starts from: a new network, or an existing model of any format with the softmax fitted to the words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from elmokit.config import ElmoConfig
from elmokit.errors import ElmoError
from elmokit.formats.checkpoint import Checkpoint
from elmokit.formats.registry import DEFAULT_FORMAT
from elmokit.model.bilm import BiLM
from elmokit.model.language_model import LmHead
from elmokit.pretrain.initial import initialise
from elmokit.pretrain.network import LanguageModelNetwork
from elmokit.pretrain.recipe import Recipe
from elmokit.text.chars import SymbolTable
from elmokit.text.vocab import Vocabulary


@dataclass
class Start:
    """A network before its first update, and what belongs to it."""

    config: ElmoConfig
    network: LanguageModelNetwork
    vocab: Vocabulary
    symbols: SymbolTable | None = None
    slots: dict[str, Tensor] | None = None
    """Adagrad's sums that a TensorFlow checkpoint brought, by the network's names."""
    new_softmax: bool = True
    """Whether the softmax knows nothing yet."""
    told: tuple[str, ...] = ()
    """What a person should know of it."""
    where: str = ""
    """The file of the model it started from."""
    notes: str = ""
    """What that model's card says of its training and licence."""

    def checkpoint(self, where: str, weights: Mapping[str, Tensor] | None = None) -> Checkpoint:
        """The model as files hold it; `weights` are the network's, where they are not those it has now."""
        weights = weights if weights is not None else self.network.state_dict()
        bilm = {name.removeprefix("bilm."): value for name, value in weights.items() if name.startswith("bilm.")}
        head = {name.removeprefix("head."): value for name, value in weights.items() if name.startswith("head.")}
        if self.network.tied:
            head["weight"] = bilm["token_encoder.words.weight"][1:]
        return Checkpoint(
            self.config, bilm, kind=DEFAULT_FORMAT, where=where, vocab=self.vocab, symbols=self.symbols, head=head
        )


def new_start(recipe: Recipe, vocab: Vocabulary) -> Start:
    """A network with random weights, always the same for the same seed."""
    config = recipe.config(len(vocab))
    torch.manual_seed(recipe.seed)
    bilm, head = BiLM(config), LmHead(len(vocab), config.context.prediction_size)
    initialise(bilm)
    return Start(config, LanguageModelNetwork(bilm, head, dropout=recipe.dropout, tied=recipe.tie_softmax), vocab)


def start_from(model: Checkpoint, recipe: Recipe, vocab: Vocabulary | None) -> Start:
    """An existing model; words of another vocabulary keep what the model knows of them, new ones start afresh."""
    model, vocab = model.in_floats(), vocab or model.vocab
    assert vocab is not None
    told: list[str] = []
    torch.manual_seed(recipe.seed)
    config, weights, sums = model.config, dict(model.weights), dict(model.optimizer)
    old = model.vocab
    if config.words is not None and old is not None and old != vocab:
        if model.symbols is not None or old.specials != vocab.specials:
            raise ElmoError(f"{model.where} has words and characters of its own: train it with its own vocabulary")
        config = replace(config, words=replace(config.words, n_words=len(vocab)))
        drawn = BiLM(config)
        initialise(drawn)
        fresh = drawn.state_dict()["token_encoder.words.weight"]
        table, kept = _by_word(weights["token_encoder.words.weight"][1:], old, vocab, fresh[1:])
        sums.pop("token_encoder.words.weight", None)  # in the order of the old words
        weights["token_encoder.words.weight"] = torch.cat([torch.zeros_like(table[:1]), table])
        told.append(f"word table: {kept:,} of {len(vocab):,} words from {model.where}")
    bilm, head = BiLM(config), LmHead(len(vocab), config.context.prediction_size)
    bilm.load_state_dict(weights)
    slots = {f"bilm.{name}": value for name, value in sums.items() if name in weights}
    if model.head and (old is None or old == vocab) and len(model.head["bias"]) == len(vocab):
        head.load_state_dict(model.head)
        slots |= {name: value for name, value in sums.items() if name.startswith("head.")}
        told.append(f"softmax: that of {model.where}")
    elif model.head and old is not None:
        with torch.no_grad():
            rows, kept = _by_word(model.head["weight"], old, vocab, head.weight)
            head.weight.copy_(rows)
            head.bias.copy_(_by_word(model.head["bias"], old, vocab, head.bias)[0])
        told.append(f"softmax: {kept:,} of {len(vocab):,} words from {model.where}, the others new")
    else:
        told.append(f"softmax: new, {len(vocab):,} words; {model.where} brings none that fits")
    tied = recipe.tie_softmax and config.words is not None
    if tied and config.words is not None and config.words.embedding_size != config.context.prediction_size:
        raise ElmoError(
            f"tie_softmax needs words of {config.context.prediction_size} numbers, and those of {model.where} have "
            f"{config.words.embedding_size}: leave it out"
        )
    network = LanguageModelNetwork(bilm, head, dropout=recipe.dropout, tied=tied)
    return Start(
        config,
        network,
        vocab,
        model.symbols,
        slots or None,
        not model.head,
        tuple(told),
        where=model.where,
        notes=model.notes,
    )


def _by_word(rows: Tensor, old: Vocabulary, new: Vocabulary, fresh: Tensor) -> tuple[Tensor, int]:
    """Rows in the order of a new vocabulary: those of words that the old one has, fresh ones for the others."""
    result = fresh.detach().clone()
    pairs = [(number, old.index(word)) for number, word in enumerate(new) if word in old]
    if pairs:
        to, from_ = (torch.tensor(part) for part in zip(*pairs, strict=True))
        result[to] = rows[from_].to(result)
    return result, len(pairs)

"""`Checkpoint`: the model in memory that every format reads and writes, and checks of its tensors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elmokit.config import ElmoConfig
from elmokit.errors import DamagedFileError, ElmoError
from elmokit.model.bilm import BiLM, int8_names
from elmokit.model.int8 import COLUMNS, VALUES, check_int8, dense, quantised, version
from elmokit.model.placement import fill
from elmokit.text.chars import Indexer, SymbolTable, indexer_of, pieces_of
from elmokit.text.policy import CharacterPieces
from elmokit.text.vocab import Vocabulary

_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclass
class Checkpoint:
    """A model that was read from files or is written to files."""

    config: ElmoConfig
    """The configuration of the network."""
    weights: dict[str, Tensor]
    """The weights by their names in BiLM."""
    kind: str
    """The name of the format that it was read from."""
    where: str
    """The file or folder that it was read from."""
    vocab: Vocabulary | None = None
    """The words of the word table and of the softmax."""
    symbols: SymbolTable | None = None
    """The code points of a model with its own alphabet."""
    head: dict[str, Tensor] = field(default_factory=dict)
    """The softmax: `weight` [V, P], or `weight.values` and `weight.scales` in int8; `bias` [V]. Empty without one."""
    mixes: list[dict[str, Any]] = field(default_factory=list)
    """`weights`, `gamma` and `layer_norm` of each saved mix."""
    text: dict[str, str] = field(default_factory=dict)
    """The options of its training text (`segment`, `split`), if known."""
    about: dict[str, str] = field(default_factory=dict)
    """The facts that `elmo models` shows, if present: `language` and `description`."""
    optimizer: dict[str, Tensor] = field(default_factory=dict)
    """Adagrad's state to resume from: sums by names of weights (`head.weight`, `head.bias` for the softmax), `step`."""
    notes: str = ""
    """Markdown for the model card, such as facts about the training; it is saved with the model."""

    @property
    def int8(self) -> bool:
        """Whether the matrices are int8: `name.values`, `name.scales` and perhaps `name.columns` instead of `name`."""
        return any(name.endswith(VALUES) for name in self.weights)

    def __post_init__(self) -> None:
        expected = self._expected_shapes()
        for name, shape in expected.items():
            if name not in self.weights:
                raise ElmoError(f"{self.where} lacks the weights {name}: it does not belong to its configuration")
            if tuple(self.weights[name].shape) != shape:
                got = tuple(self.weights[name].shape)
                raise ElmoError(f"{self.where} has {name} in the shape {got}, and its configuration requires {shape}")
        if unknown := sorted(set(self.weights) - set(expected)):
            raise ElmoError(f"{self.where} has weights that its configuration does not name: {unknown[0]}")
        expected |= {f"head.{part.removesuffix(VALUES)}": tuple(value.shape) for part, value in self.head.items()}
        for name, value in self.optimizer.items():
            if tuple(value.shape) != (expected.get(name) if name != "step" else (1,)):
                raise ElmoError(f"{self.where} has optimiser state of the shape {tuple(value.shape)} for {name}")
        numbered = {f"mix {n} {part}": mix[part] for n, mix in enumerate(self.mixes) for part in ("weights", "gamma")}
        for part, tensors in (("", self.weights | numbered), ("softmax ", self.head), ("optimiser ", self.optimizer)):
            for name, value in tensors.items():
                check_finite(value, f"{part}{name}", self.where)
        for name, value in (*self.weights.items(), *self.head.items()):
            if name.endswith(VALUES):
                check_int8(value, name, self.where)
        self._check_symbols()
        self.use_vocabulary(self.vocab)

    def _expected_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of BiLM's parameters, computed without memory for them."""
        try:
            network = self._shell()
            return {name: tuple(value.shape) for name, value in network.state_dict().items()}
        except RuntimeError as error:
            raise ElmoError(f"{self.where}: its config.json describes a network larger than any memory") from error

    def _shell(self) -> BiLM:
        """The network on the meta device; older int8 files have no factors of columns."""
        factors = any(name.endswith(COLUMNS) for name in self.weights)
        return BiLM.shell(self.config, int8=self.int8, factors=factors)

    def _check_symbols(self) -> None:
        characters = self.config.characters
        own = characters is not None and characters.alphabet == "symbols"
        if own != (self.symbols is not None):
            raise ElmoError(f"{self.where} must have a table of characters if, and only if, its alphabet is symbols")
        if characters is not None and self.symbols is not None:
            ids = self.symbols.ids.values()
            if min(ids) < 0 or max(ids) > characters.n_characters - 2:
                raise ElmoError(
                    f"{self.where} has {characters.n_characters - 1} rows for characters, and its table of characters "
                    f"has ids from {min(ids)} to {max(ids)}: they do not belong together"
                )

    def use_vocabulary(self, vocab: Vocabulary | None) -> None:
        """Set the vocabulary, which must fit the word table and the softmax."""
        self.vocab = vocab
        if vocab is not None and (self.config.words is not None or self.head):
            try:
                vocab.require_specials()
            except ElmoError as error:
                raise ElmoError(f"{self.where}: {error}") from error
        sizes = {"word table": self.config.words.n_words if self.config.words else None}
        sizes["softmax"] = len(self.head["bias"]) if self.head else None
        for part, size in sizes.items():
            if vocab is not None and size is not None and size != len(vocab):
                raise ElmoError(
                    f"{self.where} has a {part} of {size} words, and its vocabulary has {len(vocab)}: they do not "
                    "belong together"
                )

    def in_int8(self) -> Checkpoint:
        """The same model with its matrices quantised to int8, which cannot be trained further."""
        if self.int8:
            return self
        names, factors = int8_names(self.config), int8_names(self.config, COLUMNS)
        return replace(self, weights=quantised(self.weights, names, factors), optimizer={})

    def in_floats(self, *, softmax: bool = True) -> Checkpoint:
        """The same model with float matrices, for code without int8; `softmax=False` keeps the softmax."""
        if not (self.int8 or (softmax and self.softmax_int8)):
            return self
        return replace(self, weights=dense(self.weights), head=dense(self.head) if softmax else self.head)

    @property
    def softmax_int8(self) -> bool:
        """Whether the model has an int8 softmax."""
        return f"weight{VALUES}" in self.head

    def network(self, *, trainable: bool = False) -> BiLM:
        """The network with these weights."""
        network = self._shell()
        fill(network, self.weights, trainable=trainable)
        return network

    def indexer(self) -> Indexer:
        """The indexer that turns tokens into this model's ids."""
        return indexer_of(self.config, self.vocab, self.symbols, self.where)

    def character_pieces(self, text: Mapping[str, str]) -> CharacterPieces | None:
        """The splitter of tokens into characters, if `text` says that the training text was split so."""
        return pieces_of(text.get("segment"), self.indexer(), self.vocab)


def check_plain(value: Tensor, name: str, where: str) -> None:
    """Refuse a tensor that no model has: integers, complex, quantised, sparse, or without its own memory."""
    plain = value.layout is torch.strided and not value.is_nested and not value.is_meta and value.dtype in _FLOATS
    if not plain or value.untyped_storage().nbytes() < value.numel() * value.element_size():
        raise ElmoError(f"{where}: {name} must be a plain tensor of floats, all of them in the file, got {value.dtype}")


def check_finite(value: Tensor, name: str, where: str) -> None:
    """Refuse NaN and infinity, which would turn every vector into NaN."""
    if not value.is_floating_point() or not value.numel():
        return
    # Forty times faster than isfinite on all values: a NaN makes both extremes NaN.
    if not all(isfinite(extreme.item()) for extreme in torch.aminmax(value)):
        count = int((~torch.isfinite(value)).sum())
        raise DamagedFileError(
            f"{where} has {count} values in {name} that are not finite numbers; the file is damaged: fetch it again"
        )


def check_shape(got: tuple[int, ...], expected: tuple[int, ...], name: str, where: str) -> None:
    """Refuse a tensor that does not fit the model's configuration."""
    if got != expected:
        raise ElmoError(
            f"{where}: {name} must have the shape {expected} by the model's options, got {got}: "
            "the two files do not belong together"
        )


def as_tensors(weights: Mapping[str, Any]) -> dict[str, Tensor]:
    """Convert NumPy arrays to contiguous float32 tensors."""
    with np.errstate(over="ignore"):  # a number too large for float32 becomes infinite and is refused later
        return {
            name: torch.from_numpy(np.ascontiguousarray(value, dtype=np.float32)) for name, value in weights.items()
        }


FINGERPRINT_VERSION = 2
"""Increases when the same model gives different vectors than before."""


class Fingerprint:
    """A hash of everything that determines a model's vectors, computed once and again after the model has changed.

    It does not include the text policy, because stored vectors are found by their tokens, nor the softmax, because no
    vector depends on it.
    """

    def __init__(self, config: ElmoConfig, vocab: Vocabulary | None, symbols: SymbolTable | None) -> None:
        self._config, self._vocab, self._symbols = config, vocab, symbols
        self._known: dict[frozenset[str], tuple[object, str]] = {}

    def __call__(self, tensors: Mapping[str, Tensor], **options: object) -> str:
        """32 hexadecimal digits for the network's tensors and other options that determine its vectors."""
        # A model may be trained or moved between two calls. Sums take a tenth of the hash's time and detect changes
        # through `.data`, which torch does not count.
        state = options, [(value.dtype, version(value), _sum(value)) for value in tensors.values()]
        names = frozenset(tensors)
        if names not in self._known or self._known[names][0] != state:
            self._known[names] = state, self._compute(tensors, options)
        return self._known[names][1]

    def _compute(self, tensors: Mapping[str, Tensor], options: Mapping[str, object]) -> str:
        facts = {"version": FINGERPRINT_VERSION, "config": self._config.to_dict(), **options}
        if self._config.words is not None and self._vocab is not None:
            facts["words"], facts["specials"] = list(self._vocab), self._vocab.specials
        if self._symbols is not None:
            facts["symbols"] = dict(self._symbols.ids)
        parts = {f"{name} {value.dtype} {tuple(value.shape)} ": value for name, value in tensors.items()}
        return _hexdigest(hashlib.sha256(), facts, parts)  # hardware support makes it twice as fast as blake2b


def _hexdigest(digest: hashlib._Hash, facts: object, tensors: Mapping[str, Tensor]) -> str:
    digest.update(json.dumps(facts, sort_keys=True).encode())
    for name, value in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(_bytes(value).cpu().numpy().data)
    return digest.hexdigest()[:32]


def _sum(value: Tensor) -> int:
    """The sum of a tensor's bytes in groups of eight; it changes if any one number changes."""
    data = _bytes(value)
    if data.storage_offset() % 8:  # as in a slice of another tensor
        data = data.clone()
    whole = len(data) // 8 * 8
    return int(data[:whole].view(torch.int64).sum()) + int(data[whole:].sum())


def _bytes(value: Tensor) -> Tensor:
    return value.detach().reshape(-1).view(torch.uint8)

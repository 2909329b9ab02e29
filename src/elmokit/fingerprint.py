"""A digest of everything that decides a model's vectors, by which stored vectors are found again.

The text policy is not in it, because stored vectors are found by their tokens, nor is the softmax, which no vector
depends on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import torch
from torch import Tensor

from elmokit.config import ElmoConfig
from elmokit.model.int8 import version
from elmokit.text.chars import SymbolTable
from elmokit.text.vocab import Vocabulary

VERSION = 2
"""Goes up when the same model gives other vectors than before."""


class Fingerprint:
    """The digest of one model, computed once and again when a number of the model has changed."""

    def __init__(self, config: ElmoConfig, vocab: Vocabulary | None, symbols: SymbolTable | None) -> None:
        self._config, self._vocab, self._symbols = config, vocab, symbols
        self._known: dict[frozenset[str], tuple[object, str]] = {}

    def __call__(self, tensors: Mapping[str, Tensor], **options: object) -> str:
        """32 letters and digits for the network's tensors and for options that decide its vectors too."""
        # A model may be trained or moved between two calls. Sums take a tenth of the digest's time and see what torch
        # does not count, changes through `.data`.
        state = options, [(value.dtype, version(value), _sum(value)) for value in tensors.values()]
        names = frozenset(tensors)
        if names not in self._known or self._known[names][0] != state:
            self._known[names] = state, self._compute(tensors, options)
        return self._known[names][1]

    def _compute(self, tensors: Mapping[str, Tensor], options: Mapping[str, object]) -> str:
        facts = {"version": VERSION, "config": self._config.to_dict(), **options}
        if self._config.words is not None and self._vocab is not None:
            facts["words"], facts["specials"] = list(self._vocab), self._vocab.specials
        if self._symbols is not None:
            facts["symbols"] = dict(self._symbols.ids)
        parts = {f"{name} {value.dtype} {tuple(value.shape)} ": value for name, value in tensors.items()}
        return _hexdigest(hashlib.sha256(), facts, parts)  # which processors compute at twice the speed of blake2b


def _hexdigest(digest: hashlib._Hash, facts: object, tensors: Mapping[str, Tensor]) -> str:
    digest.update(json.dumps(facts, sort_keys=True).encode())
    for name, value in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(_bytes(value).cpu().numpy().data)
    return digest.hexdigest()[:32]


def _sum(value: Tensor) -> int:
    """The sum of a tensor's bytes in groups of eight, which a change of any number changes."""
    data = _bytes(value)
    if data.storage_offset() % 8:  # as in a slice of another tensor
        data = data.clone()
    whole = len(data) // 8 * 8
    return int(data[:whole].view(torch.int64).sum()) + int(data[whole:].sum())


def _bytes(value: Tensor) -> Tensor:
    return value.detach().reshape(-1).view(torch.uint8)

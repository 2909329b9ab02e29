"""A digest of everything that decides a model's vectors, by which stored vectors are found again.

The text policy is not in it, because stored vectors are found by their tokens, nor is the softmax, which no vector
depends on.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from torch import Tensor

from elmokit.formats.checkpoint import Checkpoint

VERSION = 2
"""Goes up when the same model gives other vectors than before."""


class Fingerprint:
    """The digest of one model, computed once and again when a number of the model has changed."""

    def __init__(self) -> None:
        self._known: dict[bool, tuple[object, str]] = {}

    def __call__(self, checkpoint: Checkpoint, *, boundaries: bool, mixes: bool) -> str:
        """32 letters and digits; with `mixes`, the weights of the layers' sums count too."""
        tensors = _tensors(checkpoint, mixes)
        # A model may be trained or moved between two calls. Sums take a tenth of the digest's time.
        state = boundaries, [(name, value.dtype, _sum(value)) for name, value in tensors.items()]
        known = self._known.get(mixes)
        if known is None or known[0] != state:
            known = self._known[mixes] = state, _digest(checkpoint, tensors, boundaries=boundaries)
        return known[1]


def _tensors(checkpoint: Checkpoint, mixes: bool) -> dict[str, Tensor]:
    tensors = dict(sorted(checkpoint.weights.items()))
    for number, mix in enumerate(checkpoint.mixes if mixes else ()):
        for name in ("weights", "gamma"):
            tensors[f"mixes.{number}.{name} layer_norm={mix['layer_norm']}"] = mix[name]
    return tensors


def _digest(checkpoint: Checkpoint, tensors: dict[str, Tensor], *, boundaries: bool) -> str:
    facts: dict[str, Any] = {"version": VERSION, "config": checkpoint.config.to_dict(), "boundaries": boundaries}
    if checkpoint.config.words is not None and checkpoint.vocab is not None:
        facts["words"], facts["specials"] = list(checkpoint.vocab), checkpoint.vocab.specials
    if checkpoint.symbols is not None:
        facts["symbols"] = dict(checkpoint.symbols.ids)
    digest = hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16)
    for name, value in tensors.items():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)} ".encode())
        digest.update(_bytes(value).cpu().numpy().data)
    return digest.hexdigest()


def _sum(value: Tensor) -> int:
    """The sum of a tensor's bytes in groups of eight, which a change of any number changes."""
    data = _bytes(value)
    whole = len(data) // 8 * 8
    if data.storage_offset() % 8:  # as in a slice of another tensor
        data = data.clone()
    return int(data[:whole].view(torch.int64).sum()) + int(data[whole:].sum())


def _bytes(value: Tensor) -> Tensor:
    return value.detach().reshape(-1).view(torch.uint8)


def former_fingerprint(checkpoint: Checkpoint) -> str:
    """The digest by which earlier releases named the model in unfinished outputs of `elmo embed` and in indexes."""
    vocab, symbols = checkpoint.vocab, checkpoint.symbols
    facts = {
        "config": checkpoint.config.to_dict(),
        "vocabulary": None if vocab is None else {"words": list(vocab), "specials": vocab.specials},
        "symbols": None if symbols is None or symbols.ids is None else dict(symbols.ids),
        "layer_norm": [mix["layer_norm"] for mix in checkpoint.mixes],
    }
    digest = hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16)
    tensors = dict(checkpoint.weights)
    for number, mix in enumerate(checkpoint.mixes):
        tensors |= {f"{number}.{name}": mix[name] for name in ("weights", "gamma")}
    for name, value in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(value.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()

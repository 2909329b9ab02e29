"""The biLM's layers for a task: of a frozen model computed once and kept on the disk, or live, to train through.

Sentences are stored once for a model, whatever task they come from (the files: feature_store.py), in half precision,
which rounds a number in its fourth digit. A batch is read from the mapped files into one padded float32 tensor.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elmokit.cache import cache_folder
from elmokit.elmo import Elmo
from elmokit.encode import encode_stream
from elmokit.errors import ElmoError
from elmokit.tasks.examples import Tokens
from elmokit.tasks.feature_store import DIGEST_SIZE, Block, FeatureStore, Place, block_of

VERSION = 1
"""Goes up when the files change, or when the same model gives other numbers."""
MOST_BYTES = 20_000_000_000
"""What the vectors of all models together may take on the disk before the oldest are removed."""
_BLOCK_BYTES = 64_000_000
"""Vectors in a file; what a killed run loses at most."""

Progress = Callable[[int, int], None]
"""Called with the sentences computed by now and those to compute."""


class Features:
    """The layers of N sentences, read a batch at a time.

    `lengths` [N] are the words of each sentence, to put sentences of like length into a batch.
    """

    def __init__(self, places: Sequence[Place], *, layers: int, size: int, directions: int) -> None:
        self._places = places
        self._layers, self._size, self._directions = layers, size, directions
        self.lengths = torch.tensor([place.end - place.start for place in places], dtype=torch.long)

    def __len__(self) -> int:
        return len(self._places)

    def batch(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Numbers of sentences → layers [L+1, B, T, D] in float32, zeros at padding, and lengths [B].

        Layer 0 alone, [1, B, T, D], where the features are of layer 0.
        """
        lengths = self.lengths[list(indices)]
        width = int(lengths.max()) if len(lengths) else 0
        layers = torch.zeros(1 + self._layers, len(lengths), width, self._directions * self._size)
        for slot, index in enumerate(indices):
            block, start, end = self._places[index]
            words = block.words[block.rows[start:end]]  # [T, P]
            filled = layers[:, slot, : end - start]
            filled[0].view(-1, self._directions, self._size).copy_(words.unsqueeze(1))
            filled[1:].copy_(block.context[start:end, : self._layers].transpose(0, 1))
        return layers, lengths


def frozen_features(
    elmo: Elmo,
    sentences: Sequence[Tokens],
    *,
    cache: Path | None = None,
    dtype: torch.dtype = torch.float16,
    layer_0: bool = False,
    most_bytes: int = MOST_BYTES,
    progress: Progress | None = None,
) -> Features:
    """The layers of the sentences, from the cache where they are, computed and kept there where they are not.

    The cache is features/ in the folder named by ELMOKIT_CACHE, or in ~/.cache/elmokit. With `layer_0` only that layer
    is given, which is quick: what is not stored is computed word by word and kept in memory.

        features = frozen_features(elmo, [("the", "river", "bank")])
        layers, lengths = features.batch([0])
    """
    _refuse_state(elmo)
    size, n_layers = elmo.config.token_size, elmo.config.context.n_layers
    root = cache if cache is not None else cache_folder() / "features"
    store = FeatureStore(root / fingerprint(elmo, dtype), (size, n_layers, elmo.config.vector_size))
    digests = [_digest(sentence) for sentence in sentences]
    distinct = dict(zip(digests, sentences, strict=True))
    found = store.find(distinct.keys())
    if layer_0 and len(found) < len(distinct):
        block = _words_alone(elmo, distinct, dtype)
        found = {digest: Place(block, start, end) for digest, start, end in block.places()}
    elif len(found) < len(distinct):
        with store.alone():
            found = store.find(distinct.keys())  # another process may have computed them while this one waited
            missing = {digest: tokens for digest, tokens in distinct.items() if digest not in found}
            width = n_layers * elmo.config.vector_size * dtype.itemsize
            store.make_room(width * sum(map(len, missing.values())), most_bytes)
            done = 0
            for group in _groups(missing, max(1, _BLOCK_BYTES // width)):
                noted = None if progress is None else _after(progress, done, len(missing))
                store.add(_block(elmo, group, dtype, noted))
                done += len(group)
        found = store.find(distinct.keys())
    return Features(
        [found[digest] for digest in digests],
        layers=0 if layer_0 else n_layers,
        size=size,
        directions=elmo.config.n_directions,
    )


def live_layers(elmo: Elmo, sentences: Sequence[Tokens]) -> tuple[Tensor, Tensor]:
    """Sentences → layers [L+1, B, T, D] in float32 on the model's device and lengths [B]; nothing is kept.

    Differentiable where the biLM is trainable.
    """
    _refuse_state(elmo)
    layers = elmo.layers_of(sentences).without_boundaries()
    return layers.values.float(), layers.lengths


@torch.no_grad()
def fingerprint(elmo: Elmo, dtype: torch.dtype = torch.float16) -> str:
    """What tells the vectors of a model from those of any other: its weights, shape and tables, and the number type."""
    facts: dict[str, Any] = {"version": VERSION, "dtype": str(dtype), "config": elmo.config.to_dict()}
    if elmo.config.words is not None and elmo.vocab is not None:
        facts["words"], facts["specials"] = list(elmo.vocab), elmo.vocab.specials
    if elmo.symbols is not None:
        facts["symbols"] = dict(elmo.symbols.ids)
    if elmo.character_pieces is not None:
        facts["tokens"] = "read by character"  # vectors of words from before that were all those of <UNK>
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name, value in sorted(elmo.bilm.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)} ".encode())
        digest.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:32]


def _refuse_state(elmo: Elmo) -> None:
    if elmo.state != "zero":
        raise ElmoError("a task needs vectors that depend on the sentence alone: load the model with state='zero'")


def _digest(tokens: Tokens) -> bytes:
    # JSON keeps words apart whatever is in them, and ASCII JSON holds lone surrogates too.
    return hashlib.blake2b(json.dumps(tokens).encode(), digest_size=DIGEST_SIZE).digest()


def _groups(sentences: dict[bytes, Tokens], most_words: int) -> Iterator[dict[bytes, Tokens]]:
    """Sentences for a file each; a file has more words than it should only where one sentence alone has."""
    group: dict[bytes, Tokens] = {}
    total = 0
    for digest, tokens in sentences.items():
        if group and total + len(tokens) > most_words:
            yield group
            group, total = {}, 0
        group[digest] = tokens
        total += len(tokens)
    if group:
        yield group


def _after(progress: Progress, done: int, total: int) -> Callable[[int], None]:
    return lambda count: progress(done + count, total)


@torch.no_grad()
def _block(elmo: Elmo, group: dict[bytes, Tokens], dtype: torch.dtype, progress: Callable[[int], None] | None) -> Block:
    """The vectors of some sentences, each different word encoded once."""
    numbers, rows = _numbered(group.values())
    table = elmo.encode_types(list(numbers))  # [U, P]
    context = torch.zeros(len(rows), elmo.config.context.n_layers, elmo.config.vector_size, dtype=dtype)
    done = start = 0

    def run(batch: Sequence[Sequence[str]]) -> list[Tensor]:
        nonlocal done
        kept = _rounded(elmo.layers_of(batch).values[1:], dtype)
        done += len(batch)
        if progress is not None:
            progress(done)
        return [kept[:, slot, 1 : len(tokens) + 1] for slot, tokens in enumerate(batch)]

    for vectors in encode_stream(group.values(), run):
        context[start : start + vectors.shape[1]] = vectors.transpose(0, 1)
        start += vectors.shape[1]
    return block_of(_lengths(group), _rounded(table, dtype), rows, context)


@torch.no_grad()
def _words_alone(elmo: Elmo, group: dict[bytes, Tokens], dtype: torch.dtype) -> Block:
    """Layer 0 of some sentences without the others, rounded as stored ones are, so that the cache changes no result."""
    numbers, rows = _numbered(group.values())
    table = _rounded(elmo.encode_types(list(numbers)), dtype)
    return block_of(_lengths(group), table, rows, torch.zeros(len(rows), 0, elmo.config.vector_size, dtype=dtype))


def _numbered(sentences: Iterable[Tokens]) -> tuple[dict[str, int], Tensor]:
    """A number for each different word, and the numbers of all words in order [N]."""
    numbers: dict[str, int] = {}
    rows = [numbers.setdefault(token, len(numbers)) for tokens in sentences for token in tokens]
    return numbers, torch.tensor(rows, dtype=torch.int32)


def _lengths(group: dict[bytes, Tokens]) -> list[tuple[bytes, int]]:
    return [(digest, len(tokens)) for digest, tokens in group.items()]


def _rounded(values: Tensor, dtype: torch.dtype) -> Tensor:
    """On the CPU in a number type, what is too large for it cut to the largest it has."""
    largest = torch.finfo(dtype).max
    return values.clamp(-largest, largest).to(dtype).cpu()

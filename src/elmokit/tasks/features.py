"""The biLM's layers for a task: of a frozen model computed once and stored, or live, to train through.

Sentences are stored once for a model, whatever task they come from (the files: storage/vectors.py), in float16, which
rounds a number in its fourth digit. A batch is read from the mapped files into one padded float32 tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from elmokit.elmo import Elmo
from elmokit.errors import ElmoError
from elmokit.storage.cache import cache_folder, key_of
from elmokit.storage.vectors import Place, StoredLayers, VectorBlock, VectorStore
from elmokit.tasks.examples import Tokens

Progress = Callable[[int, int], None]
"""Called with the number of sentences computed so far and of those to compute."""


def frozen_features(
    elmo: Elmo,
    sentences: Sequence[Tokens],
    *,
    cache: Path | None = None,
    dtype: torch.dtype = torch.float16,
    layer_0: bool = False,
    batch_tokens: int | None = None,
    progress: Progress | None = None,
) -> StoredLayers:
    """The layers of the sentences, read from the cache, after computing and storing those that are not in it.

    The cache is features/ in the folder named by ELMOKIT_CACHE, or in ~/.cache/elmokit. With `layer_0` only that layer
    is given, which is quick: what is not stored is computed word by word and stays in memory.

        features = frozen_features(elmo, [("the", "river", "bank")])
        layers, lengths = features.batch([0])
    """
    _refuse_state(elmo)
    size, n_layers, width = elmo.config.token_size, elmo.config.context.n_layers, elmo.config.vector_size
    root = cache if cache is not None else cache_folder() / "features"
    name = f"{elmo.fingerprint()}-{str(dtype).removeprefix('torch.')}"
    store = VectorStore(root / name, (size, n_layers, width))
    keys = [key_of(sentence) for sentence in sentences]
    distinct = dict(zip(keys, sentences, strict=True))
    rows = {key: len(tokens) for key, tokens in distinct.items()}
    if layer_0:
        found = store.find(rows)
        if len(found) < len(rows):
            found = _words_alone(elmo, distinct, dtype)
    else:

        def compute(new: Sequence[bytes], note: Callable[[int], None]) -> VectorBlock:
            return _block(elmo, {key: distinct[key] for key in new}, dtype, batch_tokens, note)

        found = store.complete(rows, compute, dtype=dtype, progress=progress)
    return StoredLayers([found[key] for key in keys], layers=0 if layer_0 else n_layers, width=width, words=True)


def live_layers(elmo: Elmo, sentences: Sequence[Tokens]) -> tuple[Tensor, Tensor]:
    """Sentences → layers [L+1, B, T, D] in float32 on the model's device and lengths [B]; nothing is stored.

    Differentiable where the biLM is trainable.
    """
    _refuse_state(elmo)
    layers = elmo.layers_of(sentences).without_boundaries()
    return layers.values.float(), layers.lengths


def _refuse_state(elmo: Elmo) -> None:
    if elmo.state != "zero":
        raise ElmoError("a task needs vectors that depend on the sentence alone: load the model with state='zero'")


def _block(
    elmo: Elmo,
    sentences: Mapping[bytes, Tokens],
    dtype: torch.dtype,
    batch_tokens: int | None,
    note: Callable[[int], None],
) -> VectorBlock:
    """The vectors of some sentences, layer 0 once for each different word."""
    numbers, word_rows = _numbered(sentences)
    size, n_layers, width = elmo.config.token_size, elmo.config.context.n_layers, elmo.config.vector_size
    words = torch.zeros(len(numbers), size, dtype=dtype)
    layers = torch.zeros(len(word_rows), n_layers, width, dtype=dtype)
    end = 0
    stream = elmo.stream(sentences.values(), layer="all", batch_tokens=batch_tokens)
    for done, (tokens, vectors) in enumerate(zip(sentences.values(), stream, strict=True), start=1):
        start, end = end, end + len(tokens)
        inside = slice(1, -1) if elmo.boundaries else slice(None)
        stored = rounded(torch.from_numpy(vectors[:, inside]), dtype)  # [L+1, T, D]
        words[word_rows[start:end]] = stored[0, :, :size]
        layers[start:end] = stored[1:].transpose(0, 1)
        note(done)
    return VectorBlock.of({key: len(tokens) for key, tokens in sentences.items()}, layers, words, word_rows)


@torch.no_grad()
def _words_alone(elmo: Elmo, sentences: Mapping[bytes, Tokens], dtype: torch.dtype) -> dict[bytes, Place]:
    """Layer 0 of some sentences without the others, rounded as stored ones are, so that the cache changes no result."""
    numbers, word_rows = _numbered(sentences)
    words = rounded(elmo.encode_types(list(numbers)), dtype)
    rows = {key: len(tokens) for key, tokens in sentences.items()}
    layers = torch.zeros(len(word_rows), 0, elmo.config.vector_size, dtype=dtype)
    block = VectorBlock.of(rows, layers, words, word_rows)
    ends = block.ends.tolist()
    return {key: Place(block, end - rows[key], end) for key, end in zip(rows, ends, strict=True)}


def _numbered(sentences: Mapping[bytes, Tokens]) -> tuple[dict[str, int], Tensor]:
    """A number for each different word, and the numbers of all words in order [N]."""
    numbers: dict[str, int] = {}
    rows = [numbers.setdefault(token, len(numbers)) for tokens in sentences.values() for token in tokens]
    return numbers, torch.tensor(rows, dtype=torch.int32)


def rounded(values: Tensor, dtype: torch.dtype) -> Tensor:
    """On the CPU in a dtype, with numbers that are too large for it cut to the largest it has."""
    largest = torch.finfo(dtype).max
    return values.clamp(-largest, largest).to(dtype).cpu()

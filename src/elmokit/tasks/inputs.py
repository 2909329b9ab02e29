"""The input of a task network: batches of sentences as ELMo layers and as rows of a table of static word vectors.

The layers of a frozen ELMo are computed once per sentence and model and stored in float16, which has three to four
decimal digits. A batch is read from the mapped files (storage/vectors.py) into one padded float32 tensor. If the ELMo
model is trained too, its layers are computed for each batch.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from elmokit.elmo import Elmo
from elmokit.errors import ElmoError
from elmokit.storage.cache import cache_folder, key_of
from elmokit.storage.vectors import StoredLayers, VectorBlock, VectorSpan, VectorStore
from elmokit.tasks.options import TaskOptions
from elmokit.tasks.reading import Tokens
from elmokit.tasks.static import StaticVectors

FeatureProgress = Callable[[int, int], None]
"""Called with the number of sentences computed so far and the total number to compute."""
_TOKENS_PER_EXAMPLE = 64
"""A batch of size B has at most B times this number of tokens; with longer examples it has fewer than B examples."""
_SORTED_BATCHES = 50
"""Number of batches whose examples are sorted by length together.

More batches would reduce the padding, and fewer would make the order more random.
"""


@dataclass(frozen=True, eq=False)
class SentenceBatch:
    """B sentences of at most T words, padded; one of `layers` and `words` may be missing."""

    layers: Tensor | None
    """[L+1, B, T, D]: the ELMo layers; [1, B, T, D] for a task that only reads layer 0."""
    words: Tensor | None
    """[B, T]: rows of the table of static vectors."""
    lengths: Tensor
    """[B]: words per sentence, always on the CPU because torch's packing needs them there."""

    @property
    def mask(self) -> Tensor:
        """Which positions are words and not padding, [B, T], on the device of the batch."""
        given = self.words if self.layers is None else self.layers[0, :, :, 0]
        assert given is not None
        return (torch.arange(given.shape[1]) < self.lengths.unsqueeze(1)).to(given.device)

    def to(self, device: torch.device | str) -> SentenceBatch:
        """The batch on a device; the lengths stay on the CPU."""
        layers, words = (None if part is None else part.to(device) for part in (self.layers, self.words))
        return SentenceBatch(layers, words, self.lengths.cpu())


class ExampleInputs:
    """The inputs of some examples, as batches; `sides` are their sentences, one list, or two lists for pairs."""

    def __init__(
        self,
        sides: Sequence[Sequence[Tokens]],
        options: TaskOptions,
        *,
        elmo: Elmo | None,
        static: StaticVectors | None,
        store: bool,
        cache: Path | None = None,
        progress: FeatureProgress | None = None,
    ) -> None:
        """`store`: compute all ELMo vectors now and store them in the cache; otherwise ELMo runs for each batch."""
        self.sides = sides
        self.lengths = [sum(map(len, sentences)) for sentences in zip(*sides, strict=True)]
        """Tokens per example, of both sentences for a pair."""
        self._elmo, self._static = (None if options.elmo == "none" else elmo), static
        self._layer_0 = options.elmo == "0"
        self._features: StoredLayers | None = None
        if store and self._elmo is not None:
            every = [sentence for side in sides for sentence in side]
            self._features = frozen_features(self._elmo, every, cache=cache, layer_0=self._layer_0, progress=progress)

    def batch(self, numbers: Sequence[int], device: torch.device) -> tuple[SentenceBatch, ...]:
        """The batch of the examples with these numbers, one part per side."""
        return tuple(self._batch(side, numbers).to(device) for side in range(len(self.sides)))

    def _batch(self, side: int, numbers: Sequence[int]) -> SentenceBatch:
        sentences = [self.sides[side][number] for number in numbers]
        words = None if self._static is None else self._static.ids(sentences)
        if self._features is not None:
            layers, lengths = self._features.batch([side * len(self.lengths) + number for number in numbers])
            return SentenceBatch(layers, words, lengths)
        if self._elmo is not None:
            layers, lengths = live_layers(self._elmo, sentences)
            return SentenceBatch(layers[:1] if self._layer_0 else layers, words, lengths)
        return SentenceBatch(None, words, torch.tensor(list(map(len, sentences))))


def batches_of(lengths: Sequence[int], size: int, *, shuffle: random.Random | None = None) -> list[list[int]]:
    """The numbers of the examples in batches of at most `size` with similar lengths; without `shuffle`, by length.

    torch's DataLoader is not used, because the vectors are read from mapped files and need no worker processes.
    """
    order = list(range(len(lengths)))
    pool = _SORTED_BATCHES * size if shuffle else len(order) or 1
    if shuffle:
        shuffle.shuffle(order)
    batches: list[list[int]] = []
    for start in range(0, len(order), pool):
        batch: list[int] = []
        for number in sorted(order[start : start + pool], key=lengths.__getitem__):
            too_long = (len(batch) + 1) * lengths[number] > size * _TOKENS_PER_EXAMPLE
            if not batch or len(batch) == size or too_long:
                batch = []
                batches.append(batch)
            batch.append(number)
    if shuffle:
        shuffle.shuffle(batches)
    return batches


def frozen_features(
    elmo: Elmo,
    sentences: Sequence[Tokens],
    *,
    cache: Path | None = None,
    dtype: torch.dtype = torch.float16,
    layer_0: bool = False,
    batch_tokens: int | None = None,
    progress: FeatureProgress | None = None,
) -> StoredLayers:
    """The layers of the sentences, read from the cache; missing sentences are first computed and stored.

    The cache is the folder features/ in the folder that ELMOKIT_CACHE names, by default ~/.cache/elmokit. With
    `layer_0` only that layer is returned. This is fast: layer 0 needs no context, and nothing is stored.

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
            found = _word_vectors(elmo, distinct, dtype)
    else:
        compute = partial(_compute_block, elmo, distinct, dtype, batch_tokens)
        found = store.complete(rows, compute, dtype=dtype, progress=progress)
    return StoredLayers([found[key] for key in keys], layers=0 if layer_0 else n_layers, width=width, words=True)


def live_layers(elmo: Elmo, sentences: Sequence[Tokens]) -> tuple[Tensor, Tensor]:
    """The layers [L+1, B, T, D] of the sentences in float32 on the model's device, and their lengths [B]; not stored.

    The result is differentiable if the model is trainable.
    """
    _refuse_state(elmo)
    layers = elmo.layers_of(sentences).without_boundaries()
    return layers.values.float(), layers.lengths


def _refuse_state(elmo: Elmo) -> None:
    if elmo.state != "zero":
        raise ElmoError(
            "a task needs vectors that depend only on the sentence, got a model that carries its state: load the model "
            "with state='zero'"
        )


def _compute_block(
    elmo: Elmo,
    sentences: Mapping[bytes, Tokens],
    dtype: torch.dtype,
    batch_tokens: int | None,
    keys: Sequence[bytes],
    note: Callable[[int], None],
) -> VectorBlock:
    """The vectors of the sentences with these keys; layer 0 is stored once per distinct word."""
    wanted = {key: sentences[key] for key in keys}
    numbers, word_rows = _number_words(wanted)
    size, n_layers, width = elmo.config.token_size, elmo.config.context.n_layers, elmo.config.vector_size
    words = torch.zeros(len(numbers), size, dtype=dtype)
    layers = torch.zeros(len(word_rows), n_layers, width, dtype=dtype)
    end = 0
    stream = elmo.stream(wanted.values(), layer="all", batch_tokens=batch_tokens)
    for done, (tokens, vectors) in enumerate(zip(wanted.values(), stream, strict=True), start=1):
        start, end = end, end + len(tokens)
        inside = slice(1, -1) if elmo.boundaries else slice(None)
        stored = rounded(torch.from_numpy(vectors[:, inside]), dtype)  # [L+1, T, D]
        words[word_rows[start:end]] = stored[0, :, :size]
        layers[start:end] = stored[1:].transpose(0, 1)
        note(done)
    return VectorBlock.of({key: len(tokens) for key, tokens in wanted.items()}, layers, words, word_rows)


@torch.no_grad()
def _word_vectors(elmo: Elmo, sentences: Mapping[bytes, Tokens], dtype: torch.dtype) -> dict[bytes, VectorSpan]:
    """Layer 0 of the sentences, rounded like stored layers so that results do not depend on the cache."""
    numbers, word_rows = _number_words(sentences)
    words = rounded(elmo.encode_types(list(numbers)), dtype)
    rows = {key: len(tokens) for key, tokens in sentences.items()}
    layers = torch.zeros(len(word_rows), 0, elmo.config.vector_size, dtype=dtype)
    block = VectorBlock.of(rows, layers, words, word_rows)
    ends = block.ends.tolist()
    return {key: VectorSpan(block, end - rows[key], end) for key, end in zip(rows, ends, strict=True)}


def _number_words(sentences: Mapping[bytes, Tokens]) -> tuple[dict[str, int], Tensor]:
    """A number for each distinct word, and the numbers of all words of the sentences in order, [N]."""
    numbers: dict[str, int] = {}
    rows = [numbers.setdefault(token, len(numbers)) for tokens in sentences.values() for token in tokens]
    return numbers, torch.tensor(rows, dtype=torch.int32)


def rounded(values: Tensor, dtype: torch.dtype) -> Tensor:
    """The values in a dtype, on the CPU; values outside the range of the dtype become its largest or smallest."""
    largest = torch.finfo(dtype).max
    return values.clamp(-largest, largest).to(dtype).cpu()

"""What a task network reads: batches of sentences as ELMo layers and as rows of a table of static word vectors.

The layers of a frozen ELMo are computed once per sentence and model and stored in float16, which rounds a number in its
fourth digit; a batch is read from the mapped files (storage/vectors.py) into one padded float32 tensor. The layers of a
model that is trained too are computed for each batch.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from elmokit.elmo import Elmo
from elmokit.errors import ElmoError
from elmokit.storage.cache import cache_folder, key_of
from elmokit.storage.vectors import Place, StoredLayers, VectorBlock, VectorStore
from elmokit.tasks.options import TaskOptions
from elmokit.tasks.reading import Tokens
from elmokit.text.word_vectors import VectorFile

FeatureProgress = Callable[[int, int], None]
"""Called with the number of sentences computed so far and the number to compute."""
WordVectorTable = tuple[Sequence[str], NDArray[np.float32]]
"""Static vectors in memory: words, and vectors [V, size]."""
PADDING, UNKNOWN = 0, 1
_SPECIALS = 2
_UNKNOWN_NAMES = ("<unk>", "<UNK>", "<oov>", "<OOV>", "[UNK]", "unk")
_WORD_DROPOUT = 0.05
"""Share of the words that training replaces by the unknown word, so that its vector is learned."""
MOST_NUMBERS = 50_000_000
"""Size of the part of a vector file that is always read (200 MB); later words only if the training text has them."""

_TOKENS_PER_EXAMPLE = 64
"""A batch has at most this number of tokens per example it should have; longer examples come in smaller batches."""
_POOL = 50
"""Batches that are sorted by length together: enough for little padding, few enough for a random order."""


@dataclass(frozen=True, eq=False)
class SentenceBatch:
    """B sentences of at most T words, padded; one of `layers` and `words` may be missing."""

    layers: Tensor | None
    """[L+1, B, T, D]: the layers of ELMo; [1, B, T, D] is enough for a task that only reads layer 0."""
    words: Tensor | None
    """[B, T]: rows of the table of static vectors."""
    lengths: Tensor
    """[B]: words per sentence; on the CPU, where packing needs them."""

    @property
    def mask(self) -> Tensor:
        """True for words and False for padding, [B, T], on the device of the batch."""
        given = self.words if self.layers is None else self.layers[0, :, :, 0]
        assert given is not None
        return (torch.arange(given.shape[1]) < self.lengths.unsqueeze(1)).to(given.device)

    def to(self, device: torch.device | str) -> SentenceBatch:
        """The same on a device; the lengths stay on the CPU."""
        layers, words = (None if part is None else part.to(device) for part in (self.layers, self.words))
        return SentenceBatch(layers, words, self.lengths.cpu())


class ExampleInputs:
    """Batches of some examples by number; `sides` are their sentences, one list, or two lists for pairs."""

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
        """`store`: compute all vectors now and store them in the cache; otherwise each batch runs ELMo."""
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
        """The sentences of some examples, one batch per side."""
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
    """Numbers of examples in batches of at most `size`, similar lengths together; sorted by length without `shuffle`.

    This is what a batch sampler of torch's DataLoader would do; the rest of that class would add nothing, since the
    vectors are read from mapped files.
    """
    order = list(range(len(lengths)))
    pool = _POOL * size if shuffle else len(order) or 1
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
    """The layers of the sentences, read from the cache; those that are not in it are computed and stored first.

    The cache is features/ in the folder that ELMOKIT_CACHE names, or in ~/.cache/elmokit. With `layer_0` only that
    layer is returned, which is quick: sentences that are not in the cache are computed word by word and not stored.

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
        compute = partial(_block, elmo, distinct, dtype, batch_tokens)
        found = store.complete(rows, compute, dtype=dtype, progress=progress)
    return StoredLayers([found[key] for key in keys], layers=0 if layer_0 else n_layers, width=width, words=True)


def live_layers(elmo: Elmo, sentences: Sequence[Tokens]) -> tuple[Tensor, Tensor]:
    """Sentences → layers [L+1, B, T, D] in float32 on the model's device and lengths [B]; nothing is stored.

    The result is differentiable if the model is trainable.
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
    keys: Sequence[bytes],
    note: Callable[[int], None],
) -> VectorBlock:
    """The vectors of the sentences of some keys, layer 0 once for each different word."""
    wanted = {key: sentences[key] for key in keys}
    numbers, word_rows = _numbered(wanted)
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
def _word_vectors(elmo: Elmo, sentences: Mapping[bytes, Tokens], dtype: torch.dtype) -> dict[bytes, Place]:
    """Layer 0 alone, rounded as the stored layers are, so that the cache changes no result."""
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
    """On the CPU in a dtype; numbers that are too large for it become the largest it has."""
    largest = torch.finfo(dtype).max
    return values.clamp(-largest, largest).to(dtype).cpu()


class StaticVectors(nn.Module):
    """A table of word vectors: `words` in the order of their rows, the first `n_trained` learnable.

    Row 0 is padding and row 1 the unknown word. A word that is not in the table takes the row of its lower-cased form,
    or the unknown word's. Words of the training sentences come first and are trained; the other words of a file are
    not, since no gradient could reach them, but later texts may have them. The constructor makes a table of zeros, to
    load saved weights into; `train_from`, `read` and `given` make one to train a task with.
    """

    fixed: Tensor
    """The rows that are not trained."""

    def __init__(self, words: Sequence[str], *, size: int, n_trained: int, frozen: bool = False) -> None:
        super().__init__()
        self.words = list(words)
        self.size, self.n_trained, self.frozen = size, n_trained, frozen
        self.note = ""
        """How much of the training text a file covers, in a sentence for people."""
        self._rows = {word: row for row, word in enumerate(self.words, _SPECIALS)}
        weight = torch.zeros(n_trained + _SPECIALS, size)
        self.trained = nn.Embedding(len(weight), size, padding_idx=PADDING, _weight=weight)
        self.trained.weight.requires_grad_(not frozen)
        self.register_buffer("fixed", torch.zeros(len(self.words) - n_trained, size))

    @classmethod
    def for_task(
        cls, options: TaskOptions, given: WordVectorTable | None, sentences: Sequence[Sequence[str]]
    ) -> StaticVectors | None:
        """The table that the options ask for; vectors in memory are preferred to `options.static`."""
        if given is not None:
            return cls.given(given, sentences, frozen=options.static_frozen)
        if options.static == "none":
            return None
        if options.static == "train":
            size, min_count = options.static_size, options.static_min_count
            return cls.train_from(sentences, size=size, min_count=min_count, seed=options.seed)
        return cls.read(Path(options.static), sentences, frozen=options.static_frozen)

    @classmethod
    def train_from(cls, sentences: Iterable[Sequence[str]], *, size: int, min_count: int = 1, seed: int = 0) -> Self:
        """A random table to train, of the words that occur at least min_count times."""
        counts = _counts(sentences)
        words = [word for word, count in counts.most_common() if count >= min_count]
        table = cls(words, size=size, n_trained=len(words))
        spread = (3 / size) ** 0.5  # vectors of length about 1
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            table.trained.weight[UNKNOWN:].uniform_(-spread, spread, generator=generator)
        return table

    @classmethod
    def read(cls, path: Path, sentences: Iterable[Sequence[str]], *, frozen: bool = False) -> Self:
        """The vectors of a word2vec, GloVe or fastText file: its first words, and all that the sentences have."""
        counts = _counts(sentences)
        needed = {*counts, *(word.lower() for word in counts), *_UNKNOWN_NAMES}
        words: list[str] = []
        rows: list[NDArray[np.float32]] = []
        with VectorFile(path) as file:
            bound = MOST_NUMBERS // file.size
            for word, row in file.rows(lambda word: len(words) < bound or word in needed):
                words.append(word)
                rows.append(row)
        if not words:
            raise ElmoError(f"{path} has no word vectors that can be read: get it again")
        return cls._arranged(words, np.stack(rows), counts, frozen=frozen, where=str(path))

    @classmethod
    def given(cls, table: WordVectorTable, sentences: Iterable[Sequence[str]], *, frozen: bool = False) -> Self:
        """Vectors in memory; of equal words the first counts."""
        words, vectors = table
        if vectors.ndim != 2 or len(vectors) != len(words) or not len(words) or not vectors.shape[1]:
            raise ElmoError(
                f"static vectors must have the shape (words, size), got {vectors.shape} for {len(words):,} words"
            )
        if not np.isfinite(vectors).all():
            raise ElmoError("static vectors must be finite numbers, got NaN or infinity among them")
        first: dict[str, int] = {}
        for place, word in enumerate(words):
            first.setdefault(word, place)
        rows = np.asarray(vectors, dtype=np.float32)[[*first.values()]]
        return cls._arranged([*first], rows, _counts(sentences), frozen=frozen, where="the vectors given")

    @classmethod
    def _arranged(
        cls, words: list[str], vectors: NDArray[np.float32], counts: Counter[str], *, frozen: bool, where: str
    ) -> Self:
        """A table that begins with the words of the training text."""
        known = set(words)
        used = {word if word in known else word.lower() for word in counts}
        order = np.array([word not in used for word in words]).argsort(kind="stable")
        n_trained = len(used & known)
        table = cls([words[place] for place in order], size=vectors.shape[1], n_trained=n_trained, frozen=frozen)
        table.note = _coverage(counts, known, where)
        if not n_trained:
            raise ElmoError(
                f"none of the {len(counts):,} words of the training text is among the {len(words):,} of {where}: give "
                "vectors of the same language, cut into words in the same way"
            )
        ordered = torch.from_numpy(vectors[order])
        named = [words.index(name) for name in _UNKNOWN_NAMES if name in known]
        unknown = vectors[named[0]] if named else vectors.mean(axis=0)
        with torch.no_grad():
            table.trained.weight[UNKNOWN] = torch.from_numpy(unknown)
            table.trained.weight[_SPECIALS:] = ordered[:n_trained]
            table.fixed.copy_(ordered[n_trained:])
        return table

    def row(self, word: str) -> int:
        """The row of a word, of its lower-cased form, or of the unknown word."""
        row = self._rows.get(word)
        return self._rows.get(word.lower(), UNKNOWN) if row is None else row

    def ids(self, sentences: Sequence[Sequence[str]]) -> Tensor:
        """Sentences → rows [B, T], padded."""
        return padded_rows([[self.row(word) for word in sentence] for sentence in sentences])

    def forward(self, ids: Tensor) -> Tensor:
        """Rows [B, T] → [B, T, size], zeros at padding; training replaces some words by the unknown word."""
        if self.training and not self.frozen:
            dropped = (torch.rand(ids.shape, device=ids.device) < _WORD_DROPOUT) & (ids != PADDING)
            ids = ids.masked_fill(dropped, UNKNOWN)
        n_first = self.n_trained + _SPECIALS
        vectors: Tensor = self.trained(ids.clamp(max=n_first - 1))
        if not len(self.fixed):
            return vectors
        beyond = ids >= n_first
        return torch.where(beyond.unsqueeze(-1), self.fixed[(ids - n_first).clamp(min=0)], vectors)


def padded_rows(rows: Sequence[Sequence[int]]) -> Tensor:
    """Numbers of each sentence → [B, T], with 0 at padding."""
    width = max(map(len, rows), default=0)
    padded = [[*row, *[PADDING] * (width - len(row))] for row in rows]
    return torch.tensor(padded, dtype=torch.long).reshape(len(rows), width)


def _counts(sentences: Iterable[Sequence[str]]) -> Counter[str]:
    return Counter(word for sentence in sentences for word in sentence)


def _coverage(counts: Counter[str], known: set[str], where: str) -> str:
    """How much of the training text has a vector, in a sentence for people."""
    lowered = [word for word in counts if word not in known and word.lower() in known]
    missing = [word for word, _ in counts.most_common() if word not in known and word.lower() not in known]
    found, tokens = len(counts) - len(missing), counts.total() - sum(counts[word] for word in missing)
    text = (
        f"{found:,} of the {len(counts):,} words of the training text have a vector in {where} "
        f"({_percent(found, len(counts))} of the words, {_percent(tokens, counts.total())} of the text)"
    )
    if lowered:
        text += f", {len(lowered):,} of them in lower case"
    if missing:
        text += f"; without one: {' '.join(missing[:5])}" + (" ..." if len(missing) > 5 else "")
    return text


def _percent(part: int, whole: int) -> str:
    # Never 100 % while a word is missing.
    return f"{int(1000 * part / max(whole, 1)) / 10:g} %"

"""Static word vectors of a task network: trained with the task, from GloVe, or from a file.

glove-6b-50d/ next to this file contains GloVe's vectors of frequent English words; its README names their source.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file
from torch import Tensor, nn

from elmokit.errors import ElmoError
from elmokit.tasks.options import TaskOptions
from elmokit.text.word_vectors import VectorFile

WordVectorTable = tuple[Sequence[str], NDArray[np.float32]]
"""Static vectors in memory: the words, and their vectors [V, size]."""
PADDING, UNKNOWN = 0, 1
_SPECIALS = 2
_UNKNOWN_NAMES = ("<unk>", "<UNK>", "<oov>", "<OOV>", "[UNK]", "unk")
_WORD_DROPOUT = 0.05
"""Share of the words that training replaces by the unknown word, so that the vector of the unknown word is learned."""
MAX_VALUES = 50_000_000
"""Number of values to read from the start of a vector file (200 MB); of the rest, only words of the training text."""
GLOVE = Path(__file__).with_name("glove-6b-50d")
_MIN_GLOVE_SHARE = 0.8
"""Share of the tokens of the training text that GloVe must have for `static="auto"` to choose it.

The share was 91 to 99 % for English texts, and 44 to 72 % for manual pages in seven other European languages.
"""


class StaticVectors(nn.Module):
    """A table of word vectors: `words` in the order of their rows, of which the first `n_trained` are trained.

    Row 0 is padding and row 1 the unknown word. A word that is not in the table has the row of its lower-cased form or
    of the unknown word. Words of the training sentences come first and are trained. The other words of a file are for
    later texts; training would never change them. The constructor makes a table of zeros to load saved weights into;
    `random`, `read` and `from_table` make one to train a task with.
    """

    fixed: Tensor
    """The rows that are not trained."""

    def __init__(self, words: Sequence[str], *, size: int, n_trained: int, frozen: bool = False) -> None:
        super().__init__()
        self.words = list(words)
        self.size, self.n_trained, self.frozen = size, n_trained, frozen
        self.note = ""
        """A message that says how much of the training text has a vector in the file."""
        self._rows = {word: row for row, word in enumerate(self.words, _SPECIALS)}
        weight = torch.zeros(n_trained + _SPECIALS, size)
        self.trained = nn.Embedding(len(weight), size, padding_idx=PADDING, _weight=weight)
        self.trained.weight.requires_grad_(not frozen)
        self.register_buffer("fixed", torch.zeros(len(self.words) - n_trained, size))

    @classmethod
    def for_task(
        cls, options: TaskOptions, table: WordVectorTable | None, sentences: Sequence[Sequence[str]]
    ) -> StaticVectors | None:
        """The static vectors that the options select; a `table` in memory takes precedence over `options.static`."""
        if table is not None:
            return cls.from_table(table, sentences, frozen=options.static_frozen)
        if options.static_file is not None:
            return cls.read(Path(options.static_file), sentences, frozen=options.static_frozen)
        if options.static == "none":
            return None
        if options.static == "glove" or (options.static == "auto" and _glove_fits(sentences)):
            return cls.from_table(glove(), sentences, frozen=options.static_frozen, where="GloVe")
        size, min_count = options.static_size, options.static_min_count
        return cls.random(sentences, size=size, min_count=min_count, seed=options.seed)

    @classmethod
    def random(cls, sentences: Iterable[Sequence[str]], *, size: int, min_count: int = 1, seed: int = 0) -> Self:
        """Random vectors to train, for the words that occur at least `min_count` times."""
        counts = _count_words(sentences)
        words = [word for word, count in counts.most_common() if count >= min_count]
        table = cls(words, size=size, n_trained=len(words))
        spread = (3 / size) ** 0.5  # vectors of length about 1
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            table.trained.weight[UNKNOWN:].uniform_(-spread, spread, generator=generator)
        return table

    @classmethod
    def read(cls, path: Path, sentences: Iterable[Sequence[str]], *, frozen: bool = False) -> Self:
        """Vectors from a word2vec, GloVe or fastText file: of its first words and of all words of the sentences."""
        counts = _count_words(sentences)
        needed = {*counts, *(word.lower() for word in counts), *_UNKNOWN_NAMES}
        words: list[str] = []
        rows: list[NDArray[np.float32]] = []
        with VectorFile(path) as file:
            n_first = MAX_VALUES // file.size
            for word, row in file.rows(lambda word: len(words) < n_first or word in needed):
                words.append(word)
                rows.append(row)
        if not words:
            raise ElmoError(f"{path} has no readable word vectors: get the file again")
        return cls._from_vectors(words, np.stack(rows), counts, frozen=frozen, where=str(path))

    @classmethod
    def from_table(
        cls,
        table: WordVectorTable,
        sentences: Iterable[Sequence[str]],
        *,
        frozen: bool = False,
        where: str = "the vectors given",
    ) -> Self:
        """Vectors from a table in memory; if a word occurs twice, its first vector is used."""
        words, vectors = table
        if vectors.ndim != 2 or len(vectors) != len(words) or not len(words) or not vectors.shape[1]:
            raise ElmoError(
                f"static vectors must have the shape (words, size), got {vectors.shape} for {len(words):,} words"
            )
        if not np.isfinite(vectors).all():
            raise ElmoError("static vectors must be finite numbers, got some that are NaN or infinite")
        first: dict[str, int] = {}
        for index, word in enumerate(words):
            first.setdefault(word, index)
        rows = np.asarray(vectors, dtype=np.float32)[[*first.values()]]
        return cls._from_vectors([*first], rows, _count_words(sentences), frozen=frozen, where=where)

    @classmethod
    def _from_vectors(
        cls, words: list[str], vectors: NDArray[np.float32], counts: Counter[str], *, frozen: bool, where: str
    ) -> Self:
        """The table with the words of the training text first; `counts` are the counts of these words."""
        known = set(words)
        used = {word if word in known else word.lower() for word in counts}
        order = np.array([word not in used for word in words]).argsort(kind="stable")
        n_trained = len(used & known)
        table = cls([words[index] for index in order], size=vectors.shape[1], n_trained=n_trained, frozen=frozen)
        table.note = _coverage(counts, known, where)
        if not n_trained:
            raise ElmoError(
                f"none of the {len(counts):,} words of the training text is among the {len(words):,} of {where}: give "
                "vectors of the same language and tokenisation"
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
        """The rows of the words of the sentences, [B, T], padded."""
        return padded_rows([[self.row(word) for word in sentence] for sentence in sentences])

    def forward(self, ids: Tensor) -> Tensor:
        """The vectors [B, T, size] of rows [B, T], 0 at padding; training replaces some words by the unknown word."""
        if self.training and not self.frozen:
            dropped = (torch.rand(ids.shape, device=ids.device) < _WORD_DROPOUT) & (ids != PADDING)
            ids = ids.masked_fill(dropped, UNKNOWN)
        n_first = self.n_trained + _SPECIALS
        vectors: Tensor = self.trained(ids.clamp(max=n_first - 1))
        if not len(self.fixed):
            return vectors
        is_fixed = ids >= n_first
        return torch.where(is_fixed.unsqueeze(-1), self.fixed[(ids - n_first).clamp(min=0)], vectors)


@cache
def glove() -> WordVectorTable:
    """The GloVe vectors in the package, rounded to float16 so that a saved task model stores them exactly."""
    words = (GLOVE / "words.txt").read_text("utf-8").splitlines()
    tensors = load_file(GLOVE / "vectors.safetensors")
    vectors = tensors["values"] * tensors["scales"].astype(np.float32)[:, None]
    return words, vectors.astype(np.float16).astype(np.float32)


def _glove_fits(sentences: Iterable[Sequence[str]]) -> bool:
    counts, known = _count_words(sentences), set(glove()[0])
    found = sum(count for word, count in counts.items() if word.lower() in known)
    return found >= _MIN_GLOVE_SHARE * counts.total()


def padded_rows(rows: Sequence[Sequence[int]]) -> Tensor:
    """The rows as one tensor [B, T], padded with 0."""
    width = max(map(len, rows), default=0)
    padded = [[*row, *[PADDING] * (width - len(row))] for row in rows]
    return torch.tensor(padded, dtype=torch.long).reshape(len(rows), width)


def _count_words(sentences: Iterable[Sequence[str]]) -> Counter[str]:
    return Counter(word for sentence in sentences for word in sentence)


def _coverage(counts: Counter[str], known: set[str], where: str) -> str:
    """A message that says how much of the training text has a vector."""
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
    # Rounded down, so that it is below 100 % while a word is missing.
    return f"{int(1000 * part / max(whole, 1)) / 10:g} %"

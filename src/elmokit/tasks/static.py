"""Static word vectors beside ELMo: a table trained from nothing, or one that was given, looked up by word.

Row 0 is padding and row 1 the unknown word. A word that is not in the table takes the row of its lower-cased form, or
else the unknown word's. Rows of words that the training sentences have come first and are trained; what a file holds
beyond them is kept as it is, for the texts of later, since no gradient could reach it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from elmokit.errors import ElmoError
from elmokit.text.word_vectors import VectorFile

PADDING, UNKNOWN = 0, 1
_SPECIALS = 2
_UNKNOWN_NAMES = ("<unk>", "<UNK>", "<oov>", "<OOV>", "[UNK]", "unk")
_WORD_DROPOUT = 0.05
"""Share of the words that training takes for unknown, so that the unknown word's vector is learned."""
MOST_NUMBERS = 50_000_000
"""Of a file the first words up to so many numbers are kept (200 MB), and any others that the training text has."""


class StaticVectors(nn.Module):
    """A word table of `size` numbers a word: `words` in the order of their rows, the first `n_trained` learnable.

    The constructor makes a table of zeros, to load saved weights into: `words`, `size`, `n_trained` and `frozen` are
    what it takes to build the same again. `train_from`, `read` and `given` make one to train a task with.
    """

    kept: Tensor

    def __init__(self, words: Sequence[str], *, size: int, n_trained: int, frozen: bool = False) -> None:
        super().__init__()
        self.words = list(words)
        self.size, self.n_trained, self.frozen = size, n_trained, frozen
        self.note = ""
        """What was found in a file, in a sentence for people."""
        self._rows = {word: row for row, word in enumerate(self.words, _SPECIALS)}
        self.trained = nn.Embedding(
            n_trained + _SPECIALS, size, padding_idx=PADDING, _weight=torch.zeros(n_trained + _SPECIALS, size)
        )
        self.trained.weight.requires_grad_(not frozen)
        self.register_buffer("kept", torch.zeros(len(self.words) - n_trained, size))

    @classmethod
    def train_from(cls, sentences: Iterable[Sequence[str]], *, size: int, min_count: int = 1, seed: int = 0) -> Self:
        """A table to train from nothing, of the words that occur at least min_count times."""
        counts = _counts(sentences)
        words = [word for word, count in counts.most_common() if count >= min_count]
        table = cls(words, size=size, n_trained=len(words))
        spread = (3 / size) ** 0.5  # vectors of length about 1
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            table.trained.weight[UNKNOWN:].uniform_(-spread, spread, generator=generator)
        return table

    @classmethod
    def read(
        cls,
        path: Path,
        sentences: Iterable[Sequence[str]],
        *,
        frozen: bool = False,
        most_numbers: int = MOST_NUMBERS,
    ) -> Self:
        """The vectors of a word2vec, GloVe or fastText file; `sentences` are what the task is trained on.

        The first words of the file are kept, up to most_numbers numbers, and all that the sentences have.
        """
        counts = _counts(sentences)
        needed = {*counts, *(word.lower() for word in counts), *_UNKNOWN_NAMES}
        words: list[str] = []
        rows: list[NDArray[np.float32]] = []
        with VectorFile(path) as file:
            bound = most_numbers // file.size
            for word, row in file.rows(lambda word: len(words) < bound or word in needed):
                words.append(word)
                rows.append(row)
            if not words:
                raise ElmoError(f"{path} holds no word vectors that can be read: get it again")
            return cls._arranged(words, np.stack(rows), counts, frozen=frozen, where=str(path))

    @classmethod
    def given(
        cls,
        words: Sequence[str],
        vectors: NDArray[np.floating],
        sentences: Iterable[Sequence[str]],
        *,
        frozen: bool = False,
    ) -> Self:
        """Vectors that are in memory: words, and vectors [V, size] in the same order; of equal words the first counts.

        table = StaticVectors.given(["bank", "river"], np.random.randn(2, 50), [("the", "bank")])
        """
        if vectors.ndim != 2 or len(vectors) != len(words) or not len(words) or not vectors.shape[1]:
            raise ElmoError(
                f"static vectors must have the shape (words, numbers), got {vectors.shape} for {len(words):,} words"
            )
        if not np.isfinite(vectors).all():
            raise ElmoError("static vectors must be finite numbers, got NaN or infinity among them")
        first = dict(zip(reversed(words), range(len(words) - 1, -1, -1), strict=True))
        places = sorted(first.values())
        return cls._arranged(
            [words[place] for place in places],
            np.asarray(vectors, dtype=np.float32)[places],
            _counts(sentences),
            frozen=frozen,
            where="the vectors given",
        )

    @classmethod
    def _arranged(
        cls, words: list[str], vectors: NDArray[np.float32], counts: Counter[str], *, frozen: bool, where: str
    ) -> Self:
        """A table with the words that training meets at its beginning."""
        known = set(words)
        met = {word if word in known else word.lower() for word in counts}
        order = np.array([word not in met for word in words]).argsort(kind="stable")
        n_trained = len(met & known)
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
            table.kept.copy_(ordered[n_trained:])
        return table

    def row(self, word: str) -> int:
        """The row of a word, of its lower-cased form, or of the unknown word."""
        row = self._rows.get(word)
        return self._rows.get(word.lower(), UNKNOWN) if row is None else row

    def ids(self, sentences: Sequence[Sequence[str]]) -> Tensor:
        """Sentences → rows [B, T], padded."""
        rows = [[self.row(word) for word in sentence] for sentence in sentences]
        width = max(map(len, rows), default=0)
        return torch.tensor([row + [PADDING] * (width - len(row)) for row in rows], dtype=torch.long).reshape(
            len(rows), width
        )

    def forward(self, ids: Tensor) -> Tensor:
        """Rows [B, T] → [B, T, size], zeros at padding; in training some words are taken for unknown."""
        if self.training and not self.frozen:
            taken = (torch.rand(ids.shape, device=ids.device) < _WORD_DROPOUT) & (ids != PADDING)
            ids = ids.masked_fill(taken, UNKNOWN)
        n_first = self.n_trained + _SPECIALS
        vectors: Tensor = self.trained(ids.clamp(max=n_first - 1))
        if not len(self.kept):
            return vectors
        beyond = ids >= n_first
        return torch.where(beyond.unsqueeze(-1), self.kept[(ids - n_first).clamp(min=0)], vectors)


def _counts(sentences: Iterable[Sequence[str]]) -> Counter[str]:
    return Counter(word for sentence in sentences for word in sentence)


def _coverage(counts: Counter[str], known: set[str], where: str) -> str:
    """How much of the training text has a vector, in a sentence for people."""
    as_written = [word for word in counts if word in known]
    lowered = [word for word in counts if word not in known and word.lower() in known]
    found = len(as_written) + len(lowered)
    tokens = sum(counts[word] for word in (*as_written, *lowered))
    text = (
        f"{found:,} of the {len(counts):,} words of the training text have a vector in {where} "
        f"({_percent(found, len(counts))} of the words, {_percent(tokens, counts.total())} of the text)"
    )
    if lowered:
        text += f", {len(lowered):,} of them in lower case"
    missing = [word for word, _ in counts.most_common() if word not in known and word.lower() not in known]
    if missing:
        text += f"; without one: {' '.join(missing[:5])}" + (" ..." if len(missing) > 5 else "")
    return text


def _percent(part: int, whole: int) -> str:
    # Never 100 % while a word is missing.
    return f"{int(1000 * part / max(whole, 1)) / 10:g} %"

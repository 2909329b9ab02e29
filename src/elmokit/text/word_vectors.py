"""Static word vectors for a model with a word table: aligned to its vocabulary by word, with a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import ElmoError
from elmokit.text.vector_file import Floats, VectorFile, VectorFormat
from elmokit.text.vocab import Vocabulary

# What other systems call `<S>`, `</S>` and `<UNK>`; the first one in the file is used.
_OTHER_NAMES = (
    ("<S>", "<s>", "<bos>", "<BOS>", "[BOS]"),
    ("</S>", "</s>", "<eos>", "<EOS>", "[EOS]"),
    ("<UNK>", "<unk>", "<oov>", "<OOV>", "[UNK]"),
)
_EXAMPLES = 5
_NOT_FOUND = 127


@dataclass(frozen=True)
class Alignment:
    """Word vectors in the order of a vocabulary. Coverage counts words, not `<S>`, `</S>` and `<UNK>`."""

    matrix: Floats
    """float32 [V, size]; zeros for words that are not in the file."""
    found: NDArray[np.bool_]
    """[V]: which rows come from the file."""
    format: VectorFormat
    """The format of the file."""
    n_words_in_file: int
    """Words in the whole file."""
    n_unreadable: int
    """Words of the file that are not UTF-8."""
    n_words: int
    """Words of the vocabulary, without the three specials."""
    n_found: int
    """Those of them that have a row, in their own case or another."""
    n_other_case: int
    """Those of n_found whose row comes from the word in another case."""
    specials: dict[str, str]
    """The specials that have a row, and the name under which the file has it."""
    token_coverage: float | None
    """The share of the text's words that have a row; None without counts."""
    missing: tuple[str, ...]
    """The first few words of the vocabulary without a row, the most frequent ones."""

    @property
    def coverage(self) -> float:
        """The share of the vocabulary's words that have a row."""
        return self.n_found / self.n_words

    def report(self) -> str:
        """One sentence that says how many words were found."""
        shares = _percent(self.coverage) + " of the words"
        if self.token_coverage is not None:
            shares += f", {_percent(self.token_coverage)} of the text"
        text = f"{self.n_found:,} of {self.n_words:,} words have a vector in the {self.format} file ({shares})"
        if self.n_other_case:
            text += f", {self.n_other_case:,} of them from another case"
        if self.missing:
            text += f"; without one: {' '.join(self.missing)}"
            if self.n_words - self.n_found > len(self.missing):
                text += " ..."
        if self.n_unreadable:
            text += f"; {self.n_unreadable:,} words of the file are not UTF-8"
        return text


def align(
    vocab: Vocabulary,
    path: Path,
    *,
    size: int,
    counts: Sequence[int] | None = None,
    fallback_case: bool = False,
    size_option: str = "words.embedding_size",
) -> Alignment:
    """The file's vectors as rows [V, size] of the vocabulary's words.

    A special under another usual name (`<unk>` for `<UNK>`) counts as found. With `fallback_case` a word that is not in
    the file takes the vector of its lower-cased, capitalised or upper-cased form, the first of these in the file.
    `counts` [V] are the words' numbers of occurrences; `size_option` is the option that an error about the size names.
    """
    if counts is not None and len(counts) != len(vocab):
        raise ElmoError(f"counts must be one for each of the {len(vocab):,} words, got {len(counts):,}")
    if not set(vocab) - set(vocab.specials):
        raise ElmoError("word vectors need a vocabulary with words in it, got one without")
    with VectorFile(path) as file:
        if file.size != size:
            raise ElmoError(
                f"word vectors must have the {size} numbers of the model's words, got {file.size} in {path}: set "
                f"{size_option} to {file.size}, or give vectors of {size}"
            )
        # Of each name in the file: the vocabulary's rows it can fill, and how far it is from the row's own name.
        uses: dict[str, list[tuple[int, int]]] = {}
        for index, word in enumerate(vocab):
            for distance, name in enumerate(_names(word, vocab, fallback_case=fallback_case)):
                uses.setdefault(name, []).append((index, distance))
        matrix = np.zeros((len(vocab), size), dtype=np.float32)
        nearest = np.full(len(vocab), _NOT_FOUND, dtype=np.int8)
        for name, row in file.rows(uses):
            for index, distance in uses[name]:
                if distance < nearest[index]:
                    matrix[index], nearest[index] = row, distance
    return _summed_up(vocab, path, file, matrix, nearest, counts)


def _names(word: str, vocab: Vocabulary, *, fallback_case: bool) -> Iterator[str]:
    """The names under which the file may have a word, the best one first, each once."""
    names = [word]
    if word in vocab.specials:
        names += _OTHER_NAMES[vocab.specials.index(word)]
    elif fallback_case:
        names += [word.lower(), word.capitalize(), word.upper()]
    return iter(dict.fromkeys(names))


def _summed_up(
    vocab: Vocabulary,
    path: Path,
    file: VectorFile,
    matrix: Floats,
    nearest: NDArray[np.int8],
    counts: Sequence[int] | None,
) -> Alignment:
    found = nearest != _NOT_FOUND
    ordinary = np.array([word not in vocab.specials for word in vocab])
    n_found = int((found & ordinary).sum())
    if not n_found:
        raise ElmoError(
            f"none of the {int(ordinary.sum()):,} words of the vocabulary is among the {file.n_words:,} of {path}: "
            "give vectors of the same language, cut into words in the same way"
        )
    token_coverage = None
    if counts is not None and (total := int(np.asarray(counts)[ordinary].sum())):
        token_coverage = int(np.asarray(counts)[ordinary & found].sum()) / total
    specials = {
        word: list(_names(word, vocab, fallback_case=False))[nearest[index]]
        for index, word in enumerate(vocab)
        if word in vocab.specials and found[index]
    }
    return Alignment(
        matrix=matrix,
        found=found,
        format=file.format,
        n_words_in_file=file.n_words,
        n_unreadable=file.n_unreadable,
        n_words=int(ordinary.sum()),
        n_found=n_found,
        n_other_case=int((found & ordinary & (nearest > 0)).sum()),
        specials=specials,
        token_coverage=token_coverage,
        missing=tuple(vocab[int(index)] for index in np.flatnonzero(ordinary & ~found)[:_EXAMPLES]),
    )


def _percent(share: float) -> str:
    # Never 100 % while a word is missing.
    return f"{int(share * 1000) / 10:g} %"

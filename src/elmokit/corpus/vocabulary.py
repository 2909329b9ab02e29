"""Counts of a prepared corpus → a vocabulary, written as bilm-tf's vocab.txt."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np

from elmokit.corpus.prepared import SPECIALS, PreparedCorpus
from elmokit.errors import ElmoError
from elmokit.storage.atomic import write_text
from elmokit.text.vocab import SKIPPED_LINE, UNKNOWN, Vocabulary


def build_vocabulary(corpus: PreparedCorpus, *, max_size: int | None = None, min_count: int = 1) -> Vocabulary:
    """`<S>`, `</S>`, `<UNK>`, then the other types, most frequent first, equal counts in the order of first appearance.

    max_size includes the special words. Words that occur fewer than min_count times are left out, and the few that
    vocab.txt cannot store.
    """
    if max_size is not None and max_size <= len(SPECIALS):
        raise ElmoError(f"max_size must be more than {len(SPECIALS)}, the special words that it counts, got {max_size}")
    if min_count < 1:
        raise ElmoError(f"min_count must be at least 1, got {min_count}")
    counts = np.asarray(corpus.counts[len(SPECIALS) :])
    order = np.argsort(-counts, kind="stable")
    order = order[: int(np.count_nonzero(counts >= min_count))]
    words = (corpus.type_text(int(index) + len(SPECIALS)) for index in order)
    rest = None if max_size is None else max_size - len(SPECIALS)
    return Vocabulary([*SPECIALS, *islice(filter(_can_be_stored, words), rest)])


def write_vocabulary(vocabulary: Vocabulary, path: Path) -> None:
    """Write vocab.txt as bilm-tf reads it, atomically."""
    vocabulary.require_specials()
    write_text(path, vocabulary.to_text())


def coverage(corpus: PreparedCorpus, vocabulary: Vocabulary) -> float:
    """The fraction of the corpus's tokens that are in the vocabulary; a token `<UNK>` does not count."""
    inside = np.fromiter((text in vocabulary for text in corpus.type_texts()), np.bool_, corpus.n_types)
    inside[SPECIALS.index(UNKNOWN)] = False
    return float(corpus.counts[inside].sum() / max(1, corpus.n_tokens))


def _can_be_stored(word: str) -> bool:
    """Whether the word is the same after vocab.txt is read, which strips lines and skips one word."""
    return word == word.strip() and word not in ("", SKIPPED_LINE) and "\n" not in word

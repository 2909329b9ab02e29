"""The vocabulary of a prepared corpus: special words first, then by falling counts; written as bilm-tf's vocab.txt."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np

from elmokit.corpus.building import SPECIALS
from elmokit.corpus.prepared import PreparedCorpus
from elmokit.errors import ElmoError
from elmokit.storage.atomic import write_text
from elmokit.text.vocab import SKIPPED_LINE, UNKNOWN, Vocabulary


def build_vocabulary(corpus: PreparedCorpus, *, max_size: int | None = None, min_count: int = 1) -> Vocabulary:
    """`<S>`, `</S>`, `<UNK>`, then the types by falling counts, equal ones in the order of first appearance.

    max_size counts the special words; words seen fewer than min_count times are left out, as are the few that a
    vocab.txt could not give back.
    """
    if max_size is not None and max_size <= len(SPECIALS):
        raise ElmoError(f"max_size must be more than {len(SPECIALS)}, the special words that it counts, got {max_size}")
    if min_count < 1:
        raise ElmoError(f"min_count must be at least 1, got {min_count}")
    counts = np.asarray(corpus.counts[len(SPECIALS) :])
    order = np.argsort(-counts, kind="stable")
    order = order[: int(np.count_nonzero(counts >= min_count))]
    words = (corpus.type_text(int(place) + len(SPECIALS)) for place in order)
    rest = None if max_size is None else max_size - len(SPECIALS)
    return Vocabulary([*SPECIALS, *islice(filter(_survives, words), rest)])


def write_vocabulary(vocabulary: Vocabulary, path: Path) -> None:
    """Write vocab.txt as bilm-tf reads it, whole or not at all."""
    vocabulary.require_specials()
    write_text(path, vocabulary.to_text())


def coverage(corpus: PreparedCorpus, vocabulary: Vocabulary) -> float:
    """The share of the corpus's tokens that the vocabulary has a word for; `<UNK>` in the text is not one."""
    inside = np.fromiter((text in vocabulary for text in corpus.type_texts()), np.bool_, corpus.n_types)
    inside[SPECIALS.index(UNKNOWN)] = False
    return float(corpus.counts[inside].sum() / max(1, corpus.n_tokens))


def _survives(word: str) -> bool:
    """Whether a reader of vocab.txt, which strips lines and leaves one out, gives the word back."""
    return word == word.strip() and word not in ("", SKIPPED_LINE) and "\n" not in word

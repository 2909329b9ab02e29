"""Senses: the occurrences of a word in clusters, with the sentences and the words that are typical of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elmokit.analyse.clusters import Clustering, cluster
from elmokit.analyse.index import Occurrence, OccurrenceIndex, Rows
from elmokit.analyse.index_text import in_pieces
from elmokit.analyse.plane import sense_plane
from elmokit.analyse.vectors import Floats, normalised
from elmokit.errors import ElmoError

_REACH = 8
"""Tokens on each side of a word that count as its context."""
_TYPICAL = 8
_EXAMPLES = 5
_SEEN = 2
"""A typical word is in at least this number of contexts of its cluster."""
_LIFT, _LIFT_OF_COMMON = 1.5, 600.0
"""And so many times as often as elsewhere, more by the second number times its share of all tokens: `of` is common."""


@dataclass(frozen=True)
class Sense:
    """A cluster of occurrences."""

    rows: tuple[int, ...]
    """Rows of the index, those nearest to the centre of the cluster first, each sentence once."""
    size: int
    examples: tuple[Occurrence, ...]
    """The first few of them in their sentences."""
    typical: tuple[str, ...]
    """Words that stand near the word more often here than in the other clusters, the most typical first."""


@dataclass(frozen=True, eq=False)
class Senses:
    """The occurrences of a word in clusters, the largest first."""

    word: str
    rows: Rows
    """[N] the word's rows in the index."""
    labels: NDArray[np.int64]
    """[N] the cluster of each."""
    points: NDArray[np.float64]
    """[N, 2] the occurrences in the plane in which the clusters are seen apart."""
    silhouette: float
    senses: tuple[Sense, ...]


def find_senses(
    index: OccurrenceIndex,
    word: str,
    clusters: int | None = None,
    *,
    ignore_case: bool = False,
    examples: int = _EXAMPLES,
    typical: int = _TYPICAL,
    seed: int = 1,
) -> Senses:
    """Put the occurrences of a word into clusters, as many as given or as there are from 1 to 8."""
    rows = index.rows_of(word, ignore_case=ignore_case)
    if not len(rows):
        pieces = in_pieces(word, index.text.settings.get("segment"))
        raise ElmoError(
            f"{word!r} is not in the index {index.folder}: {pieces or f'build one that has it (--words {word})'}"
        )
    vectors = index.unpacked(rows)
    found = cluster(vectors, clusters, seed=seed)
    words = _typical_words(index, rows, found, typical)
    senses = []
    for number in range(found.number):
        members = np.flatnonzero(found.labels == number)
        distinct = _distinct(index, rows[_by_nearness(vectors, members)])
        shown = tuple(index.occurrence(row) for row in distinct[:examples])
        senses.append(Sense(tuple(distinct), len(members), shown, tuple(words[number])))
    points = sense_plane(vectors.astype(np.float64), found.labels)
    return Senses(word, rows, found.labels, points, found.silhouette, tuple(senses))


def _by_nearness(vectors: Floats, members: NDArray[np.int64]) -> NDArray[np.int64]:
    """Members of a cluster, those nearest to its centre first."""
    centre = normalised(vectors[members].mean(axis=0))
    return members[np.argsort(-(vectors[members] @ centre), kind="stable")]


def _distinct(index: OccurrenceIndex, rows: Rows) -> list[int]:
    known: set[bytes] = set()
    kept = []
    for row, sentence in zip(rows.tolist(), index.sentences_of(rows).tolist(), strict=True):
        content = np.asarray(index.sentence_types(sentence)).tobytes()
        if content not in known:
            known.add(content)
            kept.append(row)
    return kept


def _typical_words(index: OccurrenceIndex, rows: Rows, found: Clustering, most: int) -> list[list[str]]:
    """For each cluster the words whose number of contexts there passes most what the other contexts lead to expect.

    With one cluster, the rest of the sentences takes the place of the others.
    """
    near, far = _context_counts(index, rows, found)
    total = near.sum(axis=0)
    texts = index.type_texts(range(len(total)))
    own = {text.casefold() for text in index.type_texts(np.unique(np.asarray(index.text.tokens[index.tokens[rows]])))}
    ordinary = np.array([any(c.isalpha() for c in text) and text.casefold() not in own for text in texts])
    lists = []
    for counts in near:
        others = far if found.number == 1 else total - counts
        surprise = _surprise(counts.astype(float), others.astype(float))
        lift = _LIFT + _LIFT_OF_COMMON * index.text.counts / index.text.n_tokens
        more = counts * max(others.sum(), 1) > lift * others * max(counts.sum(), 1)
        usable = ordinary & (counts >= _SEEN) & more
        order = np.argsort(-np.where(usable, surprise, -np.inf), kind="stable")[: int(usable.sum())]
        lists.append(_without_repeats([texts[number] for number in order[: 4 * most].tolist()])[:most])
    return lists


def _context_counts(
    index: OccurrenceIndex, rows: Rows, found: Clustering
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """In how many contexts of each cluster each type stands [K, V], and in how many sentences away from them [V]."""
    near = np.zeros((found.number, index.text.n_types), dtype=np.int64)
    far = np.zeros(index.text.n_types, dtype=np.int64)
    sentences = index.sentences_of(rows)
    for row, sentence, label in zip(rows.tolist(), sentences.tolist(), found.labels.tolist(), strict=True):
        types = np.asarray(index.sentence_types(sentence))
        start = int(index.text.ends[sentence - 1]) if sentence else 0
        place = int(index.tokens[row]) - start
        inside = np.unique(types[max(place - _REACH, 0) : place + _REACH + 1])
        near[label, inside] += 1
        far[np.setdiff1d(types, inside)] += 1
    return near, far


def _surprise(counts: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """The signed log-likelihood ratio of each word being as frequent here as elsewhere; positive: more frequent."""
    here, there = max(counts.sum(), 1.0), max(others.sum(), 1.0)
    share = (counts + others + 0.5) / (here + there)
    first = counts * np.log(np.maximum(counts, 1e-9) / (here * share))
    second = others * np.log(np.maximum(others, 1e-9) / (there * share))
    return np.asarray((first + second) * np.sign(counts / here - others / there))


def _without_repeats(words: Sequence[str]) -> list[str]:
    """Words in order, those that differ in case alone once."""
    return list({word.casefold(): word for word in reversed(words)}.values())[::-1]

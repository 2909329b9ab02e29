"""Senses of a word: clusters of its occurrences, with typical sentences and words for each cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elmokit.analyse.clusters import Clustering, cluster, cluster_plane
from elmokit.analyse.index import Occurrence, OccurrenceIndex, Rows, normalised
from elmokit.analyse.index_builder import split_word_advice
from elmokit.errors import ElmoError

_CONTEXT_TOKENS = 8
"""Number of tokens on each side of a word that are its context."""
_TYPICAL_WORDS = 8
_EXAMPLES = 5
_MIN_CONTEXTS = 2
"""Number of contexts of its cluster that must contain a typical word."""
_LIFT, _LIFT_BY_SHARE = 1.5, 600.0
"""A typical word is this many times as frequent in its cluster as elsewhere: _LIFT plus _LIFT_BY_SHARE times its share
of the text, because frequent words such as `of` need stronger evidence."""

_ENGLISH = """a about above after again against all almost along already also although always am among an and another
any are around as at away back be became because become been before being below between both but by can cannot could did
do does doing done down during each either else even ever every few first for from further gave get gets give go goes
going gone got had has have having he her here hers herself him himself his how however i if in inside instead into is
it its itself just last later least less let like made make makes many may me might mine more most much must my myself
near neither never next no nor not now of off often on once one only onto or other others our ours out outside over own
per perhaps put rather said same second see seen several shall she should since so some soon still such take taken than
that the their theirs them themselves then there therefore these they third this those though three through thus to
together too toward towards two under until up upon us used very was we well went were what when where whether which
while who whom whose why will with within without would yes yet you your yours 's 're 've 'll 'd 'm n't"""
_GERMAN = """aber alle als also am an auch auf aus bei bin bis da damit dann das dass dem den denn der des die dies
diese doch durch ein eine einem einen einer eines er es euch für hat hatte ich ihr im in ist ja kann kein man mehr
mein mit nach nicht noch nur ob oder ohne sehr sein seine sich sie sind so über um und uns unter vom von vor war was
wenn wie wir wird wurde zu zum zur zwischen"""
_FRENCH = """au aux avec ce ces cette comme dans de des du elle elles en est et eux il ils je la le les leur lui mais
même ne nous on ou où par pas plus pour qu que qui sa sans se ses son sont sous sur un une vous y été être d' l' s' n'
qu'"""
_SPANISH = """a al como con cual de del desde donde el ella ellos en entre era es esta este esto fue ha hasta la las
lo los más muy ni nos o otra otro para pero por que se ser sin sobre su sus también un una uno unos y ya"""
_CHINESE = """的 了 在 是 和 与 及 或 而 但 也 都 就 又 还 不 没 没有 有 为 以 于 之 其 此 这 那 这个 那个 这些 那些
我 你 他 她 它 我们 你们 他们 她们 被 把 从 到 向 对 对于 关于 由 因 因为 所以 如果 虽然 但是 并 并且 则 会 能 可以
可 将 已 已经 着 过 很 更 最 上 下 中 里 个 一 一个 等 啊 吗 呢 吧 年 月 日"""
_FUNCTION_WORDS = [frozenset(words.split()) for words in (_ENGLISH, _GERMAN, _FRENCH, _SPANISH, _CHINESE)]
"""Function words of each language, which say nothing about a sense."""


@dataclass(frozen=True)
class Sense:
    """A cluster of occurrences."""

    rows: tuple[int, ...]
    """Rows of the index, one per distinct sentence, those nearest to the centre of the cluster first."""
    size: int
    """The number of occurrences in the cluster."""
    examples: tuple[Occurrence, ...]
    """The occurrences of the first few rows in their sentences."""
    typical: tuple[str, ...]
    """Words that are more frequent in contexts of this cluster than of the others, the most typical first."""


@dataclass(frozen=True, eq=False)
class Senses:
    """The occurrences of a word in clusters, the largest cluster first."""

    word: str
    rows: Rows
    """[N] the word's rows in the index."""
    labels: NDArray[np.int64]
    """[N] the cluster of each occurrence, from 0."""
    points: NDArray[np.float64]
    """[N, 2] the occurrences in the plane that shows the clusters best."""
    silhouette: float
    """How well the clusters are separated, from -1 to 1; 0 for one cluster."""
    senses: tuple[Sense, ...]


def find_senses(
    index: OccurrenceIndex,
    word: str,
    clusters: int | None = None,
    *,
    ignore_case: bool = False,
    examples: int = _EXAMPLES,
    typical: int = _TYPICAL_WORDS,
    seed: int = 1,
) -> Senses:
    """Group the occurrences of a word into `clusters` clusters, by default the number that fits best, from 1 to 8."""
    rows = index.rows_of(word, ignore_case=ignore_case)
    if not len(rows):
        advice = split_word_advice(word, index.text.settings.get("segment")) or f"build one with words {word}"
        raise ElmoError(f"{word!r} is not in the index {index.folder}: {advice}", "words")
    vectors = index.vectors_of(rows)
    found = cluster(vectors, clusters, seed=seed)
    words = _find_typical_words(index, rows, found, typical)
    senses = []
    for number in range(found.number):
        members = np.flatnonzero(found.labels == number)
        centre = normalised(vectors[members].mean(axis=0))
        nearest = rows[members[np.argsort(-(vectors[members] @ centre), kind="stable")]]
        distinct = nearest[index.distinct_sentences(nearest)].tolist()
        shown = tuple(index.occurrence(row) for row in distinct[:examples])
        senses.append(Sense(tuple(distinct), len(members), shown, tuple(words[number])))
    points = cluster_plane(vectors.astype(np.float64), found.labels)
    return Senses(word, rows, found.labels, points, found.silhouette, tuple(senses))


def _find_typical_words(index: OccurrenceIndex, rows: Rows, found: Clustering, most: int) -> list[list[str]]:
    """For each cluster, at most `most` words that are overrepresented in its contexts compared with other clusters.

    If there is only one cluster, its contexts are compared with the other parts of the sentences.
    """
    near, far = _context_counts(index, rows, found)
    total = near.sum(axis=0)
    texts = index.types
    own = {texts[number].casefold() for number in np.unique(np.asarray(index.text.tokens[index.tokens[rows]]))}
    left_out = own | _function_words(index)
    ordinary = np.array([any(c.isalpha() for c in text) and text.casefold() not in left_out for text in texts])
    lift = _LIFT + _LIFT_BY_SHARE * index.text.counts / index.text.n_tokens
    lists = []
    for counts in near:
        others = far if found.number == 1 else total - counts
        more = counts * max(others.sum(), 1) > lift * others * max(counts.sum(), 1)
        usable = ordinary & (counts >= _MIN_CONTEXTS) & more
        ratio = _log_likelihood_ratio(counts.astype(float), others.astype(float))
        order = np.argsort(-np.where(usable, ratio, -np.inf), kind="stable")[: int(usable.sum())]
        lists.append(_without_repeats([texts[number] for number in order[: 4 * most].tolist()])[:most])
    return lists


def _function_words(index: OccurrenceIndex) -> frozenset[str]:
    """The function words of the language of the text; that language is the one whose function words it has most."""
    folded = [text.casefold() for text in index.types]
    counts = index.text.counts.tolist()
    return max(
        _FUNCTION_WORDS, key=lambda words: sum(n for text, n in zip(folded, counts, strict=True) if text in words)
    )


def _context_counts(
    index: OccurrenceIndex, rows: Rows, found: Clustering
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Contexts of each cluster that contain each type [K, V], and sentences that have it outside the context [V]."""
    near = np.zeros((found.number, index.text.n_types), dtype=np.int64)
    far = np.zeros(index.text.n_types, dtype=np.int64)
    sentences = index.sentences_of(rows)
    for row, sentence, label in zip(rows.tolist(), sentences.tolist(), found.labels.tolist(), strict=True):
        types = np.asarray(index.sentence_types(sentence))
        position = int(index.tokens[row]) - index.sentence_start(sentence)
        inside = np.unique(types[max(position - _CONTEXT_TOKENS, 0) : position + _CONTEXT_TOKENS + 1])
        near[label, inside] += 1
        far[np.setdiff1d(types, inside)] += 1
    return near, far


def _log_likelihood_ratio(counts: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """The log-likelihood ratio of each word's frequency here and elsewhere, [V]; negative if it is rarer here."""
    here, there = max(counts.sum(), 1.0), max(others.sum(), 1.0)
    share = (counts + others + 0.5) / (here + there)
    first = counts * np.log(np.maximum(counts, 1e-9) / (here * share))
    second = others * np.log(np.maximum(others, 1e-9) / (there * share))
    return np.asarray((first + second) * np.sign(counts / here - others / there))


def _without_repeats(words: Sequence[str]) -> list[str]:
    """The words in order, without those that differ from an earlier word only in case."""
    return list({word.casefold(): word for word in reversed(words)}.values())[::-1]

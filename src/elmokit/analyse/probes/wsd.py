"""Word senses by nearest neighbour: a word in context gets the sense whose SemCor contexts are most like it.

For every layer, and for the mean of them: the sense whose contexts' mean vector is nearest by cosine (the paper's way),
and the sense of the one nearest context; of contexts equally near, as for a static vector all with the same word are,
the sense that most of them have. Only senses of the same lemma and part of speech are candidates.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmokit.analyse.probes.senses import Mention, SenseSentence
from elmokit.analyse.probes.sources import Source, Vectors, append_mean, source_of, with_mean
from elmokit.elmo import Elmo
from elmokit.errors import ElmoError

Entry = tuple[str, str]
"""A lemma and its part of speech."""
_SAME = 1e-6
"""Cosines nearer than this are equal: what is between them is rounding."""


@dataclass(frozen=True)
class WsdScore:
    """How good one way of choosing senses is."""

    f1: float
    """With the first sense of WordNet for lemmas that the training text lacks, where one is known."""
    unseen_wrong: float
    """The share of all words that are right when a lemma which the training text lacks counts as wrong."""


@dataclass(frozen=True)
class WsdResult:
    """Scores by layer, and of ways that look at no context."""

    centroid: dict[str, WsdScore]
    """By layer ("0" … and "mean"): the sense with the nearest mean vector."""
    nearest: dict[str, WsdScore]
    """By layer: the sense of the nearest single context, or of most of those that are equally near."""
    most_frequent: WsdScore
    """The lemma's most frequent sense in the training text."""
    first_sense: float | None
    """F1 of WordNet's first sense for every word; None without WordNet."""
    words: int
    """Words to be told apart."""
    seen: int
    """Those whose lemma and part of speech the training text has."""
    answered: int
    """Those plus the ones for which WordNet's first sense could be given."""


def probe_wsd(
    source: Elmo | Source,
    train: Sequence[SenseSentence],
    evaluation: Sequence[SenseSentence],
    *,
    first_sense: Callable[[str, str], str | None] | None = None,
) -> WsdResult:
    """Tell the senses of the evaluation's words apart by the contexts of the training text.

    `first_sense(lemma, pos)` gives a sense key for lemmas that the training text lacks, as `WordNet.first_sense` does.
    The training text is read once, as a stream: memory holds the evaluation's words and a sum for each of their senses.

    >>> probe_wsd(elmo, read_semcor("semcor.jsonl"), read_evaluation("semeval2007.jsonl")).centroid  # doctest: +SKIP
    {'0': WsdScore(f1=0.55, unseen_wrong=0.53), …}
    """
    chosen = source_of(source)
    words = [mention for sentence in evaluation for mention in sentence.mentions]
    if not words:
        raise ElmoError("a sense probe needs words with a sense to evaluate on, got none")
    entries = [(word.lemma, word.pos) for word in words]
    names = with_mean(chosen)
    asked = _unit(np.concatenate(list(_mentions(chosen, evaluation)), axis=1))  # [K, W, D]
    senses = _Senses(asked, entries)
    wanted = set(entries)
    used = [
        SenseSentence(sentence.tokens, kept)
        for sentence in train
        if (kept := tuple(m for m in sentence.mentions if (m.lemma, m.pos) in wanted))
    ]
    for sentence, vectors in zip(used, _mentions(chosen, used), strict=True):
        for number, mention in enumerate(sentence.mentions):
            senses.add(mention, vectors[:, number])
    gold = [set(word.senses) for word in words]
    fallback = [None if first_sense is None or entry in senses.counts else first_sense(*entry) for entry in entries]
    seen = sum(entry in senses.counts for entry in entries)

    def score(answers: Sequence[str | None]) -> WsdScore:
        with_fallback = [answer or other for answer, other in zip(answers, fallback, strict=True)]
        return WsdScore(_f1(with_fallback, gold), sum(a in g for a, g in zip(answers, gold, strict=True)) / len(gold))

    first = None if first_sense is None else _f1([first_sense(*entry) for entry in entries], gold)
    return WsdResult(
        centroid={name: score(senses.by_centroid(layer)) for layer, name in enumerate(names)},
        nearest={name: score(senses.by_nearest(layer)) for layer, name in enumerate(names)},
        most_frequent=score([senses.most_frequent(entry) for entry in entries]),
        first_sense=first,
        words=len(words),
        seen=seen,
        answered=seen + sum(answer is not None for answer in fallback),
    )


class _Senses:
    """What the training text has said so far about the lemmas that are asked for."""

    def __init__(self, asked: Vectors, entries: Sequence[Entry]) -> None:
        """`asked` [K, W, D]: the evaluation's words as unit vectors; `entries`: the lemma of each."""
        self.counts: defaultdict[Entry, Counter[str]] = defaultdict(Counter)
        self._asked, self._entries = asked, entries
        self._ranks: dict[str, int] = {}
        self._sums: dict[tuple[Entry, str], NDArray[np.float64]] = {}  # [K, D]
        places: defaultdict[Entry, list[int]] = defaultdict(list)
        for place, entry in enumerate(entries):
            places[entry].append(place)
        self._places = {entry: np.array(found) for entry, found in places.items()}
        self._best = np.full(asked.shape[:2], -np.inf)
        self._nearest: defaultdict[tuple[int, int], Counter[str]] = defaultdict(Counter)

    def add(self, mention: Mention, vectors: Vectors) -> None:
        """One occurrence, [K, D]."""
        entry, sense = (mention.lemma, mention.pos), mention.senses[0]
        self.counts[entry][sense] += 1
        self._ranks[sense] = mention.rank
        total = self._sums.setdefault((entry, sense), np.zeros(vectors.shape))
        total += vectors
        places = self._places[entry]
        likeness = np.einsum("kd,kwd->kw", _unit(vectors), self._asked[:, places])
        before = self._best[:, places]
        for layer, found in np.argwhere(likeness > before - _SAME).tolist():
            place = int(places[found])
            if likeness[layer, found] > before[layer, found] + _SAME:
                self._nearest[layer, place].clear()
            self._nearest[layer, place][sense] += 1
        self._best[:, places] = np.maximum(before, likeness)

    def by_centroid(self, layer: int) -> list[str | None]:
        """For each word, the sense with the nearest mean; None for a lemma that never came."""
        answers: list[str | None] = []
        for place, entry in enumerate(self._entries):
            candidates = self._ordered(entry)
            means = [_unit(self._sums[entry, sense][layer]) @ self._asked[layer, place] for sense in candidates]
            answers.append(candidates[int(np.argmax(means))] if candidates else None)
        return answers

    def by_nearest(self, layer: int) -> list[str | None]:
        """For each word, the sense of the nearest occurrence; None for a lemma that never came."""
        answers: list[str | None] = []
        for place, entry in enumerate(self._entries):
            found = self._nearest[layer, place]
            answers.append(max(self._ordered(entry), key=found.__getitem__, default=None))
        return answers

    def most_frequent(self, entry: Entry) -> str | None:
        """The sense that came most often, of equals the first in WordNet; None for a lemma that never came."""
        return next(iter(self._ordered(entry)), None)

    def _ordered(self, entry: Entry) -> list[str]:
        counts = self.counts.get(entry, Counter())
        return sorted(counts, key=lambda sense: (-counts[sense], self._ranks[sense] or np.inf, sense))


def _mentions(source: Source, sentences: Sequence[SenseSentence]) -> Iterator[Vectors]:
    """For each sentence its mentions' vectors [K, M, D], the mean over a mention's tokens; the layers' mean last."""
    for sentence, layers in zip(sentences, source.stream(s.tokens for s in sentences), strict=True):
        spans = [slice(mention.start, mention.start + mention.length) for mention in sentence.mentions]
        vectors = np.zeros((len(layers), len(spans), source.size), np.float32)
        for number, span in enumerate(spans):
            vectors[:, number] = layers[:, span].mean(axis=1)
        yield append_mean(vectors)


def _unit(vectors: NDArray[Any]) -> NDArray[Any]:
    """The same directions with length 1 along the last axis; zeros, which are like nothing, stay."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1)


def _f1(answers: Sequence[str | None], gold: Sequence[set[str]]) -> float:
    """Harmonic mean of the share of right ones among the answers and among all words."""
    right = sum(answer in wanted for answer, wanted in zip(answers, gold, strict=True))
    given = sum(answer is not None for answer in answers)
    return 2 * right / (given + len(gold)) if gold else 0.0

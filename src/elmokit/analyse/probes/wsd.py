"""Word senses by nearest neighbour: a word in context gets the sense whose SemCor contexts are most similar to it.

For every layer and for their mean there are two answers. One is the sense whose contexts have the nearest mean vector
by cosine, as in the paper. The other is the sense of the single nearest context; if several are equally near, as all
contexts of a word are for a static vector, it is the sense that most of them have. Only senses of the same lemma and
part of speech are candidates.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmokit.analyse.index import normalised
from elmokit.analyse.probes.sources import LayerSource, Vectors, append_mean, evenly, source_of, with_mean
from elmokit.corpus.lines import InputLines
from elmokit.elmo import Elmo
from elmokit.errors import ElmoError

Entry = tuple[str, str]
"""A lemma and its part of speech."""
_SAME = 1e-6
"""Cosines nearer than this are equal: the difference is rounding."""
_PARTS_OF_SPEECH = {"N": "NOUN", "V": "VERB", "J": "ADJ", "R": "ADV"}
"""By the first letter of Penn's tags."""
_MARKER = re.compile(r"\([a-z]+\)")
_SYNSET_TYPES = {"1": "NOUN", "2": "VERB", "3": "ADJ", "4": "ADV", "5": "ADJ"}
"""By the first digit after % in a sense key; 5 is an adjective that is similar to another one."""


@dataclass(frozen=True)
class Mention:
    """A word, or several that are one entry of WordNet, with its sense."""

    start: int
    """The position of its first token, from 0."""
    length: int
    """Its number of tokens."""
    lemma: str
    """As WordNet writes it, "take_place"."""
    pos: str
    """NOUN, VERB, ADJ or ADV."""
    senses: tuple[str, ...]
    """Sense keys; any of them is right."""
    rank: int = 0
    """The number of the sense in WordNet, from 1; 0 if it has none."""


@dataclass(frozen=True)
class SenseSentence:
    """A sentence and the words in it whose senses are known."""

    tokens: tuple[str, ...]
    mentions: tuple[Mention, ...]


def read_semcor(path: str | Path, limit: int | None = None) -> list[SenseSentence]:
    """SemCor as JSON lines: tokens, and senses [start, words, lemma, Penn tag, sense key, sense number].

    With `limit`, at most that number of sentences are taken, evenly from the whole file.
    """

    def mention(row: list[Any]) -> Mention:
        start, length, lemma, tag, key, number = row
        rank = int(number) if str(number).isdigit() else 0
        return Mention(int(start), int(length), _lemma(lemma), _part_of_speech(tag), (sense_key(key),), rank)

    return list(evenly(list(_read(path, "senses", mention)), limit))


def read_evaluation(path: str | Path, limit: int | None = None) -> list[SenseSentence]:
    """An evaluation set as JSON lines: tokens, and instances [index, id, lemma, pos, [sense keys]]."""

    def mention(row: list[Any]) -> Mention:
        index, _, lemma, pos, keys = row
        return Mention(int(index), 1, _lemma(lemma), _part_of_speech(pos), tuple(sense_key(key) for key in keys))

    return list(islice(_read(path, "instances", mention), limit))


def sense_key(key: str) -> str:
    """The key as WordNet writes it, without the marker that some files add: "each%5:00:00:all(a):00"."""
    return _MARKER.sub("", key)


def _lemma(text: str) -> str:
    """The lemma as WordNet writes it: "New York" is "new_york"."""
    return text.lower().replace(" ", "_")


def _part_of_speech(tag: str) -> str:
    """The part of speech of an evaluation set's own name or of a Penn tag."""
    return tag if tag in _PARTS_OF_SPEECH.values() else _PARTS_OF_SPEECH[tag[0]]


def _read(path: str | Path, field: str, mention: Callable[[list[Any]], Mention]) -> Iterator[SenseSentence]:
    with InputLines(path) as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                yield _split(tuple(row["tokens"]), [mention(item) for item in row[field]])
            except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
                raise ElmoError(
                    f"a line must be a JSON object with tokens and {field}, "
                    f"got {line[:60]!r} in line {number} of {path} ({type(error).__name__}: {error})"
                ) from error


def _split(tokens: tuple[str, ...], mentions: list[Mention]) -> SenseSentence:
    """Split tokens of several words ("pointed out") into several tokens, as a model expects them."""
    words: list[str] = []
    starts = []
    for token in tokens:
        starts.append(len(words))
        words += token.split() or [token]
    starts.append(len(words))
    moved = []
    for mention in mentions:
        if not 0 <= mention.start < mention.start + mention.length <= len(tokens):
            raise ValueError(f"no token {mention.start} in a sentence of {len(tokens)}")
        start, end = starts[mention.start], starts[mention.start + mention.length]
        moved.append(replace(mention, start=start, length=end - start))
    return SenseSentence(tuple(words), tuple(moved))


class WordNet:
    """Looks up first senses in a folder of WordNet 3.0 (Debian: wordnet-sense-index, in /usr/share/wordnet)."""

    def __init__(self, folder: str | Path) -> None:
        path = Path(folder) / "index.sense"
        try:
            lines = path.read_text(encoding="latin-1").splitlines()
        except OSError as error:
            raise ElmoError(
                f"a WordNet folder must contain index.sense, got {folder} ({error.strerror or error}): Debian's "
                "package wordnet-sense-index puts it in /usr/share/wordnet"
            ) from error
        self._first: dict[Entry, str] = {}
        try:
            for key, _, number, _ in map(str.split, lines):  # sense key, offset, number of the sense, count
                if number == "1":
                    lemma, _, rest = key.partition("%")
                    self._first[lemma, _SYNSET_TYPES[rest[0]]] = key
        except (ValueError, LookupError) as error:
            raise ElmoError(f"{path} is damaged ({error}): install WordNet again") from error

    def first_sense(self, lemma: str, pos: str) -> str | None:
        """The key of the first sense of a lemma as NOUN, VERB, ADJ or ADV; None for a word that is not in WordNet."""
        return self._first.get((_lemma(lemma), pos))


@dataclass(frozen=True)
class WsdScore:
    """The quality of one method of choosing senses."""

    f1: float
    """With the first sense of WordNet for lemmas that are not in the training text, if it is known."""
    unseen_wrong: float
    """The share of right answers if lemmas that are not in the training text count as wrong."""


@dataclass(frozen=True)
class WsdResult:
    """Scores by layer, and of methods that ignore the context."""

    centroid: dict[str, WsdScore]
    """By layer ("0" … and "mean"): the sense with the nearest mean vector."""
    nearest: dict[str, WsdScore]
    """By layer: the sense of the nearest context, or of most contexts that are equally near."""
    most_frequent: WsdScore
    """The lemma's most frequent sense in the training text."""
    first_sense: float | None
    """F1 of WordNet's first sense for every word; None without WordNet."""
    words: int
    """Words that were evaluated."""
    seen: int
    """Those whose lemma and part of speech are in the training text."""
    answered: int
    """Those, and the ones for which the first sense in WordNet is known."""


def probe_wsd(
    source: Elmo | LayerSource,
    train: Sequence[SenseSentence],
    evaluation: Sequence[SenseSentence],
    *,
    first_sense: Callable[[str, str], str | None] | None = None,
) -> WsdResult:
    """Predict the senses of the evaluation's words from the contexts of the training text.

    `first_sense(lemma, pos)` gives a sense key for lemmas that are not in the training text (`WordNet.first_sense`).
    The training text is a stream: in memory are the words of the evaluation and a sum for each of their senses.

    >>> probe_wsd(elmo, read_semcor("semcor.jsonl"), read_evaluation("semeval2007.jsonl")).centroid  # doctest: +SKIP
    {'0': WsdScore(f1=0.55, unseen_wrong=0.53), …}
    """
    chosen = source_of(source)
    words = [mention for sentence in evaluation for mention in sentence.mentions]
    if not words:
        raise ElmoError("evaluation must contain words with a sense, got none", "evaluation")
    entries = [(word.lemma, word.pos) for word in words]
    names = with_mean(chosen)
    asked = normalised(np.concatenate(list(_mentions(chosen, evaluation)), axis=1))  # [K, W, D]
    senses = _SenseVectors(asked, entries)
    wanted = set(entries)
    used = [
        SenseSentence(sentence.tokens, mentions)
        for sentence in train
        if (mentions := tuple(m for m in sentence.mentions if (m.lemma, m.pos) in wanted))
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


class _SenseVectors:
    """The senses of the evaluation's lemmas, learned from the training text mention by mention."""

    def __init__(self, asked: Vectors, entries: Sequence[Entry]) -> None:
        """`asked` [K, W, D] are the evaluation's words as unit vectors; `entries` has the lemma of each."""
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
        """Add one mention with its vectors [K, D]."""
        entry, sense = (mention.lemma, mention.pos), mention.senses[0]
        self.counts[entry][sense] += 1
        self._ranks[sense] = mention.rank
        total = self._sums.setdefault((entry, sense), np.zeros(vectors.shape))
        total += vectors
        places = self._places[entry]
        similarity = np.einsum("kd,kwd->kw", normalised(vectors), self._asked[:, places])
        before = self._best[:, places]
        for layer, found in np.argwhere(similarity > before - _SAME).tolist():
            place = int(places[found])
            if similarity[layer, found] > before[layer, found] + _SAME:
                self._nearest[layer, place].clear()
            self._nearest[layer, place][sense] += 1
        self._best[:, places] = np.maximum(before, similarity)

    def by_centroid(self, layer: int) -> list[str | None]:
        """For each word, the sense with the nearest mean; None for an unknown lemma."""
        answers: list[str | None] = []
        for place, entry in enumerate(self._entries):
            candidates = self._ordered(entry)
            means = [normalised(self._sums[entry, sense][layer]) @ self._asked[layer, place] for sense in candidates]
            answers.append(candidates[int(np.argmax(means))] if candidates else None)
        return answers

    def by_nearest(self, layer: int) -> list[str | None]:
        """For each word, the sense of the nearest occurrence; None for an unknown lemma."""
        return [
            max(self._ordered(entry), key=self._nearest[layer, place].__getitem__, default=None)
            for place, entry in enumerate(self._entries)
        ]

    def most_frequent(self, entry: Entry) -> str | None:
        """The sense that came most often, of equals the first in WordNet; None for an unknown lemma."""
        return next(iter(self._ordered(entry)), None)

    def _ordered(self, entry: Entry) -> list[str]:
        counts = self.counts.get(entry, Counter())
        return sorted(counts, key=lambda sense: (-counts[sense], self._ranks[sense] or np.inf, sense))


def _mentions(source: LayerSource, sentences: Sequence[SenseSentence]) -> Iterator[Vectors]:
    """For each sentence the vectors of its mentions [K, M, D], averaged over tokens, with the layers' mean last."""
    for sentence, layers in zip(sentences, source.stream(s.tokens for s in sentences), strict=True):
        spans = [slice(mention.start, mention.start + mention.length) for mention in sentence.mentions]
        vectors = np.zeros((len(layers), len(spans), source.size), np.float32)
        for number, span in enumerate(spans):
            vectors[:, number] = layers[:, span].mean(axis=1)
        yield append_mean(vectors)


def _f1(answers: Sequence[str | None], gold: Sequence[set[str]]) -> float:
    """The harmonic mean of the share of right answers among those given and among all words."""
    right = sum(answer in wanted for answer, wanted in zip(answers, gold, strict=True))
    given = sum(answer is not None for answer in answers)
    return 2 * right / (given + len(gold)) if gold else 0.0

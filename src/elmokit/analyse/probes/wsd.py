"""Word senses by nearest neighbour: a word in context gets the sense whose SemCor contexts are most similar.

There are two methods for each layer and for the mean of the layers. The first chooses the sense whose contexts have the
nearest mean vector by cosine, as in the ELMo paper. The second chooses the sense of the nearest context. If several
contexts are equally near, as they all are with static vectors, it chooses the most frequent sense among them. Only
senses of the same lemma and part of speech are candidates.
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
_TIE_TOLERANCE = 1e-6
"""Cosines whose difference is smaller are equal except for rounding."""
_PARTS_OF_SPEECH = {"N": "NOUN", "V": "VERB", "J": "ADJ", "R": "ADV"}
"""Parts of speech by the first letter of a Penn tag."""
_MARKER = re.compile(r"\([a-z]+\)")
_SYNSET_TYPES = {"1": "NOUN", "2": "VERB", "3": "ADJ", "4": "ADV", "5": "ADJ"}
"""Parts of speech by the first digit after % in a sense key; 5 is WordNet's adjective satellite."""


@dataclass(frozen=True)
class Mention:
    """A word or phrase in a sentence that is an entry of WordNet, with its sense."""

    start: int
    """The index of its first token, from 0."""
    length: int
    """Its number of tokens."""
    lemma: str
    """The lemma as WordNet writes it, for example "take_place"."""
    pos: str
    """NOUN, VERB, ADJ or ADV."""
    senses: tuple[str, ...]
    """The sense keys that count as correct."""
    rank: int = 0
    """The number of the sense in WordNet, from 1; 0 if it has none."""


@dataclass(frozen=True)
class SenseSentence:
    """A sentence and the words in it that are annotated with senses."""

    tokens: tuple[str, ...]
    mentions: tuple[Mention, ...]


def read_semcor(path: str | Path, limit: int | None = None) -> list[SenseSentence]:
    """Read SemCor as JSON lines: tokens, and senses [start, words, lemma, Penn tag, sense key, sense number].

    With `limit`, at most this number of sentences are returned, spread evenly over the file.
    """

    def mention(row: list[Any]) -> Mention:
        start, length, lemma, tag, key, number = row
        rank = int(number) if str(number).isdigit() else 0
        return Mention(int(start), int(length), _lemma(lemma), _part_of_speech(tag), (sense_key(key),), rank)

    return list(evenly(list(_read(path, "senses", mention)), limit))


def read_evaluation(path: str | Path, limit: int | None = None) -> list[SenseSentence]:
    """Read an evaluation set as JSON lines: tokens, and instances [index, id, lemma, pos, [sense keys]]."""

    def mention(row: list[Any]) -> Mention:
        index, _, lemma, pos, keys = row
        return Mention(int(index), 1, _lemma(lemma), _part_of_speech(pos), tuple(sense_key(key) for key in keys))

    return list(islice(_read(path, "instances", mention), limit))


def sense_key(key: str) -> str:
    """The key as WordNet writes it, without a marker such as (a) in "each%5:00:00:all(a):00"."""
    return _MARKER.sub("", key)


def _lemma(text: str) -> str:
    """The lemma as WordNet writes it: "new_york" for "New York"."""
    return text.lower().replace(" ", "_")


def _part_of_speech(tag: str) -> str:
    """The part of speech for a name such as NOUN, which evaluation sets have, or for a Penn tag."""
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
    """Split tokens that consist of several words ("pointed out"), as a model expects, and move the mentions."""
    words: list[str] = []
    starts = []
    for token in tokens:
        starts.append(len(words))
        words += token.split() or [token]
    starts.append(len(words))
    moved = []
    for mention in mentions:
        if not 0 <= mention.start < mention.start + mention.length <= len(tokens):
            raise ValueError(f"no token {mention.start} in a sentence of {len(tokens)} tokens")
        start, end = starts[mention.start], starts[mention.start + mention.length]
        moved.append(replace(mention, start=start, length=end - start))
    return SenseSentence(tuple(words), tuple(moved))


class WordNet:
    """The first senses of words in WordNet 3.0 (Debian's wordnet-sense-index installs it in /usr/share/wordnet)."""

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
    """The scores of one method."""

    f1: float
    """F1 if lemmas that are not in the training text get their first sense in WordNet, if it is known."""
    unseen_wrong: float
    """Accuracy if lemmas that are not in the training text count as wrong."""


@dataclass(frozen=True)
class WsdResult:
    """The scores of methods by layer ("0" … and "mean"), and of methods that ignore the context."""

    centroid: dict[str, WsdScore]
    """The sense with the nearest mean vector."""
    nearest: dict[str, WsdScore]
    """The sense of the nearest context, or the most frequent sense of equally near contexts."""
    most_frequent: WsdScore
    """The most frequent sense of the lemma in the training text."""
    first_sense: float | None
    """F1 of the first sense in WordNet for all words; None without WordNet."""
    words: int
    """Number of words that were evaluated."""
    seen: int
    """Number of words whose lemma and part of speech are in the training text."""
    answered: int
    """Number of words that are seen or whose first sense in WordNet is known."""


def probe_wsd(
    source: Elmo | LayerSource,
    train: Sequence[SenseSentence],
    evaluation: Sequence[SenseSentence],
    *,
    first_sense: Callable[[str, str], str | None] | None = None,
) -> WsdResult:
    """Predict the senses of the words in `evaluation` from the contexts in the training text.

    `first_sense(lemma, pos)` gives a sense key for lemmas that are not in the training text (`WordNet.first_sense`).
    The vectors of the training text are not stored, only a sum for each sense of the evaluated words.

    >>> probe_wsd(elmo, read_semcor("semcor.jsonl"), read_evaluation("semeval2007.jsonl")).centroid  # doctest: +SKIP
    {'0': WsdScore(f1=0.55, unseen_wrong=0.53), …}
    """
    chosen = source_of(source)
    words = [mention for sentence in evaluation for mention in sentence.mentions]
    if not words:
        raise ElmoError("evaluation must contain words that are annotated with senses, got none", "evaluation")
    entries = [(word.lemma, word.pos) for word in words]
    names = with_mean(chosen)
    queries = normalised(np.concatenate(list(_mention_vectors(chosen, evaluation)), axis=1))  # [K, W, D]
    senses = _SenseVectors(queries, entries)
    wanted = set(entries)
    used = [
        SenseSentence(sentence.tokens, mentions)
        for sentence in train
        if (mentions := tuple(m for m in sentence.mentions if (m.lemma, m.pos) in wanted))
    ]
    for sentence, vectors in zip(used, _mention_vectors(chosen, used), strict=True):
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
    """The senses of the evaluated words, learned from the mentions in the training text."""

    def __init__(self, queries: Vectors, entries: Sequence[Entry]) -> None:
        """`queries` [K, W, D] are the unit vectors of the evaluated words, `entries` their lemmas."""
        self.counts: defaultdict[Entry, Counter[str]] = defaultdict(Counter)
        self._queries, self._entries = queries, entries
        self._ranks: dict[str, int] = {}
        self._sums: dict[tuple[Entry, str], NDArray[np.float64]] = {}  # [K, D]
        word_indices: defaultdict[Entry, list[int]] = defaultdict(list)
        for index, entry in enumerate(entries):
            word_indices[entry].append(index)
        self._word_indices = {entry: np.array(found) for entry, found in word_indices.items()}
        self._best = np.full(queries.shape[:2], -np.inf)
        self._nearest: defaultdict[tuple[int, int], Counter[str]] = defaultdict(Counter)

    def add(self, mention: Mention, vectors: Vectors) -> None:
        """Add a mention in the training text with its vectors [K, D]."""
        entry, sense = (mention.lemma, mention.pos), mention.senses[0]
        self.counts[entry][sense] += 1
        self._ranks[sense] = mention.rank
        total = self._sums.setdefault((entry, sense), np.zeros(vectors.shape))
        total += vectors
        word_indices = self._word_indices[entry]
        similarity = np.einsum("kd,kwd->kw", normalised(vectors), self._queries[:, word_indices])
        before = self._best[:, word_indices]
        for layer, found in np.argwhere(similarity > before - _TIE_TOLERANCE).tolist():
            index = int(word_indices[found])
            if similarity[layer, found] > before[layer, found] + _TIE_TOLERANCE:
                self._nearest[layer, index].clear()
            self._nearest[layer, index][sense] += 1
        self._best[:, word_indices] = np.maximum(before, similarity)

    def by_centroid(self, layer: int) -> list[str | None]:
        """For each word, the sense with the nearest mean vector; None for an unknown lemma."""
        answers: list[str | None] = []
        for index, entry in enumerate(self._entries):
            candidates = self._ordered(entry)
            means = [normalised(self._sums[entry, sense][layer]) @ self._queries[layer, index] for sense in candidates]
            answers.append(candidates[int(np.argmax(means))] if candidates else None)
        return answers

    def by_nearest(self, layer: int) -> list[str | None]:
        """For each word, the sense of the nearest mention; None for an unknown lemma."""
        return [
            max(self._ordered(entry), key=self._nearest[layer, index].__getitem__, default=None)
            for index, entry in enumerate(self._entries)
        ]

    def most_frequent(self, entry: Entry) -> str | None:
        """The most frequent sense, among equals the first in WordNet; None for an unknown lemma."""
        return next(iter(self._ordered(entry)), None)

    def _ordered(self, entry: Entry) -> list[str]:
        """The senses of a lemma, the most frequent first."""
        counts = self.counts.get(entry, Counter())
        return sorted(counts, key=lambda sense: (-counts[sense], self._ranks[sense] or np.inf, sense))


def _mention_vectors(source: LayerSource, sentences: Sequence[SenseSentence]) -> Iterator[Vectors]:
    """For each sentence, the vectors [K, M, D] of its mentions, averaged over tokens; the last layer is the mean."""
    for sentence, layers in zip(sentences, source.stream(s.tokens for s in sentences), strict=True):
        spans = [slice(mention.start, mention.start + mention.length) for mention in sentence.mentions]
        vectors = np.zeros((len(layers), len(spans), source.size), np.float32)
        for number, span in enumerate(spans):
            vectors[:, number] = layers[:, span].mean(axis=1)
        yield append_mean(vectors)


def _f1(answers: Sequence[str | None], gold: Sequence[set[str]]) -> float:
    """The harmonic mean of precision, over the words with an answer, and recall, over all words."""
    right = sum(answer in wanted for answer, wanted in zip(answers, gold, strict=True))
    given = sum(answer is not None for answer in answers)
    return 2 * right / (given + len(gold)) if gold else 0.0

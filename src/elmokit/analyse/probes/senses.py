"""Sentences whose words carry WordNet senses: SemCor, and evaluation sets of the unified framework, as JSON lines."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from elmokit.analyse.probes.sources import evenly
from elmokit.corpus.lines import InputLines
from elmokit.errors import ElmoError

_PARTS_OF_SPEECH = {"N": "NOUN", "V": "VERB", "J": "ADJ", "R": "ADV"}
_MARKER = re.compile(r"\([a-z]+\)")
_NAMES = frozenset(_PARTS_OF_SPEECH.values())


@dataclass(frozen=True)
class Mention:
    """One word, or several that WordNet has as one entry, and what they mean."""

    start: int
    """Place of the first token, from 0."""
    length: int
    """Tokens it is made of."""
    lemma: str
    """As WordNet writes it, "take_place"."""
    pos: str
    """NOUN, VERB, ADJ or ADV."""
    senses: tuple[str, ...]
    """Sense keys, any of which is right."""
    rank: int = 0
    """The sense's number in WordNet, 1 for the first; 0 where it has none."""


@dataclass(frozen=True)
class SenseSentence:
    """A sentence and the words in it whose senses are known."""

    tokens: tuple[str, ...]
    mentions: tuple[Mention, ...]


def read_semcor(path: str | Path, limit: int | None = None) -> list[SenseSentence]:
    """SemCor, a JSON object a line: tokens, and senses [start, words, lemma, Penn tag, sense key, sense number].

    `limit` takes only so many sentences, evenly from the whole file.
    """

    def mention(row: list[Any]) -> Mention:
        start, length, lemma, tag, key, number = row
        rank = int(number) if str(number).isdigit() else 0
        return Mention(int(start), int(length), _lemma(lemma), _part_of_speech(tag), (sense_key(key),), rank)

    return list(evenly(list(_read(path, "senses", mention)), limit))


def read_evaluation(path: str | Path, limit: int | None = None) -> list[SenseSentence]:
    """An evaluation set, a JSON object a line: tokens, and instances [index, id, lemma, pos, [sense keys]]."""

    def mention(row: list[Any]) -> Mention:
        index, _, lemma, pos, keys = row
        return Mention(int(index), 1, _lemma(lemma), _part_of_speech(pos), tuple(sense_key(key) for key in keys))

    return list(islice(_read(path, "instances", mention), limit))


def sense_key(key: str) -> str:
    """The key as WordNet's documentation has it: some files leave a marker in it ("each%5:00:00:all(a):00")."""
    return _MARKER.sub("", key)


def _lemma(text: str) -> str:
    """As WordNet writes it, "New York" as "new_york"."""
    return text.lower().replace(" ", "_")


def _part_of_speech(tag: str) -> str:
    """From the evaluation's own names, or from Penn's tags."""
    return tag if tag in _NAMES else _PARTS_OF_SPEECH[tag[0]]


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
    """Tokens of several words ("pointed out") become several tokens, as a model expects them."""
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
        moved.append(Mention(start, end - start, mention.lemma, mention.pos, mention.senses, mention.rank))
    return SenseSentence(tuple(words), tuple(moved))

"""How tags mark spans (BIO, IOB1, BIOES and its spellings): detected, checked, read as spans and written."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import ElmoError
from elmokit.messages import counted
from elmokit.tasks.reading import Tokens

OUTSIDE = "O"
_BROKEN_SHARE = 0.05
"""A file with a greater share of broken spans than this is refused as a mix of schemes."""


@dataclass(frozen=True)
class Scheme:
    """How a file's tags mark spans; "none" if they mark none, as parts of speech do."""

    name: Literal["none", "BIO", "IOB1", "BIOES"] = "none"
    letters: str = "BIES"
    """How the file spells begin, inside, end and single: BIES, BMES, BILU …; BIO and IOB1 use the first two."""
    separator: str = "-"
    """What separates the letter from the type."""

    def __post_init__(self) -> None:
        if self.name not in ("none", "BIO", "IOB1", "BIOES") or len(set(self.letters)) != 4 or "O" in self.letters:
            raise ElmoError(f"a tag scheme is none, BIO, IOB1 or BIOES with 4 letters, got {self.name} {self.letters}")

    @property
    def has_spans(self) -> bool:
        """Whether tags mark spans."""
        return self.name != "none"

    @property
    def used_letters(self) -> str:
        """The letters that its tags begin with, apart from O."""
        return self.letters if self.name == "BIOES" else self.letters[:2]

    @property
    def spelling(self) -> str:
        """What people call it: BIO, IOB1, BIOES, BMES, BILOU …"""
        usual = {"BIES": "BIOES", "BMES": "BMES", "BILU": "BILOU", "BMEW": "BMEWO"}
        return usual.get(self.letters, self.letters) if self.name == "BIOES" else self.name


BIOES = Scheme("BIOES")


class Span(NamedTuple):
    """Tokens from `start` up to but not including `end`, and what they are; the type is "" if tags have none."""

    start: int
    end: int
    type: str


class _Part(NamedTuple):
    """A tag taken apart: B, I, E, S or O whatever the file's letters, and its type."""

    letter: str
    type: str


_OUT = _Part(OUTSIDE, "")
_TYPED = re.compile(r"([BIESLUMW])([-_])(.+)")
# The first that has all letters of a file is taken.
_FAMILIES = (("BI", "BIES"), ("BIES", "BIES"), ("BMES", "BMES"), ("BILU", "BILU"), ("BMEW", "BMEW"))


def detect_scheme(sequences: Iterable[Sequence[str]]) -> Scheme:
    """The scheme of a file from all its tag sequences; a few broken ones do not mislead it."""
    sentences = [tuple(tags) for tags in sequences]
    counts = Counter(tag for tags in sentences for tag in tags)
    inside = {tag: count for tag, count in counts.items() if tag != OUTSIDE}
    typed = {tag: match for tag in inside if (match := _TYPED.fullmatch(tag))}
    if inside and sum(inside[tag] for tag in typed) * 2 > sum(inside.values()):
        letters = frozenset(match[1] for match in typed.values())
        underscored = sum(inside[tag] for tag, match in typed.items() if match[2] == "_")
        separator = "_" if underscored * 2 > sum(inside[tag] for tag in typed) else "-"
    elif "B" in inside and any(set(inside) <= set(family) for family, _ in _FAMILIES):
        letters, separator = frozenset(inside), "-"
    else:
        return Scheme()
    if not letters & {"B", "I"} and OUTSIDE not in counts:
        return Scheme()
    for family, spelling in _FAMILIES:
        if letters <= set(family):
            if family != "BI":
                return Scheme("BIOES", spelling, separator)
            # IOB1 begins a span with I and uses B only for one that touches another of its type.
            schemes = Scheme("BIO", spelling, separator), Scheme("IOB1", spelling, separator)
            known = [[tag if _parsed(tag, schemes[0]) else OUTSIDE for tag in tags] for tags in sentences]
            return min(schemes, key=lambda scheme: sum(len(find_faults(tags, scheme)) for tags in known))
    # Letters of no one scheme: the check names the first tag that the commonest does not have.
    return Scheme("BIOES", "BIES", separator)


def check_scheme(
    sentences: Iterable[tuple[Sequence[str], Callable[[int], str]]], scheme: Scheme, *, refuse: bool = True
) -> list[str]:
    """Check the tags of all sentences; a sentence that names the first broken sequence, if there is one.

    Each sentence has its tags and a function from a token's index to its place in the file. A tag that the scheme does
    not have is an ElmoError, and so are broken sequences if they are more than one span in 20, unless `refuse` is
    false; fewer are read as conlleval reads them.
    """
    if not scheme.has_spans:
        return []
    first, broken, total = "", 0, 0
    for tags, place_of in sentences:
        for index, tag in enumerate(tags):
            if _parsed(tag, scheme) is None:
                raise ElmoError(
                    f"{place_of(index)}: the tags are {scheme.spelling}, which has no {tag!r}: "
                    f"a tag is O or one of {', '.join(scheme.used_letters)} with '{scheme.separator}' and a type"
                )
        total += len(spans(tags, scheme))
        faults = find_faults(tags, scheme)
        broken += len(faults)
        if faults and not first:
            index = faults[0]
            right = from_bioes(to_bioes(tags, scheme), scheme)[index]
            where = f"after {tags[index - 1]}" if index else "at the start"
            first = f"{place_of(index)}: in {scheme.spelling} {tags[index]} {where} should be {right}"
    if not broken:
        return []
    first += f" ({counted(broken, 'such place')}, {counted(total, 'span')})"
    if refuse and broken > _BROKEN_SHARE * total:
        raise ElmoError(f"{first}: correct the tags, or convert the file")
    return [f"{first}; a span is taken to begin or end there"]


def find_faults(tags: Sequence[str], scheme: Scheme) -> list[int]:
    """The indices of tags that the scheme would spell in another way for the same spans."""
    right = from_bioes(to_bioes(tags, scheme), scheme)
    return [index for index, tag in enumerate(tags) if tag != right[index]]


def spans(tags: Sequence[str], scheme: Scheme) -> list[Span]:
    """The spans that tags mark; a broken sequence is read as conlleval reads it."""
    found: list[Span] = []
    start, kind = -1, ""  # of the open span; -1 if there is none
    for index, part in enumerate([*(_part(tag, scheme) for tag in tags), _OUT]):
        continues = start >= 0 and part.letter in "IE" and part.type == kind
        if start >= 0 and not continues:
            found.append(Span(start, index, kind))
            start = -1
        if part.letter != OUTSIDE and start < 0:
            start, kind = index, part.type
        if part.letter in "ES":
            found.append(Span(start, index + 1, kind))
            start = -1
    return found


def to_bioes(tags: Sequence[str], scheme: Scheme) -> Tokens:
    """The same spans as BIOES tags; if the scheme is none, the tags themselves."""
    return _write(spans(tags, scheme), len(tags), BIOES) if scheme.has_spans else tuple(tags)


def from_bioes(tags: Sequence[str], scheme: Scheme) -> Tokens:
    """BIOES tags in the file's own scheme and spelling; if that is none, the tags themselves."""
    return _write(spans(tags, BIOES), len(tags), scheme) if scheme.has_spans else tuple(tags)


def transitions(tags: Sequence[str], scheme: Scheme) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """What a CRF over BIOES tags may do: from row to column [K, K], at the start [K], at the end [K]."""
    # Outside is what comes before the first tag and after the last.
    parts = [*([_part(tag, BIOES) for tag in tags] if scheme.has_spans else [_OUT] * len(tags)), _OUT]
    steps = np.array([[_follows(before, after) for after in parts] for before in parts], dtype=bool)
    return steps[:-1, :-1], steps[-1, :-1], steps[:-1, -1]


def _follows(before: _Part, after: _Part) -> bool:
    """The rule of BIOES: an open span continues or ends, and nothing else does."""
    if before.letter in "BI":
        return after.letter in "IE" and before.type == after.type
    return after.letter not in "IE"


def _write(found: Iterable[Span], length: int, scheme: Scheme) -> Tokens:
    begin, inside, end, single = tuple(scheme.letters)
    tags = [OUTSIDE] * length
    before: Span | None = None
    for span in found:
        letters = [begin] + [inside] * (span.end - span.start - 1)
        if scheme.name == "BIOES":
            letters[-1] = end if len(letters) > 1 else single
        elif scheme.name == "IOB1" and not (before and before.end == span.start and before.type == span.type):
            letters[0] = inside
        for index, letter in zip(range(span.start, span.end), letters, strict=True):
            tags[index] = f"{letter}{scheme.separator}{span.type}" if span.type else letter
        before = span
    return tuple(tags)


def _part(tag: str, scheme: Scheme) -> _Part:
    part = _parsed(tag, scheme)
    if part is None:
        raise ElmoError(f"a tag of {scheme.spelling} is O or begins with one of {scheme.used_letters}, got {tag!r}")
    return part


@lru_cache(maxsize=4096)
def _parsed(tag: str, scheme: Scheme) -> _Part | None:
    """None for a tag that the scheme does not have."""
    if tag == OUTSIDE:
        return _OUT
    letter, separator, kind = tag[:1], tag[1:2], tag[2:]
    if letter not in scheme.used_letters or (separator and (separator != scheme.separator or not kind)):
        return None
    return _Part("BIES"[scheme.letters.index(letter)], kind)

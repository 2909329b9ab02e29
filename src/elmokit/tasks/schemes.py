"""Tag schemes, which mark spans with tags (BIO, IOB1, BIOES and its spellings): detect, check, read and write them."""

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
_MAX_BROKEN_SHARE = 0.05
"""A file with a larger share of broken spans is refused, because it probably mixes schemes."""


@dataclass(frozen=True)
class Scheme:
    """How the tags of a file mark spans; "none" if they do not, such as parts of speech."""

    name: Literal["none", "BIO", "IOB1", "BIOES"] = "none"
    letters: str = "BIES"
    """The file's letters for begin, inside, end and single: BIES, BMES, BILU …; BIO and IOB1 use the first two."""
    separator: str = "-"
    """The character between the letter and the type."""

    def __post_init__(self) -> None:
        if self.name not in ("none", "BIO", "IOB1", "BIOES") or len(set(self.letters)) != 4 or "O" in self.letters:
            raise ElmoError(
                "a tag scheme is none, BIO, IOB1 or BIOES, with 4 different letters other than O, got "
                f"{self.name} {self.letters}"
            )

    @property
    def has_spans(self) -> bool:
        """Whether tags mark spans."""
        return self.name != "none"

    @property
    def used_letters(self) -> str:
        """The letters that tags of this scheme begin with, without O."""
        return self.letters if self.name == "BIOES" else self.letters[:2]

    @property
    def spelling(self) -> str:
        """The usual name of the scheme: BIO, IOB1, BIOES, BMES, BILOU …"""
        usual = {"BIES": "BIOES", "BMES": "BMES", "BILU": "BILOU", "BMEW": "BMEWO"}
        return usual.get(self.letters, self.letters) if self.name == "BIOES" else self.name


BIOES = Scheme("BIOES")


class Span(NamedTuple):
    """The tokens from `start` up to but not including `end`, and their type, which is "" if the tags have no type."""

    start: int
    end: int
    type: str


class _ParsedTag(NamedTuple):
    """A tag as one of the letters B, I, E, S or O, whatever letters the file uses, and its type."""

    letter: str
    type: str


_OUTSIDE_TAG = _ParsedTag(OUTSIDE, "")
_TYPED = re.compile(r"([BIESLUMW])([-_])(.+)")
# The letters of each scheme and its spelling. A file has the first scheme that includes all of its letters.
_FAMILIES = (("BI", "BIES"), ("BIES", "BIES"), ("BMES", "BMES"), ("BILU", "BILU"), ("BMEW", "BMEW"))


def detect_scheme(sequences: Iterable[Sequence[str]]) -> Scheme:
    """The scheme of a file, detected from all its tag sequences; a few broken sequences do not change the result."""
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
            # IOB1 begins a span with I, and with B only if the span follows one of the same type without a gap.
            schemes = Scheme("BIO", spelling, separator), Scheme("IOB1", spelling, separator)
            known = [[tag if _parse(tag, schemes[0]) else OUTSIDE for tag in tags] for tags in sentences]
            return min(schemes, key=lambda scheme: sum(len(find_faults(tags, scheme)) for tags in known))
    # No scheme has all of these letters: `check_scheme` will name the first tag that is not in the most common one.
    return Scheme("BIOES", "BIES", separator)


def check_scheme(
    sentences: Iterable[tuple[Sequence[str], Callable[[int], str]]], scheme: Scheme, *, refuse: bool = True
) -> list[str]:
    """Check the tags of all sentences and return a warning about the first broken sequence, if there is one.

    Each sentence has its tags and a function from a token's index to its location in the file. A tag that the scheme
    does not have raises an ElmoError. So do broken sequences if they are more than 5 % of the spans and `refuse` is
    true; otherwise they are read as conlleval reads them.
    """
    if not scheme.has_spans:
        return []
    first, broken, total = "", 0, 0
    for tags, location_of in sentences:
        for index, tag in enumerate(tags):
            if _parse(tag, scheme) is None:
                raise ElmoError(
                    f"{location_of(index)}: the tags are {scheme.spelling}, which has no {tag!r}: "
                    f"a tag is O, or one of {', '.join(scheme.used_letters)} with '{scheme.separator}' and a type"
                )
        total += len(spans(tags, scheme))
        faults = find_faults(tags, scheme)
        broken += len(faults)
        if faults and not first:
            index = faults[0]
            right = from_bioes(to_bioes(tags, scheme), scheme)[index]
            where = f"after {tags[index - 1]}" if index else "at the start"
            first = f"{location_of(index)}: in {scheme.spelling} {tags[index]} {where} should be {right}"
    if not broken:
        return []
    first += f" ({counted(broken, 'such tag')}, {counted(total, 'span')})"
    if refuse and broken > _MAX_BROKEN_SHARE * total:
        raise ElmoError(f"{first}: correct the tags, or convert the file")
    return [f"{first}; it is read as if a span began or ended there"]


def find_faults(tags: Sequence[str], scheme: Scheme) -> list[int]:
    """The indices of tags that the scheme would spell differently for the same spans."""
    right = from_bioes(to_bioes(tags, scheme), scheme)
    return [index for index, tag in enumerate(tags) if tag != right[index]]


def spans(tags: Sequence[str], scheme: Scheme) -> list[Span]:
    """The spans that the tags mark; broken sequences are read as conlleval reads them."""
    found: list[Span] = []
    start, kind = -1, ""  # of the open span; -1 if there is none
    for index, part in enumerate([*(_parse_known(tag, scheme) for tag in tags), _OUTSIDE_TAG]):
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
    """The same spans as BIOES tags; the tags unchanged if the scheme is none."""
    return _write(spans(tags, scheme), len(tags), BIOES) if scheme.has_spans else tuple(tags)


def from_bioes(tags: Sequence[str], scheme: Scheme) -> Tokens:
    """BIOES tags in the scheme and spelling of the file; the tags unchanged if the scheme is none."""
    return _write(spans(tags, BIOES), len(tags), scheme) if scheme.has_spans else tuple(tags)


def transitions(tags: Sequence[str], scheme: Scheme) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """The transitions that BIOES allows: from row to column [K, K], as first tag [K], as last tag [K]."""
    # An outside tag before the first and after the last gives the rules for the two ends.
    parts = [
        *([_parse_known(tag, BIOES) for tag in tags] if scheme.has_spans else [_OUTSIDE_TAG] * len(tags)),
        _OUTSIDE_TAG,
    ]
    steps = np.array([[_follows(before, after) for after in parts] for before in parts], dtype=bool)
    return steps[:-1, :-1], steps[-1, :-1], steps[:-1, -1]


def _follows(before: _ParsedTag, after: _ParsedTag) -> bool:
    """Whether a tag may follow another in BIOES: an open span must continue or end, and only an open span may."""
    if before.letter in "BI":
        return after.letter in "IE" and before.type == after.type
    return after.letter not in "IE"


def _write(found: Iterable[Span], length: int, scheme: Scheme) -> Tokens:
    """The tags of `length` tokens with these spans."""
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


def _parse_known(tag: str, scheme: Scheme) -> _ParsedTag:
    parsed = _parse(tag, scheme)
    if parsed is None:
        raise ElmoError(f"a tag of {scheme.spelling} is O or begins with one of {scheme.used_letters}, got {tag!r}")
    return parsed


@lru_cache(maxsize=4096)
def _parse(tag: str, scheme: Scheme) -> _ParsedTag | None:
    """The parsed tag, or None if the scheme does not have it."""
    if tag == OUTSIDE:
        return _OUTSIDE_TAG
    letter, separator, kind = tag[:1], tag[1:2], tag[2:]
    if letter not in scheme.used_letters or (separator and (separator != scheme.separator or not kind)):
        return None
    return _ParsedTag("BIES"[scheme.letters.index(letter)], kind)

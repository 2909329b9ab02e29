"""Tagged sentences, as examples: CoNLL columns and CoNLL-U, a token a line and a blank line after each sentence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from elmokit.errors import ElmoError
from elmokit.tasks.examples import TaggedExample
from elmokit.tasks.reading.lines import numbered_lines, place, shown, suffix_of
from elmokit.text.policy import TextPolicy
from elmokit.text.tokens import SegmenterName

Column = int | str
"""A column by its number from 1 or, in CoNLL-U, by its name."""

_CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_MAY_BE_NOTHING = ("feats", "misc")  # where _ is a value like any other
_WORD_ID, _OTHER_ID = re.compile(r"[0-9]+"), re.compile(r"[0-9]+[-.][0-9]+")
_DOCUMENT = "-DOCSTART-"
_METADATA = re.compile(r"#\s*\S+\s*=\s")
_SEGMENT_SHARE = 0.98
"""Of the tokens that carry a segment digit, so many are one character and count on; the rest are slips of the file."""
_SEGMENT_TOKENS = 100_000
"""After so many tokens with a digit the question is settled, whatever the length of the file."""


def read_tagged(
    path: str | Path,
    *,
    token_column: Column | None = None,
    tag_column: Column | None = None,
    segment_digits: bool | None = None,
    segment: SegmenterName | TextPolicy = "whitespace",
    labelled: bool = True,
) -> list[TaggedExample]:
    """The sentences of a file and their tags, as the file spells them.

    Columns stand apart by tabs or spaces and are numbered from 1; the token is the first and the tag the last. In a
    .conllu file they are FORM and UPOS, and columns also have names (`tag_column="xpos"`). `segment_digits` says
    whether a token ends in a digit that counts its characters' place in a word (口0 腔1), None: see for yourself.
    With labelled=False no tags are read, and a .txt file is a sentence a line, split by `segment`.
    """
    return list(
        stream_tagged(
            path,
            token_column=token_column,
            tag_column=tag_column,
            segment_digits=segment_digits,
            segment=segment,
            labelled=labelled,
        )
    )


def stream_tagged(
    path: str | Path,
    *,
    token_column: Column | None = None,
    tag_column: Column | None = None,
    segment_digits: bool | None = None,
    segment: SegmenterName | TextPolicy = "whitespace",
    labelled: bool = True,
) -> Iterator[TaggedExample]:
    """What `read_tagged` gives, one by one, so that a file may be larger than the memory."""
    if not labelled and token_column is None and suffix_of(path) == ".txt":
        yield from _read_text(path, TextPolicy.of(segment))
        return
    if suffix_of(path) == ".conllu":
        sentences = _read_conllu(path, token_column, tag_column, labelled)
    else:
        sentences = _read_columns(path, token_column, tag_column, labelled)
    examples = (TaggedExample(tuple(s.tokens), tuple(s.tags) if labelled else None, s.line) for s in sentences)
    head = list(_until_told(examples))
    if not head:
        raise ElmoError(f"{path} has no sentences: it must have a token and its tag a line")
    digits = _have_segment_digits(head) if segment_digits is None else segment_digits
    for example in chain(head, examples):
        yield _without_digits(path, example) if digits else example


@dataclass
class _Sentence:
    line: int
    tokens: list[str]
    tags: list[str]


def _read_text(path: str | Path, policy: TextPolicy) -> Iterator[TaggedExample]:
    empty = True
    for number, line in numbered_lines(path):
        if tokens := tuple(policy.split(line)):
            empty = False
            yield TaggedExample(tokens, line=number)
    if empty:
        raise ElmoError(f"{path} has no sentences: it must have one a line")


def _read_columns(
    path: str | Path, token_column: Column | None, tag_column: Column | None, labelled: bool
) -> Iterator[_Sentence]:
    lines = numbered_lines(path)
    # A token may be "#", so the lines after them must tell what comments at the start are.
    head: list[tuple[int, str]] = []
    for number, line in lines:
        head.append((number, line))
        if not _is_blank(line) and not line.startswith(("#", _DOCUMENT)):
            break
    filled = [line for _, line in head if not _is_blank(line) and not line.startswith(_DOCUMENT)]
    if not filled:
        return
    pattern = filled[0] if filled[-1].startswith("#") else filled[-1]
    tabs, width = "\t" in pattern, len(_cells(pattern, "\t" in pattern))
    token_at = _at(path, "token_column", 1 if token_column is None else token_column, width)
    tag_at = 0
    if labelled:
        if width == 1:
            raise ElmoError(
                f"{place(path, head[-1][0])}: a line must have a token and a tag, apart by a tab or a space, "
                f"got {shown(pattern)}"
            )
        tag_at = _at(path, "tag_column", width if tag_column is None else tag_column, width)
        _check_apart(path, token_at, tag_at)
    sentence = _Sentence(0, [], [])
    for number, line in chain(head, lines):
        if _is_blank(line) or line.startswith(_DOCUMENT):
            if sentence.tokens:
                yield sentence
            sentence = _Sentence(0, [], [])
            continue
        cells = _cells(line, tabs)
        if line.startswith("#") and not sentence.tokens and (len(cells) != width or _METADATA.match(line)):
            continue
        if len(cells) != width:
            raise ElmoError(
                f"{place(path, number)}: a line must have {width} columns, as those before it, got {len(cells)} "
                f"in {shown(line)}: columns stand apart by {'one tab' if tabs else 'spaces'}"
            )
        _add(path, number, sentence, cells[token_at], cells[tag_at] if labelled else None)
    if sentence.tokens:
        yield sentence


def _read_conllu(
    path: str | Path, token_column: Column | None, tag_column: Column | None, labelled: bool
) -> Iterator[_Sentence]:
    token_at = _at(path, "token_column", "form" if token_column is None else token_column, len(_CONLLU), _CONLLU)
    tag_at = _at(path, "tag_column", "upos" if tag_column is None else tag_column, len(_CONLLU), _CONLLU)
    if labelled:
        _check_apart(path, token_at, tag_at)
    sentence = _Sentence(0, [], [])
    for number, line in numbered_lines(path):
        if _is_blank(line):
            if sentence.tokens:
                yield sentence
            sentence = _Sentence(0, [], [])
            continue
        if line.startswith("#"):
            continue
        cells = line.split("\t")
        if len(cells) != len(_CONLLU):
            raise ElmoError(
                f"{place(path, number)}: a line of CoNLL-U has {len(_CONLLU)} columns apart by tabs, got {len(cells)} "
                f"in {shown(line)}"
            )
        if _OTHER_ID.fullmatch(cells[0]):
            continue
        if not _WORD_ID.fullmatch(cells[0]):
            raise ElmoError(
                f"{place(path, number)}: the first column of CoNLL-U numbers the words (3, 3-4 or 3.1), "
                f"got {shown(cells[0])}"
            )
        tag = cells[tag_at] if labelled else None
        if tag == "_" and _CONLLU[tag_at] not in _MAY_BE_NOTHING:
            raise ElmoError(
                f"{place(path, number)}: the word has no {_CONLLU[tag_at]} (_): choose another column with tag_column"
            )
        _add(path, number, sentence, cells[token_at], tag)
    if sentence.tokens:
        yield sentence


def _add(path: str | Path, number: int, sentence: _Sentence, token: str, tag: str | None) -> None:
    if not token or tag == "":
        raise ElmoError(f"{place(path, number)}: the {'tag' if token else 'token'} is empty: fill in the column")
    sentence.line = sentence.line or number
    sentence.tokens.append(token)
    if tag is not None:
        sentence.tags.append(tag)


def _at(path: str | Path, option: str, column: Column, width: int, names: tuple[str, ...] = ()) -> int:
    """The column counted from 0."""
    text = str(column).lower()
    if text in names:
        return names.index(text)
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= width):
        named = f" or one of {', '.join(names)}" if names else ""
        raise ElmoError(f"{path}: {option} must be a number from 1 to {width}{named}, got {column!r}")
    return int(text) - 1


def _check_apart(path: str | Path, token_at: int, tag_at: int) -> None:
    if token_at == tag_at:
        raise ElmoError(f"{path}: column {token_at + 1} cannot be both the token and the tag: change tag_column")


def _cells(line: str, tabs: bool) -> list[str]:
    # Not str.split(), for an ideographic or a no-break space is a token of some files.
    return [cell.strip(" ") for cell in line.split("\t")] if tabs else re.split(" +", line.strip(" "))


def _is_blank(line: str) -> bool:
    return not line.strip(" \t")


def _until_told(examples: Iterable[TaggedExample]) -> Iterator[TaggedExample]:
    """As many sentences as it takes to tell whether a file has segment digits: mostly one."""
    tokens = 0
    for example in examples:
        yield example
        tokens += len(example.tokens)
        if tokens > _SEGMENT_TOKENS or not all(map(_has_digit, example.tokens)):
            return


def _has_digit(token: str) -> bool:
    return len(token) > 1 and token[-1] in "0123456789"


def _have_segment_digits(examples: Iterable[TaggedExample]) -> bool:
    """Whether every token ends in a digit after a character, and the digits count on or begin again."""
    tokens = regular = 0
    for example in examples:
        before = -1
        for token in example.tokens:
            if not _has_digit(token):
                return False
            digit = int(token[-1])
            tokens += 1
            regular += len(token) == 2 and digit in (0, before + 1)
            before = digit
    return regular >= _SEGMENT_SHARE * tokens


def _without_digits(path: str | Path, example: TaggedExample) -> TaggedExample:
    for index, token in enumerate(example.tokens):
        if not _has_digit(token):
            raise ElmoError(
                f"{place(path, example.line + index)}: with segment_digits a token must end in a digit after its "
                f"characters, got {shown(token)}"
            )
    return TaggedExample(tuple(token[:-1] for token in example.tokens), example.tags, example.line)

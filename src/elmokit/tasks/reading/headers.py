"""Which column of a table is the text, which the label: by the user's word, by usual names, by usual order."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from elmokit.errors import ElmoError
from elmokit.tasks.reading.lines import shown

Role = Literal["text", "first", "second", "label"]
Names = Mapping[Role, str | None]
"""The roles that are wanted, each with the column's name or number where the user gave one."""
Columns = dict[Role, int]
"""The roles that were found, each with its column counted from 0."""

# In lower case and without what stands between words: sentence_A, Sentence A and sentenceA are one name.
USUAL_NAMES: dict[Role, frozenset[str]] = {
    "text": frozenset({
        "text", "texts", "sentence", "sentences", "review", "reviews", "content", "document", "tweet",
        "comment", "phrase", "headline", "title", "question", "query", "utterance", "message", "body",
    }),
    "first": frozenset({
        "sentence1", "sentencea", "text1", "texta", "premise", "question1", "questiona", "first", "s1",
        "sent1", "senta",
    }),
    "second": frozenset({
        "sentence2", "sentenceb", "text2", "textb", "hypothesis", "question2", "questionb", "second", "s2",
        "sent2", "sentb",
    }),
    "label": frozenset({
        "label", "labels", "class", "category", "sentiment", "goldlabel", "target", "intent", "topic",
        "polarity", "stars", "entailmentjudgment", "entailmentlabel", "isduplicate", "relatednessscore",
        "similarity", "similarityscore", "score",
    }),
}  # fmt: skip
_MEANING: dict[Role, str] = {
    "text": "the text",
    "first": "the first sentence",
    "second": "the second sentence",
    "label": "the label",
}
# Without a header, the order that most files of two columns have.
_USUAL_ORDER: tuple[Role, ...] = ("label", "text")
_SENTENCE_END = re.compile(r"[.!?。！？]\s*$")


def is_header(cells: Sequence[str], names: Names) -> bool:
    """Whether a first row is a header: a column is wanted by name, or all cells are like names and one is usual."""
    if any(name is not None and not _is_number(name) for name in names.values()):
        return True
    usual = frozenset().union(*USUAL_NAMES.values())
    plain = [_plain(cell) for cell in cells]
    # A class may be called "question"; the text beside it tells that this is no header.
    like_names = all(len(cell) <= 40 and len(cell.split()) <= 4 and not _SENTENCE_END.search(cell) for cell in cells)
    return like_names and len(set(plain)) == len(plain) and any(cell in usual for cell in plain)


def columns_by_header(path: str | Path, header: Sequence[str], names: Names) -> Columns:
    """Find each role's column in a header; a missing, doubtful or doubled one is an ElmoError."""
    found: Columns = {}
    for role, name in names.items():
        if name is not None:
            by_number = _is_number(name)
            found[role] = _by_number(path, int(name), role, header) if by_number else _by_name(path, name, role, header)
    taken = frozenset(found.values())
    found |= {role: _by_usual_name(path, role, header, taken) for role, name in names.items() if name is None}
    return _apart(path, found, header)


def columns_by_order(path: str | Path, first_row: Sequence[str], names: Names) -> Columns:
    """Find each role's column in a file without a header: by number, or where the order leaves no doubt."""
    width = len(first_row)
    if width < len(names):
        raise ElmoError(
            f"{path} must have columns for {' and '.join(names)}, apart by tabs or, in a .csv file, commas; "
            f"{_listed(first_row)}"
        )
    found = {role: _by_number(path, int(name), role, first_row) for role, name in names.items() if name is not None}
    open_roles = [role for role in names if role not in found]
    free = [column for column in range(width) if column not in found.values()]
    if "text" in names and width == 2:
        usual = [role for role in _USUAL_ORDER if role not in found]
        found |= {role: column for role, column in zip(usual, free, strict=False) if role in names}
    elif len(open_roles) == len(free) and ("label" not in open_roles or len(open_roles) == 1):
        found |= dict(zip(open_roles, free, strict=True))
    for role in open_roles:
        if role not in found:
            raise ElmoError(
                f"{path} has no header that says which column is {_MEANING[role]}: {_remedy(role, first_row)}"
            )
    return _apart(path, found, first_row)


def _by_number(path: str | Path, number: int, role: Role, cells: Sequence[str]) -> int:
    if not 1 <= number <= len(cells):
        raise ElmoError(f"{path}: {role} is column {number}, but there is no such column: {_listed(cells)}")
    return number - 1


def _by_name(path: str | Path, name: str, role: Role, header: Sequence[str]) -> int:
    cells = [cell.strip() for cell in header]
    matches = [column for column, cell in enumerate(cells) if cell == name]
    matches = matches or [column for column, cell in enumerate(cells) if _plain(cell) == _plain(name)]
    if len(matches) != 1:
        trouble = "no column" if not matches else f"{len(matches)} columns"
        raise ElmoError(f"{path} has {trouble} named {shown(name)} for {_MEANING[role]}: {_remedy(role, header)}")
    return matches[0]


def _by_usual_name(path: str | Path, role: Role, header: Sequence[str], taken: frozenset[int]) -> int:
    usual = [column for column, cell in enumerate(header) if _plain(cell) in USUAL_NAMES[role]]
    matches = [column for column in usual if column not in taken]
    if len(matches) == 1:
        return matches[0]
    trouble = "no column with a usual name" if not matches else f"{len(matches)} columns that may be meant"
    raise ElmoError(f"{path} has {trouble} for {_MEANING[role]}: {_remedy(role, header)}")


def _apart(path: str | Path, found: Columns, cells: Sequence[str]) -> Columns:
    roles: dict[int, Role] = {}
    for role, column in found.items():
        if column in roles:
            name = shown(cells[column].strip())
            raise ElmoError(f"{path}: column {column + 1} ({name}) cannot be both {roles[column]} and {role}")
        roles[column] = role
    return found


def _remedy(role: Role, cells: Sequence[str]) -> str:
    return f"name it with --{role}; {_listed(cells)}"


def _listed(cells: Sequence[str]) -> str:
    listed = ", ".join(f"{number} {shown(cell.strip())}" for number, cell in enumerate(cells, start=1))
    return f"the columns are {listed}" if len(cells) > 1 else f"the only column is {listed}"


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).lower()


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit()

"""Tables of labelled texts and sentence pairs, as examples: TSV, CSV and JSON lines, plain or packed."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from elmokit.errors import ElmoError
from elmokit.tasks.examples import PairExample, TextExample, Tokens
from elmokit.tasks.reading.headers import Names, Role, columns_by_header, columns_by_order, is_header
from elmokit.tasks.reading.lines import numbered_lines, place, shown, suffix_of
from elmokit.text.policy import TextPolicy
from elmokit.text.tokens import SegmenterName

Fields = dict[Role, str]
_TABLES = (".tsv", ".csv", ".txt")
_JSON = (".jsonl", ".json")
_SIDES: tuple[Role, Role] = ("first", "second")
_LONGEST_FIELD = 2**31 - 1
_SURROGATE = re.compile("[\ud800-\udfff]")


def read_texts(
    path: str | Path,
    *,
    text: str | None = None,
    label: str | None = None,
    segment: SegmenterName | TextPolicy = "whitespace",
    labelled: bool = True,
) -> list[TextExample]:
    """The texts of a table and their classes; `text` and `label` are columns by name or by number from 1.

    Without them, usual names in a header are known, and a file of two columns without a header is `label TAB text`.
    `segment`: how a text becomes tokens; for a model's own way give `elmo.segment`.
    With labelled=False no label is read, and a .txt file or one of a single column is a text a line.
    """
    return list(stream_texts(path, text=text, label=label, segment=segment, labelled=labelled))


def stream_texts(
    path: str | Path,
    *,
    text: str | None = None,
    label: str | None = None,
    segment: SegmenterName | TextPolicy = "whitespace",
    labelled: bool = True,
) -> Iterator[TextExample]:
    """What `read_texts` gives, one by one, so that a file may be larger than the memory."""
    names: Names = {"text": text, "label": label} if labelled else {"text": text}
    policy = TextPolicy.of(segment)
    for line, fields in _read(path, names):
        yield TextExample(_tokens(path, line, fields, "text", policy), fields.get("label"), line)


def read_pairs(
    path: str | Path,
    *,
    first: str | None = None,
    second: str | None = None,
    label: str | None = None,
    segment: SegmenterName | TextPolicy = "whitespace",
    labelled: bool = True,
) -> list[PairExample]:
    """The sentence pairs of a table and their labels; the columns are named as in `read_texts`.

    With labelled=False no label is read, and a file of two columns without a header is `first TAB second`.
    """
    return list(stream_pairs(path, first=first, second=second, label=label, segment=segment, labelled=labelled))


def stream_pairs(
    path: str | Path,
    *,
    first: str | None = None,
    second: str | None = None,
    label: str | None = None,
    segment: SegmenterName | TextPolicy = "whitespace",
    labelled: bool = True,
) -> Iterator[PairExample]:
    """What `read_pairs` gives, one by one."""
    names: Names = {"first": first, "second": second}
    if labelled:
        names = {**names, "label": label}
    policy = TextPolicy.of(segment)
    for line, fields in _read(path, names):
        first_tokens, second_tokens = (_tokens(path, line, fields, role, policy) for role in _SIDES)
        yield PairExample(first_tokens, second_tokens, fields.get("label"), line)


def _read(path: str | Path, names: Names) -> Iterator[tuple[int, Fields]]:
    """Each example's first line and its fields, as text; the label is never empty."""
    suffix = suffix_of(path)
    if suffix not in (*_TABLES, *_JSON) and str(path) != "-":
        raise ElmoError(
            f"the suffix tells the format: .tsv, .csv, .jsonl, .json or .txt, and .gz, .xz, .bz2 or .zst after it "
            f"where the file is packed; got {path}: rename it, or export it as one of these"
        )
    examples = _read_json(path, names) if suffix in _JSON else _read_table(path, names, suffix)
    for line, fields in examples:
        if "label" in fields:
            fields["label"] = fields["label"].strip()
            if not fields["label"]:
                raise ElmoError(f"{place(path, line)}: the label is empty: fill it in or remove the example")
        yield line, fields


def _tokens(path: str | Path, line: int, fields: Fields, role: Role, policy: TextPolicy) -> Tokens:
    tokens = tuple(policy.split(fields[role]))
    if not tokens:
        name = "text" if role == "text" else f"{role} sentence"
        raise ElmoError(f"{place(path, line)}: the {name} is empty: fill it in or remove the example")
    return tokens


class _Row(NamedTuple):
    line: int
    cells: list[str]


def _read_table(path: str | Path, names: Names, suffix: str) -> Iterator[tuple[int, Fields]]:
    a_text_a_line = suffix == ".txt" and names == {"text": None}
    rows = _csv_rows(path) if suffix == ".csv" else _tsv_rows(path, split=not a_text_a_line)
    first = next(rows, None)
    if first is None:
        raise ElmoError(f"{path} is empty: a table has an example a line")
    if a_text_a_line:
        for row in _even(path, first, rows):
            yield row.line, {"text": row.cells[0]}
        return
    if is_header(first.cells, names):
        columns = columns_by_header(path, first.cells, names)
        body = _even(path, first, rows)
        next(body)
    else:
        columns = columns_by_order(path, first.cells, names)
        body = _even(path, first, rows)
        if names == {"text": None, "label": None}:
            body = _plausible(path, list(body))
    empty = True
    for row in body:
        empty = False
        yield row.line, {role: row.cells[column] for role, column in columns.items()}
    if empty:
        raise ElmoError(f"{path} has a header and no examples after it")


def _even(path: str | Path, first: _Row, rest: Iterator[_Row]) -> Iterator[_Row]:
    """All rows, each as wide as the first; blank lines are left out where they cannot be meant as an example."""
    width, blank = len(first.cells), 0
    for row in chain([first], rest):
        if row.cells == [""]:
            blank = blank or row.line
            continue
        if blank and width == 1:
            raise ElmoError(f"{place(path, blank)}: the text is empty: fill the line in or remove it")
        if len(row.cells) != width:
            raise ElmoError(
                f"{place(path, row.line)}: a row must have as many columns as line {first.line}, {width}, "
                f"got {len(row.cells)}: "
                + ("a text with a comma stands in quotes" if suffix_of(path) == ".csv" else "a text may not hold a tab")
            )
        yield row


def _plausible(path: str | Path, rows: list[_Row]) -> Iterator[_Row]:
    """The rows of a file whose order was assumed, unless its labels differ more than its texts do."""
    if len({row.cells[0] for row in rows}) > len({row.cells[1] for row in rows}):
        raise ElmoError(
            f"{path} has no header, and its first column, which should be the label, has more different values than "
            "the second: name the columns with --text 1 --label 2, or give the file a header"
        )
    return iter(rows)


def _tsv_rows(path: str | Path, *, split: bool) -> Iterator[_Row]:
    """Rows of a file that has no quoting; leading blank lines are not rows."""
    seen = False
    for number, line in numbered_lines(path):
        seen = seen or not _is_blank(line)
        if seen:
            yield _Row(number, [""] if _is_blank(line) else line.split("\t") if split else [line])


def _csv_rows(path: str | Path) -> Iterator[_Row]:
    """Rows of a file where a field in quotes may hold commas, quotes and line ends; each with its first line."""
    reader = csv.reader((line + "\n" for _, line in numbered_lines(path)), strict=True)
    seen, start = False, 1
    while True:
        # A document may be longer than what the module takes for a field by default, and the limit is everyone's.
        limit = csv.field_size_limit(_LONGEST_FIELD)
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise ElmoError(
                f"{place(path, start)}: the row is not CSV ({error}): a field with a comma, a quote or a line end "
                "stands in quotes, and a quote in it is doubled"
            ) from error
        finally:
            csv.field_size_limit(limit)
        if cells is None:
            return
        seen = seen or bool(cells)
        if seen:
            yield _Row(start, cells or [""])
        start = reader.line_num + 1


def _read_json(path: str | Path, names: Names) -> Iterator[tuple[int, Fields]]:
    chosen: dict[Role, str] = {}
    for number, line in numbered_lines(path):
        if _is_blank(line):
            continue
        item = _object(path, number, line)
        if not chosen:
            keys = list(item)
            columns = columns_by_header(path, keys, names)
            chosen = {role: keys[column] for role, column in columns.items()}
        yield number, {role: _field(path, number, item, key, role) for role, key in chosen.items()}
    if not chosen:
        raise ElmoError(f"{path} is empty: it must have a JSON object a line")


def _object(path: str | Path, number: int, line: str) -> dict[str, object]:
    hint = ", with jq -c '.[]' where they are in one list" if line.lstrip().startswith("[") else ""
    try:
        item = json.loads(line)
    except (ValueError, RecursionError) as error:
        what = str(error).splitlines()[0]
        raise ElmoError(
            f"{place(path, number)}: each line must be a JSON object, got {shown(line)} ({what}): "
            f"write one object a line{hint}"
        ) from error
    if not isinstance(item, dict) or not item:
        raise ElmoError(
            f"{place(path, number)}: each line must be a JSON object with fields, got {shown(line)}: "
            f'write {{"text": "…", "label": "…"}}{hint}'
        )
    return item


def _field(path: str | Path, number: int, item: dict[str, object], key: str, role: Role) -> str:
    if key not in item:
        raise ElmoError(
            f"{place(path, number)}: the field {shown(key)} for the {role} is missing; there are {_listed(list(item))}"
        )
    value = item[key]
    if role == "label" and value is None:
        return ""
    if role == "label" and isinstance(value, bool | int | float):
        return json.dumps(value)
    if not isinstance(value, str):
        wanted = "a string or a number" if role == "label" else "a string"
        raise ElmoError(
            f"{place(path, number)}: the field {shown(key)} for the {role} must be {wanted}, "
            f"got {shown(json.dumps(value, ensure_ascii=False))}"
        )
    if _SURROGATE.search(value):
        raise ElmoError(f"{place(path, number)}: the field {shown(key)} has half of a surrogate pair, which is no text")
    return value


def _listed(keys: Sequence[str]) -> str:
    return ", ".join(shown(key) for key in keys)


def _is_blank(line: str) -> bool:
    return not line.strip(" ")

"""Files of examples: tables (TSV, CSV, JSON lines) and columns of tagged tokens (CoNLL, CoNLL-U), also compressed."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

from elmokit.corpus.lines import byte_lines
from elmokit.errors import ElmoError
from elmokit.text.packed import COMPRESSED_ENDINGS, open_decompressed
from elmokit.text.policy import TextPolicy
from elmokit.text.tokens import SegmenterName

Tokens = tuple[str, ...]
FilePath = str | Path
Segment = SegmenterName | TextPolicy
"""How a string is split into tokens."""
_MAX_QUOTED = 40


def suffix_of(path: FilePath) -> str:
    """The suffix that gives the format of a file, in lower case and without the suffix of its compression.

    >>> suffix_of("Train.TSV.xz")
    '.tsv'
    """
    name = Path(path).name.lower()
    for ending in COMPRESSED_ENDINGS:
        name = name.removesuffix(ending)
    return Path(name).suffix


def numbered_lines(path: FilePath) -> Iterator[tuple[int, str]]:
    """Each line of a UTF-8 file, compressed or not, with its number from 1; only "\\n" ends a line."""
    if str(path) == "-":
        raise ElmoError(
            "examples are read from a file, whose suffix gives the format, got - (standard input): name a file"
        )
    with ExitStack() as stack:
        for number, line in byte_lines(open_decompressed(path, stack), str(path)):
            try:
                yield number, line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise ElmoError(
                    f"{path}, line {number}: a file must be UTF-8, got byte 0x{line[error.start]:02x} at offset "
                    f"{error.start} of the line: convert it, for example with iconv -f latin1 -t UTF-8"
                ) from error


def quoted(text: str) -> str:
    """A text in quotes, shortened for a message."""
    return repr(text if len(text) <= _MAX_QUOTED else text[: _MAX_QUOTED - 1] + "…")


def location(path: FilePath | None, line: int) -> str:
    """The file and the line of an example, to begin a message."""
    where = f"line {line}" if line else "an example"
    return where if path is None else f"{path}, {where}"


def token_location(path: FilePath | None, line: int, tokens: Sequence[str], index: int) -> str:
    """The location of a token, to begin a message; `line` is the first line of its sentence."""
    # Except in CoNLL-U, which also has lines for ranges and empty nodes, each line is one token.
    if path is not None and line and suffix_of(path) != ".conllu":
        return location(path, line + index)
    return f"{location(path, line)}, token {index + 1} ({quoted(tokens[index])})"


def escape_formula(cell: str) -> str:
    """A cell of a table, with an apostrophe in front if a spreadsheet would take it for a formula.

    >>> [escape_formula(cell) for cell in ("=1+1", "'=1+1", "-1.5", "it's")]
    ["'=1+1", "''=1+1", '-1.5', "it's"]
    """
    return f"'{cell}" if _FORMULA.match(cell) and not _NUMBER.fullmatch(cell) else cell


def unescape_formula(cell: str) -> str:
    """The inverse of `escape_formula`."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


Names = Mapping[str, str | None]
"""The roles of the columns to read, each with the name or number that the user gave, or None."""
_TABLES = (".tsv", ".csv", ".txt")
_JSON = (".jsonl", ".json")
_LONGEST_FIELD = 2**31 - 1
_SURROGATE = re.compile("[\ud800-\udfff]")
_FORMULA = re.compile(r"'*[=+\-@]")
_NUMBER = re.compile(r"[+-]?[0-9.]+([eE][+-]?[0-9]+)?")
_SENTENCE_END = re.compile(r"[.!?。！？]\s*$")
# Names are in lower case without separators: sentence_A, Sentence A and sentenceA are the same name.
_USUAL_NAMES = {
    "text": "text texts sentence sentences review reviews content document tweet comment phrase headline title "
    "question query utterance message body",
    "first": "sentence1 sentencea text1 texta premise question1 questiona first s1 sent1 senta",
    "second": "sentence2 sentenceb text2 textb hypothesis question2 questionb second s2 sent2 sentb",
    "label": "label labels class category sentiment goldlabel target intent topic polarity stars entailmentjudgment "
    "entailmentlabel isduplicate relatednessscore similarity similarityscore score",
}
USUAL_NAMES = {role: frozenset(names.split()) for role, names in _USUAL_NAMES.items()}
_MEANING = {
    "text": "the texts",
    "first": "one sentence of each pair",
    "second": "the other sentence of each pair",
    "label": "the labels",
}


def read_table(
    path: FilePath, names: Names, segment: Segment = "whitespace"
) -> Iterator[tuple[int, dict[str, str], dict[str, Tokens], str | None]]:
    """The examples of a table, one by one: first line, text and tokens by role, and the label if it is in `names`.

    Columns for which `names` has None are found by the usual names in a header; two columns without a header are read
    as `label TAB text`.
    """
    suffix, policy = suffix_of(path), TextPolicy.of(segment)
    if suffix not in (*_TABLES, *_JSON) and str(path) != "-":
        raise ElmoError(
            "the format of a file is detected from its suffix: .tsv, .csv, .jsonl, .json or .txt, followed by .gz, "
            f".xz, .bz2 or .zst if it is compressed; got {path}: rename the file, or export it in one of these formats"
        )
    for line, cells in _json_cells(path, names) if suffix in _JSON else _table_cells(path, names, suffix):
        label = cells.pop("label").strip() if "label" in cells else None
        if label == "":
            raise ElmoError(f"{location(path, line)}: the label is empty: fill it in or remove the example")
        tokens = {role: tuple(policy.split(text)) for role, text in cells.items()}
        for role, found in tokens.items():
            if not found:
                name = "text" if role == "text" else f"{role} sentence"
                raise ElmoError(f"{location(path, line)}: the {name} is empty: fill it in or remove the example")
        yield line, cells, tokens, label


_Row = tuple[int, list[str]]
"""The cells of a row, and its first line."""


def _table_cells(path: FilePath, names: Names, suffix: str) -> Iterator[tuple[int, dict[str, str]]]:
    one_text_per_line = suffix == ".txt" and names == {"text": None}
    rows = _csv_rows(path) if suffix == ".csv" else _tsv_rows(path, split=not one_text_per_line)
    first = next(rows, None)
    if first is None:
        raise ElmoError(f"{path} is empty: it must have one example per line")
    header = not one_text_per_line and _is_header(first[1], names)
    columns = {"text": 0} if one_text_per_line else _choose_columns(path, first[1], names, header=header)
    body = _even_rows(path, chain([first], rows), len(first[1]))
    if header:
        next(body)
    elif names == {"text": None, "label": None}:
        body = iter(rest := list(body))
        if len({cells[0] for _, cells in rest}) > len({cells[1] for _, cells in rest}):
            raise ElmoError(
                f"{path} has no header, and column 1, which usually has the labels, has more different values than "
                "column 2: name the columns (text=1, label=2), or give the file a header",
                *names,
            )
    cells = None
    for line, cells in body:
        chosen = {role: cells[column] for role, column in columns.items()}
        yield line, chosen if suffix == ".txt" else {role: unescape_formula(cell) for role, cell in chosen.items()}
    if cells is None:
        raise ElmoError(f"{path} has a header and no examples: it must have one example per line after the header")


def _even_rows(path: FilePath, rows: Iterable[_Row], width: int) -> Iterator[_Row]:
    """All rows but the blank ones, checked to have `width` columns; in a single column, a blank row is an error."""
    first = blank = 0
    for line, cells in rows:
        first = first or line
        if cells == [""]:
            blank = blank or line
            continue
        if blank and width == 1:
            raise ElmoError(f"{location(path, blank)}: the text is empty: fill the line in or remove it")
        if len(cells) != width:
            hint = "put a text with a comma in quotes" if suffix_of(path) == ".csv" else "a text cannot contain a tab"
            rule = f"each row must have the {width} columns of line {first}, got {len(cells)}"
            raise ElmoError(f"{location(path, line)}: {rule}: {hint}")
        yield line, cells


def _tsv_rows(path: FilePath, *, split: bool) -> Iterator[_Row]:
    """The rows of a file without quoting, except blank lines at its start."""
    seen = False
    for number, line in numbered_lines(path):
        blank = not line.strip(" ")
        seen = seen or not blank
        if seen:
            yield number, [""] if blank else line.split("\t") if split else [line]


def _csv_rows(path: FilePath) -> Iterator[_Row]:
    """The rows of a file in which fields in quotes may contain commas, quotes and line ends."""
    reader = csv.reader((line + "\n" for _, line in numbered_lines(path)), strict=True)
    seen, start = False, 1
    while True:
        # A text may be longer than the csv module's default limit, which is global and therefore restored.
        limit = csv.field_size_limit(_LONGEST_FIELD)
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise ElmoError(
                f"{location(path, start)}: the row is not CSV ({error}): put a field with a comma, a quote or a line "
                "end in quotes, and double the quotes inside it"
            ) from error
        finally:
            csv.field_size_limit(limit)
        if cells is None:
            return
        seen = seen or bool(cells)
        if seen:
            yield start, cells or [""]
        start = reader.line_num + 1


def _json_cells(path: FilePath, names: Names) -> Iterator[tuple[int, dict[str, str]]]:
    chosen: dict[str, str] = {}
    for number, line in numbered_lines(path):
        if not line.strip(" "):
            continue
        where = location(path, number)
        try:
            item, problem = json.loads(line), ""
        except (ValueError, RecursionError) as error:
            item, problem = None, f" ({str(error).splitlines()[0]})"
        if not isinstance(item, dict) or not item:
            hint = ", with jq -c '.[]' if the file is one list" if line.lstrip().startswith("[") else ""
            raise ElmoError(
                f"{where}: each line must be a JSON object with fields, got {quoted(line)}{problem}: "
                f'write one {{"text": "…", "label": "…"}} per line{hint}'
            )
        if not chosen:
            keys = list(item)
            chosen = {role: keys[at] for role, at in _choose_columns(path, keys, names, header=True).items()}
        yield number, {role: _json_field(where, item, key, role) for role, key in chosen.items()}
    if not chosen:
        raise ElmoError(f"{path} is empty: it must have one JSON object per line")


def _json_field(where: str, item: dict[str, object], key: str, role: str) -> str:
    field = f"{where}: the field {quoted(key)} for {_MEANING[role]}"
    if key not in item:
        raise ElmoError(f"{field} is missing; the fields are {', '.join(map(quoted, item))}")
    value = item[key]
    if role == "label" and (value is None or isinstance(value, bool | int | float)):
        return "" if value is None else json.dumps(value)
    if not isinstance(value, str):
        wanted = "a string or a number" if role == "label" else "a string"
        raise ElmoError(f"{field} must be {wanted}, got {quoted(json.dumps(value, ensure_ascii=False))}")
    if _SURROGATE.search(value):
        raise ElmoError(f"{field} must be valid Unicode, got half of a surrogate pair: correct the \\u escape")
    return value


def _is_header(cells: Sequence[str], names: Names) -> bool:
    """Whether the first row is a header: the user named a column, or all cells look like names and one is usual."""
    if any(name is not None and not _is_number(name) for name in names.values()):
        return True
    usual = frozenset().union(*USUAL_NAMES.values())
    normalised = [_normalised(cell) for cell in cells]
    # All cells must look like names, because the first label may be a usual name, such as "question".
    like_names = all(len(cell) <= 40 and len(cell.split()) <= 4 and not _SENTENCE_END.search(cell) for cell in cells)
    return like_names and any(cell in usual and normalised.count(cell) == 1 for cell in normalised)


def _choose_columns(path: FilePath, cells: Sequence[str], names: Names, *, header: bool) -> dict[str, int]:
    """The column of each role, from 0: by number, by name, by usual name or by usual order.

    If the choice is not clear, an ElmoError lists the columns.
    """
    listed = ", ".join(f"{number} {quoted(cell.strip())}" for number, cell in enumerate(cells, start=1))
    listed = f"the columns are {listed}" if len(cells) > 1 else f"the only column is {listed}"
    if not header and len(cells) < len(names):
        roles = " and ".join(names)
        raise ElmoError(f"{path} must have columns for {roles}, separated by tabs or, in a .csv file, commas; {listed}")

    def only(matches: Sequence[int], which: str, role: str) -> int:
        if len(matches) != 1:
            number = f"{len(matches)} columns" if matches else "no column"
            raise ElmoError(f"{path} has {number} {which} for {_MEANING[role]}: choose one with {role}; {listed}", role)
        return matches[0]

    found: dict[str, int] = {}
    for role, name in names.items():
        if name is not None and _is_number(name):
            if not 1 <= int(name) <= len(cells):
                raise ElmoError(f"{path} has no column {name} for {role}: {listed}", role)
            found[role] = int(name) - 1
        elif name is not None:
            matches = [column for column, cell in enumerate(cells) if cell.strip() == name]
            matches = matches or [column for column, cell in enumerate(cells) if _normalised(cell) == _normalised(name)]
            found[role] = only(matches, f"named {quoted(name)}", role)
    open_roles = [role for role in names if role not in found]
    free = [column for column in range(len(cells)) if column not in found.values()]
    if header:
        for role in open_roles:
            usual = [column for column in free if _normalised(cells[column]) in USUAL_NAMES[role]]
            found[role] = only(usual, "with a usual name", role)
    elif "text" in names and len(cells) == 2:
        order = [role for role in ("label", "text") if role not in found]  # the usual order of two columns
        found |= {role: column for role, column in zip(order, free, strict=False) if role in names}
    elif len(open_roles) == len(free) and ("label" not in open_roles or len(open_roles) == 1):
        found |= dict(zip(open_roles, free, strict=True))
    roles_of: dict[int, str] = {}
    for role in names:
        if role not in found:
            raise ElmoError(
                f"{path} has no header that says which column has {_MEANING[role]}: choose one with {role}; {listed}",
                role,
            )
        if (other := roles_of.setdefault(found[role], role)) != role:
            name = f"column {found[role] + 1} ({quoted(cells[found[role]].strip())})"
            raise ElmoError(f"{path}: {name} cannot be both {other} and {role}", role)
    return found


def _normalised(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).lower()


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit()


Column = int | str
"""A column by its number from 1 or, in CoNLL-U, by its name."""
_CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_MAY_BE_EMPTY = ("feats", "misc")  # columns in which _ is a valid tag
_WORD_ID, _OTHER_ID = re.compile(r"[0-9]+"), re.compile(r"[0-9]+[-.][0-9]+")
_METADATA = re.compile(r"#\s*\S+\s*=\s")
_SEGMENT_SHARE = 0.98
"""Minimum share of the tokens that are one character and a digit that counts up; files may contain some errors."""
_SEGMENT_TOKENS = 100_000
"""Maximum number of tokens to check for segment digits."""


Sentence = tuple[Tokens, Tokens | None, int]
"""The tokens of a sentence, its tags if they were read, and the number of its first line."""
_Line = tuple[int, str, str | None]
"""The number of a line, its token, and its tag if it was read."""


def read_columns(path: FilePath, columns: Mapping[str, Any], labelled: bool = True) -> Iterator[Sentence]:
    """The sentences of a file of columns, one by one, so that a file may be larger than the memory.

    `columns` may have token_column, tag_column and segment_digits; `read_tagged` explains them.
    """
    lines = _conllu_lines if suffix_of(path) == ".conllu" else _column_lines
    sentences = _sentences(lines(path, columns.get("token_column"), columns.get("tag_column"), labelled), labelled)
    head: list[Sentence] = []
    digits = columns.get("segment_digits")
    if digits is None:
        digits = _have_segment_digits(sentences, head)
    empty = True
    for tokens, tags, line in chain(head, sentences):
        empty = False
        if suffix_of(path) == ".tsv":
            tokens = tuple(map(unescape_formula, tokens))
        yield _without_digits(path, tokens, line) if digits else tokens, tags, line
    if empty:
        raise ElmoError(f"{path} has no sentences: it must have one token with its tag per line")


def _sentences(lines: Iterable[_Line | None], labelled: bool) -> Iterator[Sentence]:
    """Group lines into sentences; None ends a sentence."""
    rows: list[_Line] = []
    for line in chain(lines, [None]):
        if line is not None:
            rows.append(line)
        elif rows:
            numbers, tokens, tags = zip(*rows, strict=True)
            yield tokens, tags if labelled else None, numbers[0]
            rows = []


def _column_lines(
    path: FilePath, token_column: Column | None, tag_column: Column | None, labelled: bool
) -> Iterator[_Line | None]:
    """The tokens of a CoNLL file; None after each sentence."""
    lines = numbered_lines(path)
    # Lines at the start that begin with # may be comments or tokens: the first other line shows the columns.
    head: list[tuple[int, str]] = []
    for number, line in lines:
        head.append((number, line))
        if not _is_break(line) and not line.startswith("#"):
            break
    filled = [line for _, line in head if not _is_break(line)]
    if not filled:
        return
    pattern = filled[0] if filled[-1].startswith("#") else filled[-1]
    tabs, width = "\t" in pattern, len(_cells(pattern, "\t" in pattern))
    if labelled and width == 1:
        raise ElmoError(
            f"{location(path, head[-1][0])}: a line must have a token and a tag, separated by a tab or a space, "
            f"got {quoted(pattern)}"
        )
    chosen = (1 if token_column is None else token_column, width if tag_column is None else tag_column)
    token_at, tag_at = _token_and_tag(path, chosen, labelled, width)
    inside = False
    for number, line in chain(head, lines):
        if _is_break(line):
            inside = False
            yield None
            continue
        cells = _cells(line, tabs)
        if line.startswith("#") and not inside and (len(cells) != width or _METADATA.match(line)):
            continue
        if len(cells) != width:
            raise ElmoError(
                f"{location(path, number)}: a line must have {width} columns, like those before it, got {len(cells)} "
                f"in {quoted(line)}: columns are separated by {'one tab' if tabs else 'spaces'}"
            )
        inside = True
        yield _line(path, number, cells[token_at], cells[tag_at] if labelled else None)


def _conllu_lines(
    path: FilePath, token_column: Column | None, tag_column: Column | None, labelled: bool
) -> Iterator[_Line | None]:
    """The words of a CoNLL-U file, without word ranges and empty nodes; None after each sentence."""
    chosen = ("form" if token_column is None else token_column, "upos" if tag_column is None else tag_column)
    token_at, tag_at = _token_and_tag(path, chosen, labelled, len(_CONLLU), _CONLLU)
    for number, line in numbered_lines(path):
        if _is_break(line):
            yield None
            continue
        if line.startswith("#"):
            continue
        cells, where = line.split("\t"), location(path, number)
        if len(cells) != len(_CONLLU):
            raise ElmoError(
                f"{where}: a line of CoNLL-U must have {len(_CONLLU)} columns separated by tabs, got {len(cells)} in "
                f"{quoted(line)}"
            )
        if _OTHER_ID.fullmatch(cells[0]):
            continue
        if not _WORD_ID.fullmatch(cells[0]):
            rule = "the first column of CoNLL-U must be the number of a word (3, 3-4 or 3.1)"
            raise ElmoError(f"{where}: {rule}, got {quoted(cells[0])}")
        tag = cells[tag_at] if labelled else None
        if tag == "_" and (name := _CONLLU[tag_at]) not in _MAY_BE_EMPTY:
            raise ElmoError(f"{where}: the word has no {name} (_): choose another column with tag_column", "tag_column")
        yield _line(path, number, cells[token_at], tag)


def _line(path: FilePath, number: int, token: str, tag: str | None) -> _Line:
    if not token or tag == "":
        raise ElmoError(f"{location(path, number)}: the {'tag' if token else 'token'} is empty: fill in the column")
    return number, token, tag


def _token_and_tag(
    path: FilePath, chosen: tuple[Column, Column], labelled: bool, width: int, names: tuple[str, ...] = ()
) -> tuple[int, int]:
    """The columns of the tokens and the tags, from 0; the second is meaningless if no tags are read."""
    found: list[int] = []
    for argument, column in zip(("token_column", "tag_column")[: 1 + labelled], chosen, strict=False):
        text = str(column).lower()
        if text not in names and not (_is_number(text) and 1 <= int(text) <= width):
            named = f" or one of {', '.join(names)}" if names else ""
            raise ElmoError(f"{path}: {argument} must be a number from 1 to {width}{named}, got {column}", argument)
        found.append(names.index(text) if text in names else int(text) - 1)
    if labelled and found[0] == found[1]:
        same = f"column {found[0] + 1} cannot be both the token and the tag"
        raise ElmoError(f"{path}: {same}: change tag_column", "tag_column")
    return found[0], found[-1]


def _cells(line: str, tabs: bool) -> list[str]:
    # Not str.split(): in some files an ideographic or a no-break space is a token.
    return [cell.strip(" ") for cell in line.split("\t")] if tabs else re.split(" +", line.strip(" "))


def _is_break(line: str) -> bool:
    """Whether a line ends a sentence, because it is blank or begins a document."""
    return not line.strip(" \t") or line.startswith("-DOCSTART-")


def _has_digit(token: str) -> bool:
    return len(token) > 1 and token[-1] in "0123456789"


def _have_segment_digits(sentences: Iterator[Sentence], head: list[Sentence]) -> bool:
    """Whether every token ends in a digit, and almost all digits continue the count of the token before or restart it.

    The sentences that were read for this are added to `head`, usually just one.
    """
    tokens = regular = 0
    for sentence in sentences:
        head.append(sentence)
        before = -1
        for token in sentence[0]:
            if not _has_digit(token):
                return False
            digit = int(token[-1])
            tokens += 1
            regular += len(token) == 2 and digit in (0, before + 1)
            before = digit
        if tokens > _SEGMENT_TOKENS:
            break
    return regular >= _SEGMENT_SHARE * tokens


def _without_digits(path: FilePath, tokens: Tokens, line: int) -> Tokens:
    for index, token in enumerate(tokens):
        if not _has_digit(token):
            rule = "with segment_digits, each token must end in a digit after its characters"
            raise ElmoError(f"{location(path, line + index)}: {rule}, got {quoted(token)}", "segment_digits")
    return tuple(token[:-1] for token in tokens)

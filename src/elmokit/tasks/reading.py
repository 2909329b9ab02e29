"""Files of examples: tables (TSV, CSV, JSON lines) and columns of tagged tokens (CoNLL, CoNLL-U), plain or packed."""

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
"""How a string becomes tokens."""
_SHOWN_CHARACTERS = 40


def suffix_of(path: FilePath) -> str:
    """What a file's format is detected from: its suffix in lower case, before that of its packing.

    >>> suffix_of("Train.TSV.xz")
    '.tsv'
    """
    name = Path(path).name.lower()
    for ending in COMPRESSED_ENDINGS:
        name = name.removesuffix(ending)
    return Path(name).suffix


def numbered_lines(path: FilePath) -> Iterator[tuple[int, str]]:
    """Each line of a UTF-8 file, plain or packed, with its number from 1; only "\\n" ends a line."""
    if str(path) == "-":
        raise ElmoError("examples are read from a file, whose suffix is its format, got - for standard input")
    with ExitStack() as stack:
        for number, line in byte_lines(open_decompressed(path, stack), str(path)):
            try:
                yield number, line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise ElmoError(
                    f"{path}, line {number}: a file must be UTF-8, got byte 0x{line[error.start]:02x} after "
                    f"{error.start} others: convert it, for example with iconv -f latin1 -t UTF-8"
                ) from error


def shown(text: str) -> str:
    """A text in quotes, cut to a length that suits a message."""
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…")


def place(path: FilePath | None, line: int) -> str:
    """Where an example is, as the start of a message."""
    where = f"line {line}" if line else "an example"
    return where if path is None else f"{path}, {where}"


def token_place(path: FilePath | None, line: int, tokens: Sequence[str], index: int) -> str:
    """Where a token of the sentence that starts at a line is, as the start of a message."""
    # In CoNLL-U there are ranges and empty nodes between the tokens; elsewhere a token is a line.
    if path is not None and line and suffix_of(path) != ".conllu":
        return place(path, line + index)
    return f"{place(path, line)}, token {index + 1} ({shown(tokens[index])})"


def escape_formula(cell: str) -> str:
    """A cell of a table as text for a spreadsheet too: one that it would compute gets an apostrophe in front.

    >>> [escape_formula(cell) for cell in ("=1+1", "'=1+1", "-1.5", "it's")]
    ["'=1+1", "''=1+1", '-1.5', "it's"]
    """
    return f"'{cell}" if _FORMULA.match(cell) and not _NUMBER.fullmatch(cell) else cell


def unescape_formula(cell: str) -> str:
    """What `escape_formula` was given."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


Names = Mapping[str, str | None]
"""The roles to read, each with its column's name or number if the user gave one."""
_TABLES = (".tsv", ".csv", ".txt")
_JSON = (".jsonl", ".json")
_LONGEST_FIELD = 2**31 - 1
_SURROGATE = re.compile("[\ud800-\udfff]")
_FORMULA = re.compile(r"'*[=+\-@]")
_NUMBER = re.compile(r"[+-]?[0-9.]+([eE][+-]?[0-9]+)?")
_SENTENCE_END = re.compile(r"[.!?。！？]\s*$")
# In lower case and without separators: sentence_A, Sentence A and sentenceA are one name.
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
    """The examples of a table, one by one: the first line, each text, its tokens, and the label if it is read.

    Columns without a name are found by the usual names in a header; without a header, two columns are `label TAB text`.
    """
    suffix, policy = suffix_of(path), TextPolicy.of(segment)
    if suffix not in (*_TABLES, *_JSON) and str(path) != "-":
        raise ElmoError(
            f"the suffix tells the format: .tsv, .csv, .jsonl, .json or .txt, and .gz, .xz, .bz2 or .zst after it "
            f"if the file is packed; got {path}: rename it, or export it as one of these"
        )
    for line, cells in _json_cells(path, names) if suffix in _JSON else _table_cells(path, names, suffix):
        label = cells.pop("label").strip() if "label" in cells else None
        if label == "":
            raise ElmoError(f"{place(path, line)}: the label is empty: fill it in or remove the example")
        tokens = {role: tuple(policy.split(text)) for role, text in cells.items()}
        for role, found in tokens.items():
            if not found:
                name = "text" if role == "text" else f"{role} sentence"
                raise ElmoError(f"{place(path, line)}: the {name} is empty: fill it in or remove the example")
        yield line, cells, tokens, label


_Row = tuple[int, list[str]]
"""The cells of a row, and its first line."""


def _table_cells(path: FilePath, names: Names, suffix: str) -> Iterator[tuple[int, dict[str, str]]]:
    one_text_per_line = suffix == ".txt" and names == {"text": None}
    rows = _csv_rows(path) if suffix == ".csv" else _tsv_rows(path, split=not one_text_per_line)
    first = next(rows, None)
    if first is None:
        raise ElmoError(f"{path} is empty: a table has one example per line")
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
        raise ElmoError(f"{path} has a header and no examples after it")


def _even_rows(path: FilePath, rows: Iterable[_Row], width: int) -> Iterator[_Row]:
    """All rows, each as wide as the first, without blank lines that cannot be meant as an example."""
    first = blank = 0
    for line, cells in rows:
        first = first or line
        if cells == [""]:
            blank = blank or line
            continue
        if blank and width == 1:
            raise ElmoError(f"{place(path, blank)}: the text is empty: fill the line in or remove it")
        if len(cells) != width:
            hint = "put a text with a comma in quotes" if suffix_of(path) == ".csv" else "a text cannot contain a tab"
            rule = f"a row must have as many columns as line {first}, {width}, got {len(cells)}"
            raise ElmoError(f"{place(path, line)}: {rule}: {hint}")
        yield line, cells


def _tsv_rows(path: FilePath, *, split: bool) -> Iterator[_Row]:
    """Rows of a file that has no quoting; leading blank lines are not rows."""
    seen = False
    for number, line in numbered_lines(path):
        blank = not line.strip(" ")
        seen = seen or not blank
        if seen:
            yield number, [""] if blank else line.split("\t") if split else [line]


def _csv_rows(path: FilePath) -> Iterator[_Row]:
    """Rows of a file in which a field in quotes may contain commas, quotes and line ends; each with its first line."""
    reader = csv.reader((line + "\n" for _, line in numbered_lines(path)), strict=True)
    seen, start = False, 1
    while True:
        # A document may be longer than the module's default for a field, and the limit is global.
        limit = csv.field_size_limit(_LONGEST_FIELD)
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise ElmoError(
                f"{place(path, start)}: the row is not CSV ({error}): put a field with a comma, a quote or a line end "
                "in quotes, and double the quotes inside it"
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
        where = place(path, number)
        try:
            item, problem = json.loads(line), ""
        except (ValueError, RecursionError) as error:
            item, problem = None, f" ({str(error).splitlines()[0]})"
        if not isinstance(item, dict) or not item:
            hint = ", with jq -c '.[]' if they are in one list" if line.lstrip().startswith("[") else ""
            raise ElmoError(
                f"{where}: each line must be a JSON object with fields, got {shown(line)}{problem}: "
                f'write one {{"text": "…", "label": "…"}} per line{hint}'
            )
        if not chosen:
            keys = list(item)
            chosen = {role: keys[at] for role, at in _choose_columns(path, keys, names, header=True).items()}
        yield number, {role: _json_field(where, item, key, role) for role, key in chosen.items()}
    if not chosen:
        raise ElmoError(f"{path} is empty: it must have one JSON object per line")


def _json_field(where: str, item: dict[str, object], key: str, role: str) -> str:
    field = f"{where}: the field {shown(key)} for {_MEANING[role]}"
    if key not in item:
        raise ElmoError(f"{field} is missing; there are {', '.join(map(shown, item))}")
    value = item[key]
    if role == "label" and (value is None or isinstance(value, bool | int | float)):
        return "" if value is None else json.dumps(value)
    if not isinstance(value, str):
        wanted = "a string or a number" if role == "label" else "a string"
        raise ElmoError(f"{field} must be {wanted}, got {shown(json.dumps(value, ensure_ascii=False))}")
    if _SURROGATE.search(value):
        raise ElmoError(f"{field} has half of a surrogate pair, which is no text")
    return value


def _is_header(cells: Sequence[str], names: Names) -> bool:
    """Whether a first row is a header: a column is chosen by name, or all cells look like names and one is usual."""
    if any(name is not None and not _is_number(name) for name in names.values()):
        return True
    usual = frozenset().union(*USUAL_NAMES.values())
    plain = [_plain(cell) for cell in cells]
    # A class may be called "question"; the text next to it shows that this is no header.
    like_names = all(len(cell) <= 40 and len(cell.split()) <= 4 and not _SENTENCE_END.search(cell) for cell in cells)
    return like_names and len(set(plain)) == len(plain) and any(cell in usual for cell in plain)


def _choose_columns(path: FilePath, cells: Sequence[str], names: Names, *, header: bool) -> dict[str, int]:
    """Each role's column, from 0: by number, by name, by usual name or by usual order; doubt is an ElmoError."""
    listed = ", ".join(f"{number} {shown(cell.strip())}" for number, cell in enumerate(cells, start=1))
    listed = f"the columns are {listed}" if len(cells) > 1 else f"the only column is {listed}"
    if not header and len(cells) < len(names):
        roles = " and ".join(names)
        raise ElmoError(f"{path} must have columns for {roles}, separated by tabs or, in a .csv file, commas; {listed}")

    def only(matches: Sequence[int], which: str, role: str) -> int:
        if len(matches) != 1:
            number = f"{len(matches)} columns" if matches else "no column"
            what = f"{number} {which} for {_MEANING[role]}"
            raise ElmoError(f"{path} has {what}: choose one with {role}; {listed}", role)
        return matches[0]

    found: dict[str, int] = {}
    for role, name in names.items():
        if name is not None and _is_number(name):
            if not 1 <= int(name) <= len(cells):
                raise ElmoError(f"{path}: {role} is column {name}, but there is no such column: {listed}", role)
            found[role] = int(name) - 1
        elif name is not None:
            matches = [column for column, cell in enumerate(cells) if cell.strip() == name]
            matches = matches or [column for column, cell in enumerate(cells) if _plain(cell) == _plain(name)]
            found[role] = only(matches, f"named {shown(name)}", role)
    open_roles = [role for role in names if role not in found]
    free = [column for column in range(len(cells)) if column not in found.values()]
    if header:
        for role in open_roles:
            usual = [column for column in free if _plain(cells[column]) in USUAL_NAMES[role]]
            found[role] = only(usual, "with a usual name", role)
    elif "text" in names and len(cells) == 2:
        order = [role for role in ("label", "text") if role not in found]  # of most files with two columns
        found |= {role: column for role, column in zip(order, free, strict=False) if role in names}
    elif len(open_roles) == len(free) and ("label" not in open_roles or len(open_roles) == 1):
        found |= dict(zip(open_roles, free, strict=True))
    roles_of: dict[int, str] = {}
    for role in names:
        if role not in found:
            what = f"which column has {_MEANING[role]}"
            raise ElmoError(f"{path} has no header that says {what}: choose one with {role}; {listed}", role)
        if (other := roles_of.setdefault(found[role], role)) != role:
            name = f"column {found[role] + 1} ({shown(cells[found[role]].strip())})"
            raise ElmoError(f"{path}: {name} cannot be both {other} and {role}", role)
    return found


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).lower()


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit()


Column = int | str
"""A column by its number from 1 or, in CoNLL-U, by its name."""
_CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_MAY_BE_NOTHING = ("feats", "misc")  # where _ is a value like any other
_WORD_ID, _OTHER_ID = re.compile(r"[0-9]+"), re.compile(r"[0-9]+[-.][0-9]+")
_METADATA = re.compile(r"#\s*\S+\s*=\s")
_SEGMENT_SHARE = 0.98
"""The share of tokens with a segment digit that must be one character and count up; the rest are slips of the file."""
_SEGMENT_TOKENS = 100_000
"""The number of tokens with a digit after which the question is settled, whatever the length of the file."""


Sentence = tuple[Tokens, Tokens | None, int]
"""The tokens of a sentence, its tags if they were read, and its first line."""
_Line = tuple[int, str, str | None]


def read_columns(path: FilePath, columns: Mapping[str, Any], labelled: bool = True) -> Iterator[Sentence]:
    """The sentences of a file of columns, one by one, so that a file may be larger than the memory.

    `columns` may have token_column, tag_column and segment_digits, as `read_tagged` explains them.
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
    """Lines up to each None as one sentence."""
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
    # A token may be "#", so the lines after them must show what comments at the start are.
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
            f"{place(path, head[-1][0])}: a line must have a token and a tag, separated by a tab or a space, "
            f"got {shown(pattern)}"
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
                f"{place(path, number)}: a line must have {width} columns, as those before it, got {len(cells)} "
                f"in {shown(line)}: columns are separated by {'one tab' if tabs else 'spaces'}"
            )
        inside = True
        yield _line(path, number, cells[token_at], cells[tag_at] if labelled else None)


def _conllu_lines(
    path: FilePath, token_column: Column | None, tag_column: Column | None, labelled: bool
) -> Iterator[_Line | None]:
    """The words of a CoNLL-U file, without ranges and empty nodes; None after each sentence."""
    chosen = ("form" if token_column is None else token_column, "upos" if tag_column is None else tag_column)
    token_at, tag_at = _token_and_tag(path, chosen, labelled, len(_CONLLU), _CONLLU)
    for number, line in numbered_lines(path):
        if _is_break(line):
            yield None
            continue
        if line.startswith("#"):
            continue
        cells, where = line.split("\t"), place(path, number)
        if len(cells) != len(_CONLLU):
            found = f"got {len(cells)} in {shown(line)}"
            raise ElmoError(f"{where}: a line of CoNLL-U has {len(_CONLLU)} columns separated by tabs, {found}")
        if _OTHER_ID.fullmatch(cells[0]):
            continue
        if not _WORD_ID.fullmatch(cells[0]):
            rule = "the first column of CoNLL-U numbers the words (3, 3-4 or 3.1)"
            raise ElmoError(f"{where}: {rule}, got {shown(cells[0])}")
        tag = cells[tag_at] if labelled else None
        if tag == "_" and (name := _CONLLU[tag_at]) not in _MAY_BE_NOTHING:
            raise ElmoError(f"{where}: the word has no {name} (_): choose another column with tag_column", "tag_column")
        yield _line(path, number, cells[token_at], tag)


def _line(path: FilePath, number: int, token: str, tag: str | None) -> _Line:
    if not token or tag == "":
        raise ElmoError(f"{place(path, number)}: the {'tag' if token else 'token'} is empty: fill in the column")
    return number, token, tag


def _token_and_tag(
    path: FilePath, chosen: tuple[Column, Column], labelled: bool, width: int, names: tuple[str, ...] = ()
) -> tuple[int, int]:
    """The columns of tokens and tags, counted from 0."""
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
    # Not str.split(): an ideographic or a no-break space is a token of some files.
    return [cell.strip(" ") for cell in line.split("\t")] if tabs else re.split(" +", line.strip(" "))


def _is_break(line: str) -> bool:
    """Whether a line ends a sentence: it is blank, or a document begins."""
    return not line.strip(" \t") or line.startswith("-DOCSTART-")


def _has_digit(token: str) -> bool:
    return len(token) > 1 and token[-1] in "0123456789"


def _have_segment_digits(sentences: Iterator[Sentence], head: list[Sentence]) -> bool:
    """Whether every token ends in a digit after a character, and the digits count up or begin again.

    The sentences that had to be read to see that are added to `head`; mostly it is one.
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
            rule = "with segment_digits a token must end in a digit after its characters"
            raise ElmoError(f"{place(path, line + index)}: {rule}, got {shown(token)}", "segment_digits")
    return tuple(token[:-1] for token in tokens)

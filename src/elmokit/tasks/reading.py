"""Files of examples: tables (TSV, CSV, JSON lines) and columns of tagged tokens (CoNLL, CoNLL-U), plain or packed."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from elmokit.corpus.lines import byte_lines
from elmokit.errors import ElmoError
from elmokit.text.packed import PACKED_ENDINGS, open_packed
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
    for ending in PACKED_ENDINGS:
        name = name.removesuffix(ending)
    return Path(name).suffix


def numbered_lines(path: FilePath) -> Iterator[tuple[int, str]]:
    """Each line of a UTF-8 file, plain or packed, with its number from 1; only "\\n" ends a line."""
    if str(path) == "-":
        raise ElmoError("examples are read from a file, whose suffix is its format, got - for standard input")
    with ExitStack() as stack:
        for number, line in byte_lines(open_packed(path, stack), str(path)):
            try:
                yield number, line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise ElmoError(
                    f"{path}, line {number}: a file must be UTF-8, got byte 0x{line[error.start]:02x} after "
                    f"{error.start} others: convert it, for example with iconv -t UTF-8"
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


Names = Mapping[str, str | None]
"""The roles to read, each with its column's name or number if the user gave one."""
_TABLES = (".tsv", ".csv", ".txt")
_JSON = (".jsonl", ".json")
_LONGEST_FIELD = 2**31 - 1
_SURROGATE = re.compile("[\ud800-\udfff]")
_SENTENCE_END = re.compile(r"[.!?。！？]\s*$")
# In lower case and without separators: sentence_A, Sentence A and sentenceA are one name.
USUAL_NAMES: dict[str, frozenset[str]] = {
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
_MEANING: dict[str, str] = {
    "text": "the texts", "first": "one sentence of each pair", "second": "the other sentence of each pair",
    "label": "the labels",
}  # fmt: skip


def read_table(
    path: FilePath, names: Names, segment: Segment = "whitespace"
) -> Iterator[tuple[int, dict[str, Tokens], str | None]]:
    """The examples of a table, one by one: the first line, the tokens of each text, and the label if it is read.

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
        yield line, tokens, label


class _Row(NamedTuple):
    line: int
    cells: list[str]


def _table_cells(path: FilePath, names: Names, suffix: str) -> Iterator[tuple[int, dict[str, str]]]:
    one_text_per_line = suffix == ".txt" and names == {"text": None}
    rows = _csv_rows(path) if suffix == ".csv" else _tsv_rows(path, split=not one_text_per_line)
    first = next(rows, None)
    if first is None:
        raise ElmoError(f"{path} is empty: a table has one example per line")
    body = _even_rows(path, first, rows)
    if one_text_per_line:
        columns: dict[str, int] = {"text": 0}
    elif _is_header(first.cells, names):
        columns = _choose_columns(path, first.cells, names, header=True)
        next(body)
    else:
        columns = _choose_columns(path, first.cells, names, header=False)
        if names == {"text": None, "label": None}:
            body = _plausible(path, list(body))
    row = None
    for row in body:
        yield row.line, {role: row.cells[column] for role, column in columns.items()}
    if row is None:
        raise ElmoError(f"{path} has a header and no examples after it")


def _even_rows(path: FilePath, first: _Row, rest: Iterator[_Row]) -> Iterator[_Row]:
    """All rows, each as wide as the first, without blank lines that cannot be meant as an example."""
    width, blank = len(first.cells), 0
    for row in chain([first], rest):
        if row.cells == [""]:
            blank = blank or row.line
            continue
        if blank and width == 1:
            raise ElmoError(f"{place(path, blank)}: the text is empty: fill the line in or remove it")
        if len(row.cells) != width:
            hint = "put a text with a comma in quotes" if suffix_of(path) == ".csv" else "a text cannot contain a tab"
            raise ElmoError(
                f"{place(path, row.line)}: a row must have as many columns as line {first.line}, {width}, "
                f"got {len(row.cells)}: {hint}"
            )
        yield row


def _plausible(path: FilePath, rows: list[_Row]) -> Iterator[_Row]:
    """The rows of a file whose order was assumed, unless its labels differ more than its texts do."""
    if len({row.cells[0] for row in rows}) > len({row.cells[1] for row in rows}):
        raise ElmoError(
            f"{path} has no header, and column 1, which usually has the labels, has more different values than column "
            "2: name the columns (text=1, label=2), or give the file a header",
            "text",
            "label",
        )
    return iter(rows)


def _tsv_rows(path: FilePath, *, split: bool) -> Iterator[_Row]:
    """Rows of a file that has no quoting; leading blank lines are not rows."""
    seen = False
    for number, line in numbered_lines(path):
        blank = not line.strip(" ")
        seen = seen or not blank
        if seen:
            yield _Row(number, [""] if blank else line.split("\t") if split else [line])


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
            yield _Row(start, cells or [""])
        start = reader.line_num + 1


def _json_cells(path: FilePath, names: Names) -> Iterator[tuple[int, dict[str, str]]]:
    chosen: dict[str, str] = {}
    for number, line in numbered_lines(path):
        if not line.strip(" "):
            continue
        item = _json_object(place(path, number), line)
        if not chosen:
            keys = list(item)
            columns = _choose_columns(path, keys, names, header=True)
            chosen = {role: keys[column] for role, column in columns.items()}
        yield number, {role: _json_field(place(path, number), item, key, role) for role, key in chosen.items()}
    if not chosen:
        raise ElmoError(f"{path} is empty: it must have one JSON object per line")


def _json_object(where: str, line: str) -> dict[str, object]:
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
    return item


def _json_field(where: str, item: dict[str, object], key: str, role: str) -> str:
    if key not in item:
        there = ", ".join(map(shown, item))
        raise ElmoError(f"{where}: the field {shown(key)} for {_MEANING[role]} is missing; there are {there}")
    value = item[key]
    if role == "label" and value is None:
        return ""
    if role == "label" and isinstance(value, bool | int | float):
        return json.dumps(value)
    if not isinstance(value, str):
        wanted = "a string or a number" if role == "label" else "a string"
        got = shown(json.dumps(value, ensure_ascii=False))
        raise ElmoError(f"{where}: the field {shown(key)} for {_MEANING[role]} must be {wanted}, got {got}")
    if _SURROGATE.search(value):
        raise ElmoError(f"{where}: the field {shown(key)} has half of a surrogate pair, which is no text")
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
    if not header and len(cells) < len(names):
        raise ElmoError(
            f"{path} must have columns for {' and '.join(names)}, separated by tabs or, in a .csv file, commas; "
            f"{_listed(cells)}"
        )
    found: dict[str, int] = {}
    for role, name in names.items():
        if name is not None and _is_number(name):
            if not 1 <= int(name) <= len(cells):
                raise ElmoError(f"{path}: {role} is column {name}, but there is no such column: {_listed(cells)}", role)
            found[role] = int(name) - 1
        elif name is not None:
            matches = [column for column, cell in enumerate(cells) if cell.strip() == name]
            matches = matches or [column for column, cell in enumerate(cells) if _plain(cell) == _plain(name)]
            found[role] = _only(path, matches, f"named {shown(name)}", role, cells)
    open_roles = [role for role in names if role not in found]
    free = [column for column in range(len(cells)) if column not in found.values()]
    if header:
        for role in open_roles:
            usual = [column for column in free if _plain(cells[column]) in USUAL_NAMES[role]]
            found[role] = _only(path, usual, "with a usual name", role, cells)
    elif "text" in names and len(cells) == 2:
        order = [role for role in ("label", "text") if role not in found]  # of most files with two columns
        found |= {role: column for role, column in zip(order, free, strict=False) if role in names}
    elif len(open_roles) == len(free) and ("label" not in open_roles or len(open_roles) == 1):
        found |= dict(zip(open_roles, free, strict=True))
    roles: dict[int, str] = {}
    for role in names:
        if role not in found:
            message = f"{path} has no header that says which column has {_MEANING[role]}: {_remedy(role, cells)}"
            raise ElmoError(message, role)
        other = roles.setdefault(found[role], role)
        if other != role:
            name = f"column {found[role] + 1} ({shown(cells[found[role]].strip())})"
            raise ElmoError(f"{path}: {name} cannot be both {other} and {role}", role)
    return found


def _only(path: FilePath, matches: Sequence[int], which: str, role: str, header: Sequence[str]) -> int:
    if len(matches) != 1:
        number = f"{len(matches)} columns" if matches else "no column"
        raise ElmoError(f"{path} has {number} {which} for {_MEANING[role]}: {_remedy(role, header)}", role)
    return matches[0]


def _remedy(role: str, cells: Sequence[str]) -> str:
    return f"choose one with {role}; {_listed(cells)}"


def _listed(cells: Sequence[str]) -> str:
    listed = ", ".join(f"{number} {shown(cell.strip())}" for number, cell in enumerate(cells, start=1))
    return f"the columns are {listed}" if len(cells) > 1 else f"the only column is {listed}"


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).lower()


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit()


Column = int | str
"""A column by its number from 1 or, in CoNLL-U, by its name."""
_CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_MAY_BE_NOTHING = ("feats", "misc")  # where _ is a value like any other
_WORD_ID, _OTHER_ID = re.compile(r"[0-9]+"), re.compile(r"[0-9]+[-.][0-9]+")
_DOCUMENT = "-DOCSTART-"
_METADATA = re.compile(r"#\s*\S+\s*=\s")
_SEGMENT_SHARE = 0.98
"""The share of tokens with a segment digit that must be one character and count up; the rest are slips of the file."""
_SEGMENT_TOKENS = 100_000
"""The number of tokens with a digit after which the question is settled, whatever the length of the file."""


class TaggedSentence(NamedTuple):
    """A sentence of a file: its tokens, its tags if they were read, and its first line."""

    tokens: Tokens
    tags: Tokens | None
    line: int


class _Line(NamedTuple):
    number: int
    token: str
    tag: str | None


def read_columns(
    path: FilePath, columns: Mapping[str, Any], segment: Segment = "whitespace", labelled: bool = True
) -> Iterator[TaggedSentence]:
    """The sentences of a file of columns, one by one, so that a file may be larger than the memory.

    `columns` may have token_column, tag_column and segment_digits, as `read_tagged` explains them.
    """
    token_column, tag_column = columns.get("token_column"), columns.get("tag_column")
    if not labelled and token_column is None and suffix_of(path) == ".txt":
        yield from _text_sentences(path, TextPolicy.of(segment))
        return
    lines = _conllu_lines if suffix_of(path) == ".conllu" else _column_lines
    sentences = _sentences(lines(path, token_column, tag_column, labelled), labelled)
    head = list(_until_clear(sentences))
    if not head:
        raise ElmoError(f"{path} has no sentences: it must have one token with its tag per line")
    digits = columns.get("segment_digits")
    if digits is None:
        digits = _have_segment_digits(head)
    for sentence in chain(head, sentences):
        yield _without_digits(path, sentence) if digits else sentence


def _sentences(lines: Iterable[_Line | None], labelled: bool) -> Iterator[TaggedSentence]:
    """Lines up to each None as one sentence."""
    rows: list[_Line] = []
    for line in chain(lines, [None]):
        if line is not None:
            rows.append(line)
        elif rows:
            tags = tuple(row.tag or "" for row in rows) if labelled else None
            yield TaggedSentence(tuple(row.token for row in rows), tags, rows[0].number)
            rows = []


def _text_sentences(path: FilePath, policy: TextPolicy) -> Iterator[TaggedSentence]:
    empty = True
    for number, line in numbered_lines(path):
        if tokens := tuple(policy.split(line)):
            empty = False
            yield TaggedSentence(tokens, None, number)
    if empty:
        raise ElmoError(f"{path} has no sentences: it must have one per line")


def _column_lines(
    path: FilePath, token_column: Column | None, tag_column: Column | None, labelled: bool
) -> Iterator[_Line | None]:
    """The tokens of a CoNLL file; None after each sentence."""
    lines = numbered_lines(path)
    # A token may be "#", so the lines after them must show what comments at the start are.
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
    token_at = _column(path, "token_column", 1 if token_column is None else token_column, width)
    tag_at = 0
    if labelled:
        if width == 1:
            raise ElmoError(
                f"{place(path, head[-1][0])}: a line must have a token and a tag, separated by a tab or a space, "
                f"got {shown(pattern)}"
            )
        tag_at = _column(path, "tag_column", width if tag_column is None else tag_column, width)
        _check_distinct(path, token_at, tag_at)
    inside = False
    for number, line in chain(head, lines):
        if _is_blank(line) or line.startswith(_DOCUMENT):
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
    token_at = _column(path, "token_column", "form" if token_column is None else token_column, len(_CONLLU), _CONLLU)
    tag_at = _column(path, "tag_column", "upos" if tag_column is None else tag_column, len(_CONLLU), _CONLLU)
    if labelled:
        _check_distinct(path, token_at, tag_at)
    for number, line in numbered_lines(path):
        if _is_blank(line):
            yield None
            continue
        if line.startswith("#"):
            continue
        cells, where = line.split("\t"), place(path, number)
        if len(cells) != len(_CONLLU):
            raise ElmoError(
                f"{where}: a line of CoNLL-U has {len(_CONLLU)} columns separated by tabs, got {len(cells)} "
                f"in {shown(line)}"
            )
        if _OTHER_ID.fullmatch(cells[0]):
            continue
        if not _WORD_ID.fullmatch(cells[0]):
            raise ElmoError(
                f"{where}: the first column of CoNLL-U numbers the words (3, 3-4 or 3.1), got {shown(cells[0])}"
            )
        tag = cells[tag_at] if labelled else None
        if tag == "_" and _CONLLU[tag_at] not in _MAY_BE_NOTHING:
            raise ElmoError(
                f"{where}: the word has no {_CONLLU[tag_at]} (_): choose another column with tag_column", "tag_column"
            )
        yield _line(path, number, cells[token_at], tag)


def _line(path: FilePath, number: int, token: str, tag: str | None) -> _Line:
    if not token or tag == "":
        raise ElmoError(f"{place(path, number)}: the {'tag' if token else 'token'} is empty: fill in the column")
    return _Line(number, token, tag)


def _column(path: FilePath, argument: str, column: Column, width: int, names: tuple[str, ...] = ()) -> int:
    """The column counted from 0."""
    text = str(column).lower()
    if text in names:
        return names.index(text)
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= width):
        named = f" or one of {', '.join(names)}" if names else ""
        raise ElmoError(f"{path}: {argument} must be a number from 1 to {width}{named}, got {column}", argument)
    return int(text) - 1


def _check_distinct(path: FilePath, token_at: int, tag_at: int) -> None:
    if token_at == tag_at:
        raise ElmoError(
            f"{path}: column {token_at + 1} cannot be both the token and the tag: change tag_column", "tag_column"
        )


def _cells(line: str, tabs: bool) -> list[str]:
    # Not str.split(): an ideographic or a no-break space is a token of some files.
    return [cell.strip(" ") for cell in line.split("\t")] if tabs else re.split(" +", line.strip(" "))


def _is_blank(line: str) -> bool:
    return not line.strip(" \t")


def _until_clear(sentences: Iterable[TaggedSentence]) -> Iterator[TaggedSentence]:
    """As many sentences as it takes to see whether a file has segment digits: mostly one."""
    tokens = 0
    for sentence in sentences:
        yield sentence
        tokens += len(sentence.tokens)
        if tokens > _SEGMENT_TOKENS or not all(map(_has_digit, sentence.tokens)):
            return


def _has_digit(token: str) -> bool:
    return len(token) > 1 and token[-1] in "0123456789"


def _have_segment_digits(sentences: Iterable[TaggedSentence]) -> bool:
    """Whether every token ends in a digit after a character, and the digits count up or begin again."""
    tokens = regular = 0
    for sentence in sentences:
        before = -1
        for token in sentence.tokens:
            if not _has_digit(token):
                return False
            digit = int(token[-1])
            tokens += 1
            regular += len(token) == 2 and digit in (0, before + 1)
            before = digit
    return regular >= _SEGMENT_SHARE * tokens


def _without_digits(path: FilePath, sentence: TaggedSentence) -> TaggedSentence:
    for index, token in enumerate(sentence.tokens):
        if not _has_digit(token):
            raise ElmoError(
                f"{place(path, sentence.line + index)}: with segment_digits a token must end in a digit after its "
                f"characters, got {shown(token)}",
                "segment_digits",
            )
    return sentence._replace(tokens=tuple(token[:-1] for token in sentence.tokens))

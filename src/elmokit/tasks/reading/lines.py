"""The lines of a task's file, numbered and decoded, and how a message says where something stands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from elmokit.corpus.lines import byte_lines
from elmokit.errors import ElmoError
from elmokit.tasks.examples import TaggedExample
from elmokit.text.packed import PACKED_ENDINGS, open_packed

_SHOWN_CHARACTERS = 40


def suffix_of(path: str | Path) -> str:
    """What tells a file's format: its suffix in lower case, before that of its packing.

    >>> suffix_of("Train.TSV.xz")
    '.tsv'
    """
    name = Path(path).name.lower()
    for ending in PACKED_ENDINGS:
        name = name.removesuffix(ending)
    return Path(name).suffix


def numbered_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Each line of a UTF-8 file, plain or packed, with its number from 1; only "\\n" ends a line."""
    if str(path) == "-":
        raise ElmoError("examples are read from a file, whose suffix tells the format, got - for standard input")
    with ExitStack() as stack:
        for number, line in byte_lines(open_packed(path, stack), str(path)):
            try:
                yield number, line.decode("utf-8")
            except UnicodeDecodeError as error:
                byte = line[error.start]
                raise ElmoError(
                    f"{path}, line {number}: a file must be UTF-8, got byte 0x{byte:02x} after {error.start} others: "
                    "convert it, for example with iconv -t UTF-8"
                ) from error


def shown(text: str) -> str:
    """A text in quotes, cut to what a message has room for."""
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…")


def place(path: str | Path | None, line: int) -> str:
    """Where an example stands, to open a message with."""
    where = f"line {line}" if line else "an example"
    return where if path is None else f"{path}, {where}"


def token_place(path: str | Path | None, example: TaggedExample, index: int) -> str:
    """Where a token of a sentence stands, to open a message with."""
    # In CoNLL-U, ranges and empty nodes stand between the tokens; elsewhere a token is a line.
    if path is not None and example.line and suffix_of(path) != ".conllu":
        return place(path, example.line + index)
    return f"{place(path, example.line)}, token {index + 1} ({shown(example.tokens[index])})"

"""Inputs as pieces of bytes that end where a line, or a paragraph, ends; memory holds a piece, never a file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from elmokit.corpus.files import Input
from elmokit.errors import ElmoError
from elmokit.text.packed import BOM, DAMAGE, name_of, open_packed

PIECE_BYTES = 1 << 20
LARGEST_UNIT = 1 << 24
"""A line, or a paragraph, of more bytes is skipped: a file without line ends must not fill the memory."""

_BLANK_LINE = re.compile(rb"^[ \t\r\f\v]*\n", re.MULTILINE)


class Piece(NamedTuple):
    """Whole lines, or whole paragraphs, of one input."""

    name: str
    first_line: int
    """The number of the first line, from 1."""
    data: bytes
    dropped_lines: int = 0
    """Lines of a unit that was too large, in the place of data."""
    dropped_bytes: int = 0


def read_pieces(
    inputs: Sequence[Input],
    *,
    paragraphs: bool,
    size: int = PIECE_BYTES,
    on_bytes: Callable[[int], None] | None = None,
) -> Iterator[Piece]:
    """The inputs one after the other; a file's units are the same whatever the size of the pieces.

    on_bytes is told how many bytes more have been taken from the disk.
    """
    for source in inputs:
        yield from _pieces_of(source, paragraphs, size, on_bytes)


def _pieces_of(source: Input, paragraphs: bool, size: int, on_bytes: Callable[[int], None] | None) -> Iterator[Piece]:
    name = name_of(source.name)
    line = 1
    carry = b""  # a unit whose end has not come yet
    dropped: tuple[int, int] | None = None  # the first line and the bytes of a unit that is too large
    for block in _blocks(source.name, size, on_bytes):
        data = carry + block
        if dropped is not None:
            end = _first_end(data, paragraphs)
            # While the end has not come, the last line may still turn out to be the blank one.
            cut = end or (data.rfind(b"\n") + 1 if paragraphs and len(data) < LARGEST_UNIT else len(data))
            dropped = dropped[0], dropped[1] + cut
            line += data.count(b"\n", 0, cut)
            data = data[cut:]
            if not end:
                carry = data
                continue
            yield Piece(name, dropped[0], b"", line - dropped[0], dropped[1])
            dropped = None
        end = _last_end(data, paragraphs)
        if end:
            yield Piece(name, line, data[:end])
            line += data.count(b"\n", 0, end)
        carry = data[end:]
        if len(carry) > LARGEST_UNIT and unit_size(carry, paragraphs) > LARGEST_UNIT:
            cut = carry.rfind(b"\n") + 1
            cut = cut if paragraphs and cut else len(carry)
            dropped = line, cut
            line += carry.count(b"\n", 0, cut)
            carry = carry[cut:]
    if dropped is not None:
        last = line + bool(carry)
        yield Piece(name, dropped[0], b"", max(last - dropped[0], 1), dropped[1] + len(carry))
    elif carry:
        yield Piece(name, line, carry)


def unit_size(unit: bytes, paragraphs: bool) -> int:
    """The bytes of a line without its end, or of a paragraph without the white space behind it."""
    return len(unit.rstrip()) if paragraphs else len(unit)


def _blocks(source: str, size: int, on_bytes: Callable[[int], None] | None) -> Iterator[bytes]:
    lines = 0
    with ExitStack() as stack:
        file = open_packed(source, stack, on_bytes)
        first = True
        while True:
            try:
                block = file.read(size)
            except DAMAGE as error:
                raise ElmoError(
                    f"{name_of(source)} of the corpus is damaged after line {lines:,} ({error}): get it again, "
                    "or leave it out"
                ) from error
            if not block:
                return
            lines += block.count(b"\n")
            yield block.removeprefix(BOM) if first else block
            first = False


def _last_end(data: bytes, paragraphs: bool) -> int:
    """Where the last whole unit of the data ends, 0 if none does."""
    end = data.rfind(b"\n")
    while paragraphs and end >= 0:
        before = data.rfind(b"\n", 0, end)
        if not data[before + 1 : end].strip():
            break
        end = before
    return end + 1


def _first_end(data: bytes, paragraphs: bool) -> int:
    """Where the unit that the data begins in ends, 0 if it goes on."""
    if not paragraphs:
        return data.find(b"\n") + 1
    blank = _BLANK_LINE.search(data)
    return blank.end() if blank else 0

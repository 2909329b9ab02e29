"""Text files → sentences of tokens, with a count of what was skipped; at most one piece of a file is in memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast, get_args

from elmokit.corpus.files import Input, find_inputs
from elmokit.corpus.report import Tally
from elmokit.errors import ElmoError
from elmokit.text.packed import BOM, DAMAGE, name_of, open_packed
from elmokit.text.splitting import split_sentences
from elmokit.text.tokens import SegmenterName, WordSplitter, segmenter, word_splitter

SplitMode = Literal["none", "line", "paragraph"]
"""none: a line is a sentence. line, paragraph: a line, or the lines between blank lines, is split into sentences."""

PIECE_BYTES = 1 << 20
LARGEST_UNIT = 1 << 24
"""A line, or a paragraph, of more bytes is skipped: a file without line ends must not fill the memory."""

_BLANK_LINE = re.compile(rb"^[ \t\r\f\v]*\n", re.MULTILINE)


@dataclass(frozen=True)
class ReadingOptions:
    """How text becomes sentences of tokens."""

    segment: SegmenterName = "none"
    """How a sentence becomes tokens."""
    split: SplitMode = "none"
    """How lines become sentences."""
    max_tokens: int = 1000
    """Longer sentences are skipped."""

    def __post_init__(self) -> None:
        segmenter(self.segment)("")  # a missing package is reported before anything is read
        if self.split not in get_args(SplitMode):
            raise ElmoError(f"split must be one of {', '.join(get_args(SplitMode))}, got {self.split!r}")
        if self.max_tokens < 1:
            raise ElmoError(f"max_tokens must be at least 1, got {self.max_tokens}")

    @property
    def paragraphs(self) -> bool:
        """Whether a unit of text is a paragraph, not a line."""
        return self.split == "paragraph"


def read_sentences(
    sources: Sequence[str],
    *,
    segment: str = "none",
    split: str = "none",
    max_tokens: int = 1000,
    report: Tally | None = None,
) -> Iterator[list[str]]:
    """The sentences of a corpus, one after the other; the tally is complete after the last one.

    tally = Tally()
    for tokens in read_sentences(["heldout.txt.gz"], report=tally): ...
    print(*tally.report().lines(), sep="\\n")
    """
    tally = Tally() if report is None else report
    options = ReadingOptions(cast(SegmenterName, segment), cast(SplitMode, split), max_tokens)
    inputs = find_inputs(sources, tally)
    tally.files += len(inputs)
    tally.max_tokens = max_tokens
    tokenise = word_splitter(options.segment)
    pieces = read_pieces(inputs, paragraphs=options.paragraphs)
    return (tokens for piece in pieces for tokens in sentences_of(piece, options, tokenise, tally))


class Piece(NamedTuple):
    """Whole lines, or whole paragraphs, of one input."""

    name: str
    first_line: int
    """The number of its first line, from 1."""
    data: bytes
    dropped_lines: int = 0
    """Lines of a unit that was too large; data is then empty."""
    dropped_bytes: int = 0


def read_pieces(
    inputs: Sequence[Input],
    *,
    paragraphs: bool,
    size: int = PIECE_BYTES,
    on_bytes: Callable[[int], None] | None = None,
) -> Iterator[Piece]:
    """The inputs in pieces of about `size` bytes; a file's units do not depend on the size.

    on_bytes is called with the number of bytes that each read took from the disk.
    """
    for source in inputs:
        yield from _pieces_of(source, paragraphs, size, on_bytes)


def _pieces_of(source: Input, paragraphs: bool, size: int, on_bytes: Callable[[int], None] | None) -> Iterator[Piece]:
    name = name_of(source.name)
    line = 1
    carry = b""  # the start of a unit whose end has not been read yet
    dropped: tuple[int, int] | None = None  # the first line and the bytes of a unit that is too large
    for block in _blocks(source.name, size, on_bytes):
        data = carry + block
        if dropped is not None:
            end = _first_end(data, paragraphs)
            line += data.count(b"\n", 0, end or len(data))
            if not end:
                carry = _last_line_stub(data)
                dropped = dropped[0], dropped[1] + len(data) - len(carry)
                continue
            yield Piece(name, dropped[0], b"", line - dropped[0], dropped[1] + end)
            data, dropped = data[end:], None
        end = _last_end(data, paragraphs)
        if end:
            yield Piece(name, line, data[:end])
            line += data.count(b"\n", 0, end)
        carry = data[end:]
        if len(carry) > LARGEST_UNIT and _unit_size(carry, paragraphs) > LARGEST_UNIT:
            unit, carry = carry, _last_line_stub(carry)
            dropped = line, len(unit) - len(carry)
            line += unit.count(b"\n")
    if dropped is not None:
        last = line + bool(carry)
        yield Piece(name, dropped[0], b"", max(last - dropped[0], 1), dropped[1] + len(carry))
    elif carry:
        yield Piece(name, line, carry)


def _last_line_stub(data: bytes) -> bytes:
    """One byte of the incomplete last line: enough to decide later whether it is the blank line after a paragraph."""
    line = data[data.rfind(b"\n") + 1 :]
    return line.strip()[:1] or line[:1]


def _unit_size(unit: bytes, paragraphs: bool) -> int:
    """The bytes of a line, or of a paragraph without the white space after it."""
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
    """The end of the last complete unit in the data; 0 if there is none."""
    end = data.rfind(b"\n")
    while paragraphs and end >= 0:
        before = data.rfind(b"\n", 0, end)
        if not data[before + 1 : end].strip():
            break
        end = before
    return end + 1


def _first_end(data: bytes, paragraphs: bool) -> int:
    """The end of the unit at the start of the data; 0 if it is incomplete."""
    if not paragraphs:
        return data.find(b"\n") + 1
    blank = _BLANK_LINE.search(data)
    return blank.end() if blank else 0


def sentences_of(piece: Piece, options: ReadingOptions, tokenise: WordSplitter, tally: Tally) -> Iterator[list[str]]:
    """The sentences of one piece; the tally counts them and what was skipped."""
    tally.bytes += len(piece.data) + piece.dropped_bytes
    tally.lines += piece.data.count(b"\n") + (not piece.data.endswith(b"\n") and bool(piece.data)) + piece.dropped_lines
    if piece.dropped_lines:
        tally.skip("too_large", f"{piece.name}:{piece.first_line}")
    split = options.split != "none"
    for line, text in _units(piece, options, tally):
        has_tokens = False
        for sentence in split_sentences(text) if split else (text,):
            tokens = tokenise(sentence)
            if not tokens:
                continue
            has_tokens = True
            if len(tokens) > options.max_tokens:
                tally.skip("too_long", f"{piece.name}:{line}")
                continue
            tally.sentences += 1
            tally.tokens += len(tokens)
            yield tokens
        if not has_tokens:
            tally.skip("empty", f"{piece.name}:{line}")


def _units(piece: Piece, options: ReadingOptions, tally: Tally) -> Iterator[tuple[int, str]]:
    """The lines or paragraphs of a piece that are text, each with the number of its first line."""
    for line, data in _paragraphs(piece) if options.paragraphs else _lines(piece):
        if len(data) > LARGEST_UNIT and _unit_size(data, options.paragraphs) > LARGEST_UNIT:
            tally.skip("too_large", f"{piece.name}:{line}")
        elif b"\0" in data:
            tally.skip("nul", f"{piece.name}:{line}")
        else:
            try:
                yield line, data.decode("utf-8")
            except UnicodeDecodeError:
                tally.skip("not_utf8", f"{piece.name}:{line}")


def _lines(piece: Piece) -> Iterator[tuple[int, bytes]]:
    data = piece.data.removesuffix(b"\n")
    if piece.data:
        yield from enumerate(data.split(b"\n"), piece.first_line)


def _paragraphs(piece: Piece) -> Iterator[tuple[int, bytes]]:
    first, lines = 0, list[bytes]()
    for number, line in _lines(piece):
        if line.strip():
            first = first if lines else number
            lines.append(line)
        elif lines:
            yield first, b"\n".join(lines)
            lines = []
    if lines:
        yield first, b"\n".join(lines)

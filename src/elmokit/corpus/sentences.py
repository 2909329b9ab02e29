"""Pieces of a corpus as sentences of tokens, with a note of what was skipped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

from elmokit.corpus import reading
from elmokit.corpus.files import find_inputs
from elmokit.corpus.reading import Piece, read_pieces, unit_size
from elmokit.corpus.report import Tally
from elmokit.errors import ElmoError
from elmokit.text.splitting import split_sentences
from elmokit.text.tokens import SegmenterName, WordSplitter, name_in_files, word_splitter

SplitMode = Literal["none", "line", "paragraph"]
"""A line is a sentence; a line is a paragraph to split; paragraphs to split stand between blank lines."""


@dataclass(frozen=True)
class Reading:
    """How text becomes sentences of tokens."""

    segment: SegmenterName = "none"
    """How a sentence becomes tokens."""
    split: SplitMode = "none"
    """How lines become sentences."""
    max_tokens: int = 1000
    """Longer sentences are skipped."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "segment", name_in_files(self.segment))
        word_splitter(self.segment)("")  # a missing package has to show before anything is read
        if self.split not in get_args(SplitMode):
            raise ElmoError(f"split must be one of {', '.join(get_args(SplitMode))}, got {self.split!r}")
        if self.max_tokens < 1:
            raise ElmoError(f"max_tokens must be at least 1, got {self.max_tokens}")

    @property
    def paragraphs(self) -> bool:
        """Whether a unit of the text is more than a line."""
        return self.split == "paragraph"


def read_sentences(
    sources: Sequence[str],
    *,
    segment: str = "none",
    split: str = "none",
    max_tokens: int = 1000,
    report: Tally | None = None,
) -> Iterator[list[str]]:
    """The sentences of a corpus one after the other, no more than a piece of a file in memory.

    The tally, if given, has counted everything once the last sentence has come.

        tally = Tally()
        for tokens in read_sentences(["heldout.txt.gz"], report=tally): ...
        print(*tally.report().lines(), sep="\\n")
    """
    tally = Tally() if report is None else report
    how = Reading(cast(SegmenterName, segment), cast(SplitMode, split), max_tokens)
    inputs = find_inputs(sources, tally)
    tally.files += len(inputs)
    tally.max_tokens = max_tokens
    return _sentences(read_pieces(inputs, paragraphs=how.paragraphs), how, tally)


def _sentences(pieces: Iterator[Piece], how: Reading, tally: Tally) -> Iterator[list[str]]:
    tokenise = word_splitter(how.segment)
    for piece in pieces:
        yield from sentences_of(piece, how, tokenise, tally)


def sentences_of(piece: Piece, how: Reading, tokenise: WordSplitter, tally: Tally) -> Iterator[list[str]]:
    """The sentences of one piece; what they are and what was skipped is counted."""
    tally.bytes += len(piece.data) + piece.dropped_bytes
    tally.lines += piece.data.count(b"\n") + (not piece.data.endswith(b"\n") and bool(piece.data)) + piece.dropped_lines
    if piece.dropped_lines:
        tally.skip("too_large", f"{piece.name}:{piece.first_line}")
    split = how.split != "none"
    for line, text in _units(piece, how, tally):
        kept = False
        for sentence in split_sentences(text) if split else (text,):
            tokens = tokenise(sentence)
            if not tokens:
                continue
            kept = True
            if len(tokens) > how.max_tokens:
                tally.skip("too_long", f"{piece.name}:{line}")
                continue
            tally.sentences += 1
            tally.tokens += len(tokens)
            yield tokens
        if not kept:
            tally.skip("empty", f"{piece.name}:{line}")


def _units(piece: Piece, how: Reading, tally: Tally) -> Iterator[tuple[int, str]]:
    """The lines or paragraphs of a piece that are text, with the number of the line they begin at."""
    for line, data in _paragraphs(piece) if how.paragraphs else _lines(piece):
        if len(data) > reading.LARGEST_UNIT and unit_size(data, how.paragraphs) > reading.LARGEST_UNIT:
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

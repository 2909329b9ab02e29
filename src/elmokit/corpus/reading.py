"""Sources → text files → sentences of tokens, with a count of what was skipped.

Sources are files, folders, patterns and standard input; their order is fixed. At most one piece of a file is in memory.
"""

from __future__ import annotations

import os
import re
import stat
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import has_magic
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from elmokit.corpus.report import Tally
from elmokit.errors import ElmoError, MissingExtraError
from elmokit.text.packed import BOM, DAMAGE, PACKED_ENDINGS, name_of, open_packed
from elmokit.text.splitting import split_sentences
from elmokit.text.tokens import SegmenterName, WordSplitter, name_in_files, word_splitter

STANDARD_INPUT = "-"
DESCRIPTION = "corpus.json"
"""The file that marks the folder of a prepared corpus."""
_SNIFFED = 8192
_SHOWN = 40
_ADVICE = "a corpus is files, folders, patterns in quotes, or - for standard input"


@dataclass(frozen=True)
class Input:
    """One file of a corpus, or standard input."""

    name: str
    """The path, relative if the source was, or "-"."""
    size: int
    """Bytes on disk; 0 for standard input."""
    changed: int
    """Modification time in nanoseconds."""

    @property
    def identity(self) -> tuple[str, int, int]:
        """Real path, size and modification time: if they are equal, the file is taken to be the same."""
        return os.path.realpath(self.name), self.size, self.changed

    def is_unchanged(self) -> bool:
        """Whether size and modification time are those of when the file was found."""
        try:
            now = Path(self.name).stat()
        except OSError:
            return False
        return (now.st_size, now.st_mtime_ns) == (self.size, self.changed)


def find_inputs(sources: Sequence[str], tally: Tally) -> list[Input]:
    """The files that the sources name, each once, those of folders and patterns sorted by name.

    The tally counts what was left out.
    """
    if isinstance(sources, str) or not sources:
        raise ElmoError(f"a list of sources is needed, got {sources!r}: {_ADVICE}")
    search = _FileSearch(tally)
    for source in sources:
        search.add(str(source))
    if not search.inputs:
        left_out = "; ".join(tally.report().lines()[2:])
        raise ElmoError(
            f"no text was found in {first_few(sources)}" + (f" ({left_out})" if left_out else f": {_ADVICE}")
        )
    return search.inputs


def first_few(names: Sequence[str]) -> str:
    """The first three names, for a message."""
    return ", ".join(str(name) for name in names[:3]) + (", …" if len(names) > 3 else "")


def is_prepared(folder: str | Path) -> bool:
    """Whether a folder has the files of a prepared corpus."""
    try:
        path = Path(folder).expanduser()
        return (path / DESCRIPTION).is_file() and (path / "tokens.bin").is_file()
    except (OSError, ValueError, RuntimeError):
        return False


class _FileSearch:
    """The files found by now, and the identities of files and folders that were seen."""

    def __init__(self, tally: Tally) -> None:
        self.inputs: list[Input] = []
        self._tally = tally
        self._files: set[tuple[int, int]] = set()
        self._folders: set[tuple[int, int]] = set()

    def add(self, source: str) -> None:
        """Add all files that one source names."""
        if not source.strip():
            raise ElmoError(f"the name of a corpus must not be empty: {_ADVICE}")
        if source == STANDARD_INPUT:
            if any(known.name == STANDARD_INPUT for known in self.inputs):
                raise ElmoError("standard input can be read only once: give - once")
            self.inputs.append(Input(STANDARD_INPUT, 0, 0))
            return
        if is_prepared(source):
            raise ElmoError(
                f"{source} is a prepared corpus, which must be the only source: give it alone, or give its text"
            )
        try:
            path = Path(source).expanduser()
            is_folder, is_there = path.is_dir(), path.exists() or path.is_symlink()
        # A name that is too long, one with NUL, or one of an unknown user.
        except (OSError, ValueError, RuntimeError) as error:
            shown = source if len(source) <= _SHOWN else source[:_SHOWN] + "…"
            raise ElmoError(f"the corpus {shown!r} cannot be looked for ({error.args[-1]}): {_ADVICE}") from error
        if is_folder:
            self._add_folder(path)
        elif is_there:
            self._add_file(path, named=True)
        elif has_magic(source):
            self._add_pattern(path)
        else:
            raise ElmoError(f"the corpus {source} was not found: {_ADVICE}")

    def _add_pattern(self, pattern: Path) -> None:
        found = sorted(_matches(pattern), key=lambda path: path.parts)
        if not found:
            raise ElmoError(f"no file matches the pattern {pattern}: {_ADVICE}")
        for path in found:
            if not path.is_dir():
                self._add_file(path, named=False)
            elif "**" not in pattern.parts:  # such a pattern has matched the files below a folder already
                self._add_folder(path)

    def _add_folder(self, folder: Path) -> None:
        """Add the files below a folder, sorted by name; links are followed, but no folder is read twice."""
        try:
            facts = folder.stat()
            entries = sorted(folder.iterdir())
        except OSError as error:
            raise _unreadable(folder, error) from error
        if (facts.st_dev, facts.st_ino) in self._folders:
            self._tally.skip("loop", str(folder))
            return
        self._folders.add((facts.st_dev, facts.st_ino))
        if is_prepared(folder):
            self._tally.skip("prepared", str(folder))
            return
        for path in entries:
            if path.name.startswith("."):
                self._tally.skip("hidden", str(path))
            elif path.is_dir():
                self._add_folder(path)
            else:
                self._add_file(path, named=False)

    def _add_file(self, path: Path, *, named: bool) -> None:
        try:
            facts = path.stat()
        except OSError as error:
            raise _unreadable(path, error) from error
        if not stat.S_ISREG(facts.st_mode):
            if named:
                raise ElmoError(
                    f"the corpus {path} is neither a file nor a folder: pipe it into -, or copy it to a file"
                )
            self._tally.skip("special", str(path))
            return
        if (facts.st_dev, facts.st_ino) in self._files:
            self._tally.skip("again", str(path))
            return
        self._files.add((facts.st_dev, facts.st_ino))
        _check_readable(path)
        if named or _is_text(path):
            self.inputs.append(Input(str(path), facts.st_size, facts.st_mtime_ns))
        else:
            self._tally.skip("not_text", str(path))


def _matches(pattern: Path) -> Iterator[Path]:
    """The paths that a pattern matches: `**` is any number of folders, hidden names need a pattern with a dot."""
    dotted = [part for part in pattern.parts if part.startswith(".")]
    relative = str(pattern.relative_to(pattern.anchor))
    relative += "/*" if pattern.name == "**" else ""
    try:
        for path in Path(pattern.anchor).glob(relative):
            hidden = (part for part in path.parts if part.startswith("."))
            if all(any(fnmatchcase(part, wanted) for wanted in dotted) for part in hidden):
                yield path
    except ValueError as error:
        raise ElmoError(f"{pattern} is not a pattern ({error}): {_ADVICE}") from error


def _check_readable(path: Path) -> None:
    """Refuse a file that cannot be opened now, and not after hours spent on the files before it."""
    try:
        path.open("rb").close()
    except OSError as error:
        raise _unreadable(path, error) from error


def _is_text(path: Path) -> bool:
    """Whether the first bytes of a file, unpacked if it is packed, look like text."""
    try:
        with ExitStack() as stack:
            head = open_packed(path, stack).read(_SNIFFED)
    except MissingExtraError:
        raise
    except (ElmoError, *DAMAGE):
        # Another kind of file is not text; a damaged packed file is added, since reading it reports the damage.
        return path.name.endswith(PACKED_ENDINGS)
    return not head.startswith(b"%PDF-") and not _is_binary(head)


def _is_binary(head: bytes) -> bool:
    """Whether bytes have more than a few NULs, or NULs and no UTF-8; one NUL costs its line, not the file."""
    zeros = head.count(b"\0")
    if zeros * 20 > len(head):
        return True
    try:
        getincrementaldecoder("utf-8")().decode(head)  # the last character may be incomplete
    except UnicodeDecodeError:
        return zeros > 0
    return False


def _unreadable(path: Path, error: OSError) -> ElmoError:
    return ElmoError(f"cannot read {path} of the corpus ({error.strerror or error}): make it readable, or leave it out")


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
        object.__setattr__(self, "segment", name_in_files(self.segment))
        word_splitter(self.segment)("")  # a missing package is reported before anything is read
        if self.split not in get_args(SplitMode):
            raise ElmoError(f"split must be one of {', '.join(get_args(SplitMode))}, got {self.split!r}", "split")
        if self.max_tokens < 1:
            raise ElmoError(f"max_tokens must be at least 1, got {self.max_tokens}", "max_tokens")

    @property
    def paragraphs(self) -> bool:
        """Whether a unit of text is a paragraph, not a line."""
        return self.split == "paragraph"


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

"""From sources to text files to sentences of tokens, with counts of the skipped text.

Sources are files, folders, patterns and standard input; files are read in a fixed order. At most one line or
paragraph is in memory.
"""

from __future__ import annotations

import os
import stat
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import has_magic
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from elmokit.corpus.report import Report
from elmokit.errors import ElmoError, MissingExtraError
from elmokit.text.packed import BOM, COMPRESSED_ENDINGS, READ_ERRORS, name_of, open_decompressed
from elmokit.text.splitting import split_sentences
from elmokit.text.tokens import SegmenterName, WordSplitter, name_in_files, word_splitter

STANDARD_INPUT = "-"
DESCRIPTION = "corpus.json"
"""The file that marks the folder of a prepared corpus."""
_HEAD_BYTES = 8192
"""Number of bytes by which a text file is recognised."""
_SHOWN_CHARACTERS = 40
_ADVICE = "a corpus is files, folders, patterns in quotes, or - for standard input"


@dataclass(frozen=True)
class Input:
    """One file of a corpus, or standard input."""

    name: str
    """The path, relative if the source is relative, or "-"."""
    size: int
    """Bytes on disk; 0 for standard input."""
    changed: int
    """Modification time in nanoseconds."""

    @property
    def identity(self) -> tuple[str, int, int]:
        """Real path, size and modification time; two files with equal values are taken for the same."""
        return os.path.realpath(self.name), self.size, self.changed

    def is_unchanged(self) -> bool:
        """Whether the size and modification time are still the same as when the file was found."""
        try:
            now = Path(self.name).stat()
        except OSError:
            return False
        return (now.st_size, now.st_mtime_ns) == (self.size, self.changed)


def find_inputs(sources: Sequence[str], report: Report) -> list[Input]:
    """The files that the sources name, each once; the files of folders and patterns are sorted by name.

    The report counts files and folders that are left out.
    """
    if isinstance(sources, str) or not sources:
        raise ElmoError(f"a list of sources is needed, got {sources!r}: {_ADVICE}")
    search = _FileSearch(report)
    for source in sources:
        search.add(str(source))
    if not search.inputs:
        left_out = "; ".join(report.lines()[2:])
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
    """The files found so far, and the identities of files and folders that were seen."""

    def __init__(self, report: Report) -> None:
        self.inputs: list[Input] = []
        self._report = report
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
        # The name is too long, contains NUL, or is of an unknown user.
        except (OSError, ValueError, RuntimeError) as error:
            shown = source if len(source) <= _SHOWN_CHARACTERS else source[:_SHOWN_CHARACTERS] + "…"
            raise ElmoError(f"the corpus {shown!r} cannot be found ({error.args[-1]}): {_ADVICE}") from error
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
            elif "**" not in pattern.parts:  # `**` has already matched the files below a folder
                self._add_folder(path)

    def _add_folder(self, folder: Path) -> None:
        """Add the files below a folder, sorted by name; links are followed, but no folder is read twice."""
        try:
            facts = folder.stat()
            entries = sorted(folder.iterdir())
        except OSError as error:
            raise _unreadable(folder, error) from error
        if (facts.st_dev, facts.st_ino) in self._folders:
            self._report.skip("loop", str(folder))
            return
        self._folders.add((facts.st_dev, facts.st_ino))
        if is_prepared(folder):
            self._report.skip("prepared", str(folder))
            return
        for path in entries:
            if path.name.startswith("."):
                self._report.skip("hidden", str(path))
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
            self._report.skip("special", str(path))
            return
        if (facts.st_dev, facts.st_ino) in self._files:
            self._report.skip("again", str(path))
            return
        self._files.add((facts.st_dev, facts.st_ino))
        _check_readable(path)
        if named or _is_text(path):
            self.inputs.append(Input(str(path), facts.st_size, facts.st_mtime_ns))
        else:
            self._report.skip("not_text", str(path))


def _matches(pattern: Path) -> Iterator[Path]:
    """The paths that match a pattern: `**` is any number of folders; hidden names must match a part with a dot."""
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
    """Refuse an unreadable file at once, not after hours of reading the files before it."""
    try:
        path.open("rb").close()
    except OSError as error:
        raise _unreadable(path, error) from error


def _is_text(path: Path) -> bool:
    """Whether the first bytes of a file, decompressed if necessary, look like text."""
    try:
        with ExitStack() as stack:
            head = open_decompressed(path, stack).read(_HEAD_BYTES)
    except MissingExtraError:
        raise
    except (ElmoError, *READ_ERRORS):
        # A damaged compressed file is added, because reading it reports the damage; other such files are not text.
        return path.name.endswith(COMPRESSED_ENDINGS)
    return not head.startswith(b"%PDF-") and not _is_binary(head)


def _is_binary(head: bytes) -> bool:
    """Whether bytes have many NULs, or NULs and invalid UTF-8; a few NULs only cost their lines, not the file."""
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
"""none: a line is a sentence. line, paragraph: lines, or paragraphs between blank lines, are split into sentences."""

LARGEST_UNIT = 1 << 24
"""A line or paragraph of more bytes is skipped, so that a file without line ends does not fill the memory."""


@dataclass(frozen=True)
class ReadingOptions:
    """The options that turn text into sentences of tokens."""

    segment: SegmenterName = "none"
    """How a sentence is split into tokens."""
    split: SplitMode = "none"
    """How text is split into sentences."""
    max_tokens: int = 1000
    """Longer sentences are skipped."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "segment", name_in_files(self.segment))
        word_splitter(self.segment)("")  # report a missing package before any text is read
        if self.split not in get_args(SplitMode):
            raise ElmoError(f"split must be one of {', '.join(get_args(SplitMode))}, got {self.split!r}", "split")
        if self.max_tokens < 1:
            raise ElmoError(f"max_tokens must be at least 1, got {self.max_tokens}", "max_tokens")

    @property
    def paragraphs(self) -> bool:
        """Whether units are paragraphs, not lines."""
        return self.split == "paragraph"


class Unit(NamedTuple):
    """A unit of text: a line, or a paragraph with the blank line after it."""

    name: str
    """The name of the file."""
    line: int
    """The number of its first line, from 1."""
    data: bytes | None
    """None if it is too large."""
    size: int
    """Number of bytes."""
    lines: int
    """Number of lines."""


def read_units(
    inputs: Sequence[Input], *, paragraphs: bool, on_bytes: Callable[[int], None] | None = None
) -> Iterator[Unit]:
    """The lines or paragraphs of all inputs; `on_bytes` is called with the size of each read from the disk."""
    for source in inputs:
        name, line = name_of(source.name), 1
        for data, size, lines in _units_of(source.name, paragraphs, on_bytes):
            yield Unit(name, line, data, size, lines)
            line += lines


def _units_of(
    source: str, paragraphs: bool, on_bytes: Callable[[int], None] | None
) -> Iterator[tuple[bytes | None, int, int]]:
    """Each unit's bytes (None if too large, not counting trailing white space), its size and its number of lines."""
    unit: list[bytes] = []
    size = text = lines = 0
    for line, length in _lines_read(source, on_bytes):
        complete = length == len(line)
        blank = paragraphs and complete and not line.strip()
        if not blank:
            shown = line.rstrip() if paragraphs else line.removesuffix(b"\n")
            text = size + (len(shown) if complete else length)
        size, lines = size + length, lines + 1
        if text <= LARGEST_UNIT:
            unit.append(line)
        else:
            unit.clear()
        if blank or not paragraphs:
            yield (b"".join(unit) if text <= LARGEST_UNIT else None), size, lines
            unit, size, text, lines = [], 0, 0, 0
    if lines:
        yield (b"".join(unit) if text <= LARGEST_UNIT else None), size, lines


def _lines_read(source: str, on_bytes: Callable[[int], None] | None) -> Iterator[tuple[bytes, int]]:
    """Each line with its line end, and its number of bytes; of a line that is too large only the start is returned."""
    lines = 0
    with ExitStack() as stack:
        file = open_decompressed(source, stack, on_bytes)
        while True:
            try:
                line = part = file.readline(LARGEST_UNIT + 1)
                length = len(line)
                while len(part) > LARGEST_UNIT and not part.endswith(b"\n"):
                    part = file.readline(LARGEST_UNIT + 1)
                    length += len(part)
            except READ_ERRORS as error:
                raise ElmoError(
                    f"{name_of(source)} of the corpus is damaged after line {lines:,} ({error}): get it again, "
                    "or leave it out"
                ) from error
            if not lines and line.startswith(BOM):
                line, length = line.removeprefix(BOM), length - len(BOM)
            if not line:
                return
            lines += 1
            yield line, length


def sentences_of(unit: Unit, options: ReadingOptions, split_words: WordSplitter, report: Report) -> Iterator[list[str]]:
    """The sentences of a line or paragraph; the report counts them and the skipped text."""
    report.bytes += unit.size
    report.n_lines += unit.lines
    location = f"{unit.name}:{unit.line}"
    if unit.data is None:
        report.skip("too_large", location)
        return
    data = unit.data.rstrip() if options.paragraphs else unit.data.removesuffix(b"\n")
    if b"\0" in data:
        report.skip("nul", location)
        return
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        report.skip("not_utf8", location)
        return
    has_tokens = not data and options.paragraphs  # blank lines between paragraphs are not counted as empty
    for sentence in (text,) if options.split == "none" else split_sentences(text):
        tokens = split_words(sentence)
        has_tokens = has_tokens or bool(tokens)
        if len(tokens) > options.max_tokens:
            report.skip("too_long", location)
        elif tokens:
            report.sentences += 1
            report.tokens += len(tokens)
            yield tokens
    if not has_tokens:
        report.skip("empty", location)

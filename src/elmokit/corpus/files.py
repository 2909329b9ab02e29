"""Which text files a corpus consists of: files, folders, patterns and standard input, in a fixed order."""

from __future__ import annotations

import os
import stat
from codecs import getincrementaldecoder
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import has_magic
from pathlib import Path

from elmokit.corpus.report import Tally
from elmokit.errors import ElmoError, MissingExtraError
from elmokit.text.packed import DAMAGE, PACKED_ENDINGS, open_packed

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
    search = _Search(tally)
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


class _Search:
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

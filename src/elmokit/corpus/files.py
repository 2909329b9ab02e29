"""The CORPUS arguments of a command: files, globs, folders and standard input, in a fixed order."""

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
from elmokit.text.packed import DAMAGE, open_packed

STANDARD_INPUT = "-"
DESCRIPTION = "corpus.json"
"""What a prepared corpus has, and no folder of texts."""
_PACKED_ENDINGS = (".gz", ".xz", ".bz2", ".zst")
_SNIFFED = 8192
_SHOWN = 40
_ADVICE = "a corpus is files, folders, patterns in quotes, or - for standard input"


@dataclass(frozen=True)
class Input:
    """One file of a corpus, or standard input."""

    name: str
    """The path as the arguments led to it, or "-"."""
    size: int
    """Bytes on disk; 0 for standard input."""
    changed: int
    """When the file was last written, in nanoseconds."""

    @property
    def facts(self) -> tuple[str, int, int]:
        """What tells whether a file is still the one that was read."""
        return os.path.realpath(self.name), self.size, self.changed

    def is_unchanged(self) -> bool:
        """Whether the file is what it was when it was found."""
        try:
            now = Path(self.name).stat()
        except OSError:
            return False
        return (now.st_size, now.st_mtime_ns) == (self.size, self.changed)


def find_inputs(sources: Sequence[str], tally: Tally) -> list[Input]:
    """The files that the arguments name, each once, folders and patterns in the order of names.

    What was left out is noted in the tally.
    """
    if isinstance(sources, str) or not sources:
        raise ElmoError(f"a list of corpora is needed, got {sources!r}: {_ADVICE}")
    search = _Search(tally)
    for source in sources:
        search.add(str(source))
    if not search.inputs:
        left_out = "; ".join(tally.report().lines()[2:])
        raise ElmoError(f"no text was found in {listed(sources)}" + (f" ({left_out})" if left_out else f": {_ADVICE}"))
    return search.inputs


def listed(sources: Sequence[str]) -> str:
    """The first few arguments, for a message."""
    return ", ".join(str(source) for source in sources[:3]) + (", …" if len(sources) > 3 else "")


def is_prepared(folder: str | Path) -> bool:
    """Whether a folder looks like that of a prepared corpus."""
    try:
        path = Path(folder).expanduser()
        return (path / DESCRIPTION).is_file() and (path / "tokens.bin").is_file()
    except (OSError, ValueError, RuntimeError):
        return False


class _Search:
    def __init__(self, tally: Tally) -> None:
        self.inputs: list[Input] = []
        self._tally = tally
        self._files: set[tuple[int, int]] = set()
        self._folders: set[tuple[int, int]] = set()

    def add(self, source: str) -> None:
        """All that one argument names."""
        if not source.strip():
            raise ElmoError(f"the name of a corpus must not be empty: {_ADVICE}")
        if source == STANDARD_INPUT:
            if any(known.name == STANDARD_INPUT for known in self.inputs):
                raise ElmoError("standard input can be read only once: give - once")
            self.inputs.append(Input(STANDARD_INPUT, 0, 0))
            return
        if is_prepared(source):
            raise ElmoError(f"{source} is a prepared corpus, which is given alone and for training: give the text here")
        try:
            path = Path(source).expanduser()
            is_folder, is_there = path.is_dir(), path.exists() or path.is_symlink()
        except (
            OSError,
            ValueError,
            RuntimeError,
        ) as error:  # too long for a name, a NUL in it, a user who is not there
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
            elif "**" not in pattern.parts:  # which has looked into its folders itself
                self._add_folder(path)

    def _add_folder(self, folder: Path) -> None:
        """The files below a folder by name; links are followed, but into no folder twice."""
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
        _try_reading(path)
        if named or _is_text(path):
            self.inputs.append(Input(str(path), facts.st_size, facts.st_mtime_ns))
        else:
            self._tally.skip("not_text", str(path))


def _matches(pattern: Path) -> Iterator[Path]:
    """What a pattern matches: `**` is any number of folders, and hidden names match only what begins with a dot."""
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


def _try_reading(path: Path) -> None:
    """Have what cannot be opened told before hours are spent on the files that come earlier."""
    try:
        path.open("rb").close()
    except OSError as error:
        raise _unreadable(path, error) from error


def _is_text(path: Path) -> bool:
    """Whether a file that nobody named begins like a text, unpacked where it is packed."""
    try:
        with ExitStack() as stack:
            head = open_packed(path, stack).read(_SNIFFED)
    except MissingExtraError:
        raise
    except (ElmoError, *DAMAGE):
        # A kind that is refused is not text; damage has to be told, and will be where the file is read.
        return path.name.endswith(_PACKED_ENDINGS)
    return not head.startswith(b"%PDF-") and not _is_binary(head)


def _is_binary(head: bytes) -> bool:
    """NUL bytes tell, but a stray one in a text, whose line will be skipped, does not cost the whole file."""
    zeros = head.count(b"\0")
    if zeros * 20 > len(head):
        return True
    try:
        getincrementaldecoder("utf-8")().decode(head)  # the last character may be cut
    except UnicodeDecodeError:
        return zeros > 0
    return False


def _unreadable(path: Path, error: OSError) -> ElmoError:
    return ElmoError(f"cannot read {path} of the corpus ({error.strerror or error}): make it readable, or leave it out")

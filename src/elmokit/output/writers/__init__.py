"""The registry of vector formats: the writer of an output, and the reader of a file.

Every format is a module of this package that calls `register_writer`; all are imported when the first one is needed.
A module outside the package adds a format in the same way:

    def write(stored: SentenceVectors, target: Path) -> None:
        with target.open("w") as file:
            for text, tokens, vectors in stored.items():
                ...

    register_writer(".toy", write=write)        # from now on: elmo embed --output vectors.toy
"""

from __future__ import annotations

import json
import lzma
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from elmokit.errors import ElmoError
from elmokit.extensions import load_extensions
from elmokit.output.sentence_vectors import SentenceVectors, Vectors

Writer = Callable[[SentenceVectors, Path], None]
Reader = Callable[[Path], Iterator[tuple[list[str], Vectors]]]
DEFAULT_LAYOUT = "elmokit"
# The errors that the packages for these formats raise for files that are cut short, damaged or false.
_DAMAGE = (
    OSError, EOFError, LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RuntimeError, MemoryError,
    struct.error, zlib.error, lzma.LZMAError, zipfile.BadZipFile,
)  # fmt: skip


@dataclass(frozen=True)
class _VectorFormat:
    endings: tuple[str, ...]
    layout: str
    write: Writer
    read: Reader | None
    magic: bytes
    check: Callable[[], object]


_formats: list[_VectorFormat] = []
_not_imported = [module.name for module in iter_modules(__path__)]


def register_writer(
    *endings: str,
    write: Writer,
    read: Reader | None = None,
    magic: bytes = b"",
    layout: str = DEFAULT_LAYOUT,
    check: Callable[[], object] = lambda: None,
) -> None:
    """Add a vector format for files with these endings, such as ".npz".

    `write(stored, target)` writes all sentences to a new file. `read(path)` yields (tokens, vectors) per sentence. A
    file is detected by its first bytes, `magic`, or by its ending if the format has no `magic`. `layout` distinguishes
    several writers of one ending. `check` is called before any work, and raises an error if a package is missing.
    """
    _import_formats()
    if not endings or not all(ending.startswith(".") and ending == ending.lower() for ending in endings):
        raise ElmoError(
            f"endings must begin with a period and be in lower case, such as .npz, got {endings}", "endings"
        )
    for ending in endings:
        if any(ending in known.endings and layout == known.layout for known in _formats):
            raise ElmoError(f"a writer of {ending} is registered: unregister_writer({ending!r}) removes it")
    _formats.append(_VectorFormat(endings, layout, write, read, magic, check))


def unregister_writer(ending: str) -> None:
    """Remove the writers and readers of an ending."""
    _import_formats()
    _formats[:] = [known for known in _formats if ending not in known.endings]


def _import_formats() -> None:
    """Import the formats of this package and of extensions that are not imported yet; the import registers them."""
    while _not_imported:
        import_module(f"{__name__}.{_not_imported.pop()}")
    load_extensions()


def writer_for(output: Path, layout: str = DEFAULT_LAYOUT) -> Writer:
    """The writer for a path such as out.h5; an ElmoError for an unknown ending or layout, or a missing package."""
    _import_formats()
    ending = output.suffix.lower()
    layouts = {known.layout: known for known in _formats if ending in known.endings}
    if not layouts:
        raise ElmoError(f"output must end in one of {_endings(_formats)}, got {output}", "output")
    if layout not in layouts:
        others = [known for known in _formats if known.layout == layout]
        if not others:
            known_layouts = ", ".join(sorted({known.layout for known in _formats}))
            raise ElmoError(f"layout must be one of {known_layouts}, got {layout}", "layout")
        raise ElmoError(f"output must end in {_endings(others)} for the layout {layout}, got {output}", "output")
    found = layouts[layout]
    found.check()
    return found.write


def _endings(formats: Iterable[_VectorFormat]) -> str:
    return ", ".join(sorted({ending for known in formats for ending in known.endings}))


def read_vectors(path: str | Path) -> Iterator[tuple[list[str], Vectors]]:
    """Yield (tokens, vectors) for each sentence of a vector file of any format; the file is read as a stream.

    Vectors are float32 [T, D], [L+1, T, D] with all layers, [D] or [L+1, D] if pooled. A file in the layout of bilm-tf
    has no tokens, so the lists are empty. In AllenNLP's layout only the last of equal sentences has its tokens.

        for tokens, vectors in read_vectors("out.h5"):
            print(len(tokens), vectors.shape)
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            start = file.read(16)
    except OSError as error:
        raise ElmoError(f"cannot read {path} ({error.strerror or error}): give a file that elmo embed wrote") from error
    return _explain_damage(path, _reader_of(path, start))


def _reader_of(path: Path, start: bytes) -> Reader:
    _import_formats()
    readable = [known for known in _formats if known.read is not None]
    by_magic = [known for known in readable if known.magic and start.startswith(known.magic)]
    # A file without sentences may be empty; then its format is detected from its ending.
    by_ending = [known for known in readable if path.suffix.lower() in known.endings and not (known.magic and start)]
    if not (found := by_magic or by_ending):
        raise ElmoError(
            f"a vector file must have one of the formats {_endings(readable)}, got {path}, which starts with "
            f"{start[:8]!r}: is this a file of vectors?"
        )
    assert found[0].read is not None
    return found[0].read


def _explain_damage(path: Path, read: Reader) -> Iterator[tuple[list[str], Vectors]]:
    try:
        yield from read(path)
    except ElmoError:
        raise
    except _DAMAGE as error:
        first = next(iter(str(error).splitlines()), "cut short")
        reason = "not JSON" if isinstance(error, json.JSONDecodeError) else first
        raise ElmoError(f"{path} is damaged or not a file of vectors ({reason}): write it again") from error

"""The registry of model formats: an ordered list of `Format`, each of which can detect its models at a path.

Each format of this package is a module with a `FORMAT`. It is imported when it is first needed, so a bundled model
opens without h5py. `register_format` adds a format from outside the package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from elmokit.errors import ElmoError
from elmokit.extensions import load_extensions
from elmokit.formats.source import ZIP_MAGIC, FolderSource, Source, ZipSource

if TYPE_CHECKING:  # the names of the formats are available without importing torch
    from elmokit.formats.checkpoint import Checkpoint
    from elmokit.text.vocab import Vocabulary

DEFAULT_FORMAT = "elmokit"
"""The format that is written by default."""
_BUILT_IN = {
    "elmokit": "native",
    "manylangs": "manylangs",
    "tensorflow": "tensorflow",  # before bilm: a training folder may also have weights.hdf5, which contains less
    "bilm": "bilm",
    "tokens": "token_embeddings",
}
"""The modules of the built-in formats by the formats' names, in the order in which they are tried."""


@dataclass(frozen=True, eq=False)
class Format:
    """A file format of models, with functions that detect, read and write it.

    `detect(source, name)` returns the main file of a model of this format, or None. It checks contents if possible.
    `name` is None for a whole folder or zip. Otherwise it is the file that the user gave, or a name without a file,
    because some formats name a model by the common prefix of its files. It raises ElmoError if the files clearly have
    this format and are damaged.

    `read(files)` returns the model. `write(checkpoint, target)` writes it; it is None for a format that is only read.
    """

    name: str
    """The name in `Checkpoint.kind`, `elmo info`, `elmo convert` and `Elmo.save(format=)`."""
    description: str
    """Completes the sentence "a model is …"; empty for files that are not a model on their own."""
    detect: Callable[[Source, str | None], str | None]
    read: Callable[[ModelFiles], Checkpoint]
    write: Callable[[Checkpoint, Path], None] | None = None
    files: Sequence[str] = ()
    """Patterns of the names of its files, which are downloaded from the Hub."""
    suffixes: Sequence[str] = ()
    """The suffixes that the target of `write` may have, for a format of one file; empty for a folder."""
    takes_options: bool = False
    """Whether it has an options file that the user may give as `options`."""
    dtypes: Sequence[str] = ("float32",)
    """The dtypes that `write` can store."""
    contexts: Sequence[str] = ()
    """The kinds of context encoder that it can store; empty for every kind."""


@dataclass(frozen=True, eq=False)
class ModelFiles:
    """A model on disk with a known format, and the user's options for reading it."""

    format: Format
    source: Source
    main: str
    """The result of `Format.detect`: the file to open first, or the common prefix of the files' names."""
    options: tuple[Source, str] | None = None
    """The options file, if the user gave one."""
    vocab: Vocabulary | None = None
    """The vocabulary, if the user gave one; it replaces the one in the folder of the weights."""
    int8: bool = False
    """Whether the user wants int8 matrices; a reader that quantises them one at a time saves memory."""

    @property
    def where(self) -> str:
        """The name of the model in messages."""
        return self.source.describe(self.main)


_registered: dict[str, Format | None] = dict.fromkeys(_BUILT_IN)  # None: the module is not imported yet


def register_format(format: Format, *, before: str | None = None) -> None:
    """Add a format, which is tried after all others or right before the format `before`."""
    if format.name in _registered:
        raise ElmoError(f"a format named {format.name} is registered: unregister_format({format.name!r}) removes it")
    if before is not None:
        _check_name(before)
    order = list(_registered)
    later = {name: _registered.pop(name) for name in (order[order.index(before) :] if before is not None else ())}
    _registered[format.name] = format
    _registered.update(later)


def unregister_format(name: str) -> None:
    """Remove a format from the registry."""
    _check_name(name)
    del _registered[name]


def formats() -> Iterator[Format]:
    """All formats in the order in which they are tried; each is imported only when it is reached."""
    load_extensions()
    for name in list(_registered):
        yield format_named(name)


def format_named(name: str) -> Format:
    """The format of this name."""
    _check_name(name)
    found = _registered[name]
    if found is None:
        found = import_module(f"elmokit.formats.{_BUILT_IN[name]}").FORMAT
        assert isinstance(found, Format)
        _registered[name] = found
    return found


def find(path: Path) -> ModelFiles | None:
    """The model at a path, which is a folder, a zip or any file of a model; None if no format detects one."""
    if path.is_dir():
        return _detect(FolderSource(path), None)
    if path.exists() and not path.is_file():
        return None  # a pipe or a device: opening it could wait forever
    folder = FolderSource(path.parent)
    if not path.is_file():
        return _detect(folder, path.name) if path.parent.is_dir() else None
    found = _detect(folder, path.name)
    if found is not None:
        return found
    if is_zip(path):  # tried last: the pickles of ELMoForManyLangs are zips too
        return _detect(ZipSource(path), None)
    if first_bytes(folder, path.name).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        # A JSON file stands for the model in its folder and, if the format has one, is its options file.
        found = _detect(folder, None)
        if found is not None and found.format.takes_options:
            return replace(found, options=(folder, path.name))
    return found


def is_zip(path: Path) -> bool:
    """Whether a file is a zip, by its contents or its name."""
    return first_bytes(FolderSource(path.parent), path.name).startswith(ZIP_MAGIC) or path.suffix.lower() == ".zip"


def first_bytes(source: Source, name: str) -> bytes:
    """The first 64 bytes of a file, by which many formats are detected."""
    with source.open(name) as file:
        return file.read(64)


def one_of(words: Sequence[str]) -> str:
    """Alternatives in a sentence: "a, b or c"."""
    return " or ".join([*([", ".join(words[:-1])] if words[1:] else []), *words[-1:]])


def _detect(source: Source, name: str | None) -> ModelFiles | None:
    for format in formats():
        main = format.detect(source, name)
        if main is not None:
            return ModelFiles(format, source, main)
    return None


def _check_name(name: str) -> None:
    if name not in _registered:
        load_extensions()
    if name not in _registered:
        raise ElmoError(f"a format is {one_of(list(_registered))}, got {name!r}")

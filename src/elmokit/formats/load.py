"""Reads a model of any format from a path or by its name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from elmokit.errors import ElmoError
from elmokit.formats.bundled import bundled_models, resolve_model
from elmokit.formats.checkpoint import Checkpoint
from elmokit.formats.registry import ModelFiles, find, formats, is_zip, one_of
from elmokit.formats.source import FolderSource, Source, ZipSource, read_text
from elmokit.text.vocab import Vocabulary


def read_checkpoint(
    path: str | Path,
    *,
    options: str | Path | None = None,
    vocab: str | Path | None = None,
    token_embeddings: str | Path | None = None,
    int8: bool = False,
) -> Checkpoint:
    """Read a model of any format: from a path, or by its name in the package or on the Hub.

    `options`, `vocab` and `token_embeddings` are files outside the folder of the weights. With `int8` the matrices are
    quantised, one at a time if the format allows it; otherwise they have their stored dtype.
    """
    files = detect(resolve_model(path))
    if options is not None and not files.format.takes_options:
        names = one_of([format.name for format in formats() if format.takes_options])
        raise ElmoError(
            f"options names a file of the format {names}, and {path} has the format {files.format.name}", "options"
        )
    with _read_errors(files.where):
        if options is not None:
            files = replace(files, options=_file(options))
        words = None if vocab is None else read_vocabulary(vocab)
        files = replace(files, vocab=words, int8=int8)
        checkpoint = files.format.read(files)
        if int8:
            checkpoint = checkpoint.in_int8()
        if token_embeddings is not None:
            from elmokit.formats.token_embeddings import with_token_embeddings  # imports h5py

            words = checkpoint.vocab if words is None else words
            return with_token_embeddings(checkpoint, *_file(token_embeddings), words)
    if words is not None:
        checkpoint.use_vocabulary(words)
    return checkpoint


def detect(path: str | Path) -> ModelFiles:
    """Find the model at a path: a folder, a zip, or any file of a model.

    >>> detect("elmo_2x4096_512_2048cnn_2xhighway_weights.hdf5").format.name  # doctest: +SKIP
    'bilm'
    """
    if not str(path):
        raise ElmoError("the path of a model must not be empty")
    path = Path(path).expanduser()
    with _read_errors(path):
        files = find(path)
        if files is None:
            raise ElmoError(_no_model_at(path))
        return files


def read_vocabulary(path: str | Path) -> Vocabulary:
    """The words of a vocab.txt."""
    with _read_errors(path):
        return Vocabulary.from_text(read_text(*_file(path)))


def _no_model_at(path: Path) -> str:
    known = f"{one_of([format.description for format in formats() if format.description])}; all of them may be in a zip"
    if path.is_dir() or (path.is_file() and is_zip(path)):
        names = (FolderSource(path) if path.is_dir() else ZipSource(path)).names()
        listed = ", ".join(names[:6]) + (", …" if len(names) > 6 else "")
        return f"{path} contains no model that elmokit knows (files: {listed or 'none'}); a model is {known}"
    if path.exists():
        return f"{path} is not part of a model that elmokit knows; a model is {known}"
    if path.name == str(path):
        known = f"one that comes with elmokit ({', '.join(bundled_models())}), {known}"
    return f"{path} does not exist; a model is {known}"


def _file(path: str | Path) -> tuple[Source, str]:
    path = Path(path)
    if not path.is_file():
        raise ElmoError(f"{path} does not exist or is not a file; check the name")
    return FolderSource(path.parent), path.name


@contextmanager
def _read_errors(path: Path | str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ElmoError(f"{error.filename or path} cannot be read: {error.strerror or error}") from error

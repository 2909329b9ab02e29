"""Vectors back from a file that any of the writers made, told apart by their first bytes."""

import json
import lzma
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from elmokit.errors import ElmoError
from elmokit.output.shape import Vectors

# What the packages that read these formats raise on files that are cut, flipped or say what is not true.
_DAMAGE = (
    OSError, EOFError, LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RuntimeError, MemoryError,
    struct.error, zlib.error, lzma.LZMAError, zipfile.BadZipFile,
)  # fmt: skip
Reader = Callable[[Path], Iterator[tuple[list[str], Vectors]]]


def read_vectors(path: str | Path) -> Iterator[tuple[list[str], Vectors]]:
    """Yield (tokens, vectors) for each sentence of an .h5, .npz, .parquet or .jsonl file, reading as it goes.

    Vectors are float32 [T, D], [L+1, T, D] with all layers, [D] or [L+1, D] where pooled. A file in the layout of
    bilm-tf has no tokens: the list is empty then. One in AllenNLP's has the last of equal sentences only.

        for tokens, vectors in read_vectors("out.h5"):
            print(len(tokens), vectors.shape)
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            start = file.read(8)
    except OSError as error:
        raise ElmoError(f"cannot read {path} ({error.strerror or error}): give a file that elmo embed wrote") from error
    return _guarded(path, _reader_for(path, start))


def _reader_for(path: Path, start: bytes) -> Reader:
    if start.startswith(b"\x89HDF\r\n\x1a\n"):
        from elmokit.output import hdf5

        return hdf5.read
    if start.startswith(b"PK"):
        from elmokit.output import npz

        return npz.read
    if start.startswith(b"PAR1"):
        from elmokit.output import parquet

        return parquet.read
    if start.startswith(b"{") or not start:  # no sentences make an empty .jsonl
        from elmokit.output import jsonl

        return jsonl.read
    raise ElmoError(
        f"{path} must be HDF5, npz, parquet or JSON lines, got {start!r} at its start: is this a file of vectors?"
    )


def _guarded(path: Path, reader: Reader) -> Iterator[tuple[list[str], Vectors]]:
    try:
        yield from reader(path)
    except ElmoError:
        raise
    except _DAMAGE as error:
        reason = (
            "not JSON"
            if isinstance(error, json.JSONDecodeError)
            else str(error).splitlines()[0]
            if str(error)
            else "cut short"
        )
        raise ElmoError(f"{path} is damaged or not a file of vectors ({reason}): write it again") from error

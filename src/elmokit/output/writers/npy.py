"""NumPy's .npy: the flat array, followed by lines of JSON: a header, then the tokens of each sentence.

`np.load(path)` is [tokens, D], or [tokens, L+1, D] with all layers; pooled [N, D] or [N, L+1, D]. NumPy ignores the
lines after the array, so the tokens need no second file that could get lost:

    with open("out.npy", "rb") as file:
        vectors = np.load(file)
        head, *tokens = map(json.loads, file)       # {"format": ..., "pooled": ...}, ["a", "bank"], ...
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy

from elmokit.errors import ElmoError
from elmokit.output.sentence_vectors import SentenceVectors, Vectors, VectorShape, as_tokens
from elmokit.output.writers import register_writer

FORMAT, VERSION = "elmokit-vectors", 1


def write(stored: SentenceVectors, target: Path) -> None:
    """Write the array, then the lines."""
    with target.open("wb") as file:
        write_array(file, stored)
        head = {"format": FORMAT, "version": VERSION, "pooled": stored.shape.pooled, "settings": stored.settings}
        file.write(json.dumps(head).encode("ascii") + b"\n")
        write_tokens(file, stored)


def write_array(file: IO[bytes], stored: SentenceVectors) -> None:
    """Write the flat array of all vectors."""
    write_header(file, stored.shape.dtype, (stored.rows, *stored.shape.row))
    for block in stored.blocks():
        file.write(block.tobytes())


def write_header(file: IO[bytes], dtype: str, shape: tuple[int, ...]) -> None:
    """Write the header of a .npy array."""
    npy.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})


def write_tokens(file: IO[bytes], stored: SentenceVectors) -> None:
    """Write a line of JSON with the tokens of each sentence."""
    for _, tokens in stored.texts():
        file.write(json.dumps(tokens, separators=(",", ":")).encode("ascii") + b"\n")


def read(path: Path) -> Iterator[tuple[list[str], Vectors]]:
    """The tokens and vectors of each sentence."""
    with path.open("rb") as vectors, path.open("rb") as lines:
        flat, dtype = read_header(vectors)
        start, size = vectors.tell(), math.prod(flat) * dtype.itemsize
        if start + size > lines.seek(0, 2):
            raise EOFError("fewer vectors than the header says")
        lines.seek(start + size)
        head = lines.readline()
        head = json.loads(head) if head else {}
        if not isinstance(head, dict) or head.get("format") != FORMAT:
            raise ElmoError(f"{path} has an array but no tokens after it: only files by elmo embed have them")
        yield from read_sentences(vectors, lines, flat, dtype, size, pooled=bool(head.get("pooled")))


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[np.floating]]:
    """The shape and the dtype of an array of vectors."""
    npy.read_magic(file)
    flat, _, dtype = npy.read_array_header_1_0(file)
    if dtype.kind != "f" or len(flat) not in (2, 3) or min(flat) < 0:
        raise ValueError(f"vectors of {dtype} in the shape {flat}")
    return flat, dtype


def read_sentences(
    vectors: IO[bytes],
    lines: Iterable[bytes],
    flat: tuple[int, ...],
    dtype: np.dtype[np.floating],
    left: int,
    *,
    pooled: bool,
) -> Iterator[tuple[list[str], Vectors]]:
    """The tokens of each line with its rows of the array; `left` is the size of the array in bytes."""
    shape = VectorShape(pooled, flat[1] if len(flat) == 3 else None, flat[-1])
    row_bytes = math.prod(shape.row) * dtype.itemsize
    for line in lines:
        tokens = as_tokens(json.loads(line))
        rows = shape.rows(len(tokens))
        left -= rows * row_bytes
        if left < 0:
            raise EOFError("more tokens than vectors")
        yield tokens, shape.from_rows(np.frombuffer(vectors.read(rows * row_bytes), dtype).reshape(rows, *shape.row))


register_writer(".npy", write=write, read=read, magic=b"\x93NUMPY")

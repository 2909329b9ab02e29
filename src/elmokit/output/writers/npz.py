"""NumPy's .npz: the flat array as `vectors`, `offsets` [N+1] unless pooled, tokens and settings as JSON text.

`np.load(path)["vectors"]` is [tokens, D], or [tokens, L+1, D] with all layers; pooled [N, D] or [N, L+1, D].
Sentence i is `vectors[offsets[i]:offsets[i + 1]]`. `np.load(path)["tokens.jsonl"]` gives the bytes of one line per
sentence, a JSON array. Members are stored uncompressed, with ZIP64 sizes, and written and read as streams.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy

from elmokit.errors import ElmoError
from elmokit.output.sentence_vectors import SentenceVectors, Vectors, VectorShape, as_tokens
from elmokit.output.writers import register_writer
from elmokit.storage.trusted import check_zip

VECTORS, OFFSETS, TOKENS, SETTINGS = "vectors.npy", "offsets.npy", "tokens.jsonl", "settings.json"
FORMAT, VERSION = "elmokit-vectors", 1


def write(stored: SentenceVectors, target: Path) -> None:
    """Write the members of the archive one after the other."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        with _member(archive, SETTINGS) as file:
            head = {"format": FORMAT, "version": VERSION, "settings": stored.settings}
            file.write(json.dumps(head).encode("ascii"))
        with _member(archive, VECTORS) as file:
            _npy_header(file, "<f4", (stored.rows, *stored.shape.row))
            for block in stored.blocks():
                file.write(block.tobytes())
        if not stored.shape.pooled:
            with _member(archive, OFFSETS) as file:
                _npy_header(file, "<i8", (stored.sentences + 1,))
                file.write(bytes(8))
                for _, _, ends in stored.batches():
                    file.write(ends.astype("<i8").tobytes())
        with _member(archive, TOKENS) as file:
            for _, tokens in stored.texts():
                file.write(json.dumps(tokens, separators=(",", ":")).encode("ascii") + b"\n")


def _member(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    # A fixed date makes equal contents equal files.
    return archive.open(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), "w", force_zip64=True)


def _npy_header(file: IO[bytes], descr: str, shape: tuple[int, ...]) -> None:
    npy.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})


def read(path: Path) -> Iterator[tuple[list[str], Vectors]]:
    """The tokens and vectors of each sentence."""
    with zipfile.ZipFile(path) as archive:
        check_zip(archive, path.stat().st_size, str(path))
        names = archive.namelist()
        if VECTORS not in names or TOKENS not in names:
            raise ElmoError(
                f"{path} must contain {VECTORS} and {TOKENS}, got {', '.join(names) or 'nothing'}: "
                f"is this a file of vectors?"
            )
        with archive.open(VECTORS) as vectors, archive.open(TOKENS) as lines:
            npy.read_magic(vectors)
            flat, _, dtype = npy.read_array_header_1_0(vectors)
            if dtype.kind != "f" or len(flat) not in (2, 3) or min(flat) < 0:
                raise ValueError(f"vectors of {dtype} in the shape {flat}")
            shape = VectorShape(OFFSETS not in names, flat[1] if len(flat) == 3 else None, flat[-1])
            row_bytes = math.prod(shape.row) * dtype.itemsize
            left = archive.getinfo(VECTORS).file_size
            for line in lines:
                tokens = as_tokens(json.loads(line))
                rows = shape.rows(len(tokens))
                left -= rows * row_bytes
                if left < 0:
                    raise EOFError("more tokens than vectors")
                data = np.frombuffer(vectors.read(rows * row_bytes), dtype).astype(np.float32, copy=False)
                yield tokens, shape.from_rows(data.reshape(rows, *shape.row))


register_writer(".npz", write=write, read=read, magic=b"PK")

"""NumPy's .npz: the flat array `vectors`, `offsets` [N+1] unless pooled, and tokens and settings as JSON text.

`np.load(path)["vectors"]` is [tokens, D], or [tokens, L+1, D] with all layers; pooled [N, D] or [N, L+1, D].
Sentence i is `vectors[offsets[i]:offsets[i + 1]]`. `np.load(path)["tokens.jsonl"]` gives the bytes of one line per
sentence, a JSON array. Members are stored uncompressed, with ZIP64 sizes, and written and read as streams.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from elmokit.errors import ElmoError
from elmokit.output.sentence_vectors import SentenceVectors, Vectors
from elmokit.output.writers import register_writer
from elmokit.output.writers.npy import (
    FORMAT,
    VERSION,
    read_header,
    read_sentences,
    write_array,
    write_header,
    write_tokens,
)
from elmokit.storage.trusted import check_zip

VECTORS, OFFSETS, TOKENS, SETTINGS = "vectors.npy", "offsets.npy", "tokens.jsonl", "settings.json"


def write(stored: SentenceVectors, target: Path) -> None:
    """Write the members of the archive one after the other."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        with _member(archive, SETTINGS) as file:
            head = {"format": FORMAT, "version": VERSION, "settings": stored.settings}
            file.write(json.dumps(head).encode("ascii"))
        with _member(archive, VECTORS) as file:
            write_array(file, stored)
        if not stored.shape.pooled:
            with _member(archive, OFFSETS) as file:
                write_header(file, "<i8", (stored.sentences + 1,))
                file.write(bytes(8))
                for _, _, ends in stored.batches():
                    file.write(ends.astype("<i8").tobytes())
        with _member(archive, TOKENS) as file:
            write_tokens(file, stored)


def _member(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    # With a fixed date, equal contents give equal files.
    return archive.open(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), "w", force_zip64=True)


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
            flat, dtype = read_header(vectors)
            left = archive.getinfo(VECTORS).file_size
            yield from read_sentences(vectors, lines, flat, dtype, left, pooled=OFFSETS not in names)


register_writer(".npz", write=write, read=read, magic=b"PK")

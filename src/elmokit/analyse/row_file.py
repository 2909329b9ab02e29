"""The vectors of an index while it is built: each written to its row, and a note of how many sentences are done."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np

from elmokit.analyse.index import Rows
from elmokit.analyse.vectors import Floats, pack
from elmokit.storage.atomic import unexplained, write_text
from elmokit.storage.offset_file import OffsetFile

DONE = "done.json"
_BUFFER_BYTES = 1 << 25
_SYNC_SECONDS = 20.0


def sentences_done(partial: Path) -> int:
    """How many sentences of an index that is half built are on the disk."""
    try:
        return int(json.loads((partial / DONE).read_text(encoding="ascii"))["sentences"])
    except (OSError, ValueError):
        return 0


class RowFile:
    """Vectors that come in any order, written to their rows; what is done is noted once it is on the disk."""

    def __init__(self, partial: Path, size: int) -> None:
        self._partial, self._size = partial, size
        self._codes, self._scales = OffsetFile(partial / "vectors.bin"), OffsetFile(partial / "scales.bin")
        self._waiting: list[tuple[Rows, Floats]] = []
        self._bytes = 0
        self._synced = time.monotonic()

    def add(self, rows: Rows, vectors: Floats) -> None:
        """Take vectors of any length [N, D]; many are written at once."""
        self._waiting.append((rows, vectors))
        self._bytes += vectors.nbytes
        if self._bytes >= _BUFFER_BYTES:
            self._write()

    def note(self, sentences: int, *, force: bool = False) -> None:
        """Bring all of it to the disk and note how many sentences that makes, if the last time is long ago."""
        if not force and time.monotonic() - self._synced < _SYNC_SECONDS:
            return
        self._write()
        self._codes.sync()
        self._scales.sync()
        write_text(self._partial / DONE, json.dumps({"sentences": sentences}), errors=unexplained)
        self._synced = time.monotonic()

    def _write(self) -> None:
        if not self._waiting:
            return
        rows = np.concatenate([rows for rows, _ in self._waiting])
        packed = pack(np.concatenate([vectors for _, vectors in self._waiting]))
        order = np.argsort(rows)
        rows, codes, scales = rows[order], packed.codes[order], packed.scales[order]
        # Rows that follow each other go in one write; of a frequent word these are many.
        breaks = np.flatnonzero(np.diff(rows) != 1) + 1
        for start, stop in zip([0, *breaks.tolist()], [*breaks.tolist(), len(rows)], strict=True):
            row = int(rows[start])
            self._codes.write(row * self._size, codes[start:stop].tobytes())
            self._scales.write(row * 4, scales[start:stop].tobytes())
        self._waiting, self._bytes = [], 0

    def __enter__(self) -> RowFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._codes.close()
        self._scales.close()

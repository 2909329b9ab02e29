"""Files of plain numbers: written at given offsets, and read memory-mapped."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import ElmoError
from elmokit.storage.trusted import open_no_follow


class OffsetFile:
    """A file that is written at offsets from the caller, so that an interrupted write can be repeated."""

    def __init__(self, path: Path) -> None:
        self._fd = open_no_follow(path, os.O_RDWR | os.O_CREAT)

    def write(self, offset: int, data: bytes | memoryview) -> int:
        """Write all data at an offset and return the offset after it."""
        view = memoryview(data)
        os.lseek(self._fd, offset, os.SEEK_SET)
        while view:
            view = view[os.write(self._fd, view) :]
        return offset + len(data)

    def size(self) -> int:
        """The size of the file in bytes."""
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        """Shorten the file to `size` bytes."""
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        """Wait until the contents are on disk."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def map_array(path: Path, dtype: str, shape: tuple[int, ...], advice: str) -> NDArray[Any]:
    """A file as a memory-mapped array; a wrong size raises ElmoError with `advice`."""
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize  # Python's integers: a damaged description cannot overflow them
    try:
        if (found := path.stat().st_size) != size:
            raise ElmoError(f"{path} must have {size:,} bytes, got {found:,}: {advice}")
        # An empty file cannot be mapped.
        return np.memmap(path, dtype=kind, mode="r", shape=shape) if size else np.empty(shape, dtype=kind)
    except OSError as error:
        raise ElmoError(f"{path} cannot be read ({error.strerror or error}): {advice}") from error

"""Memory that is needed no more once a matrix has been packed."""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path

from torch import Tensor

PAGE_OUT = 21
"""Linux's advice to take pages out of memory: those of a file that were not written to are read again when needed."""
LEAST_BYTES = 1 << 20


def let_go(values: Tensor) -> None:
    """Take the pages of a large tensor that is mapped from a file out of memory; its numbers stay what they are."""
    if sys.platform != "linux" or values.nbytes < LEAST_BYTES or not values.is_contiguous():
        return
    start = -(-values.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    stop = (values.data_ptr() + values.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if _is_of_a_file(start, stop):
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), PAGE_OUT)


def _is_of_a_file(start: int, stop: int) -> bool:
    """Whether one mapping of a file contains these addresses; other memory would be written to the swap."""
    try:
        text = Path("/proc/self/maps").read_text("utf-8", "replace")
    except OSError:
        return False
    for line in text.removesuffix("\n").split("\n"):  # names of files may hold what else splits lines
        addresses, *_, last = line.split(maxsplit=5)
        first, end = (int(address, 16) for address in addresses.split("-"))
        if first <= start and stop <= end:
            return last.startswith("/") and not last.startswith("/dev/")
    return False

"""The number of threads for a kernel, and the OpenMP functions of torch that start them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import torch

MAPS = Path("/proc/self/maps")


def most_threads() -> int:
    """The number of torch's threads, but at most the cores of this process, since the threads wait for each other."""
    # Systems without this function let a process use all cores.
    affinity = getattr(os, "sched_getaffinity", None)
    return min(torch.get_num_threads(), len(affinity(0)) if affinity else os.cpu_count() or 1)


def mapped_files() -> Iterator[tuple[int, int, str]]:
    """The first address, the address after the last, and the path of each mapped file; empty except on Linux."""
    try:
        lines = MAPS.read_text("utf-8", "surrogateescape").split("\n")  # a path may contain other line separators
    except OSError:
        return
    for line in lines:
        addresses, *more = line.split(maxsplit=5)[:6] or [""]
        if len(more) == 5 and more[-1].startswith("/"):
            start, stop = (int(address, 16) for address in addresses.split("-"))
            yield start, stop, more[-1]


def pool_functions() -> list[int] | None:
    """GOMP_parallel, omp_get_thread_num and omp_get_num_threads of the OpenMP library that torch has loaded.

    None if that is not GNU's, or if it cannot be found.
    """
    loaded = {path for _, _, name in mapped_files() if (path := Path(name)).name.startswith("libgomp")}
    if len(loaded) != 1:  # if there are two, torch may use either
        return None
    try:
        library = ctypes.CDLL(str(loaded.pop()))
        names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
        functions = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in names]
    except (OSError, AttributeError):
        return None
    return [function for function in functions if function is not None]

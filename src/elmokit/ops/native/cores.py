"""How many threads there may be, and whose."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import torch

MAPS = Path("/proc/self/maps")


def most_threads() -> int:
    """As many as torch would use, but never more than this process has cores: threads here wait for each other."""
    # Not on every system; elsewhere a process may use all there are.
    affinity = getattr(os, "sched_getaffinity", None)
    return min(torch.get_num_threads(), len(affinity(0)) if affinity else os.cpu_count() or 1)


def pool_functions() -> list[int] | None:
    """GOMP_parallel, omp_get_thread_num and omp_get_num_threads of the OpenMP library that torch has loaded.

    None where that is another than GNU's, or cannot be found.
    """
    try:
        lines = MAPS.read_text("utf-8", "surrogateescape").split("\n")
    except OSError:
        return None
    files = {Path(parts[5]) for line in lines if len(parts := line.split(maxsplit=5)) == 6}
    loaded = {path for path in files if path.name.startswith("libgomp")}
    if len(loaded) != 1:  # with two of them, nobody knows which one torch uses
        return None
    try:
        library = ctypes.CDLL(str(loaded.pop()))
        names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
        functions = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in names]
    except (OSError, AttributeError):
        return None
    return [function for function in functions if function is not None]

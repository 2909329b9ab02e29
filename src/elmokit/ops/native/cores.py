"""How many threads there may be."""

from __future__ import annotations

import os

import torch


def most_threads() -> int:
    """As many as torch would use, but never more than this process has cores: threads here wait for each other."""
    # Not on every system; elsewhere a process may use all there are.
    affinity = getattr(os, "sched_getaffinity", None)
    return min(torch.get_num_threads(), len(affinity(0)) if affinity else os.cpu_count() or 1)

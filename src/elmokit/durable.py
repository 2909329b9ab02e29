"""What was written is on the disk, not only on its way there."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, durable."""
    if os.name == "nt" and path.is_dir():
        return  # Windows can neither open nor flush a folder
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

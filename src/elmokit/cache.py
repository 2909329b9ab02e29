"""Where things are kept that can be made or fetched again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """The folder named by ELMOKIT_CACHE, or ~/.cache/elmokit."""
    return Path(os.environ.get("ELMOKIT_CACHE") or "~/.cache/elmokit").expanduser()

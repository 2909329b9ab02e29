"""Installed packages that extend elmokit: an entry point of the group `elmokit` names a module to import.

    [project.entry-points.elmokit]
    pairs = "pairs_encoder"

The module registers what it adds: context encoders, file formats, tasks, vector writers, commands.
"""

from __future__ import annotations

import logging
from importlib.metadata import EntryPoint, entry_points

GROUP = "elmokit"
log = logging.getLogger(__name__)
_waiting: list[EntryPoint] | None = None


def load_extensions() -> None:
    """Import the modules of all extensions, each once; one that fails is reported and left out."""
    global _waiting
    if _waiting is None:
        _waiting = list(entry_points(group=GROUP))
    while _waiting:
        entry = _waiting.pop()  # before the import, which may call this function again
        try:
            entry.load()
        except Exception as error:  # noqa: BLE001 -- a broken extension must not stop other models
            log.warning("the extension %s cannot be used, its module %s fails: %r", entry.name, entry.value, error)

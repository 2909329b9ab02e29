"""The folder that prepared corpora share: each lies in a folder of its own, named by what it was prepared from."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from elmokit.corpus.building import VERSION
from elmokit.corpus.files import DESCRIPTION, STANDARD_INPUT, Input, is_prepared, listed
from elmokit.errors import ElmoError
from elmokit.output.strings import counted
from elmokit.storage.cache import cache_folder
from elmokit.storage.checksum import name_of

NAMES = "[0-9a-f]" * 32
"""A pattern for the names, which nothing else in the folder has."""


def usual_shelf() -> Path:
    """Where corpora are kept if nobody names a place: corpora/ of the cache folder."""
    return cache_folder() / "corpora"


def prepared_among(sources: Sequence[str]) -> Path | None:
    """The folder of the prepared corpus that a single source names: it, or the only one of a folder for such."""
    if len(sources) != 1 or sources[0] == STANDARD_INPUT:
        return None
    if is_prepared(sources[0]):
        return Path(sources[0]).expanduser()
    try:
        inside = [path for path in Path(sources[0]).expanduser().iterdir() if not path.name.startswith(".")]
    except (OSError, ValueError, RuntimeError):
        return None  # a file, a pattern, or what will be refused where it is looked for
    if not inside or not all(fnmatchcase(path.name, NAMES) and is_prepared(path) for path in inside):
        return None
    if len(inside) > 1:
        raise ElmoError(
            f"{sources[0]} keeps {len(inside)} prepared corpora: give the folder of one, such as {min(inside)}, or the "
            "text that it was prepared from"
        )
    return inside[0]


def fingerprint_of(inputs: Sequence[Input], settings: Mapping[str, Any]) -> str | None:
    """What tells a prepared corpus from others before it is read; None where only the reading shows it."""
    if any(each.name == STANDARD_INPUT for each in inputs):
        return None
    return name_of({"version": VERSION, "files": [each.facts for each in inputs], "settings": settings})


def name_after_reading(description: Mapping[str, Any]) -> str:
    """The name of a corpus from standard input, by what its corpus.json says."""
    return name_of([description[name] for name in ("version", "content", "settings", "report")])


def origin_of(sources: Sequence[str], settings: Mapping[str, Any]) -> str:
    """Of the arguments alone: the same while the files that they name change."""
    named = [source if source == STANDARD_INPUT else os.path.realpath(Path(source).expanduser()) for source in sources]
    return name_of({"sources": named, "settings": settings})


def told_of_earlier(folder: Path, origin: str, sources: Sequence[str]) -> str | None:
    """A sentence on the corpora of the same origin that lie beside the folder of a new one; None if there are none.

    They are kept, since the runs that began with them may have to be resumed; only a person knows which will be.
    """
    earlier, size = [], 0
    for other in sorted(folder.parent.glob(NAMES)):
        with suppress(OSError, ValueError, AttributeError):  # of another program, or removed at this moment
            if other != folder and json.loads((other / DESCRIPTION).read_bytes()).get("origin") == origin:
                size += sum(file.stat().st_size for file in other.iterdir())
                earlier.append(other.name)
    if not earlier:
        return None
    named = listed(["standard input" if source == STANDARD_INPUT else source for source in sources])
    return (
        f"{named} has changed since it was prepared before; {folder.parent} keeps what was prepared then, "
        f"{counted(len(earlier), 'folder')} with {size / 1e6:,.1f} MB in all, for the runs that began with it: remove "
        f"{listed(earlier)} once no run needs it"
    )

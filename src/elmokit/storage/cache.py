"""The cache folder, for data that can be computed or downloaded again: its keys, size limit and leftover files."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from elmokit.storage.locks import try_lock

_OLD_SECONDS = 86_400
KEY_BYTES = 16


def cache_folder() -> Path:
    """The folder of ELMOKIT_CACHE, or ~/.cache/elmokit; a temporary folder for a user without a home."""
    named = os.environ.get("ELMOKIT_CACHE") or "~/.cache/elmokit"
    try:
        return Path(named).expanduser()
    except RuntimeError:  # in a container with an arbitrary user id, for example
        return Path(tempfile.gettempdir(), f"elmokit-{os.getuid()}")


def key_of(facts: object) -> bytes:
    """A 16-byte hash of any JSON value, the same in every process and on every machine."""
    # JSON separates words unambiguously, and in ASCII it can express lone surrogates.
    return hashlib.blake2b(json.dumps(facts, sort_keys=True).encode("ascii"), digest_size=KEY_BYTES).digest()


def name_of(facts: object) -> str:
    """The same hash as 32 hexadecimal digits, for a file name."""
    return key_of(facts).hex()


def remove_leftovers(folder: Path, name: str = "", *, locked: bool) -> None:
    """Remove temporary files that killed writers left in a folder: writers of `name`, or of any file.

    `locked` says that the caller has the writers' lock: then all of them are removed, otherwise those older than a day.
    """
    for leftover in folder.glob(f".{glob.escape(name)}.*.tmp" if name else ".*.tmp"):
        with suppress(OSError):
            if locked or time.time() - leftover.stat().st_mtime > _OLD_SECONDS:
                if leftover.is_dir() and not leftover.is_symlink():
                    shutil.rmtree(leftover, ignore_errors=True)
                else:
                    leftover.unlink()


def remove_abandoned(folder: Path, names: str) -> None:
    """Remove files of killed builders next to `folder`, whose lock the caller has; `names` is a glob of folders."""
    parent = folder.parent
    # Not the caller's own lock: some network file systems grant it twice, and release both with the second.
    for path in set(parent.glob(f".{names}.lock")) - {parent / f".{folder.name}.lock"}:
        with suppress(OSError):  # usually because the builder is alive
            lock = try_lock(path)
            if not lock.supported:
                return  # without locks it is unknown whether the builder is alive
            remove_leftovers(parent, path.stem.removeprefix("."), locked=True)
            lock.release(remove=True)


def remove_oldest(files: Iterable[Path], most_bytes: int, *, keep: Collection[Path] = ()) -> None:
    """Remove the least recently used files, but not those in `keep`, until the rest has at most `most_bytes`."""
    known = []
    for path in files:
        with suppress(OSError):  # another process has removed it
            status = path.stat()
            known.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in known)
    for _, size, path in sorted(known):
        if total <= most_bytes:
            break
        if path not in keep:
            with suppress(OSError):  # on Windows another process may have it open
                path.unlink()
            total -= size

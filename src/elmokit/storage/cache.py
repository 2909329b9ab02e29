"""The cache folder, for what can be computed or downloaded again: its keys, the bound on its size, its leftovers."""

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
    """The folder named by ELMOKIT_CACHE, or ~/.cache/elmokit; for a user without a home, one for temporary files."""
    named = os.environ.get("ELMOKIT_CACHE") or "~/.cache/elmokit"
    try:
        return Path(named).expanduser()
    except RuntimeError:  # as in a container that runs with any user id
        return Path(tempfile.gettempdir(), f"elmokit-{os.getuid()}")


def key_of(facts: object) -> bytes:
    """A digest of 16 bytes of anything that JSON can express, the same in every process and on every machine."""
    # ASCII JSON separates words whatever they contain, and can express lone surrogates.
    return hashlib.blake2b(json.dumps(facts, sort_keys=True).encode("ascii"), digest_size=KEY_BYTES).digest()


def name_of(facts: object) -> str:
    """The same digest as 32 letters and digits, for a file's name."""
    return key_of(facts).hex()


def remove_leftovers(folder: Path, name: str = "", *, alone: bool) -> None:
    """Remove the temporary files that killed writers of `name`, or of any file, left in a folder.

    If the caller is `alone`, because it has the lock of the writers, all of them; otherwise those that are a day old.
    """
    for leftover in folder.glob(f".{glob.escape(name)}.*.tmp" if name else ".*.tmp"):
        with suppress(OSError):
            if alone or time.time() - leftover.stat().st_mtime > _OLD_SECONDS:
                if leftover.is_dir() and not leftover.is_symlink():
                    shutil.rmtree(leftover, ignore_errors=True)
                else:
                    leftover.unlink()


def remove_abandoned(folder: Path, names: str) -> None:
    """Remove what killed builders left next to a folder whose lock the caller has; `names` matches their folders."""
    parent = folder.parent
    # Not the caller's own lock: some network file systems would give it twice, and free both with the second.
    for path in set(parent.glob(f".{names}.lock")) - {parent / f".{folder.name}.lock"}:
        with suppress(OSError):  # most often because its builder is alive
            lock = try_lock(path)
            if not lock.supported:
                return  # then it is unknown whether it is alive
            remove_leftovers(parent, path.stem.removeprefix("."), alone=True)
            lock.release(remove=True)


def remove_oldest(files: Iterable[Path], most_bytes: int, *, but: Collection[Path] = ()) -> None:
    """Remove the files that were used longest ago until the others have at most `most_bytes` in all."""
    known = []
    for path in files:
        with suppress(OSError):  # another process has removed it
            status = path.stat()
            known.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in known)
    for _, size, path in sorted(known):
        if total <= most_bytes:
            break
        if path not in but:
            with suppress(OSError):  # on Windows another process may have it open
                path.unlink()
            total -= size

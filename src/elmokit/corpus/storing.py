"""A folder that appears whole or not at all, made by one process while others wait for it."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from elmokit.durable import sync
from elmokit.errors import ElmoError
from elmokit.output.disk import FULL
from elmokit.output.lock import acquire, release

log = logging.getLogger(__name__)
_WAIT_SECONDS = 0.1
_OLD_SECONDS = 86_400


@contextmanager
def guarding(folder: Path, what: str = "prepared corpus") -> Iterator[bool]:
    """One process at a time in the block, by a lock beside the folder; says whether locks are to be had."""
    lock = _lock_of(folder)
    with explained(folder, what):
        folder.parent.mkdir(parents=True, exist_ok=True)
        fd = _wait_for(lock, what)
    try:
        yield fd is not None
    finally:
        # The file goes before the lock does: who opened it meanwhile sees that and makes a new one.
        if fd is not None:
            lock.unlink(missing_ok=True)
        release(fd)


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")


def _wait_for(lock: Path, what: str) -> int | None:
    told = False
    while True:
        try:
            return acquire(lock)
        except BlockingIOError:
            if not told:
                log.info("another process is making this %s: waiting for it", what)
            told = True
            time.sleep(_WAIT_SECONDS)


def sweep(folder: Path, names: str) -> None:
    """Remove what killed builders of folders beside this one, with names of a pattern, left: their locks are free."""
    parent = folder.parent
    # Not the caller's own, which some network file systems would give it again, and take away when the second is freed.
    for lock in set(parent.glob(f".{names}.lock")) - {_lock_of(folder)}:
        with suppress(OSError):  # most often: its builder is alive
            fd = acquire(lock)
            if fd is None:
                return  # without locks nobody knows
            try:
                for leftover in parent.glob(f"{lock.stem}.*.tmp"):
                    shutil.rmtree(leftover, ignore_errors=True)
                lock.unlink(missing_ok=True)
            finally:
                release(fd)


@contextmanager
def storing(folder: Path, *, alone: bool = False) -> Iterator[Path]:
    """A temporary folder beside `folder` that takes its place once the block has ended well.

    After an error nothing is left behind. What builders that were killed left behind goes too: all of it where the
    caller is `alone`, else what is a day old.
    """
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    with explained(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder, alone)
        temporary.mkdir()
    try:
        yield temporary
        with explained(folder):
            _take_place(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _take_place(temporary: Path, folder: Path) -> None:
    old = temporary.with_name(temporary.name.removesuffix(".tmp") + ".old.tmp")
    with suppress(FileNotFoundError):
        folder.rename(old)
    try:
        temporary.rename(folder)
    except OSError:
        with suppress(OSError):
            old.rename(folder)
        raise
    sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def _remove_leftovers(folder: Path, alone: bool) -> None:
    for leftover in folder.parent.glob(f".{folder.name}.*.tmp"):
        with suppress(OSError):
            if alone or time.time() - leftover.stat().st_mtime > _OLD_SECONDS:
                shutil.rmtree(leftover, ignore_errors=True)


@contextmanager
def explained(folder: Path, what: str = "prepared corpus") -> Iterator[None]:
    """Turn an error of the disk into one sentence about the folder that was to be written."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise ElmoError(
                f"no space is left on the disk for the {what} {folder}: free some, or name another folder"
            ) from error
        raise ElmoError(
            f"the {what} {folder} cannot be written ({error.strerror or error}): name another folder"
        ) from error

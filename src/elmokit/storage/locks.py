"""Locks between processes; the system releases them when their process ends, even if it is killed.

`filelock.lock_descriptor` does the locking. The lock file is opened here for two reasons: the process that had the lock
may remove the file, and on a file system without locks no lock file may remain forever.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from filelock import lock_descriptor

from elmokit.storage.trusted import open_no_follow

log = logging.getLogger(__name__)
_WAIT_SECONDS = 0.1
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class ProcessLock:
    """An acquired lock; as a context manager it is released at the end of the block."""

    def __init__(self, path: Path, fd: int | None) -> None:
        self.path, self._fd = path, fd

    @property
    def supported(self) -> bool:
        """Whether the lock excludes other processes; some network file systems have no locks."""
        return self._fd is not None

    def release(self, *, remove: bool = False) -> None:
        """Release the lock and, with `remove`, delete its file; releasing twice is fine."""
        fd, self._fd = self._fd, None
        if fd is not None:
            if remove:  # before the release: a process that has opened the file detects this
                with suppress(OSError):
                    self.path.unlink()
            os.close(fd)

    def __enter__(self) -> ProcessLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def try_lock(path: Path) -> ProcessLock:
    """Lock a file, which is created if it does not exist.

    Raises BlockingIOError if another process has the lock, FileNotFoundError if the folder does not exist.
    """
    while True:
        fd = open_no_follow(path, os.O_RDWR | os.O_CREAT)
        try:
            if not lock_descriptor(fd, blocking=False):
                raise BlockingIOError(errno.EWOULDBLOCK, "locked by another process", str(path))
            # The previous process may have removed the file between our open and our lock, which is then useless.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), path.stat()):
                    return ProcessLock(path, fd)
            os.close(fd)
        except OSError as error:
            os.close(fd)
            if error.errno in _UNSUPPORTED:
                return ProcessLock(path, None)  # working without a lock is better than not working
            raise


@contextmanager
def folder_lock(
    folder: Path, message: str, errors: Callable[[Path], AbstractContextManager[object]]
) -> Iterator[ProcessLock]:
    """Let one process at a time run the block, by a lock file next to the folder; others log the message and wait.

    `errors` turns disk errors before the lock is acquired into messages.
    """
    with errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = wait_for_lock(folder.with_name(f".{folder.name}.lock"), message)
    try:
        yield lock
    finally:
        lock.release(remove=True)


def wait_for_lock(path: Path, message: str) -> ProcessLock:
    """Wait until no other process has the lock and lock the file; the message is logged if there is a wait."""
    waiting = False
    while True:
        with suppress(BlockingIOError):
            return try_lock(path)
        if not waiting:
            log.info("%s: waiting for it", message)
        waiting = True
        time.sleep(_WAIT_SECONDS)

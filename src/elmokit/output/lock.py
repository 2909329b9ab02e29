"""One process at a time on an output: an advisory lock that the system drops when its holder dies."""

import errno
import os
import sys
from contextlib import suppress
from pathlib import Path

from elmokit.storage.trusted import no_link


def acquire(path: Path) -> int | None:
    """Lock a file, made if need be, and return its descriptor; None where locks are not to be had.

    Raises BlockingIOError when another process holds it, FileNotFoundError when its folder has just been removed.
    """
    if sys.platform == "win32":
        return None
    import fcntl

    while True:
        fd = no_link(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The holder before us may have removed the file between our open and our lock, which then guards nothing.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), path.stat()):
                    return fd
            os.close(fd)
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                return None  # some network file systems have no locks; working unguarded beats not working
            raise


def release(fd: int | None) -> None:
    """Give the lock back."""
    if fd is not None:
        os.close(fd)

"""The few durable file operations that everything here rests on, and disk errors as one sentence."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elmokit.durable import sync
from elmokit.errors import ElmoError
from elmokit.storage.trusted import no_link

FULL = (errno.ENOSPC, errno.EDQUOT)


class OffsetFile:
    """A file written only at offsets the caller names, so that a write that broke off is simply written over."""

    def __init__(self, path: Path) -> None:
        self._fd = no_link(path, os.O_RDWR | os.O_CREAT)

    def write(self, offset: int, data: bytes | memoryview) -> int:
        """Write all of data at offset and return the offset after it."""
        view = memoryview(data)
        os.lseek(self._fd, offset, os.SEEK_SET)
        while view:
            view = view[os.write(self._fd, view) :]
        return offset + len(data)

    def size(self) -> int:
        """The bytes in the file."""
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        """Drop everything from size on."""
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        """Return once the contents are on the disk."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def replace_text(path: Path, text: str) -> None:
    """Write a small file so that it holds the old or the new text after a crash, never a mixture."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)  # of a run that was killed
    with temporary.open("x", encoding="ascii", newline="\n") as file:  # "x" makes the file and follows no link
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync(path.parent)


@contextmanager
def explained(output: Path, spool: Path, *, kept: bool) -> Iterator[None]:
    """Turn an error of the disk into one sentence that says how to go on; kept: whether the spool holds sentences."""
    try:
        yield
    except OSError as error:
        again = f"with --resume, which continues from what is kept in {spool}" if kept else "again"
        if error.errno in FULL:
            raise ElmoError(
                f"no space is left on the disk for {output}: free some and run the same command {again}"
            ) from error
        raise ElmoError(
            f"cannot write {output} ({error.strerror or error}): once that is mended, run the same command {again}"
        ) from error

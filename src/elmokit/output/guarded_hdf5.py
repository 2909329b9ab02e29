"""An HDF5 file that survives a full disk.

When a write fails, the HDF5 library loses it in silence (h5py can only print what goes wrong while an object is closed)
or crashes the process on closing the file. So the library never sees a failure here: it writes through a file object
that notes the first error, keeps what could not be written, and answers that all is well; check() then raises that
error between two writes. Ctrl-C is held back until check() for the same reason: it must not strike inside the library.
"""

import io
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import h5py

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

# Every HDF5 since 1.8 (2008) reads such files, and groups of this kind hold millions of keys.
LIBVER = ("v108", "v108")


class _NeverFails(io.FileIO):
    """A file whose writes always seem to succeed."""

    failure: OSError | None = None

    def __init__(self, path: Path) -> None:
        super().__init__(path, "w+")
        self._kept: list[tuple[int, bytes]] = []

    def write(self, data: "ReadableBuffer") -> int:
        view = memoryview(data).cast("B")
        start, done = self.tell(), 0
        try:
            while done < len(view) and self.failure is None:
                done += super().write(view[done:])
        except OSError as error:
            self.failure = error
        if done < len(view):
            self._kept.append((start, bytes(view)))
            self.seek(start + len(view))
        return len(view)

    def readinto(self, buffer: "WriteableBuffer") -> int:
        view = memoryview(buffer).cast("B")
        start = self.tell()
        got = super().readinto(view) or 0
        for offset, data in self._kept:  # the library may want back what it believes to be on the disk
            low, high = max(start, offset), min(start + len(view), offset + len(data))
            if low < high:
                view[low - start : high - start] = data[low - offset : high - offset]
                got = max(got, high - start)
        self.seek(start + got)
        return got

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size)
        except OSError as error:
            self.failure = self.failure or error
            return size or 0


class _HeldInterrupt:
    """Holds SIGINT back while it is in force; raise_held() lets it through."""

    def __init__(self) -> None:
        self._held: tuple[int, FrameType | None] | None = None
        self._handler: Any = None

    def __enter__(self) -> "_HeldInterrupt":
        # Only the main thread is interrupted; an ignored or deadly SIGINT runs no Python code, so it may stay.
        handler = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(handler):
            self._handler = handler
            signal.signal(signal.SIGINT, self._hold)
        return self

    def _hold(self, number: int, frame: FrameType | None) -> None:
        self._held = number, frame

    def raise_held(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            self._handler(*held)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
        if kind is None:
            self.raise_held()


@contextmanager
def create(path: Path) -> Iterator[tuple[h5py.File, Callable[[], None]]]:
    """A new HDF5 file and the check() to call after each batch of writes; it raises what went wrong in them."""
    with _HeldInterrupt() as interrupt, _NeverFails(path) as raw:

        def check() -> None:
            if raw.failure is not None:
                raise raw.failure
            interrupt.raise_held()

        with h5py.File(raw, "w", libver=LIBVER) as file:
            yield file, check
        check()

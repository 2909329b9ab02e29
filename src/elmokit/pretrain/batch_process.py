"""Batches made in a process of their own, so that the thread that issues a GPU's work has Python to itself.

Two threads of one Python take turns many times in a batch, and every turn keeps the other waiting. The process is a
Python without torch that never imports the caller's main module. Its batches lie in memory that both have, a few side
by side; a socket tells of each. When the parent's end of that is closed, however the parent dies, the process ends, and
the memory, which has no name, is gone with the two of them.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import socket
import struct
import subprocess
import sys
import traceback
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from elmokit.corpus.prepared import PreparedCorpus
from elmokit.errors import ElmoError
from elmokit.pretrain.batches import Batch, Batches, Position
from elmokit.pretrain.sentences import Arrays

if TYPE_CHECKING:  # see above
    from torch import Tensor

Item = tuple[list[Batch], Position]
Layout = list[dict[str, tuple[str, tuple[int, ...], int, int]]]
"""Of each batch's parts: the number type, the shape, where the bytes begin and how many they are."""
AHEAD = 4
"""Updates whose batches lie ready."""
_ALIGNED = 64
_SIZE = struct.Struct("<Q")


def can_be_started() -> bool:
    """Whether this machine and this program can have such a process: Linux has memory without a name.

    The executable of a program that was packed into one file is that program, and no Python.
    """
    return hasattr(os, "memfd_create") and bool(sys.executable) and not getattr(sys, "frozen", False)


def made_elsewhere(batches: Batches, *, pinned: bool) -> Generator[Item]:
    """The same as `batches.here()`, made by a process; its error is raised here, in its place.

    With `pinned` in memory that a GPU can copy from while the program goes on.
    """
    ours, theirs = socket.socketpair()
    memory = os.memfd_create("elmokit-batches")
    try:
        process = _started(theirs, memory)
        try:
            yield from _received(ours, memory, batches, pinned=pinned)
        except _EndedError as error:
            raise ElmoError(
                f"the process that reads the corpus ended with status {process.wait()}, perhaps for want of memory: go "
                "on from the last checkpoint with --resume"
            ) from error
        finally:
            process.kill()
            process.wait()
    finally:
        ours.close()
        os.close(memory)


class _EndedError(Exception):
    """There is nobody at the other end."""


def _started(theirs: socket.socket, memory: int) -> subprocess.Popen[bytes]:
    with theirs:
        # The same modules as here, wherever this process found them.
        path = [entry for entry in sys.path if isinstance(entry, str)]  # Python passes over others
        found = f"import sys; sys.path[:] = {path!r}; from {__name__} import serve"
        try:
            return subprocess.Popen(
                [sys.executable, "-c", f"{found}; serve({theirs.fileno()}, {memory})"],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), memory],
                start_new_session=True,  # Ctrl-C is for the parent, which ends the process when it is done
            )
        except OSError as error:
            raise ElmoError(
                f"the process that reads the corpus cannot be started ({error.strerror or error}): end other programs "
                "and go on with --resume"
            ) from error


def _received(channel: socket.socket, memory: int, batches: Batches, *, pinned: bool) -> Iterator[Item]:
    import torch

    _send(channel, _pickled(batches))
    mapped: mmap.mmap | None = None
    while True:
        message = pickle.loads(_receive(channel))
        if isinstance(message, BaseException):
            raise message
        position, layout, start, size = message
        if mapped is None or len(mapped) < start + size:
            mapped = mmap.mmap(memory, 0)
        # One memory for all parts, which torch keeps until every copy out of it is done.
        copy = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        copy.copy_(torch.frombuffer(mapped, dtype=torch.uint8, count=size, offset=start))
        _send_bytes(channel, b"+")
        yield [batches.batch({name: _part(copy, *place) for name, place in each.items()}) for each in layout], position


def _part(memory: Tensor, kind: str, shape: tuple[int, ...], start: int, size: int) -> Tensor:
    import torch

    return memory[start : start + size].view(getattr(torch, kind)).view(shape)


def serve(descriptor: int, memory: int) -> None:
    """Run as the process: batch after batch of what is asked for, or the error that came in between."""
    with socket.socket(fileno=descriptor) as channel, suppress(_EndedError):
        asked = _receive(channel)
        try:
            slots = _Slots(memory)
            batches: Batches = pickle.loads(asked)
            for number, (parts, position) in enumerate(batches.arrays()):
                if number >= AHEAD:  # the slots are used in turn, and the oldest has to be read first
                    _fill(channel, bytearray(1))
                put = slots.put(number % AHEAD, parts)
                _send(channel, pickle.dumps((position, *put), pickle.HIGHEST_PROTOCOL))
        except _EndedError:
            raise
        except BaseException as error:  # noqa: BLE001 - raised again where the batches are used
            _send(channel, _pickled_error(error))
        while True:  # the parent has still to read what is before it
            _fill(channel, bytearray(1))


class _Slots:
    """Places for batches in a memory that grows: a batch too large for its slot gets a larger one behind the others."""

    def __init__(self, memory: int) -> None:
        self._memory, self._size = memory, 0
        self._places = [(0, 0)] * AHEAD  # where each begins, and the bytes it has
        self._mapped: mmap.mmap | None = None

    def put(self, slot: int, parts: list[Arrays]) -> tuple[Layout, int, int]:
        """Write batches; what their parts are, where they begin and how many bytes they take."""
        layout: Layout = []
        size = 0
        for arrays in parts:
            layout.append({})
            for name, array in arrays.items():
                layout[-1][name] = (array.dtype.name, array.shape, size, array.nbytes)
                size += array.nbytes + -array.nbytes % _ALIGNED
        start, room = self._places[slot]
        if self._mapped is None or size > room:
            start, room = self._places[slot] = (self._size, 2 * size)
            self._size += room
            os.ftruncate(self._memory, self._size)
            self._mapped = mmap.mmap(self._memory, self._size)
        for places, arrays in zip(layout, parts, strict=True):
            for name, (kind, shape, at, _) in places.items():
                np.ndarray(shape, kind, self._mapped, start + at)[...] = arrays[name]
        return layout, start, size


def _send(channel: socket.socket, message: bytes) -> None:
    _send_bytes(channel, _SIZE.pack(len(message)) + message)


def _send_bytes(channel: socket.socket, data: bytes) -> None:
    try:
        channel.sendall(data)
    except OSError as error:
        raise _EndedError from error


def _receive(channel: socket.socket) -> bytearray:
    """The next message."""
    (size,) = _SIZE.unpack(_fill(channel, bytearray(_SIZE.size)))
    return _fill(channel, bytearray(size))


def _fill(channel: socket.socket, buffer: bytearray) -> bytearray:
    left = memoryview(buffer)
    while len(left):
        try:
            got = channel.recv_into(left)
        except OSError as error:
            raise _EndedError from error
        if not got:
            raise _EndedError
        left = left[got:]
    return buffer


def _pickled(batches: Batches) -> bytes:
    """A corpus as its folder: the process maps the files itself."""
    written = io.BytesIO()
    _Pickler(written, pickle.HIGHEST_PROTOCOL).dump(batches)
    return written.getvalue()


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:  # noqa: ANN401
        if isinstance(value, PreparedCorpus):
            return _opened, (value.folder, value.content)
        return NotImplemented


def _opened(folder: Path, content: str) -> PreparedCorpus:
    corpus = PreparedCorpus.open(folder)
    if corpus.content != content:
        raise ElmoError(f"{folder} was prepared anew from another text while the run read it: start a new run")
    return corpus


def _pickled_error(error: BaseException) -> bytes:
    """The error itself where it can be sent, what it said where it cannot."""
    where = "".join(traceback.format_exception(error))
    if not isinstance(error, ElmoError):
        error.add_note(f"in the process that reads the corpus:\n{where}")
    with suppress(Exception):
        written = pickle.dumps(error)
        pickle.loads(written)
        return written
    return pickle.dumps(RuntimeError(f"the process that reads the corpus failed:\n{where}"))

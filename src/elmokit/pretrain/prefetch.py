"""The next batches are made while the network works on this one."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Generator, Iterator
from typing import TypeVar

import torch

from elmokit.pretrain.batch_process import Item, can_be_started, made_elsewhere
from elmokit.pretrain.batches import Batches

T = TypeVar("T")
_AHEAD = 4
_SWITCH_SECONDS = 0.0005
"""How long one thread may keep the other from running; Python's own 5 ms is as long as an update of a small model."""


def batches_ahead(batches: Batches, device: torch.device) -> Generator[Item]:
    """Each update's batches, and where the reading stands after them, made while the device works on those before.

    For a GPU by a process, in memory that it can copy from; a CPU is waited for by Python anyway, and a thread will do.
    """
    if device.type != "cuda":
        return prefetched(batches.here())
    return made_elsewhere(batches, pinned=True) if can_be_started() else prefetched(_pinned(batches, device))


def _pinned(batches: Batches, device: torch.device) -> Iterator[Item]:
    if device.index is not None:  # this thread has a current device of its own
        torch.cuda.set_device(device)
    for parts, position in batches.here():
        yield [part.pinned() for part in parts], position


def prefetched(items: Iterator[T]) -> Generator[T, None, None]:
    """The same items, made by a thread that runs a few ahead; its error is raised here, in its place."""
    ready: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(_AHEAD)
    closed = threading.Event()

    def put(item: T | None, error: BaseException | None) -> bool:
        while not closed.is_set():
            try:
                ready.put((item, error), timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def make() -> None:
        try:
            for item in items:
                if not put(item, None):
                    return
        except BaseException as error:  # noqa: BLE001 - raised again where the items are used
            put(None, error)
        else:
            put(None, StopIteration())

    switch = sys.getswitchinterval()
    sys.setswitchinterval(min(switch, _SWITCH_SECONDS))
    thread = threading.Thread(target=make, daemon=True, name="elmokit-prefetch")
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item  # type: ignore[misc]
    finally:
        closed.set()
        thread.join()
        if isinstance(items, Generator):  # what it holds is given back now, not when somebody comes by to collect it
            items.close()
        sys.setswitchinterval(switch)

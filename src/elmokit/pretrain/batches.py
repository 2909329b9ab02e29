"""Batches of tensors, made by a thread or a process while the network works on those before.

The batches of a run are a function of the position, so they are the same wherever and whenever they are made. For a GPU
they are made in a process of their own: two threads of one Python process take turns many times per batch, and the
thread that launches the GPU's work would wait each time. `torch.utils.data.DataLoader` takes 1.3 ms of this process per
update where ours takes 0.3 ms (8,192 tokens, before pinning). Its worker also forks a process that uses a GPU, or
imports the main module.
"""

from __future__ import annotations

import mmap
import os
import pickle
import queue
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np

from elmokit.corpus.worker_process import ParentProcess, WorkerProcess
from elmokit.pretrain.sentences import Arrays

if TYPE_CHECKING:  # a process that only makes batches does not need torch, which takes seconds to start
    import torch
    from torch import Tensor

    from elmokit.model.context import ContextEncoder, State

T = TypeVar("T")
Position = Any
"""Where the reading is; each objective has its own."""
UpdateBatches = tuple[list["Batch"], Position]
"""The batches of one update, and the position after them."""
Layout = list[dict[str, tuple[str, tuple[int, ...], int, int]]]
"""For each batch, by the name of its parts: dtype, shape, first byte, number of bytes."""
AHEAD = 4
"""Updates whose batches are ready."""
_ALIGNED = 64
_SWITCH_SECONDS = 0.0005
"""How long one thread may delay the other; Python's default of 5 ms is as long as an update of a small model."""


class Batch(ABC):
    """The tensors of one batch: a frozen dataclass for each objective."""

    on_cpu: ClassVar[tuple[str, ...]] = ()
    """Parts that stay on the CPU."""
    characters: Tensor | None  # [U, M] ids of the distinct tokens, as many columns as their longest needs
    words: Tensor | None  # [U]
    targets: Tensor  # rows of the softmax, negative where there is none

    @abstractmethod
    def read(
        self, context: ContextEncoder, types: Tensor, state: State | None, *, dropout: float
    ) -> tuple[Tensor, State | None]:
        """The distinct tokens' vectors [U, P] → what the softmax reads for each target, and the state after it."""

    @abstractmethod
    def row_weight(self) -> Tensor | float:
        """What each prediction counts in the loss, [predictions] or one number for all."""

    @abstractmethod
    def sums(self, losses: Tensor) -> Tensor:
        """−log p in the targets' shape → its sum for each part of the loss, in float64."""

    @abstractmethod
    def counts(self) -> list[int]:
        """The predictions of each part of the loss."""

    @classmethod
    def of(cls, parts: Mapping[str, Tensor]) -> Self:
        """A batch of the parts that there are, by name."""
        return cls(**{item.name: parts.get(item.name) for item in fields(cls)})  # type: ignore[arg-type]

    @classmethod
    def of_arrays(cls, arrays: Arrays) -> Self:
        """The same numbers as tensors."""
        import torch

        return cls.of({name: torch.from_numpy(part) for name, part in arrays.items()})

    def to(self, device: torch.device) -> Self:
        """The same on a device, without waiting for the copy."""
        return self if device.type == "cpu" else self._with(lambda part: part.to(device, non_blocking=True))

    def pinned(self) -> Self:
        """The same in memory that a GPU can copy from while the program continues."""
        return self._with(lambda part: part.pin_memory())

    def _with(self, change: Callable[[Tensor], Tensor]) -> Self:
        parts = {item.name: getattr(self, item.name) for item in fields(self)}  # type: ignore[arg-type]
        return self.of(
            {name: part if name in self.on_cpu else change(part) for name, part in parts.items() if part is not None}
        )


class Batches(ABC):
    """What each update reads, update after update: a frozen dataclass that can be sent to another process."""

    batch_type: ClassVar[type[Batch]]

    @abstractmethod
    def arrays(self) -> Iterator[tuple[list[Arrays], Position]]:
        """Each update's batches as arrays, and the position after them."""

    def here(self) -> Iterator[UpdateBatches]:
        """Each update's batches, and the position after them, made by the caller."""
        for parts, position in self.arrays():
            yield [self.batch_type.of_arrays(each) for each in parts], position


def batches_ahead(batches: Batches, device: torch.device) -> Generator[UpdateBatches]:
    """Each update's batches, and the position after them, made while the device works on those before.

    A GPU gets them from a process, in memory that it can copy from; on a CPU a thread is as good.
    """
    if device.type != "cuda":
        return prefetched(batches.here())
    return batches_from_process(batches, pinned=True) if can_use_process() else prefetched(_pinned(batches, device))


def _pinned(batches: Batches, device: torch.device) -> Iterator[UpdateBatches]:
    import torch

    if device.index is not None:  # this thread has a current device of its own
        torch.cuda.set_device(device)
    for parts, position in batches.here():
        yield [part.pinned() for part in parts], position


def prefetched(items: Iterator[T]) -> Generator[T, None, None]:
    """The same items, made by a thread that runs a few ahead; its error is raised here, in its place."""
    ready: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(AHEAD)
    closed = threading.Event()

    def put(item: T | None, error: BaseException | None) -> bool:
        while not closed.is_set():
            with suppress(queue.Full):
                ready.put((item, error), timeout=0.1)
                return True
        return False

    def make() -> None:
        try:
            for item in items:
                if not put(item, None):
                    return
            put(None, StopIteration())
        except BaseException as error:  # noqa: BLE001 - raised again where the items are used
            put(None, error)

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
        if isinstance(items, Generator):  # what it uses is released now, not when it is collected
            items.close()
        sys.setswitchinterval(switch)


def can_use_process() -> bool:
    """Whether `batches_from_process` works here: it needs Linux's anonymous files, and a Python executable.

    In a program that was packed into one file, the executable is the program and not Python.
    """
    return hasattr(os, "memfd_create") and bool(sys.executable) and not getattr(sys, "frozen", False)


def batches_from_process(batches: Batches, *, pinned: bool) -> Generator[UpdateBatches]:
    """The same as `batches.here()`, made by another process in shared memory; its error is raised here, in its place.

    With `pinned`, the batches are in memory that a GPU can copy from while the program continues.
    """
    import torch

    memory = os.memfd_create("elmokit-batches")
    try:
        purpose, advice = "the process that reads the corpus", "resume from the last checkpoint"
        with closing(WorkerProcess(__name__, purpose, advice, descriptors=[memory])) as worker:
            worker.send(pickle.dumps((memory, batches), pickle.HIGHEST_PROTOCOL))
            mapped: mmap.mmap | None = None
            while True:
                position, layout, start, size = worker.receive()
                if mapped is None or len(mapped) < start + size:
                    mapped = mmap.mmap(memory, 0)
                # One memory for all parts, which torch does not free before every copy out of it is done.
                copy = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
                copy.copy_(torch.frombuffer(mapped, dtype=torch.uint8, count=size, offset=start))
                worker.send(b"+")
                parts = [
                    {
                        name: copy[first : first + length].view(getattr(torch, dtype)).view(shape)
                        for name, (dtype, shape, first, length) in each.items()
                    }
                    for each in layout
                ]
                yield [batches.batch_type.of(each) for each in parts], position
    finally:
        os.close(memory)


def serve() -> None:
    """Run as the other process: send the place of each update's batches in the shared memory, or the error."""
    parent = ParentProcess()
    with suppress(BrokenPipeError):
        try:
            memory, batches = pickle.load(parent.messages)
            slots = _Slots(memory)
            for number, (parts, position) in enumerate(batches.arrays()):
                # The slots are used in turn: the parent must have read the oldest.
                if number >= AHEAD and not parent.messages.read(1):
                    return
                parent.send((position, *slots.put(number % AHEAD, parts)))
        except BrokenPipeError:
            raise
        except BaseException as error:  # noqa: BLE001 - raised again where the batches are used
            parent.send(error)
        parent.messages.read()  # the parent still has to read the batches before, and then ends this process


class _Slots:
    """Slots for batches in shared memory that grows: a batch too large for its slot gets a larger one at the end."""

    def __init__(self, memory: int) -> None:
        self._memory, self._size = memory, 0
        self._places = [(0, 0)] * AHEAD  # first byte and number of bytes of each
        self._mapped: mmap.mmap | None = None

    def put(self, slot: int, parts: list[Arrays]) -> tuple[Layout, int, int]:
        """Write batches; returns their layout, the first byte and the number of bytes."""
        layout: Layout = []
        size = 0
        for arrays in parts:
            layout.append({})
            for name, array in arrays.items():
                layout[-1][name] = (array.dtype.name, array.shape, size, array.nbytes)
                size += array.nbytes + -array.nbytes % _ALIGNED
        start, available = self._places[slot]
        if self._mapped is None or size > available:
            start, available = self._places[slot] = (self._size, 2 * size)
            self._size += available
            os.ftruncate(self._memory, self._size)
            self._mapped = mmap.mmap(self._memory, self._size)
        for places, arrays in zip(layout, parts, strict=True):
            for name, (dtype, shape, at, _) in places.items():
                np.ndarray(shape, dtype, self._mapped, start + at)[...] = arrays[name]
        return layout, start, size

"""Batches of tensors, prepared by a thread or a process while the network works on the earlier ones.

The batches depend only on the position in the text, so it does not matter where and when they are made. For a GPU
they are made in a separate process: two threads of one Python process take turns many times per batch, and the
thread that launches the GPU's work would wait each time. `torch.utils.data.DataLoader` takes 1.3 ms of this process per
update and this module 0.3 ms (8,192 tokens, before pinning). Its worker also forks a process that uses a GPU, or
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

if TYPE_CHECKING:  # a process that only makes batches does not import torch, which takes seconds
    import torch
    from torch import Tensor

    from elmokit.model.context import ContextEncoder, State

T = TypeVar("T")
Position = Any
"""The position in the text from which a run can resume; each objective has its own type."""
UpdateBatches = tuple[list["Batch"], Position]
"""The batches of one update, and the position after them."""
Layout = list[dict[str, tuple[str, tuple[int, ...], int, int]]]
"""For each batch: the dtype, shape, first byte and number of bytes of each part, by name."""
AHEAD = 4
"""Number of updates whose batches are prepared in advance."""
_ALIGNED = 64
_SWITCH_SECONDS = 0.0005
"""How long one thread may block the other. Python's default of 5 ms is as long as an update of a small model."""


class Batch(ABC):
    """The tensors of one batch. Each objective has its own frozen dataclass."""

    on_cpu: ClassVar[tuple[str, ...]] = ()
    """Names of the parts that stay on the CPU."""
    characters: Tensor | None  # [U, M] ids of the distinct tokens; M fits the longest
    words: Tensor | None  # [U]
    targets: Tensor  # rows of the softmax; negative where nothing is predicted

    @abstractmethod
    def read(
        self, context: ContextEncoder, types: Tensor, state: State | None, *, dropout: float
    ) -> tuple[Tensor, State | None]:
        """Run the context encoder on the distinct tokens' vectors [U, P].

        Returns the input of the softmax for each target, and the state after the batch.
        """

    @abstractmethod
    def row_weight(self) -> Tensor | float:
        """The weight of each prediction in the loss: [predictions], or one number for all."""

    @abstractmethod
    def sums(self, losses: Tensor) -> Tensor:
        """−log p in the targets' shape → its sum for each prediction mode, in float64."""

    @abstractmethod
    def counts(self) -> list[int]:
        """The number of predictions in each prediction mode."""

    @classmethod
    def of(cls, parts: Mapping[str, Tensor]) -> Self:
        """A batch from its parts by name; missing parts become None."""
        return cls(**{item.name: parts.get(item.name) for item in fields(cls)})  # type: ignore[arg-type]

    @classmethod
    def of_arrays(cls, arrays: Arrays) -> Self:
        """A batch from arrays, which it shares memory with."""
        import torch

        return cls.of({name: torch.from_numpy(part) for name, part in arrays.items()})

    def to(self, device: torch.device) -> Self:
        """This batch on a device, without waiting for the copy."""
        return self if device.type == "cpu" else self._mapped(lambda part: part.to(device, non_blocking=True))

    def pinned(self) -> Self:
        """This batch in pinned memory, which a GPU can copy from while the program continues."""
        return self._mapped(lambda part: part.pin_memory())

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> Self:
        parts = {item.name: getattr(self, item.name) for item in fields(self)}  # type: ignore[arg-type]
        return self.of(
            {name: part if name in self.on_cpu else change(part) for name, part in parts.items() if part is not None}
        )


class Batches(ABC):
    """The batches of consecutive updates: a frozen dataclass that can be sent to another process."""

    batch_type: ClassVar[type[Batch]]

    @abstractmethod
    def arrays(self) -> Iterator[tuple[list[Arrays], Position]]:
        """Each update's batches as arrays, and the position after them."""

    def tensors(self) -> Iterator[UpdateBatches]:
        """Each update's batches as tensors, and the position after them, made in the calling thread."""
        for parts, position in self.arrays():
            yield [self.batch_type.of_arrays(each) for each in parts], position


def batches_ahead(batches: Batches, device: torch.device) -> Generator[UpdateBatches]:
    """Each update's batches, and the position after them, prepared while the device works on the earlier ones.

    For a GPU a process prepares them in pinned memory; for a CPU a thread is as fast.
    """
    if device.type != "cuda":
        return prefetched(batches.tensors())
    return batches_from_process(batches, pinned=True) if can_use_process() else prefetched(_pinned(batches, device))


def _pinned(batches: Batches, device: torch.device) -> Iterator[UpdateBatches]:
    import torch

    if device.index is not None:  # each thread has its own current device
        torch.cuda.set_device(device)
    for parts, position in batches.tensors():
        yield [part.pinned() for part in parts], position


def prefetched(items: Iterator[T]) -> Generator[T, None, None]:
    """The same items, made in advance by a thread; an error of the thread is raised here when its item is due."""
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
        if isinstance(items, Generator):  # release its resources now, not at garbage collection
            items.close()
        sys.setswitchinterval(switch)


def can_use_process() -> bool:
    """Whether `batches_from_process` works here: it needs `memfd_create` and a Python executable.

    In a frozen program, `sys.executable` is the program and not Python.
    """
    return hasattr(os, "memfd_create") and bool(sys.executable) and not getattr(sys, "frozen", False)


def batches_from_process(batches: Batches, *, pinned: bool) -> Generator[UpdateBatches]:
    """The same as `batches.tensors()`, made by another process in shared memory; its errors are raised here.

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
                # One buffer for all parts: torch frees pinned memory only after every copy from it is done.
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
    """The main function of the other process: send where each update's batches are in shared memory, or an error."""
    parent = ParentProcess()
    with suppress(BrokenPipeError):
        try:
            memory, batches = pickle.load(parent.messages)
            slots = _Slots(memory)
            for number, (parts, position) in enumerate(batches.arrays()):
                # The slots are used in turn: wait until the parent has read the oldest.
                if number >= AHEAD and not parent.messages.read(1):
                    return
                parent.send((position, *slots.put(number % AHEAD, parts)))
        except BrokenPipeError:
            raise
        except BaseException as error:  # noqa: BLE001 - raised again where the batches are used
            parent.send(error)
        parent.messages.read()  # the parent still reads the earlier batches, and then ends this process


class _Slots:
    """Slots for batches in shared memory. Batches too large for their slot get a larger one at the end."""

    def __init__(self, memory: int) -> None:
        self._memory, self._size = memory, 0
        self._ranges = [(0, 0)] * AHEAD  # first byte and number of bytes of each slot
        self._mapped: mmap.mmap | None = None

    def put(self, slot: int, parts: list[Arrays]) -> tuple[Layout, int, int]:
        """Write batches into a slot and return their layout, the first byte and the number of bytes."""
        layout: Layout = []
        size = 0
        for arrays in parts:
            layout.append({})
            for name, array in arrays.items():
                layout[-1][name] = (array.dtype.name, array.shape, size, array.nbytes)
                size += array.nbytes + -array.nbytes % _ALIGNED
        start, available = self._ranges[slot]
        if self._mapped is None or size > available:
            start, available = self._ranges[slot] = (self._size, 2 * size)
            self._size += available
            os.ftruncate(self._memory, self._size)
            self._mapped = mmap.mmap(self._memory, self._size)
        for entries, arrays in zip(layout, parts, strict=True):
            for name, (dtype, shape, at, _) in entries.items():
                np.ndarray(shape, dtype, self._mapped, start + at)[...] = arrays[name]
        return layout, start, size

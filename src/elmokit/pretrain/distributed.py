"""The processes of a run, one or those that torchrun started: their ranks, messages, and signals that stop them all."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from types import FrameType

import torch
import torch.distributed as dist
from torch import Tensor

from elmokit.errors import ElmoError

_TIMEOUT = timedelta(hours=12)
"""Long, because one process may prepare a corpus or write to a slow disk while the others wait."""
_REPORT_SECONDS = 30
"""Seconds that other processes wait after an error: if the first has it too, torchrun ends them and only it reports."""


@dataclass(frozen=True)
class Processes:
    """This process's rank among the processes of the run; a single process if torchrun did not start it."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0
    control: dist.ProcessGroup | None = field(default=None, repr=False)
    """The group for messages between CPUs, which do not wait for a GPU."""

    @property
    def first(self) -> bool:
        """Whether this process writes the files and reports to the user."""
        return self.rank == 0

    def broadcast(self, value: float) -> float:
        """The first process's number, in every process."""
        if self.count == 1:
            return value
        message = torch.tensor([value], dtype=torch.float64)
        dist.broadcast(message, src=0, group=self.control)
        return float(message[0])

    def total(self, values: Tensor) -> Tensor:
        """The sum over all processes; on the CPU in float64 if there are several."""
        if self.count == 1:
            return values
        message = values.detach().to("cpu", torch.float64, copy=True)
        dist.all_reduce(message, group=self.control)
        return message

    def largest(self, value: float) -> float:
        """The largest of the processes' numbers."""
        return max(float(part[0]) for part in self.gathered(torch.tensor([value], dtype=torch.float64)))

    def gathered(self, values: Tensor) -> list[Tensor]:
        """The tensors of all processes by rank, on the CPU; all must have the same shape."""
        message = values.detach().cpu().contiguous()
        if self.count == 1:
            return [message]
        parts = [torch.empty_like(message) for _ in range(self.count)]
        dist.all_gather(parts, message, group=self.control)
        return parts

    def wait(self) -> None:
        """Wait until every process has called this."""
        if self.count > 1:
            dist.barrier(group=self.control)


@contextmanager
def process_group(device: str | None = None) -> Iterator[Processes]:
    """Join the processes that torchrun started while the block runs; without torchrun, this process alone."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield Processes()
        return
    if not dist.is_available():
        raise ElmoError("this build of torch has no torch.distributed: run a single process")
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    cuda = torch.cuda.is_available() and device != "cpu"
    if cuda:
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
    dist.init_process_group("nccl" if cuda else "gloo", timeout=_TIMEOUT)
    try:
        control = dist.new_group(backend="gloo", timeout=_TIMEOUT) if cuda else dist.group.WORLD
        yield Processes(dist.get_rank(), count, local_rank, control)
    except ElmoError:
        if dist.get_rank():
            time.sleep(_REPORT_SECONDS)
        raise
    except RuntimeError as error:
        if "by peer" not in str(error):
            raise
        raise ElmoError("another process of this run has ended, so this one ends too") from error
    finally:
        dist.destroy_process_group()


class StopSignals:
    """Lets SIGINT and SIGTERM end a run after the current update, in all processes.

    `signal` is the signal that all processes stop for, or 0.
    """

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        self.signal = 0
        self._received = 0  # the signal that was sent to this process

    def request_stop(self) -> None:
        """Stop as if SIGTERM had been sent."""
        self._received = self._received or signal.SIGTERM

    def save_now(self, late: bool) -> bool:
        """The first process's `late`: whether all processes save a checkpoint now. Also shares received signals."""
        if self.processes.count == 1:
            self.signal = self._received
            return late
        votes = torch.stack(self.processes.gathered(torch.tensor([int(late), self._received])))  # [processes, 2]
        self.signal = int(votes[:, 1].max())
        return bool(votes[0, 0])

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle signals in the block: the first one requests a stop, the second one interrupts."""

        def stop(number: int, frame: FrameType | None) -> None:
            if self._received:  # the second signal: do not wait for the update
                raise KeyboardInterrupt
            self._received = number
            if self.processes.first:
                with suppress(OSError):  # not print: the signal may have interrupted a print
                    os.write(2, b"\nstopping after this update; a second signal stops at once\n")

        try:
            before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # only the main thread can set signal handlers
            before = {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

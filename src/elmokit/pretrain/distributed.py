"""One process or several, which torchrun starts: their numbers, sums over them, and signals that stop all of them."""

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

_PATIENCE = timedelta(hours=12)
"""One process may prepare a corpus or write to a slow disk while the others wait."""
_FIRST_SPEAKS = 30
"""Seconds in which torchrun ends the others if the first has the same error, so that one of them reports it."""


@dataclass(frozen=True)
class Processes:
    """This process among those of the run; a single one where torchrun did not start it."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0
    control: dist.ProcessGroup | None = field(default=None, repr=False)
    """For messages between CPUs, which need not wait for a GPU."""

    @property
    def first(self) -> bool:
        """Whether this process writes the files and reports to the user."""
        return self.rank == 0

    def agree(self, value: float) -> float:
        """The first process's number, in every process."""
        if self.count == 1:
            return value
        message = torch.tensor([value], dtype=torch.float64)
        dist.broadcast(message, src=0, group=self.control)
        return float(message[0])

    def total(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.count == 1:
            return values
        message = values.detach().to("cpu", torch.float64, copy=True)
        dist.all_reduce(message, group=self.control)
        return message

    def largest(self, value: float) -> float:
        """The largest of all processes' numbers."""
        return max(float(part[0]) for part in self.gathered(torch.tensor([value], dtype=torch.float64)))

    def gathered(self, values: Tensor) -> list[Tensor]:
        """Every process's tensor of the same shape, in the order of their ranks, on the CPU."""
        message = values.detach().cpu().contiguous()
        if self.count == 1:
            return [message]
        parts = [torch.empty_like(message) for _ in range(self.count)]
        dist.all_gather(parts, message, group=self.control)
        return parts

    def wait(self) -> None:
        """Wait until every process is here."""
        if self.count > 1:
            dist.barrier(group=self.control)


@contextmanager
def joined(device: str | None = None) -> Iterator[Processes]:
    """The processes that torchrun started, joined for the length of the block; otherwise this one alone."""
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
    dist.init_process_group("nccl" if cuda else "gloo", timeout=_PATIENCE)
    try:
        control = dist.new_group(backend="gloo", timeout=_PATIENCE) if cuda else dist.group.WORLD
        yield Processes(dist.get_rank(), count, local_rank, control)
    except ElmoError:
        if dist.get_rank():
            time.sleep(_FIRST_SPEAKS)
        raise
    except RuntimeError as error:
        if "by peer" not in str(error):
            raise
        raise ElmoError("another process of this run has ended, so this one ends too") from error
    finally:
        dist.destroy_process_group()


class Stopping:
    """SIGINT and SIGTERM end a run after the current update, in all processes; `signal` is the one they stop for."""

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        self.signal = 0
        self._asked = 0  # the signal that this process was sent

    def ask(self) -> None:
        """Stop as if SIGTERM had been sent."""
        self._asked = self._asked or signal.SIGTERM

    def agreed(self, late: bool) -> bool:
        """Whether all processes save now, as the first one's clock says; a signal to any of them stops all of them."""
        if self.processes.count == 1:
            self.signal = self._asked
            return late
        asked = torch.stack(self.processes.gathered(torch.tensor([int(late), self._asked])))  # [processes, 2]
        self.signal = int(asked[:, 1].max())
        return bool(asked[0, 0])

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Within the block a first signal is noted, a second one interrupts."""

        def stop(number: int, frame: FrameType | None) -> None:
            if self._asked:  # asked twice: do not wait for the update
                raise KeyboardInterrupt
            self._asked = number
            if self.processes.first:
                with suppress(OSError):  # not print, which a signal may have interrupted
                    os.write(2, b"\nstopping after this update; once more stops at once\n")

        try:
            before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # not the main thread, which handles signals
            before = {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

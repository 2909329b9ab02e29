"""Ctrl-C and a polite kill end a run after the update that is under way, in all of its processes at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import torch

from elmokit.pretrain.distributed import Processes


class Stopping:
    """Listens for signals; `signal` is the one that all processes stop for, 0 for none."""

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        self.signal = 0
        self._asked = 0  # the signal that this process was sent

    def ask(self) -> None:
        """Stop as a polite kill would."""
        self._asked = self._asked or signal.SIGTERM

    def agreed(self, late: bool) -> bool:
        """Whether all processes save now, as the first one's clock says; a signal to any of them stops all of them."""
        if self.processes.count == 1:
            self.signal = self._asked
            return late
        told = torch.stack(self.processes.gathered(torch.tensor([int(late), self._asked])))  # [processes, 2]
        self.signal = int(told[:, 1].max())
        return bool(told[0, 0])

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
        except ValueError:  # not the main thread: whoever runs it deals with signals
            before = {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

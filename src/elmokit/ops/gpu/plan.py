"""In which order a batch's sentences are computed, and which of them run at each step."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class Plan:
    """Rows by falling length, all numbers in one tensor so that one copy brings them to the GPU."""

    def __init__(self, numbers: Tensor, batch: int, counts: list[int]) -> None:
        self.numbers, self.counts = numbers, counts
        self.order, self.lengths = numbers[:batch], numbers[batch : 2 * batch]  # which sentence a row is, its length
        self.running = numbers[2 * batch :]  # how many rows run at each step; on the host too, as `counts`

    @classmethod
    def of(cls, lengths: Tensor, batch: int, time: int) -> Plan:
        """For so many rows and steps; rows past the sentences are empty."""
        numbers = np.zeros(2 * batch + time, np.int64)
        sizes = np.zeros(batch, np.int64)
        sizes[: len(lengths)] = lengths.numpy()
        order = np.argsort(-sizes, kind="stable")
        numbers[:batch], numbers[batch : 2 * batch] = order, sizes[order]
        counts = batch - np.bincount(sizes, minlength=time + 1).cumsum()[:time]
        numbers[2 * batch :] = counts
        return cls(torch.from_numpy(numbers), batch, counts.tolist())

    def to(self, device: torch.device) -> Plan:
        """The same on a device, without waiting for it."""
        return Plan(self.numbers.pin_memory().to(device, non_blocking=True), len(self.order), self.counts)

"""All layers of a batch, and the way of its vectors from there to an array for each sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Vectors = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Layers:
    """All layers of a batch."""

    values: Tensor  # [L+1, B, T, D]
    lengths: Tensor  # [B], on the CPU

    @property
    def mask(self) -> Tensor:
        """True where there is a token, [B, T]."""
        columns = torch.arange(self.values.shape[2]) < self.lengths.unsqueeze(1)
        return columns.to(self.values.device)

    def without_boundaries(self) -> Layers:
        """The same without the two boundary positions of each sentence."""
        lengths = self.lengths - 2
        inner = Layers(self.values[:, :, 1:-1], lengths)
        return Layers(inner.values * inner.mask.unsqueeze(-1), lengths)

    def means(self, counts: Sequence[Sequence[int]]) -> Layers:
        """One vector for each group of tokens, the mean of theirs; the two boundaries stay as they are.

        `counts`: for each sentence, how many tokens each of its groups has.
        """
        if all(count == 1 for row in counts for count in row):
            return self
        lengths = np.fromiter(map(len, counts), np.int64, len(counts)) + 2
        sizes = np.zeros((len(counts), lengths.max(initial=2)), np.int64)  # [B, G], 0 at padding
        sizes[np.arange(sizes.shape[1]) < lengths[:, None]] = [n for row in counts for n in (1, *row, 1)]
        starts = np.cumsum(sizes, axis=1) - sizes + np.arange(len(counts))[:, None] * self.values.shape[2]
        sizes, starts = sizes.ravel(), np.where(sizes > 0, starts, 0).ravel()
        device, values = self.values.device, self.values.flatten(1, 2)  # [L+1, B·T, D]
        sums = values[:, torch.from_numpy(starts).to(device)]
        # One token of each group after the other, so that a sum does not depend on what else is in the batch.
        for place in range(1, sizes.max()):
            more = np.flatnonzero(sizes > place)
            groups = torch.from_numpy(more).to(device)
            sums[:, groups] += values[:, torch.from_numpy(starts[more] + place).to(device)]
        divisors = torch.from_numpy(sizes).to(device).unsqueeze(1)
        means = (sums / divisors.clamp(min=1).to(sums.dtype)).masked_fill(divisors == 0, 0)
        return Layers(means.reshape(len(values), len(counts), -1, means.shape[-1]), torch.from_numpy(lengths))

    def widened(self, width: int) -> Layers:
        """The same with zeros up to so many positions."""
        missing = max(0, width - self.values.shape[2])
        return Layers(nn.functional.pad(self.values, (0, 0, 0, missing)), self.lengths)


def places(layers: Layers, lengths: NDArray[np.int64], *, boundaries: bool) -> Tensor:
    """Where in [B·T] the tokens of all sentences lie, one after the other."""
    columns = np.arange(layers.values.shape[2])
    first = 0 if boundaries else 1
    kept = (columns >= first) & (columns < first + lengths[:, None])
    return torch.from_numpy(np.flatnonzero(kept))


def on_host(values: Tensor) -> Callable[[], NDArray[np.float32]]:
    """Start the way to the host as float32, and wait for its end when called."""
    values = values.float()
    if values.device.type != "cuda":
        there = values.cpu().numpy()
        return lambda: there
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values, non_blocking=True)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record(torch.cuda.current_stream(values.device))

    def wait() -> NDArray[np.float32]:
        arrived.synchronize()
        return host.numpy()

    return wait


def aside(parts: Iterator[Vectors]) -> Iterator[Vectors]:
    """The same, gone through in another thread while this one prepares the next batches."""
    made = _collector().submit(list, parts)

    def results() -> Iterator[Vectors]:
        yield from made.result()

    return results()


@cache
def _collector() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="elmokit-collector")

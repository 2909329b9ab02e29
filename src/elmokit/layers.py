"""All layers of a batch, and the way of its vectors from there to an array for each sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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

"""Running averages of weights in training, which score better and steadier than the weights of any one update."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

_LONGEST = 0.998
"""The share of an average that an update leaves as it was, once there were many: a memory of 500 updates."""


class Averages:
    """An average of some weights over the last updates; over few of them while there were few."""

    def __init__(self, weights: Sequence[nn.Parameter]) -> None:
        self._weights = [weight.data for weight in weights]
        self._averages = [weight.clone() for weight in self._weights]
        self._updates = 0

    def update(self) -> None:
        """Take the weights after an update in."""
        kept = min(_LONGEST, (1 + self._updates) / (10 + self._updates))
        self._updates += 1
        torch._foreach_lerp_(self._averages, self._weights, 1 - kept)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """The network has the averages for its weights, and its own again afterwards."""
        own = [weight.clone() for weight in self._weights]
        torch._foreach_copy_(self._weights, self._averages)
        try:
            yield
        finally:
            torch._foreach_copy_(self._weights, own)

    def copies(self) -> list[Tensor]:
        """The averages as they are now."""
        return [average.clone() for average in self._averages]

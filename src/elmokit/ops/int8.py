"""A matrix in 8 bits: whole numbers from −127 to 127, and what one of them is worth in each row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LARGEST = 127


@dataclass(frozen=True, eq=False)
class Int8Matrix:
    """values · scales, row by row; rows are outputs, so each output channel has a scale of its own."""

    values: Tensor  # int8 [O, K]
    scales: Tensor  # float32 [O]

    @classmethod
    def of(cls, weight: Tensor) -> Int8Matrix:
        """The nearest 8-bit matrix to weight [O, K]."""
        weight = weight.detach().float()
        scales = weight.abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny) / LARGEST
        return cls((weight / scales.unsqueeze(1)).round_().to(torch.int8), scales)

    @property
    def shape(self) -> torch.Size:
        """[O, K]."""
        return self.values.shape

    def dense(self) -> Tensor:
        """The same in float32, [O, K]."""
        return self.values.float() * self.scales.unsqueeze(1)

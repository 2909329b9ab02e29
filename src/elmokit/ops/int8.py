"""An int8 matrix: integers from −127 to 127, and a scale for each row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LARGEST = 127
LEAST_COLUMN = 1e-6
"""The smallest factor of a column, as a fraction of the largest."""


@dataclass(frozen=True, eq=False)
class Int8Matrix:
    """values · scales · columns: each row (an output) has a scale, and each column (an input) may have a factor.

    A product multiplies its inputs by the factors before it rounds them to int8. If a few inputs are very large,
    training makes their columns small. With the sizes of the columns as factors, such inputs do not make the rounding
    of the others too coarse.
    """

    values: Tensor  # int8 [O, K]
    scales: Tensor  # float32 [O]
    columns: Tensor | None = None  # float32 [K]

    @classmethod
    def of(cls, weight: Tensor, columns: Tensor | None = None) -> Int8Matrix:
        """The int8 matrix nearest to weight [O, K], with these factors of its columns."""
        weight = weight.detach().float()
        if columns is not None:
            weight = weight / columns
        scales = weight.abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny) / LARGEST
        return cls((weight / scales.unsqueeze(1)).round_().to(torch.int8), scales, columns)

    @property
    def shape(self) -> torch.Size:
        """[O, K]."""
        return self.values.shape

    def dense(self) -> Tensor:
        """The matrix in float32, [O, K]."""
        weight = self.values.float() * self.scales.unsqueeze(1)
        return weight if self.columns is None else weight * self.columns

    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors of the matrix."""
        return (self.values, self.scales) if self.columns is None else (self.values, self.scales, self.columns)


def column_sizes(weight: Tensor) -> Tensor:
    """The root mean square of each column of weight [O, K], float32 [K]: factors for `Int8Matrix.of`."""
    sizes: Tensor = torch.linalg.vector_norm(weight.detach().float(), dim=0) / len(weight) ** 0.5
    return sizes.clamp(min=LEAST_COLUMN * float(sizes.max()) or 1.0)

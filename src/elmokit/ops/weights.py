"""The numbers of one LSTM layer in one direction."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class LstmWeights:
    """Gates lie along 4H in the order input, forget, candidate, output."""

    input: Tensor  # [4H, P_in]
    recurrent: Tensor  # [4H, P]
    bias: Tensor  # [4H]
    projection: Tensor | None  # [P, H]
    forget_bias: float = 1.0
    cell_clip: float | None = None
    projection_clip: float | None = None

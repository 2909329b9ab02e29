"""The result of all LSTM layers in all directions."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class BiLstmOutput:
    """The outputs of every layer, and the states after the last token of each sentence."""

    layers: list[Tensor]  # L tensors [B, T, D·P], directions side by side; 0 past a sentence's end
    h: Tensor  # [D, L, B, P]
    c: Tensor  # [D, L, B, H]
    buffer: Tensor | None = None
    """[L + 1, B, T, D·P]: the memory of the layers, after free space for the token layer."""

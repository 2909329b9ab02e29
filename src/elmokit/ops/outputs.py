"""What all LSTM layers of all directions give."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class BiLstmOutput:
    """The outputs of every layer, and where each sentence's last token left the states."""

    layers: list[Tensor]  # L tensors [B, T, D·P], directions side by side; 0 past a sentence's end
    h: Tensor  # [D, L, B, P]
    c: Tensor  # [D, L, B, H]
    room: Tensor | None = None  # [L + 1, B, T, D·P], where one was made: the layers, and before them a free place

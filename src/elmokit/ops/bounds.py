"""The constants of an LSTM layer's steps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bounds:
    """What is added to the forget gate, and where cells and outputs are cut off; the same in both directions."""

    forget_bias: float
    cell_clip: float | None
    projection_clip: float | None

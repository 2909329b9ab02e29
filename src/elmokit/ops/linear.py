"""A matrix product whose rows do not depend on their neighbours.

CPU libraries choose another order of summation for one row than for thirty, or for the last rows of a batch, so the
same word could get different last digits in different company, and an LSTM over a long sentence makes last digits
grow. Rows filled up to a multiple of 4 and at least 16 columns keep every row on the same path: the result is the
same, bit for bit, alone and in any batch. `docs/determinism.md` says where this was measured.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

ROWS = 4
"""Rows come in multiples of this many."""
LEAST_COLUMNS = 16
"""Narrower products treat the rows of one tile differently."""


def filled(rows: int) -> int:
    """The number of rows that `rows` rows are computed as."""
    return -(-rows // ROWS) * ROWS


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [N, K] · weightᵀ [K, O] + bias [O] → [N, O], each row independent of the others."""
    if x.device.type != "cpu":
        return F.linear(x, weight, bias)
    rows, columns = x.shape[0], weight.shape[0]
    if rows % ROWS:
        x = F.pad(x, (0, 0, 0, filled(rows) - rows))
    if columns < LEAST_COLUMNS:
        weight = F.pad(weight, (0, 0, 0, LEAST_COLUMNS - columns))
        bias = None if bias is None else F.pad(bias, (0, LEAST_COLUMNS - columns))
    return F.linear(x, weight, bias)[:rows, :columns]

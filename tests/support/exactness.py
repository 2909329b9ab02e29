"""Equal bits where this machine's matrix products allow them (docs/determinism.md), close numbers elsewhere."""

from __future__ import annotations

import numpy as np
import torch

from elmokit.ops.linear import linear


def rows_are_exact() -> bool:
    """Whether this machine's matrix products give a row the same result in any batch (docs/determinism.md)."""
    generator = torch.Generator().manual_seed(0)
    for size_in, size_out in ((16, 64), (64, 256), (1024, 128)):
        x, weight = (torch.randn(n, size_in, generator=generator) for n in (96, size_out))
        whole = linear(x, weight)
        if not all(torch.equal(linear(x[:rows], weight), whole[:rows]) for rows in range(1, 96)):
            return False
    return True


EXACT = rows_are_exact()


def assert_same(one, other) -> None:
    if EXACT:
        assert np.array_equal(one, other)
    else:
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)

"""Transformer blocks of random weights over ragged segments, and the kernels' errors against the equations.

As a program it runs the kernels in Triton's interpreter, on a machine without a GPU:
    TRITON_INTERPRET=1 python tests/transformer_cases.py
"""

from __future__ import annotations

from itertools import accumulate

import torch
from torch import Tensor

from elmokit.ops.attention import BACKWARD, BOTH, FORWARD, Segments
from elmokit.ops.reference import transformer_reference
from elmokit.ops.weights import BlockWeights


def random_blocks(count=2, size=24, heads=3, inner=20, dtype=torch.float64, seed=0) -> list[BlockWeights]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((3 * size, size), (size, size), (2 * inner, size), (size, inner), (heads, size), (heads,))
    return [
        BlockWeights(*(torch.randn(shape, generator=generator, dtype=dtype) / shape[-1] ** 0.5 for shape in shapes))
        for _ in range(count)
    ]


def random_tokens(lengths, size=24, dtype=torch.float64) -> Tensor:
    return torch.randn(sum(lengths), size, generator=torch.Generator().manual_seed(1), dtype=dtype) * 3 + 1


def segments_of(lengths, ways) -> Segments:
    return Segments(list(accumulate(lengths, initial=0)), ways)


def exact(x: Tensor, lengths, ways, blocks, *, window: int, outputs) -> Tensor:
    """The equations, segment after segment, in the dtype of x."""
    parts = [
        transformer_reference(part, blocks, window=window, way=way, outputs=outputs)
        for part, way in zip(x.split(lengths), ways, strict=True)
        if len(part)
    ]
    return torch.cat(parts, dim=1)


def moved(blocks, device, dtype) -> list[BlockWeights]:
    return [BlockWeights(*(part.to(device, dtype) for part in block)) for block in blocks]


CASES = {
    "lengths around a tile": ([1, 31, 32, 0, 33, 65], [BOTH, FORWARD, BACKWARD, BOTH, BOTH, FORWARD], 64),
    "longer than the window": ([5, 70, 40], [BOTH, BOTH, BACKWARD], 7),
    "a window over several tiles": ([100, 3], [FORWARD, BACKWARD], 50),
    "one token": ([1], [BOTH], 3),
}
"""Lengths and ways of segments, window."""


def _interpreted(dtype: torch.dtype, case: str, size: int, heads: int, inner: int) -> float:
    """The largest error of the kernels on the CPU."""
    from elmokit.ops.gpu import transformer as gpu

    lengths, ways, window = CASES[case]
    outputs = (2, 0, 1, 2)
    x, blocks = random_tokens(lengths, size), random_blocks(size=size, heads=heads, inner=inner)
    model = gpu.PackedBlocks(moved(blocks, "cpu", dtype), dtype)
    tiles = gpu.tiles_of(segments_of(lengths, ways), fill=True)
    filled = gpu.filled(x.to(dtype), gpu.bucket(len(x)))
    found = gpu.run_blocks(model, filled, tiles, model.angles(128), window, outputs)[:, : len(x)]
    assert found.dtype == dtype
    want = exact(x, lengths, ways, blocks, window=window, outputs=outputs)
    return float((found.double() - want).abs().max())


if __name__ == "__main__":
    for name in CASES:
        error = _interpreted(torch.float32, name, 24, 3, 20)
        assert error < 1e-4, (name, error)
    # The interpreter multiplies tiles of bfloat16 as if they were whole numbers; float16 goes the same way.
    error = _interpreted(torch.float16, "longer than the window", 80, 2, 50)
    assert error < 4e-2, error

"""Transformer blocks of random weights over ragged segments, and the kernels' errors against the equations.

As a program it runs the kernels in Triton's interpreter, on a machine without a GPU:
    TRITON_INTERPRET=1 python tests/support/transformer_cases.py
"""

from __future__ import annotations

from contextlib import nullcontext
from itertools import accumulate

import torch
from torch import Tensor

from elmokit.ops.attention import BACKWARD, BOTH, FORWARD, Segments
from elmokit.ops.paths import forced
from elmokit.ops.reference import transformer_reference
from elmokit.ops.transformer import transformer
from elmokit.ops.weights import BlockWeights, HeadWeights


def random_blocks(count=2, size=24, heads=3, inner=20, dtype=torch.float64, seed=0) -> list[BlockWeights]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((3 * size, size), (size, size), (2 * inner, size), (size, inner), (heads, size), (heads,))
    return [
        BlockWeights(*(torch.randn(shape, generator=generator, dtype=dtype) / shape[-1] ** 0.5 for shape in shapes))
        for _ in range(count)
    ]


def random_head(outputs=10, size=24, dtype=torch.float64) -> HeadWeights:
    generator = torch.Generator().manual_seed(2)
    shapes = (outputs, size), (outputs,)
    return HeadWeights(*(torch.randn(shape, generator=generator, dtype=dtype) / size**0.5 for shape in shapes))


def random_tokens(lengths, size=24, dtype=torch.float64) -> Tensor:
    return torch.randn(sum(lengths), size, generator=torch.Generator().manual_seed(1), dtype=dtype) * 3 + 1


def segments_of(lengths, directions) -> Segments:
    return Segments(list(accumulate(lengths, initial=0)), directions)


def exact(x: Tensor, lengths, directions, blocks, *, window: int, outputs, head=None) -> Tensor:
    """The equations, segment after segment, in the dtype of x."""
    parts = [
        transformer_reference(part, blocks, window=window, direction=direction, outputs=outputs, head=head)
        for part, direction in zip(x.split(lengths), directions, strict=True)
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
"""Lengths and directions of segments, window."""


def _interpreted(dtype: torch.dtype, case: str, size: int, heads: int, inner: int) -> float:
    """The largest error of the kernels on the CPU."""
    from elmokit.ops.gpu import transformer as gpu

    lengths, directions, window = CASES[case]
    outputs = (2, 0, 1, 2)
    x, blocks = random_tokens(lengths, size), random_blocks(size=size, heads=heads, inner=inner)
    model = gpu.PackedBlocks(moved(blocks, "cpu", dtype), dtype)
    tiles = gpu.tiles_of(segments_of(lengths, directions), fill=True)
    filled = gpu.filled(x.to(dtype), gpu.bucket(len(x)))
    found = gpu.run_blocks(model, filled, tiles, model.angles(128), window, outputs)[:, : len(x)]
    assert found.dtype == dtype
    want = exact(x, lengths, directions, blocks, window=window, outputs=outputs)
    return float((found.double() - want).abs().max())


def _interpreted_prediction(case: str, outputs: tuple[int, ...]) -> float:
    """The largest error of all layers with the prediction, which autocast does not change either."""
    lengths, directions, window = CASES[case]
    x, blocks, head = random_tokens(lengths), random_blocks(), random_head()
    given, there = x.float(), moved(blocks, "cpu", torch.float32)
    with torch.no_grad(), forced("cuda"), torch.autocast("cpu", torch.bfloat16):
        segments, head_there = segments_of(lengths, directions), HeadWeights(*(part.float() for part in head))
        found = transformer(given, segments, there, window=window, outputs=outputs, head=head_there)
    assert found.dtype == torch.float32
    want = exact(x, lengths, directions, blocks, window=window, outputs=outputs, head=head)
    return float((found.double() - want).abs().max())


if __name__ == "__main__":
    for name in CASES:
        error = _interpreted(torch.float32, name, 24, 3, 20)
        assert error < 1e-4, (name, error)
    # The interpreter multiplies tiles of bfloat16 as if they were whole numbers; float16 goes the same way.
    error = _interpreted(torch.float16, "longer than the window", 80, 2, 50)
    assert error < 4e-2, error
    # As much of CUDA as a batch needs that is not recorded.
    torch.cuda.device = lambda device: nullcontext()
    torch.cuda.is_current_stream_capturing = lambda: False
    Tensor.pin_memory = lambda tensor: tensor
    for numbers in ((0, 1, 2), (2, 0), ()):
        error = _interpreted_prediction("longer than the window", numbers)
        assert error < 1e-4, (numbers, error)

"""Attention inside segments: cases, and the largest errors of the Triton kernels against the plain reference.

As a program it runs the kernels in Triton's interpreter, on a machine without a GPU:
    TRITON_INTERPRET=1 python tests/support/attention_cases.py
"""

from __future__ import annotations

from itertools import accumulate

import torch

from elmokit.ops.attention import Segments, attend, rotary, rotation_factors
from elmokit.ops.transformer import _block_on_gpu, block
from elmokit.ops.weights import BlockWeights

CASES = {
    "large heads": ([40, 90], [0, 2], 1, 72, 20),
    "lengths around a block": ([3, 63, 64, 65, 1, 130], [0, 1, 2, 0, 1, 2], 2, 32, 64),
    "longer than the window": ([5, 9, 200], [0, 2, 0], 1, 24, 16),
    "windows of several blocks": ([300, 40], [1, 0], 1, 16, 150),
    "forward and backward": ([64, 64, 10], [1, 2, 1], 3, 16, 64),
    "one token": ([1], [0], 1, 8, 3),
}
"""Lengths and ways of segments, heads, numbers per head, window."""


def errors(case: str, device: str, dtype: torch.dtype) -> dict[str, float]:
    """Relative errors of the output and the gradients of queries, keys and values."""
    from elmokit.ops.attention_triton import attend as attend_on_gpu

    lengths, ways, heads, size, window = CASES[case]
    segments = Segments(list(accumulate(lengths, initial=0)), ways)
    torch.manual_seed(0)
    qkv = torch.randn(sum(lengths), 3, heads, size, device=device, dtype=dtype, requires_grad=True)
    towards = torch.randn(sum(lengths), heads, size, device=device, dtype=dtype)
    exact = qkv.detach().double().requires_grad_()
    first, last, _ = segments.reach(window).to(device)
    ours = attend_on_gpu(*qkv.unbind(1), first, last, window)
    plain = attend(*exact.unbind(1), segments, window)
    (found,) = torch.autograd.grad(ours, qkv, towards)
    (expected,) = torch.autograd.grad(plain, exact, towards.double())
    pairs = [(ours, plain), *zip(found.unbind(1), expected.unbind(1), strict=True)]
    return dict(zip(("output", "dq", "dk", "dv"), (float(relative(*pair)) for pair in pairs), strict=True))


def relative(found: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    found, exact = found.detach().double(), exact.detach().double()
    return (found - exact).norm() / exact.norm().clamp(min=1)  # some are 0


def compiled_block_error(device: str, backend: str) -> float:
    """A block through torch.compile, without a break in its graph, against the same block with torch's operations."""
    torch.manual_seed(1)
    size, inner, heads, window = 32, 40, 2, 16
    shapes = ((3 * size, size), (size, size), (2 * inner, size), (size, inner), (heads, size), (heads,))
    weights = BlockWeights(*(torch.randn(shape, device=device).div_(6).requires_grad_() for shape in shapes))
    segments = Segments([0, 20, 70, 75], [0, 1, 2])
    x = torch.randn(75, size, device=device)
    first, last, positions = segments.reach(window).to(device)
    cos, sin = rotation_factors(*rotary(positions, size // heads, x.dtype, x.device, longest=50))
    run = torch.compile(_block_on_gpu, dynamic=False, fullgraph=True, backend=backend)
    ours = run(x, weights, first, last, window, cos, sin, 0.0)
    plain = block(x, weights, lambda q, k, v: attend(q, k, v, segments, window), cos, sin)
    found, expected = (torch.autograd.grad(y.square().sum(), weights) for y in (ours, plain))
    return float(max(relative(*pair) for pair in zip(found, expected, strict=True)))


if __name__ == "__main__":
    for name in CASES:
        assert max(errors(name, "cpu", torch.float32).values()) < 1e-5, name
    assert compiled_block_error("cpu", "aot_eager") < 1e-5

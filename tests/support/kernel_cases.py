"""The kernels of LSTMs, of the softmax and of characters against plain references, without a GPU.

As a program it runs them in Triton's interpreter:
    PYTHONPATH=tests TRITON_INTERPRET=1 python tests/support/kernel_cases.py
"""

from __future__ import annotations

from contextlib import nullcontext
from unittest.mock import patch

import torch

from elmokit.ops import kernels, softmax_loss
from elmokit.ops.convolve import convolve, convolve_together
from elmokit.ops.gpu import bilstm as gpu
from elmokit.ops.gpu.packed import PackedModel
from elmokit.ops.reference import lstm_windows_reference
from elmokit.ops.windows import lstm_windows
from support.bilstm_cases import bilstm_case, bilstm_reference
from support.training_cases import KEEPS, SHAPES, plain_softmax_loss, softmax_case, window_case, window_results


def error(found, exact) -> float:
    """The largest difference of a number, as a share of the largest number of its tensor, or of 1."""
    pairs = [(one.detach().double(), other.detach().double()) for one, other in zip(found, exact, strict=True)]
    return max(float((one - other).abs().max() / other.abs().max().clamp(min=1)) for one, other in pairs)


def windows_error(shape, keep: str) -> float:
    """Outputs, last states and all gradients."""
    found = window_results(lstm_windows, *window_case(shape, keep))
    return error(found, window_results(lstm_windows_reference, *window_case(shape, keep)))


def softmax_error(rows: int, size: int, words: int) -> float:
    """The loss, and its gradients."""
    *leaves, targets, row_weight = softmax_case(rows, size, words)
    found = softmax_loss.softmax_loss(*leaves, targets, row_weight=row_weight)
    exact = plain_softmax_loss(*leaves, targets, row_weight)
    found, exact = ((total, *torch.autograd.grad(3.5 * total, leaves)) for total, _ in (found, exact))
    return error(found, exact)


def convolution_error() -> float:
    """Filters of several widths over words of all lengths in float16, and all gradients."""
    generator = torch.Generator().manual_seed(0)
    characters = torch.randn(150, 9, 5, generator=generator)
    lengths = torch.randint(0, 10, (150,), generator=generator)
    characters = characters * (torch.arange(9) < lengths.unsqueeze(1)).unsqueeze(-1)
    filters = [
        (torch.randn(n, 5, width, generator=generator), torch.zeros(n)) for width, n in ((1, 3), (2, 70), (4, 5))
    ]
    results = []
    for dtype in (torch.float16, torch.float64):
        # Of the same float16 numbers, so that the same windows are the largest.
        leaves = [
            t.half().to(dtype).requires_grad_() for t in (characters, *(part for pair in filters for part in pair))
        ]
        x, pairs = leaves[0], list(zip(leaves[1::2], leaves[2::2], strict=True))
        if dtype == torch.float16:
            y = convolve_together(x, pairs, lengths)
        else:
            y = torch.cat([convolve(x, *pair) for pair in pairs], dim=1)
        results.append([y, *torch.autograd.grad((y.double() * torch.linspace(-1, 1, 78)).sum(), leaves[1:])])
    return error(*results)


def bilstm_error(dtype: torch.dtype, batch: int, time: int) -> float:
    """All layers and states of inference over ragged sentences."""
    x, lengths, stacks, h, c = bilstm_case(batch, time, 74, 20)
    plan = gpu.Plan.of(lengths, batch, time)
    given = (part.to(dtype) for part in (h, c))
    found = gpu.run_steps(PackedModel(stacks, dtype), x.to(dtype), plan, plan.counts, *given, skip=True)
    exact = bilstm_reference(x, lengths, stacks, h, c, skip_connections=True)
    return error([*found.layers, found.h, found.c], [*exact.layers, exact.h, exact.c])


if __name__ == "__main__":
    # The kernels take what is on the CPU too: Triton interprets them.
    patch.object(kernels, "available", lambda device: True).start()  # fails if there is no such name
    patch.object(torch.cuda, "device", lambda device: nullcontext()).start()
    for number, shape in enumerate(SHAPES):
        if max(shape[1:4]) < 63:  # the interpreter takes long
            worst = windows_error(shape, KEEPS[number % len(KEEPS)])
            assert worst < 1e-9, (shape, worst)
    for case in ((1, 1, 1), (13, 5, 17), (5, 3, 4097)):
        worst = softmax_error(*case)
        assert worst < 1e-6, (case, worst)
    worst = convolution_error()
    assert worst < 5e-3, worst
    for batch, time in ((1, 1), (3, 5), (9, 2)):
        worst = bilstm_error(torch.float32, batch, time)
        assert worst < 1e-4, (batch, time, worst)
    # torch has this product on a GPU only.
    patch.object(gpu, "bmm_float32", lambda one, other: torch.bmm(one.float(), other.float())).start()
    worst = bilstm_error(torch.float16, 3, 5)
    assert worst < 1e-2, worst

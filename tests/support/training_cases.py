"""Windows and softmaxes to train on, drawn at random, and what comes of them."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from elmokit.ops.weights import LstmWeights

SHAPES = [
    # D, T, B, P_in, H, P (None: no projection), cell clip, projection clip
    (1, 1, 1, 1, 1, 1, None, None),
    (2, 2, 1, 3, 5, 2, None, None),
    (1, 2, 3, 7, 13, 6, 0.3, 0.2),
    (2, 7, 3, 5, 17, 9, 0.5, 0.3),
    (2, 63, 3, 6, 11, 6, 0.4, None),
    (2, 5, 33, 33, 70, 33, None, 0.2),
    (2, 3, 4, 6, 10, None, 0.2, 0.1),
    (1, 20, 33, 16, 32, 16, 3.0, 3.0),
]
KEEPS = ["ones", "zeros", "random"]


def window_case(shape, keep, *, dtype=torch.float64, device="cpu", seed=0, scale=2.0):
    """x, keep, weights, h and c of a window; all leaves want gradients."""
    directions, time, batch, size_in, cell, output, cell_clip, projection_clip = shape
    generator = torch.Generator().manual_seed(seed + sum(map(hash, shape[:5])))
    out = cell if output is None else output

    def draw(*size, by=1.0):
        values = by * torch.randn(*size, generator=generator, dtype=torch.float64)
        return values.to(device, dtype).requires_grad_()

    weights = [
        LstmWeights(
            draw(4 * cell, size_in, by=scale / size_in**0.5),
            draw(4 * cell, out, by=scale / out**0.5),
            draw(4 * cell),
            None if output is None else draw(out, cell, by=scale / cell**0.5),
            forget_bias=1.0,
            cell_clip=cell_clip,
            projection_clip=projection_clip,
        )
        for _ in range(directions)
    ]
    flags = {"ones": torch.ones(time, batch), "zeros": torch.zeros(time, batch)}.get(keep)
    if flags is None:
        flags = (torch.rand(time, batch, generator=generator) < 0.7).float()
    x, h, c = draw(directions, time, batch, size_in), draw(directions, batch, out), draw(directions, batch, cell)
    return x, flags.to(device), weights, h, c


def window_results(run, x, keep, weights, h, c):
    """Outputs, last states and the gradients of everything that has one."""
    y, last_h, last_c = run(x, keep, weights, h, c)
    assert y.requires_grad
    assert not last_h.requires_grad
    assert not last_c.requires_grad
    leaves = [x, *(t for w in weights for t in (w.input, w.recurrent, w.bias, w.projection) if t is not None)]
    direction = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view(y.shape).cos().to(y)
    return [y, last_h, last_c, *torch.autograd.grad((y * direction).sum(), leaves)]


def softmax_case(rows, size, words, *, dtype=torch.float64, device="cpu", ignored=0.2):
    generator = torch.Generator().manual_seed(rows * 1000 + words)

    def draw(*shape, by=1.0):
        return (by * torch.randn(*shape, generator=generator, dtype=torch.float64)).to(device, dtype).requires_grad_()

    targets = torch.randint(0, words, (rows,), generator=generator)
    targets[torch.rand(rows, generator=generator) < ignored] = -100
    row_weight = torch.rand(rows, generator=generator, dtype=torch.float64)
    tensors = draw(rows, size, by=2.0), draw(words, size), draw(words)
    return *tensors, targets.to(device), row_weight.to(device)


def plain_softmax_loss(top, weight, bias, targets, row_weight):
    losses = F.cross_entropy(top @ weight.T + bias, targets.clamp(min=0), reduction="none")
    losses = losses.masked_fill(targets < 0, 0)
    return (losses * row_weight).sum(), losses

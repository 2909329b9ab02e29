"""The recurrence over packed batches: hardly a padded token is computed, and long texts need no more memory than short.

Sentences are sorted by falling length, so that the ones still running at any step are the first rows; the products of
the inputs, which depend on no earlier step, are taken many steps at a time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from elmokit.ops.linear import LEAST_COLUMNS, filled, linear
from elmokit.ops.reference import clip
from elmokit.ops.weights import LstmWeights

BLOCK_TOKENS = 2048
"""Tokens whose [4H] input products are held at once; bounds memory whatever the length of a sentence."""


def lstm(
    x: Tensor, lengths: Tensor, weights: LstmWeights, h: Tensor, c: Tensor, *, reverse: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """A layer over ragged sentences, as `lstm_reference` but packed.

    x [B, T, P_in], lengths [B] on the CPU, h [B, P], c [B, H] → outputs [B, T, P], h [B, P], c [B, H].
    """
    order = torch.argsort(lengths, descending=True, stable=True)
    running = _running(lengths)
    rows = order.to(x.device)
    batch = len(lengths)
    # Rows past the batch, so that `linear`'s fillers need not be added again at every step.
    spare = filled(batch) - batch
    h, c = (torch.cat([s[rows], s.new_zeros(spare, s.shape[1])]) for s in (h, c))
    bias = weights.bias.clone()
    cell_size = bias.shape[0] // 4
    bias[cell_size : 2 * cell_size] += weights.forget_bias

    steps: list[Tensor] = []
    ended = [(h[(running[0] if running else 0) : batch], c[(running[0] if running else 0) : batch])]
    start = 0
    while start < len(running):
        width = filled(running[start])
        stop = min(len(running), start + max(1, BLOCK_TOKENS // width))
        products = _input_products(x, rows, lengths[order], weights.input, bias, (start, stop, width), reverse=reverse)
        for step, product in enumerate(products.unbind(0), start=start):
            n, before = running[step], running[max(step - 1, 0)]
            if n < before:
                ended.append((h[n:before], c[n:before]))
            width = filled(n)
            h, c = _first(h, width), _first(c, width)
            z = _add_recurrent(_first(product, width), h, weights.recurrent)  # [width, 4H]
            i, f, g, o = z.chunk(4, dim=-1)
            c = clip(torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g), weights.cell_clip)
            h = torch.sigmoid(o) * torch.tanh(c)
            if weights.projection is not None:
                h = clip(linear(h, weights.projection), weights.projection_clip)
            steps.append(_first(h, n))
        start = stop

    out = x.new_zeros(batch, x.shape[1], h.shape[1])
    if steps:
        row, column = _places(lengths, order, running, reverse=reverse)
        out = out.index_put((row.to(x.device), column.to(x.device)), torch.cat(steps))
        ended.append((h[: running[-1]], c[: running[-1]]))
    back = torch.argsort(order).to(x.device)
    last_h, last_c = (torch.cat(states)[back] for states in zip(*reversed(ended), strict=True))
    return out, last_h, last_c


def _first(values: Tensor, n: int) -> Tensor:
    """The first n rows; all of them without a slice, whose gradient would be a copy."""
    return values if len(values) == n else values[:n]


def _add_recurrent(products: Tensor, h: Tensor, weight: Tensor) -> Tensor:
    if h.device.type == "cpu" and len(weight) < LEAST_COLUMNS:
        return products + linear(h, weight)
    return torch.addmm(products, h, weight.T)


def _input_products(
    x: Tensor,
    rows: Tensor,
    lengths: Tensor,
    weight: Tensor,
    bias: Tensor,
    block: tuple[int, int, int],
    *,
    reverse: bool,
) -> Tensor:
    """[steps, width, 4H]: the inputs of steps start to stop times their weights; rows that have ended are arbitrary."""
    start, stop, width = block
    if len(rows) < width:
        rows = torch.cat([rows, rows.new_zeros(width - len(rows))])
        lengths = torch.cat([lengths, lengths.new_zeros(width - len(lengths))])
    steps = torch.arange(start, stop).unsqueeze(1)
    columns = lengths[:width] - 1 - steps if reverse else steps.expand(-1, width)
    inputs = x[rows[:width], columns.clamp(min=0).to(x.device)]  # [steps, width, P_in]
    return linear(inputs.flatten(0, 1), weight, bias).view(stop - start, width, -1)


def _running(lengths: Tensor) -> list[int]:
    """How many sentences have a token at each step, for every step that has one."""
    longest = int(lengths.max()) if len(lengths) else 0
    ended = torch.bincount(lengths, minlength=longest + 1).cumsum(0)[:longest]
    counts: list[int] = (len(lengths) - ended).tolist()
    return counts


def _places(lengths: Tensor, order: Tensor, running: list[int], *, reverse: bool) -> tuple[Tensor, Tensor]:
    """Row and column in [B, T] of every packed output, step by step."""
    counts = torch.tensor(running)
    step = torch.repeat_interleave(torch.arange(len(running)), counts)
    first = torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    row = order[torch.arange(len(step)) - first]
    return row, lengths[row] - 1 - step if reverse else step

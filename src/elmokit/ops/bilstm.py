"""All LSTM layers of all directions over ragged sentences: a dispatcher, which can say what it chose and why.

All paths compute the same function (tests compare each with `elmokit.ops.reference`):
    packed   torch's operations, step by step over packed batches; the only path with gradients. Sentences are sorted
             by length, so that the sentences that have not ended at a step are the first rows. The products of the
             inputs do not depend on earlier steps, so they are computed for many steps at once.
    native   kernels compiled for this machine's CPU (`elmokit.ops.native`), float32 and int8
    cuda     Triton kernels and CUDA graphs (`elmokit.ops.gpu`), float32, float16 and bfloat16
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from elmokit.ops import kernels
from elmokit.ops.linear import LEAST_COLUMNS, dense, filled, linear
from elmokit.ops.outputs import BiLstmOutput
from elmokit.ops.paths import PathChoice, forced_choice
from elmokit.ops.reference import clip
from elmokit.ops.weights import AnyLstmWeights, Int8LstmWeights, LstmWeights

Stacks = Sequence[Sequence[AnyLstmWeights]]
"""The layers of each direction: forward, then backward if there are two directions."""


def bilstm(
    x: Tensor,
    lengths: Tensor,
    stacks: Stacks,
    h: Tensor | None = None,
    c: Tensor | None = None,
    *,
    skip_connections: bool,
    dropout: float = 0.0,
) -> BiLstmOutput:
    """x [B, T, P], lengths [B] on the CPU, h [D, L, B, P], c [D, L, B, H] → all layers' outputs and last states.

    Without h and c, every sentence starts from zero. The second direction reads each sentence from its last token to
    its first. With `skip_connections`, layers after the first add their input to their output. `dropout` is that of
    pre-training: on each layer's input and on the top output.
    """
    choice = choose(x, stacks, gradient=needs_gradient(x, stacks, h, c) or dropout > 0)
    if choice.path == "cuda" and x.numel():
        from elmokit.ops.gpu.bilstm import bilstm_cuda

        return bilstm_cuda(x, lengths, stacks, h, c, skip_connections=skip_connections)
    if h is None or c is None:
        h, c = zero_states(stacks, len(x))
    if choice.path == "native":
        from elmokit.ops.native.bilstm import bilstm_native

        return bilstm_native(x, lengths, stacks, h, c, skip_connections=skip_connections)
    return bilstm_packed(x, lengths, stacks, h, c, skip_connections=skip_connections, dropout=dropout)


def zero_states(stacks: Stacks, batch: int) -> tuple[Tensor, Tensor]:
    """h [D, L, B, P] and c [D, L, B, H] of zeros."""
    bias = stacks[0][0].bias
    shape = (len(stacks), len(stacks[0]), batch)
    return bias.new_zeros(*shape, stacks[0][0].recurrent.shape[1]), bias.new_zeros(*shape, len(bias) // 4)


def bilstm_packed(
    x: Tensor,
    lengths: Tensor,
    stacks: Stacks,
    h: Tensor,
    c: Tensor,
    *,
    skip_connections: bool,
    dropout: float = 0.0,
) -> BiLstmOutput:
    """`bilstm` in torch's operations, one direction and one layer after the other."""
    outputs: list[list[Tensor]] = []
    last_h, last_c = [], []
    for d, layers in enumerate(stacks):

        def layer(number: int, values: Tensor, d: int = d, layers: Sequence[AnyLstmWeights] = layers) -> Tensor:
            weights = layers[number]
            floats = weights.dense(dense) if isinstance(weights, Int8LstmWeights) else weights
            y, h_n, c_n = lstm(values, lengths, floats, h[d, number], c[d, number], reverse=d == 1)
            last_h.append(h_n)
            last_c.append(c_n)
            return y

        outputs.append(stacked(x, layer, len(layers), skip_connections=skip_connections, dropout=dropout))
    joined = [torch.cat(directions, dim=-1) for directions in zip(*outputs, strict=True)]
    return BiLstmOutput(joined, torch.stack(last_h).view_as(h), torch.stack(last_c).view_as(c))


def stacked(
    x: Tensor,
    layer: Callable[[int, Tensor], Tensor],
    n_layers: int,
    *,
    skip_connections: bool,
    dropout: float,
) -> list[Tensor]:
    """The outputs of all layers of a stack, in training and in use; `layer` computes the recurrence of one layer.

    With `skip_connections`, layers after the first add their input to their output. Dropout is on each layer's input
    and on the top output.
    """
    outputs: list[Tensor] = []
    for number in range(n_layers):
        x = F.dropout(x, dropout) if dropout else x
        y = layer(number, x)
        x = y + x if number and skip_connections else y
        outputs.append(x)
    if dropout:
        outputs[-1] = F.dropout(outputs[-1], dropout)
    return outputs


def choose(x: Tensor, stacks: Stacks, *, gradient: bool) -> PathChoice:
    """The path for inputs like x."""
    if (asked_for := forced_choice()) is not None:
        return asked_for
    if gradient:
        return PathChoice("packed", lambda: "gradients are wanted")
    if x.device.type == "cpu":
        from elmokit.ops import native

        reason = native.reason_against(x.dtype, int8=isinstance(stacks[0][0], Int8LstmWeights))
        if reason:
            return PathChoice("packed", lambda: reason)
        return PathChoice("native", lambda: native.description(stacks))
    if not kernels.available(x.device):
        return PathChoice("packed", lambda: f"there are no kernels for {x.device.type} here")
    from elmokit.ops.gpu import bilstm as gpu

    unfit = gpu.reason_against(x.dtype, stacks)
    return PathChoice("packed", lambda: unfit) if unfit else PathChoice("cuda", lambda: gpu.description(x, stacks))


def needs_gradient(x: Tensor, stacks: Stacks, h: Tensor | None, c: Tensor | None) -> bool:
    """Whether torch would record operations on these tensors to compute gradients."""
    if not torch.is_grad_enabled():
        return False
    weights = (m for layers in stacks for w in layers for m in (w.input, w.recurrent, w.bias, w.projection))
    return any(isinstance(given, Tensor) and given.requires_grad for given in (x, h, c, *weights))


BLOCK_TOKENS = 2048
"""Tokens whose [4H] input products are in memory at once, which bounds the memory for a sentence of any length."""


def lstm(
    x: Tensor, lengths: Tensor, weights: LstmWeights, h: Tensor, c: Tensor, *, reverse: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """A layer over ragged sentences: `lstm_reference` in packed batches.

    x [B, T, P_in], lengths [B] on the CPU, h [B, P], c [B, H] → outputs [B, T, P], h [B, P], c [B, H].
    """
    order = torch.argsort(lengths, descending=True, stable=True)
    running = _running(lengths)
    rows = order.to(x.device)
    batch = len(lengths)
    # Padding rows after the batch, so that `linear` need not add them at every step.
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
        row, column = _output_indices(lengths, order, running, reverse=reverse)
        packed = torch.cat(steps)  # under autocast, of another dtype than x
        out = out.to(packed.dtype).index_put((row.to(x.device), column.to(x.device)), packed)
        ended.append((h[: running[-1]], c[: running[-1]]))
    back = torch.argsort(order).to(x.device)
    last_h, last_c = (torch.cat(states)[back] for states in zip(*reversed(ended), strict=True))
    return out, last_h, last_c


def _first(values: Tensor, n: int) -> Tensor:
    """The first n rows; no slice for all rows, because the gradient of a slice is a copy."""
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
    """[steps, width, 4H]: the inputs of the steps start to stop times the weights; arbitrary for ended sentences."""
    start, stop, width = block
    if len(rows) < width:
        rows = torch.cat([rows, rows.new_zeros(width - len(rows))])
        lengths = torch.cat([lengths, lengths.new_zeros(width - len(lengths))])
    steps = torch.arange(start, stop).unsqueeze(1)
    columns = lengths[:width] - 1 - steps if reverse else steps.expand(-1, width)
    inputs = x[rows[:width], columns.clamp(min=0).to(x.device)]  # [steps, width, P_in]
    return linear(inputs.flatten(0, 1), weight, bias).view(stop - start, width, -1)


def _running(lengths: Tensor) -> list[int]:
    """The number of sentences that have a token at each step."""
    longest = int(lengths.max()) if len(lengths) else 0
    ended = torch.bincount(lengths, minlength=longest + 1).cumsum(0)[:longest]
    counts: list[int] = (len(lengths) - ended).tolist()
    return counts


def _output_indices(lengths: Tensor, order: Tensor, running: list[int], *, reverse: bool) -> tuple[Tensor, Tensor]:
    """The row and the column in [B, T] of every packed output, step by step."""
    counts = torch.tensor(running)
    step = torch.repeat_interleave(torch.arange(len(running)), counts)
    first = torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    row = order[torch.arange(len(step)) - first]
    return row, lengths[row] - 1 - step if reverse else step

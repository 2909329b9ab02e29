"""All LSTM layers of all directions over ragged sentences: the one dispatcher, which can say what it chose and why.

Paths, all the same function (tests compare each with `elmokit.ops.reference`):
    packed   torch's operations, step by step over packed batches; the only one with gradients
    native   compiled for this machine's CPU (`elmokit.ops.native`), float32 and 8 bits
    cuda     Triton kernels and CUDA graphs (`elmokit.ops.gpu`), float32, float16 and bfloat16
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from elmokit.ops import kernels
from elmokit.ops.linear import dense
from elmokit.ops.outputs import BiLstmOutput
from elmokit.ops.paths import PathChoice, forced_choice
from elmokit.ops.recurrence import lstm
from elmokit.ops.weights import AnyLstmWeights, Int8LstmWeights

Stacks = Sequence[Sequence[AnyLstmWeights]]
"""The layers of each direction: the forward one, then the backward one where there are two."""


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

    Without h and c every sentence starts from zero. The second direction reads each sentence from its last token to its
    first. With `skip_connections` layers after the first add their input to their output. `dropout` is the pre-training
    one: on each layer's input and the top output.
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
    """`bilstm` with torch's operations, direction after direction, layer after layer."""
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
    """The outputs of layers on top of each other, in training and in use: `layer` is the recurrence of one.

    Layers after the first add their input to their output; dropout is on each layer's input and on the top output.
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

        against = native.reason_against(x.dtype, int8=isinstance(stacks[0][0], Int8LstmWeights))
        return (
            PathChoice("packed", lambda: against)
            if against
            else PathChoice("native", lambda: native.description(stacks))
        )
    if not kernels.serve(x.device):
        return PathChoice("packed", lambda: f"there are no kernels for {x.device.type} here")
    from elmokit.ops.gpu import bilstm as gpu

    unfit = gpu.reason_against(x.dtype, stacks)
    return PathChoice("packed", lambda: unfit) if unfit else PathChoice("cuda", lambda: gpu.description(x, stacks))


def needs_gradient(x: Tensor, stacks: Stacks, h: Tensor | None, c: Tensor | None) -> bool:
    """Whether torch would record what is done with these."""
    if not torch.is_grad_enabled():
        return False
    weights = (m for layers in stacks for w in layers for m in (w.input, w.recurrent, w.bias, w.projection))
    return any(isinstance(given, Tensor) and given.requires_grad for given in (x, h, c, *weights))

"""All Transformer blocks over a flat batch of sentences: the one dispatcher, which can say what it chose and why.

Paths, all the same function (tests compare each with `elmokit.ops.reference`):
    packed   torch's operations; the only one with gradients
    native   compiled for this machine's CPU (`elmokit.ops.native`), float32 and int8
    cuda     Triton kernels and CUDA graphs (`elmokit.ops.gpu`), float32 and half precision
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from elmokit.ops.attention import Segments, attend, rotary, turn
from elmokit.ops.int8 import Int8Matrix
from elmokit.ops.linear import linear
from elmokit.ops.paths import Choice, forced_choice
from elmokit.ops.weights import BlockWeights

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
"""q, k, v [N, H, E] → [N, H, E]."""


def norm(x: Tensor) -> Tensor:
    """Layer norm without weights: mean 0 and variance 1 over the last dimension, in the dtype of x."""
    return F.layer_norm(x, x.shape[-1:]).to(x.dtype)


def block(
    x: Tensor, weights: BlockWeights, attention: Attention, cos: Tensor, sin: Tensor, dropout: float = 0.0
) -> Tensor:
    """x [N, P] → [N, P]: gated attention, then a gated feed-forward part, each normed before and inside."""
    rows, size = x.shape
    y = norm(x)
    q, k, v = linear(y, weights.qkv).view(rows, 3, weights.n_heads, size // weights.n_heads).unbind(1)
    seen = attention(turn(q, cos, sin), turn(k, cos, sin), v)
    seen = seen * sigmoid(linear(y, weights.gate_weight, weights.gate_bias)).unsqueeze(-1)
    x = x + F.dropout(linear(norm(seen.reshape(rows, size)), weights.out), dropout)
    values, gates = linear(norm(x), weights.up).chunk(2, dim=-1)
    return x + F.dropout(linear(norm(values * gelu(gates)), weights.down), dropout)


def transformer(
    x: Tensor,
    segments: Segments,
    blocks: Sequence[BlockWeights],
    *,
    window: int,
    outputs: Sequence[int],
    dropout: float = 0.0,
) -> Tensor:
    """x [N, P] → [len(outputs), N, P]: the normed numbers after so many blocks, 0 for the input."""
    choice = choose(x, blocks, gradient=dropout > 0 or needs_gradient(x, blocks))
    if choice.path == "native":
        from elmokit.ops.native.transformer import transformer_native

        return transformer_native(x, segments, blocks, window=window, outputs=outputs)
    return transformer_packed(x, segments, blocks, window=window, outputs=outputs, dropout=dropout)


def choose(x: Tensor, blocks: Sequence[BlockWeights], *, gradient: bool) -> Choice:
    """The path for inputs like x."""
    if (asked_for := forced_choice()) is not None:
        return asked_for
    if gradient:
        return Choice("packed", lambda: "gradients are wanted")
    if x.device.type == "cpu":
        from elmokit.ops import native
        from elmokit.ops.native import transformer as compiled

        against = native.reason_against(x.dtype, int8=isinstance(blocks[0].qkv, Int8Matrix))
        against = against or compiled.reason_against(x, blocks)
        return Choice("packed", lambda: against) if against else Choice("native", native.description)
    return Choice("packed", lambda: f"torch's operations on {x.device.type}")


def needs_gradient(x: Tensor, blocks: Sequence[BlockWeights]) -> bool:
    """Whether torch would record what is done with these."""
    if not torch.is_grad_enabled():
        return False
    return any(isinstance(given, Tensor) and given.requires_grad for given in (x, *(m for b in blocks for m in b)))


def transformer_packed(
    x: Tensor,
    segments: Segments,
    blocks: Sequence[BlockWeights],
    *,
    window: int,
    outputs: Sequence[int],
    dropout: float = 0.0,
) -> Tensor:
    """`transformer` with torch's operations."""
    cos, sin = rotary(segments.positions, x.shape[1] // blocks[0].n_heads, x.dtype, x.device)

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, segments, window)

    x = norm(x)
    found = {0: x}
    for number, weights in enumerate(blocks, start=1):
        x = block(x, weights, attention, cos, sin, dropout)
        if number in outputs:
            found[number] = norm(x)
    return torch.stack([found[number] for number in outputs])


def gelu(x: Tensor) -> Tensor:
    """x Φ(x). On the CPU in steps that give a number the same last digit wherever it is in a tensor."""
    return F.gelu(x) if x.device.type != "cpu" else x * (torch.erf(x * math.sqrt(0.5)) + 1) * 0.5


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(−x)), like `gelu` the same anywhere in a tensor."""
    return torch.sigmoid(x) if x.device.type != "cpu" else 1 / (1 + torch.exp(-x))

"""The network in operations that torch.export can record, for any number of sentences and tokens.

It is the arithmetic of `elmokit.ops.reference` in padded batches. No kernel is chosen and no value of a tensor is read,
so a recorded program is valid for other values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from elmokit.ops.reference import lstm_step
from elmokit.ops.weights import BlockWeights, HeadWeights, LstmWeights


def lstm_scan(x: Tensor, inside: Tensor, weights: LstmWeights, *, reverse: bool) -> Tensor:
    """A layer in one direction: x [B, T, P_in], inside [B, T] → [B, T, P], 0 past a sentence's end."""
    from torch._higher_order_ops.scan import scan  # slow to import, and only an export needs it

    def step(state: tuple[Tensor, Tensor], token: tuple[Tensor, Tensor]) -> tuple[tuple[Tensor, Tensor], Tensor]:
        here, is_token = token
        h, c = lstm_step(here, *state, weights)
        # Padding does not change the state: in the reverse direction, it is read before the sentence.
        return (torch.where(is_token, h, state[0]), torch.where(is_token, c, state[1])), h * is_token

    sizes = weights.recurrent.shape[1], len(weights.bias) // 4
    zeros = tuple(x.new_zeros(x.shape[0], size) for size in sizes)
    steps = (x.transpose(0, 1), inside.T.unsqueeze(-1))  # [T, B, ...]
    _, found = scan(step, zeros, steps, reverse=reverse)
    outputs: Tensor = found.transpose(0, 1)
    return outputs


def block_dense(x: Tensor, seen: Tensor, weights: BlockWeights) -> Tensor:
    """A Transformer block: x [B, T, P], seen [B, T, T] → [B, T, P]."""
    qkv, out, up, down = cast("tuple[Tensor, Tensor, Tensor, Tensor]", weights[:4])
    heads = *x.shape[:2], weights.n_heads, -1
    y = _norm(x)
    q, k, v = (part.reshape(heads).transpose(1, 2) for part in F.linear(y, qkv).chunk(3, dim=-1))  # [B, H, T, E]
    scores = _rotated(q) @ _rotated(k).transpose(-1, -2) / q.shape[-1] ** 0.5  # [B, H, T, T]
    mixed = scores.masked_fill(~seen.unsqueeze(1), -torch.inf).softmax(-1) @ v
    gates = F.linear(y, weights.gate_weight, weights.gate_bias).sigmoid()  # [B, T, H]
    attended = (mixed.transpose(1, 2) * gates.unsqueeze(-1)).flatten(2)
    x = x + F.linear(_norm(attended), out)
    values, opening = F.linear(_norm(x), up).chunk(2, dim=-1)
    return x + F.linear(_norm(values * F.gelu(opening)), down)


def transformer_dense(
    x: Tensor, inside: Tensor, blocks: Sequence[BlockWeights], *, window: int, every: int
) -> list[Tensor]:
    """x [B, T, P], inside [B, T] → normalised layers [B, T, P]: before the blocks and after each `every` of them."""
    position = torch.arange(x.shape[1], device=x.device)
    near = (position[None, :] - position[:, None]).abs() <= window
    # A padded token sees all tokens, because the softmax of an empty set is NaN.
    seen = (near & inside.unsqueeze(1)) | ~inside.unsqueeze(2)  # [B, T, T]
    x = _norm(x)
    layers = [x]
    for number, weights in enumerate(blocks, start=1):
        x = block_dense(x, seen, weights)
        if number % every == 0:
            layers.append(_norm(x))
    return layers


def prediction_dense(x: Tensor, head: HeadWeights) -> Tensor:
    """x [B, T, P], normalised after the last block → `elmokit.ops.transformer.prediction` [B, T, P]."""
    found = _norm(F.gelu(F.linear(x, cast(Tensor, head.weight), head.bias)))
    more = x.shape[-1] - found.shape[-1]
    return F.pad(found * (x.shape[-1] / found.shape[-1]) ** 0.5, (0, more))


def _norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


def _rotated(x: Tensor) -> Tensor:
    """Queries or keys [B, H, T, E], rotated by their positions; the angles are at least float32."""
    half, real = x.shape[-1] // 2, torch.promote_types(x.dtype, torch.float32)
    speeds = 10_000.0 ** (torch.arange(half, dtype=real, device=x.device) / half)
    angles = torch.arange(x.shape[-2], dtype=real, device=x.device)[:, None] / speeds  # [T, E/2]
    y = x.to(real)
    a, b = (y / (y.square().mean(-1, keepdim=True) + torch.finfo(real).eps).sqrt()).chunk(2, dim=-1)
    rotated = torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], dim=-1)
    return rotated.to(x.dtype)

"""The context encoders, written like their equations; the fast paths are tested against them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from elmokit.ops.int8 import Int8Matrix
from elmokit.ops.weights import BlockWeights, HeadWeights, LstmWeights


def clip(values: Tensor, bound: float | None) -> Tensor:
    """Values limited to between -bound and bound; unchanged if the bound is None."""
    return values if bound is None else values.clamp(-bound, bound)


def lstm_step(x: Tensor, h: Tensor, c: Tensor, weights: LstmWeights) -> tuple[Tensor, Tensor]:
    """One token: x [B, P_in], h [B, P], c [B, H] → the new h and c."""
    z = x @ weights.input.T + h @ weights.recurrent.T + weights.bias  # [B, 4H]
    i, f, g, o = z.chunk(4, dim=-1)
    c = torch.sigmoid(f + weights.forget_bias) * c + torch.sigmoid(i) * torch.tanh(g)
    c = clip(c, weights.cell_clip)
    h = torch.sigmoid(o) * torch.tanh(c)
    if weights.projection is not None:
        h = clip(h @ weights.projection.T, weights.projection_clip)
    return h, c


def lstm_reference(
    x: Tensor, lengths: Tensor, weights: LstmWeights, h: Tensor, c: Tensor, *, reverse: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """A layer over ragged sentences: x [B, T, P_in], lengths [B], h [B, P], c [B, H] → outputs [B, T, P], h, c.

    `reverse` reads each sentence from its own last token to its first. Outputs past a sentence's end are 0, and its
    state stays as its last token left it.
    """
    sentences, last_h, last_c = [], [], []
    for b, length in enumerate(lengths.tolist()):
        h_b, c_b = h[b : b + 1], c[b : b + 1]
        outputs: list[Tensor] = [torch.zeros_like(h_b)] * x.shape[1]
        for t in reversed(range(length)) if reverse else range(length):
            h_b, c_b = lstm_step(x[b : b + 1, t], h_b, c_b, weights)
            outputs[t] = h_b
        sentences.append(torch.cat(outputs) if outputs else h_b.new_zeros(0, h_b.shape[1]))
        last_h.append(h_b)
        last_c.append(c_b)
    return torch.stack(sentences), torch.cat(last_h), torch.cat(last_c)


def lstm_windows_reference(
    x: Tensor, keep: Tensor, weights: Sequence[LstmWeights], h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """A layer over a window: x [D, T, B, P_in], keep [T, B], h [D, B, P], c [D, B, H] → y [D, T, B, P], h, c.

    Where `keep` is 0, a token starts from zero. No gradient goes through the states at the two ends of the window.
    """
    outputs, last_h, last_c = [], [], []
    for d, w in enumerate(weights):
        h_d, c_d = h[d].detach(), c[d].detach()
        steps = []
        for t, kept in enumerate(keep.to(x.dtype).unsqueeze(-1)):
            h_d, c_d = lstm_step(x[d, t], kept * h_d, kept * c_d, w)
            steps.append(h_d)
        outputs.append(torch.stack(steps))
        last_h.append(h_d.detach())
        last_c.append(c_d.detach())
    return torch.stack(outputs), torch.stack(last_h), torch.stack(last_c)


def transformer_reference(
    x: Tensor,
    blocks: Sequence[BlockWeights],
    *,
    window: int,
    direction: int = 0,
    outputs: Sequence[int],
    head: HeadWeights | None = None,
) -> Tensor:
    """One sentence x [T, P] → [len(outputs), T, P]: the normalised states after these blocks; 0 is the input.

    `direction` says what each token sees: 0 the tokens before and after it, 1 those before it, 2 those after it.
    With a head, its prediction is one more layer.
    """
    time, size = x.shape
    heads = len(blocks[0].gate_bias)
    half = size // heads // 2
    ahead = torch.arange(time)[None, :] - torch.arange(time)[:, None]  # [T, T], positive for later tokens
    seen = ahead.abs() <= window
    if direction:
        seen &= ahead <= 0 if direction == 1 else ahead >= 0
    angles = torch.arange(time).to(x)[:, None] / 10_000.0 ** (torch.arange(half).to(x) / half)  # [T, E/2]

    def norm(x: Tensor) -> Tensor:
        return (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()

    def gelu(x: Tensor) -> Tensor:
        return x * (1 + torch.erf(x / 2**0.5)) / 2

    def rotated(x: Tensor) -> Tensor:
        a, b = (x / (x.square().mean(-1, keepdim=True) + torch.finfo(x.dtype).eps).sqrt()).chunk(2, dim=-1)
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], dim=-1)

    x = norm(x)
    states = [x]
    for weights in blocks:
        qkv, out, up, down = (m.dense() if isinstance(m, Int8Matrix) else m for m in weights[:4])
        y = norm(x)
        q, k, v = (y @ part.T for part in qkv.chunk(3))
        attended = []
        for number, part in enumerate(torch.arange(size).chunk(heads)):
            scores = rotated(q[:, part]) @ rotated(k[:, part]).T / (2 * half) ** 0.5
            mixed = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v[:, part]
            gate = (y @ weights.gate_weight[number] + weights.gate_bias[number]).sigmoid()
            attended.append(mixed * gate[:, None])
        x = x + norm(torch.cat(attended, dim=-1)) @ out.T
        values, gates = (norm(x) @ up.T).chunk(2, dim=-1)
        x = x + norm(values * gelu(gates)) @ down.T
        states.append(norm(x))
    layers = [states[number] for number in outputs]
    if head is not None:
        weight = head.weight.dense() if isinstance(head.weight, Int8Matrix) else head.weight
        prediction = norm(gelu(states[-1] @ weight.T + head.bias)) * (size / len(weight)) ** 0.5
        layers.append(torch.cat([prediction, prediction.new_zeros(time, size - len(weight))], dim=-1))
    return torch.stack(layers)

"""All Transformer blocks over a flat batch of sentences: the one dispatcher, which can say what it chose and why.

Paths, all the same function (tests compare each with `elmokit.ops.reference`):
    packed   torch's operations; the only one with gradients
    native   compiled for this machine's CPU (`elmokit.ops.native`), float32 and int8
    cuda     Triton kernels and CUDA graphs (`elmokit.ops.gpu`), float32, float16 and bfloat16
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from elmokit.ops import kernels, native
from elmokit.ops.attention import Segments, attend, rotary, segment_turns, turn, turning
from elmokit.ops.int8 import Int8Matrix
from elmokit.ops.linear import HalfBlock, filled, half_blocks, half_product, linear, linear_again
from elmokit.ops.native import transformer as compiled
from elmokit.ops.paths import PathChoice, forced_choice
from elmokit.ops.weights import BlockStack, BlockWeights, HeadWeights

_VECTOR = 16
"""Floats that the widest instructions take together."""
_ONE_THREAD = 32_768
"""Numbers that torch's elementwise operations leave to one thread."""
EPSILON = torch.finfo(torch.float32).eps
"""What is added to the mean square of a head's query or key, as torch's `rms_norm` does."""
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
"""q, k, v [N, H, E] → [N, H, E]."""


def norm(x: Tensor) -> Tensor:
    """Layer norm without weights: mean 0 and variance 1 over the last dimension, in the dtype of x."""
    return torch.layer_norm(x, x.shape[-1:]).to(x.dtype)


def block(
    x: Tensor,
    weights: BlockWeights,
    attention: Attention,
    cos: Tensor,
    sin: Tensor,
    dropout: float = 0.0,
) -> Tensor:
    """x [N, P] → [N, P]: gated attention, then a gated feed-forward part, each normed before and inside."""
    rows, size = x.shape
    heads = weights.n_heads
    y = norm(x)
    qkv = linear_again(y, weights.qkv).view(rows, 3 * heads, size // heads)
    q, k = turn(qkv[:, : 2 * heads], cos, sin).chunk(2, dim=1)
    seen = attention(q, k, qkv[:, 2 * heads :])
    seen = seen * sigmoid(linear_again(y, weights.gate_weight, weights.gate_bias)).unsqueeze(-1)
    x = x + _drop(linear_again(norm(seen.reshape(rows, size)), weights.out), dropout)
    values, gates = linear_again(norm(x), weights.up).chunk(2, dim=-1)
    return x + _drop(linear_again(norm(values * gelu(gates)), weights.down), dropout)


def half_block(x: Tensor, weights: HalfBlock, heads: int, attention: Attention, turns: Tensor) -> Tensor:
    """`block` in fewer of torch's operations, each of which takes longer to begin than a short sentence to compute.

    turns [N, 1, E / 2] are those of `segment_turns`. Every operation rounds each number by itself, or sums along a row,
    so a sentence has the same vectors in any batch.
    """
    rows, width = x.shape
    size = width // heads
    found = half_product(norm(x), weights.qkv_gates)
    qk = found[:, : 2 * width].view(rows, 2 * heads, size)
    lengths = (qk * qk).sum(dim=-1, keepdim=True).add_(size * EPSILON).sqrt_()
    pairs = torch.view_as_complex((qk / lengths).view(rows, 2 * heads, size // 2, 2))
    q, k = torch.view_as_real(turn_pairs(pairs, turns)).view(rows, 2, heads, size).unbind(1)
    seen = attention(q, k, found[:, 2 * width : 3 * width].view(rows, heads, size))
    seen = seen.mul_(sigmoid(found[:, 3 * width :])[:, :heads].unsqueeze(-1))
    x = half_product(norm(seen.reshape(rows, width)), weights.out).add_(x)
    values, gates = half_product(norm(x), weights.up).chunk(2, dim=-1)
    return half_product(norm(gelu(gates).mul_(values)), weights.down).add_(x)


def turn_pairs(pairs: Tensor, turns: Tensor) -> Tensor:
    """pairs [N, 2H, E / 2] · turns [N, 1, E / 2], complex, with so few rows at a time that one thread has whole rows.

    A complex number rounds otherwise at the end of a thread's part than in a vector of several.
    """
    rows = max(1, _ONE_THREAD // pairs[0].numel())
    if len(pairs) <= rows:
        return pairs * turns
    return torch.cat([pairs[at : at + rows] * turns[at : at + rows] for at in range(0, len(pairs), rows)])


def _drop(x: Tensor, dropout: float) -> Tensor:
    return F.dropout(x, dropout) if dropout else x


def transformer(
    x: Tensor,
    segments: Segments,
    blocks: Sequence[BlockWeights],
    *,
    window: int,
    outputs: Sequence[int],
    dropout: float = 0.0,
    head: HeadWeights | None = None,
) -> Tensor:
    """x [N, P] → [len(outputs), N, P]: the normed numbers after so many blocks, 0 for the input.

    With a head, one more follows: its `prediction` from the numbers after the last block.
    """
    choice = choose(x, blocks, gradient=dropout > 0 or needs_gradient(x, blocks, head))
    if choice.path == "native":
        return compiled.transformer_native(x, segments, blocks, window=window, outputs=outputs, head=head)
    if choice.path == "cuda" and x.numel():
        from elmokit.ops.gpu.transformer import transformer_cuda

        wanted = outputs if head is None else [*outputs, len(blocks)]
        found = transformer_cuda(x, segments, blocks, window=window, outputs=wanted)
        if head is not None:
            with torch.no_grad(), torch.autocast(x.device.type, enabled=False):  # as the blocks are computed
                found[-1] = prediction(found[-1], HeadWeights(*(part.to(x.dtype) for part in head.tensors())))
        return found
    if head is not None:
        found = transformer(x, segments, blocks, window=window, outputs=[*outputs, len(blocks)], dropout=dropout)
        return torch.cat([found[:-1], prediction(found[-1], head).unsqueeze(0)])
    return transformer_packed(x, segments, blocks, window=window, outputs=outputs, dropout=dropout)


def choose(x: Tensor, blocks: Sequence[BlockWeights], *, gradient: bool) -> PathChoice:
    """The path for inputs like x."""
    if (asked_for := forced_choice()) is not None:
        return asked_for
    if gradient:
        return PathChoice("packed", lambda: "gradients are wanted")
    if x.device.type == "cpu":
        against = native.reason_against(x.dtype, int8=isinstance(blocks[0].qkv, Int8Matrix))
        against = against or compiled.reason_against(x, blocks)
        return PathChoice("packed", lambda: against) if against else PathChoice("native", native.description)
    if not kernels.serve(x.device):
        return PathChoice("packed", lambda: f"there are no kernels for {x.device.type} here")
    from elmokit.ops.gpu import transformer as gpu

    unfit = gpu.reason_against(x.dtype, blocks)
    return PathChoice("packed", lambda: unfit) if unfit else PathChoice("cuda", lambda: gpu.description(x))


def needs_gradient(x: Tensor, blocks: Sequence[BlockWeights], head: HeadWeights | None = None) -> bool:
    """Whether torch would record what is done with these."""
    if not torch.is_grad_enabled():
        return False
    given = (x, *(m for b in blocks for m in b), *(head or ()))
    return any(isinstance(part, Tensor) and part.requires_grad for part in given)


def softmax_input(x: Tensor, head: HeadWeights) -> Tensor:
    """x [N, P], normed after the last block → what the softmax reads [N, S], normed."""
    return norm(gelu(linear(x, head.weight, head.bias)))


def prediction(x: Tensor, head: HeadWeights) -> Tensor:
    """x [N, P], normed after the last block → `softmax_input` as a layer [N, P]: as long, with zeros at the end."""
    found, size = softmax_input(x, head), x.shape[1]
    return F.pad(found * math.sqrt(size / found.shape[1]), (0, size - found.shape[1]))


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
    if (halves := _half_blocks(x, blocks)) is not None:
        return _transformer_halves(x, segments, halves, blocks[0].n_heads, window, outputs)
    rows = len(x)
    if x.device.type == "cpu" and filled(rows) != rows:  # once here, and not before every product
        x = F.pad(x, (0, 0, 0, filled(rows) - rows))
    step = _stepper(x, segments, blocks[0].n_heads, window)
    x = norm(x)
    found = {0: x}
    for number, weights in enumerate(blocks, start=1):
        x = step(x, weights, dropout)
        if number in outputs:
            found[number] = norm(x)
    return torch.stack([found[number][:rows] for number in outputs])


def _half_blocks(x: Tensor, blocks: Sequence[BlockWeights]) -> Sequence[HalfBlock] | None:
    """The blocks for torch's float16 products; None where they would change the numbers, or others are faster."""
    if x.device.type != "cpu" or x.dtype != torch.float32 or not len(x) or needs_gradient(x, blocks):
        return None
    if not blocks or native.reason_against(x.dtype, int8=False) is None:
        return None
    return half_blocks(blocks if isinstance(blocks, BlockStack) else BlockStack(blocks))


def _transformer_halves(
    x: Tensor, segments: Segments, blocks: Sequence[HalfBlock], heads: int, window: int, outputs: Sequence[int]
) -> Tensor:
    """`transformer_packed` with float16 products and without gradients."""
    turns = segment_turns(segments, x.shape[1] // heads).unsqueeze(1)
    x = norm(x)
    found = {0: x}
    for number, weights in enumerate(blocks, start=1):
        x = half_block(x, weights, heads, lambda q, k, v: attend(q, k, v, segments, window), turns)
        if number in outputs:
            found[number] = norm(x)
    return torch.stack([found[number] for number in outputs])


def _stepper(
    x: Tensor, segments: Segments, n_heads: int, window: int
) -> Callable[[Tensor, BlockWeights, float], Tensor]:
    """What takes x through one block, with the attention of these segments."""
    size = x.shape[1] // n_heads
    if not kernels.serve(x.device):
        places = F.pad(segments.positions, (0, len(x) - segments.starts[-1]))
        cos, sin = turning(*rotary(places, size, x.dtype, x.device, longest=segments.longest))
        return lambda x, weights, dropout: block(
            x, weights, lambda q, k, v: attend(q, k, v, segments, window), cos, sin, dropout
        )
    given = segments.on_gpu
    first, last, positions = segments.reach(window).to(x.device) if given is None else given
    cos, sin = turning(*rotary(positions, size, x.dtype, x.device, longest=segments.longest))
    # Batches that come with it are those of training, all of one size: they are worth compiling for.
    run = _block_on_gpu if given is None or not torch.is_grad_enabled() else _compiled_block
    return lambda x, weights, dropout: run(x, weights, first, last, window, cos, sin, dropout)


def _block_on_gpu(
    x: Tensor,
    weights: BlockWeights,
    first: Tensor,
    last: Tensor,
    window: int,
    cos: Tensor,
    sin: Tensor,
    dropout: float,
) -> Tensor:
    """`block` with the attention of `elmokit.ops.attention_triton`."""
    from elmokit.ops.attention_triton import attend as attend_on_gpu

    return block(x, weights, lambda q, k, v: attend_on_gpu(q, k, v, first, last, window), cos, sin, dropout)


class _CompiledBlock:
    """`_block_on_gpu` compiled by torch, or as it is where torch cannot compile it on this machine."""

    def __init__(self) -> None:
        self._run: Callable[..., Tensor] | None = None

    def __call__(self, *arguments: Any) -> Tensor:  # noqa: ANN401
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what torch's compiler says about torch itself
                if self._run is None:
                    self._run = torch.compile(_block_on_gpu, dynamic=False)
                return self._run(*arguments)
        except RuntimeError as error:
            if self._run is _block_on_gpu or isinstance(error, torch.OutOfMemoryError):
                raise
            reason = str(error).strip().splitlines()[0]
            warnings.warn(f"torch.compile failed, so training is slower ({reason})", RuntimeWarning, stacklevel=2)
            self._run = _block_on_gpu
            return self._run(*arguments)


_compiled_block = _CompiledBlock()


def gelu(x: Tensor) -> Tensor:
    """x [N, I] → x Φ(x). On the CPU in a way that gives a number the same last digit wherever it is in a tensor.

    torch rounds what does not fill a vector another way, and so do the ends of what it gives to a thread. Its oneDNN
    takes rows that follow each other, and rounds otherwise too: half of a wider tensor's columns is copied, because a
    single row of it would already follow itself.
    """
    if x.device.type != "cpu":
        return F.gelu(x)
    x = x.contiguous()
    return (torch.erf(x * math.sqrt(0.5)) + 1) * x * 0.5 if x.shape[1] % _VECTOR else _by_rows(F.gelu, x)


def sigmoid(x: Tensor) -> Tensor:
    """x [N, C] → 1 / (1 + exp(−x)), like `gelu` the same anywhere in a tensor."""
    if x.device.type != "cpu":
        return torch.sigmoid(x)
    return (torch.exp(-x) + 1).reciprocal() if x.shape[1] % (2 * _VECTOR) else _by_rows(torch.sigmoid, x)


def _by_rows(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """An elementwise function, called with so few rows at a time that torch leaves them to one thread."""
    rows = max(1, _ONE_THREAD // x.shape[1])
    # Split, because the gradient of a slice is as large as all of x.
    return function(x) if len(x) <= rows else torch.cat([function(part) for part in torch.split(x, rows)])

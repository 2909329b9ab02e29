"""All Transformer blocks over a flat batch of sentences: a dispatcher, which can say what it chose and why.

All paths compute the same function (tests compare each with `elmokit.ops.reference`):
    packed   torch's operations; the only path with gradients
    native   kernels compiled for this machine's CPU (`elmokit.ops.native`), float32 and int8
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
from elmokit.ops.attention import Segments, attend, rotary, rotate, rotation_factors, segment_rotations
from elmokit.ops.int8 import Int8Matrix
from elmokit.ops.linear import Float16Block, filled, float16_blocks, float16_product, linear, linear_with_copy
from elmokit.ops.native import transformer as compiled
from elmokit.ops.paths import PathChoice, forced_choice
from elmokit.ops.weights import BlockStack, BlockWeights, HeadWeights

_VECTOR = 16
"""Floats in the widest vector register."""
_ONE_THREAD = 32_768
"""The size of the largest tensor for which torch's elementwise operations use one thread."""
EPSILON = torch.finfo(torch.float32).eps
"""Added to the mean square of a head's query or key, as in torch's `rms_norm`."""
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
    """x [N, P] → [N, P]: gated attention, then a gated feed-forward part, both with a norm before them and inside."""
    rows, size = x.shape
    heads = weights.n_heads
    y = norm(x)
    qkv = linear_with_copy(y, weights.qkv).view(rows, 3 * heads, size // heads)
    q, k = rotate(qkv[:, : 2 * heads], cos, sin).chunk(2, dim=1)
    seen = attention(q, k, qkv[:, 2 * heads :])
    seen = seen * sigmoid(linear_with_copy(y, weights.gate_weight, weights.gate_bias)).unsqueeze(-1)
    x = x + _drop(linear_with_copy(norm(seen.reshape(rows, size)), weights.out), dropout)
    values, gates = linear_with_copy(norm(x), weights.up).chunk(2, dim=-1)
    return x + _drop(linear_with_copy(norm(values * gelu(gates)), weights.down), dropout)


def float16_block(x: Tensor, weights: Float16Block, heads: int, attention: Attention, rotations: Tensor) -> Tensor:
    """`block` with float16 products, in few operations of torch, because their overhead dominates short sentences.

    rotations [N, 1, E / 2] are those of `segment_rotations`. Every operation rounds each number separately, or sums
    along a row, so a sentence has the same vectors in any batch.
    """
    rows, width = x.shape
    size = width // heads
    found = float16_product(norm(x), weights.qkv_gates)
    qk = found[:, : 2 * width].view(rows, 2 * heads, size)
    lengths = (qk * qk).sum(dim=-1, keepdim=True).add_(size * EPSILON).sqrt_()
    pairs = torch.view_as_complex((qk / lengths).view(rows, 2 * heads, size // 2, 2))
    q, k = torch.view_as_real(rotate_pairs(pairs, rotations)).view(rows, 2, heads, size).unbind(1)
    seen = attention(q, k, found[:, 2 * width : 3 * width].view(rows, heads, size))
    seen = seen.mul_(sigmoid(found[:, 3 * width :])[:, :heads].unsqueeze(-1))
    x = float16_product(norm(seen.reshape(rows, width)), weights.out).add_(x)
    values, gates = float16_product(norm(x), weights.up).chunk(2, dim=-1)
    return float16_product(norm(gelu(gates).mul_(values)), weights.down).add_(x)


def rotate_pairs(pairs: Tensor, rotations: Tensor) -> Tensor:
    """pairs [N, 2H, E / 2] · rotations [N, 1, E / 2], complex, in parts so small that torch uses one thread for each.

    torch rounds complex numbers differently at the end of a thread's share.
    """
    rows = max(1, _ONE_THREAD // pairs[0].numel())
    if len(pairs) <= rows:
        return pairs * rotations
    return torch.cat([pairs[at : at + rows] * rotations[at : at + rows] for at in range(0, len(pairs), rows)])


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
    """x [N, P] → [len(outputs), N, P]: the normalised states after these blocks; 0 is the input.

    With a head, its `prediction` from the states after the last block is one more output.
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
        reason = native.reason_against(x.dtype, int8=isinstance(blocks[0].qkv, Int8Matrix))
        reason = reason or compiled.reason_against(x, blocks)
        return PathChoice("packed", lambda: reason) if reason else PathChoice("native", native.description)
    if not kernels.available(x.device):
        return PathChoice("packed", lambda: f"there are no kernels for {x.device.type} here")
    from elmokit.ops.gpu import transformer as gpu

    unfit = gpu.reason_against(x.dtype, blocks)
    return PathChoice("packed", lambda: unfit) if unfit else PathChoice("cuda", lambda: gpu.description(x))


def needs_gradient(x: Tensor, blocks: Sequence[BlockWeights], head: HeadWeights | None = None) -> bool:
    """Whether torch would record operations on these tensors to compute gradients."""
    if not torch.is_grad_enabled():
        return False
    given = (x, *(m for b in blocks for m in b), *(head or ()))
    return any(isinstance(part, Tensor) and part.requires_grad for part in given)


def softmax_input(x: Tensor, head: HeadWeights) -> Tensor:
    """x [N, P], normalised after the last block → what the softmax reads [N, S], normalised."""
    return norm(gelu(linear(x, head.weight, head.bias)))


def prediction(x: Tensor, head: HeadWeights) -> Tensor:
    """x [N, P], normalised after the last block → `softmax_input` as a layer [N, P]: scaled, and padded with zeros."""
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
    """`transformer` in torch's operations."""
    if (packed := _float16_blocks(x, blocks)) is not None:
        return _transformer_float16(x, segments, packed, blocks[0].n_heads, window, outputs)
    rows = len(x)
    if x.device.type == "cpu" and filled(rows) != rows:  # pad once here, not before every product
        x = F.pad(x, (0, 0, 0, filled(rows) - rows))
    step = _stepper(x, segments, blocks[0].n_heads, window)
    x = norm(x)
    found = {0: x}
    for number, weights in enumerate(blocks, start=1):
        x = step(x, weights, dropout)
        if number in outputs:
            found[number] = norm(x)
    return torch.stack([found[number][:rows] for number in outputs])


def _float16_blocks(x: Tensor, blocks: Sequence[BlockWeights]) -> Sequence[Float16Block] | None:
    """The blocks for torch's float16 products; None if those would change the result or are not the fastest."""
    if x.device.type != "cpu" or x.dtype != torch.float32 or not len(x) or needs_gradient(x, blocks):
        return None
    if not blocks or native.reason_against(x.dtype, int8=False) is None:
        return None
    return float16_blocks(blocks if isinstance(blocks, BlockStack) else BlockStack(blocks))


def _transformer_float16(
    x: Tensor, segments: Segments, blocks: Sequence[Float16Block], heads: int, window: int, outputs: Sequence[int]
) -> Tensor:
    """`transformer_packed` with float16 products, without gradients."""
    rotations = segment_rotations(segments, x.shape[1] // heads).unsqueeze(1)
    x = norm(x)
    found = {0: x}
    for number, weights in enumerate(blocks, start=1):
        x = float16_block(x, weights, heads, lambda q, k, v: attend(q, k, v, segments, window), rotations)
        if number in outputs:
            found[number] = norm(x)
    return torch.stack([found[number] for number in outputs])


def _stepper(
    x: Tensor, segments: Segments, n_heads: int, window: int
) -> Callable[[Tensor, BlockWeights, float], Tensor]:
    """A function that computes one block, with the attention of these segments."""
    size = x.shape[1] // n_heads
    if not kernels.available(x.device):
        positions = F.pad(segments.positions, (0, len(x) - segments.starts[-1]))
        cos, sin = rotation_factors(*rotary(positions, size, x.dtype, x.device, longest=segments.longest))
        return lambda x, weights, dropout: block(
            x, weights, lambda q, k, v: attend(q, k, v, segments, window), cos, sin, dropout
        )
    given = segments.on_gpu
    first, last, positions = segments.reach(window).to(x.device) if given is None else given
    cos, sin = rotation_factors(*rotary(positions, size, x.dtype, x.device, longest=segments.longest))
    # Only batches of training have `on_gpu`. All of them have the same size, so compiling saves time.
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
    """`_block_on_gpu` compiled by torch, or uncompiled if torch cannot compile it on this machine."""

    def __init__(self) -> None:
        self._run: Callable[..., Tensor] | None = None

    def __call__(self, *arguments: Any) -> Tensor:  # noqa: ANN401
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's compiler warns about torch itself
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
    """x [N, I] → x Φ(x). On the CPU, a number has the same result at any position in a tensor, bit for bit.

    torch rounds differently where numbers do not fill a vector register, as at the end of a thread's share. oneDNN,
    which torch calls for contiguous rows, also rounds differently. So x is copied if it is not contiguous: a single row
    of it would count as contiguous, and several rows would not.
    """
    if x.device.type != "cpu":
        return F.gelu(x)
    x = x.contiguous()
    return (torch.erf(x * math.sqrt(0.5)) + 1) * x * 0.5 if x.shape[1] % _VECTOR else _by_rows(F.gelu, x)


def sigmoid(x: Tensor) -> Tensor:
    """x [N, C] → 1 / (1 + exp(−x)); as in `gelu`, the result does not depend on the position in the tensor."""
    if x.device.type != "cpu":
        return torch.sigmoid(x)
    return (torch.exp(-x) + 1).reciprocal() if x.shape[1] % (2 * _VECTOR) else _by_rows(torch.sigmoid, x)


def _by_rows(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """An elementwise function, called with so few rows at a time that torch uses one thread."""
    rows = max(1, _ONE_THREAD // x.shape[1])
    # torch.split, because the gradient of a slice is as large as x.
    return function(x) if len(x) <= rows else torch.cat([function(part) for part in torch.split(x, rows)])

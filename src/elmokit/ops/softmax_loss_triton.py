"""The full softmax and its loss on a CUDA GPU: cuBLAS for the three products, and a Triton kernel between them.

N rows in chunks of R, V words, P outputs. The kernel reads a chunk's logits once for their softmax and, if gradients
are wanted, once more to overwrite them with the gradients.
"""

# ruff: noqa: N803  (dimension letters, as everywhere)

from __future__ import annotations

import torch
from torch import Tensor

from elmokit.ops.optional_triton import jit, tl, triton

ALIGNMENT = 64
"""The length of a row of logits in memory is a multiple of this, because the tensor cores need aligned rows."""
LANES = 512
"""Groups of eight logits that a program processes at once."""
WARPS = 16


@jit()
def _scores(logits: tl.tensor, bias: tl.tensor, row: tl.tensor, column: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """Logits with their bias; −1e30 where the mask is false, which is 0 in a softmax."""
    b = tl.load(bias + column, mask=mask, other=-1e30)
    return tl.load(logits + row + column, mask=mask, other=0).to(b.dtype) + b


@jit()
def _softmax_in_place(
    logits: tl.tensor,  # [R, V], rows `stride` apart
    bias: tl.tensor,  # [V]
    targets: tl.tensor,  # [R]
    row_weight: tl.tensor,  # [R]
    losses: tl.tensor,  # [R]
    stride: tl.tensor,
    V: tl.constexpr,
    WANTED: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    """−log p of one row's target; if WANTED, (p − onehot)·row_weight overwrites the logits of the row.

    Each lane has the largest of its own logits so far, and a sum relative to it, for eight logits at a time. The
    results of the lanes are combined once, at the end of the row.
    """
    real = bias.dtype.element_ty
    n = tl.program_id(0)
    row = n.to(tl.int64) * stride
    target = tl.load(targets + n)
    # Read before the lanes are combined, and so before any logit of the row is overwritten.
    score = tl.load(logits + row + target, mask=target >= 0, other=0).to(real)
    score += tl.load(bias + target, mask=target >= 0, other=0)
    column = tl.arange(0, LANES)[:, None] * 8 + tl.arange(0, 8)[None, :]
    largest = tl.full((LANES,), -1e30, real)
    total = tl.zeros((LANES,), real)
    for start in range(0, V, LANES * 8):
        x = _scores(logits, bias, row, start + column, start + column < V)
        before = largest
        largest = tl.maximum(largest, tl.max(x, 1))
        total = total * tl.exp(before - largest) + tl.sum(tl.exp(x - largest[:, None]), 1)
    most = tl.max(largest, 0)
    log_total = most + tl.log(tl.sum(total * tl.exp(largest - most), 0))
    tl.store(losses + n, tl.where(target >= 0, log_total - score, 0))
    if WANTED:
        scale = tl.load(row_weight + n)
        for start in range(0, V, LANES * 8):
            mask = start + column < V
            p = tl.exp(_scores(logits, bias, row, start + column, mask) - log_total) * scale
            # Not p·0, which could be NaN: an ignored row's gradient is 0 for any logits.
            tl.store(logits + row + start + column, tl.where(target >= 0, p, 0), mask=mask)
        tl.debug_barrier()
        tl.store(logits + row + target, (tl.exp(score - log_total) - 1) * scale, mask=target >= 0)


def losses_and_gradients(
    top: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, row_weight: Tensor, *, size: int, wanted: bool
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor] | None]:
    """−log p [N], and if `wanted` the gradients of Σ row_weight·(−log p), computed in chunks of `size` rows."""
    real = torch.float64 if top.dtype == torch.float64 else torch.float32
    rows, words = len(top), len(weight)
    x, w, b, scale = (
        top.contiguous(),
        weight.to(top.dtype),
        bias.to(real).contiguous(),
        row_weight.to(real).contiguous(),
    )
    targets = targets.contiguous()
    losses = torch.empty(rows, dtype=real, device=top.device)
    stride = triton.cdiv(words, ALIGNMENT) * ALIGNMENT
    buffer = top.new_empty(size, stride)
    dtop = torch.empty_like(x)
    dweight = torch.zeros(w.shape, dtype=real, device=w.device) if wanted else None
    dbias = torch.zeros_like(b)
    for start in range(0, rows, size):
        chunk = slice(start, start + size)
        count = len(x[chunk])
        logits = buffer[:count, :words]
        torch.mm(x[chunk], w.T, out=logits)
        _softmax_in_place[(count,)](
            *(logits, b, targets[chunk], scale[chunk], losses[chunk], stride, words, wanted, LANES), num_warps=WARPS
        )
        if dweight is not None:
            torch.mm(logits, w, out=dtop[chunk])
            add_product(dweight, logits.T, x[chunk])
            dbias += logits.sum(dim=0, dtype=real)
    if dweight is None:
        return losses, None
    return losses, (dtop, dweight.to(weight.dtype), dbias.to(bias.dtype))


def add_product(total: Tensor, one: Tensor, other: Tensor) -> None:
    """total [N, M] += one [N, K] · other [K, M]; float16 and bfloat16 products are not rounded before the sum."""
    if one.dtype == total.dtype:
        total.addmm_(one, other)
    elif not hasattr(torch.ops.aten.addmm, "dtype_out"):  # before torch 2.8
        total += torch.mm(one, other)
    else:
        torch.addmm(total, one, other, out_dtype=total.dtype, out=total)

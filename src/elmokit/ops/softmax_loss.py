"""The full softmax and its loss over a large vocabulary, in chunks of rows: [tokens, vocabulary] is never in memory.

The forward pass computes the gradients while a chunk's logits are in memory; the backward pass only scales them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from elmokit.errors import ElmoError
from elmokit.ops import kernels
from elmokit.ops.kernels import AutogradContext

CPU_LOGITS = 2**22
"""Logits in memory at once on the CPU: so few that they stay in its caches between the passes over them."""
CUDA_LOGITS = 2**28
"""Logits in memory at once on a GPU: many, because every chunk reads and writes the whole gradient of the weight."""
ROWS = 128
"""The number of rows of a chunk is a multiple of this."""


def chunk_rows(device: torch.device, words: int) -> int:
    """The number of rows of logits, over this number of words, that are in memory at once."""
    logits = CUDA_LOGITS if device.type == "cuda" else CPU_LOGITS
    return max(logits // max(words, 1) // ROWS, 1) * ROWS


def softmax_loss(
    top: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, *, row_weight: Tensor | float
) -> tuple[Tensor, Tensor]:
    """top [N, P], weight [V, P], bias [V], targets [N] → Σ row_weight·(−log p[target]), and the float32 −log p [N].

    Rows with a negative target are ignored: their −log p is 0. `row_weight` is a number or a tensor [N] and gets no
    gradient; −log p [N] is detached. The products are in top's dtype, the softmax is in float32 (float64 for float64).
    """
    rows, words = len(top), len(weight)
    if targets.shape != (rows,) or bias.shape != (words,):
        raise ElmoError(
            f"targets and bias must have the shapes [{rows}] and [{words}] for this softmax, "
            f"got {list(targets.shape)} and {list(bias.shape)}"
        )
    if not isinstance(row_weight, Tensor):
        row_weight = torch.full((rows,), row_weight, dtype=torch.float32, device=top.device)
    if row_weight.shape != (rows,):
        raise ElmoError(f"row_weight must be a number or have the shape [{rows}], got {list(row_weight.shape)}")
    wanted = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (top, weight, bias))
    with torch.autocast(top.device.type, enabled=False):
        found: tuple[Tensor, Tensor] = _SoftmaxLoss.apply(  # type: ignore[no-untyped-call]
            top, weight, bias, targets, row_weight.detach(), wanted
        )
    return found


class _SoftmaxLoss(torch.autograd.Function):
    """The loss as one node of the graph."""

    @staticmethod
    def forward(
        ctx: AutogradContext,
        top: Tensor,
        weight: Tensor,
        bias: Tensor,
        targets: Tensor,
        row_weight: Tensor,
        wanted: bool,
    ) -> tuple[Tensor, Tensor]:
        size = min(chunk_rows(top.device, len(weight)), max(len(top), 1))
        run = _losses_and_gradients
        if kernels.available(top.device):
            from elmokit.ops.softmax_loss_triton import losses_and_gradients as run
        losses, gradients = run(top, weight, bias, targets, row_weight, size=size, wanted=wanted)
        if gradients is not None:
            ctx.save_for_backward(*gradients)
        total, shown = (losses * row_weight).sum(), losses.float()
        ctx.mark_non_differentiable(shown)
        return total, shown

    @staticmethod
    @once_differentiable
    def backward(ctx: AutogradContext, upstream: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        gradients = (
            (gradient * upstream).to(gradient.dtype) if needed else None
            for gradient, needed in zip(ctx.saved_tensors, ctx.needs_input_grad, strict=False)
        )
        return (*gradients, None, None, None)


def _losses_and_gradients(
    top: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, row_weight: Tensor, *, size: int, wanted: bool
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor] | None]:
    """−log p [N], and if `wanted` the gradients of Σ row_weight·(−log p), in torch's operations."""
    dtype = torch.float64 if top.dtype == torch.float64 else torch.float32
    rows, words = len(top), len(weight)
    x, w, b, scale = top.detach().to(dtype), weight.detach().to(dtype), bias.detach().to(dtype), row_weight.to(dtype)
    losses = torch.empty(rows, dtype=dtype, device=top.device)
    buffer = torch.empty(size, words, dtype=dtype, device=top.device)
    dtop, dweight, dbias = torch.empty_like(x), torch.zeros_like(w), torch.zeros_like(b)
    for start in range(0, rows, size):
        chunk = slice(start, start + size)
        logits = torch.addmm(b, x[chunk], w.T, out=buffer[: len(x[chunk])])
        losses[chunk] = losses_in_place(logits, targets[chunk], scale[chunk], wanted=wanted)
        if wanted:
            torch.mm(logits, w, out=dtop[chunk])
            dweight.addmm_(logits.T, x[chunk])
            dbias += logits.sum(dim=0)
    return losses, (dtop.to(top.dtype), dweight.to(weight.dtype), dbias.to(bias.dtype)) if wanted else None


def losses_in_place(logits: Tensor, targets: Tensor, row_weight: Tensor, *, wanted: bool) -> Tensor:
    """logits [R, V], targets [R] → −log p [R], 0 in ignored rows; if `wanted`, gradients overwrite the logits.

    The gradient of Σ row_weight·(−log p) is (p − onehot)·row_weight, and 0 in ignored rows.
    """
    ignored = targets < 0
    column = targets.clamp(min=0).unsqueeze(1)
    scores = logits.gather(1, column)
    if wanted:
        # torch.softmax takes one pass and is faster than exp. Its largest number is 1 / Σ exp(logit − largest).
        largest = logits.amax(dim=1, keepdim=True)
        torch.softmax(logits, dim=1, out=logits)
        log_total = largest - logits.amax(dim=1, keepdim=True).log_()
        scale = row_weight.masked_fill(ignored, 0).unsqueeze(1)
        logits.mul_(scale)
        logits.scatter_add_(1, column, -scale)
    else:
        log_total = logits.logsumexp(dim=1, keepdim=True)
    return (log_total - scores).squeeze(1).masked_fill_(ignored, 0)

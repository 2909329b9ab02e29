"""Attention inside segments of a flat batch on a CUDA GPU: Triton kernels, forward and backward, as one operation.

N tokens, H heads, E numbers per head. A token sees a run of tokens, from `first` to `last`, and both never fall from
token to token. So a program has BLOCK queries (or keys) of one head, and visits only the blocks that those reach.
"""

# ruff: noqa: N803  (dimension letters, as everywhere)

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from elmokit.ops.optional_triton import jit, tl, triton

LARGEST_BLOCK = 64
TILE_BYTES = 8192
"""The most bytes of a block's vectors: several blocks must fit into the shared memory of a small GPU."""
_LOG2_E = 1.4426950408889634


@jit()
def _tile(base: tl.tensor, at: tl.tensor, N: tl.tensor, stride: tl.tensor, E: tl.constexpr, WIDE: tl.constexpr) -> Any:  # noqa: ANN401
    """Some rows of one head, 0 past the end."""
    e = tl.arange(0, WIDE)
    mask = (at < N)[:, None] & (e < E)[None, :]
    return tl.load(base + at.to(tl.int64)[:, None] * stride + e[None, :], mask=mask, other=0.0)


@jit()
def _store(
    base: tl.tensor,
    at: tl.tensor,
    values: tl.tensor,
    N: tl.tensor,
    H: tl.tensor,
    E: tl.constexpr,
    WIDE: tl.constexpr,
) -> None:
    """Store rows of one head in an array [N, H, E]; `base` is the address of the head's first number."""
    e = tl.arange(0, WIDE)
    mask = (at < N)[:, None] & (e < E)[None, :]
    tl.store(base + at.to(tl.int64)[:, None] * (H * E) + e[None, :], values, mask=mask)


@jit("N")
def _forward(
    q: tl.tensor,  # [N, H, E], with any strides of rows and heads, like k and v
    k: tl.tensor,
    v: tl.tensor,
    first: tl.tensor,  # [N]
    last: tl.tensor,  # [N]
    out: tl.tensor,  # [N, H, E]
    level: tl.tensor,  # [N, H]: log2 of the sum of a query's weights
    N: tl.tensor,
    H: tl.tensor,
    q_row: tl.tensor,
    q_head: tl.tensor,
    k_row: tl.tensor,
    k_head: tl.tensor,
    v_row: tl.tensor,
    v_head: tl.tensor,
    scale: tl.tensor,
    E: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The weighted mean of the values that a block of queries sees, and its level for the backward pass."""
    start, h = tl.program_id(0) * BLOCK, tl.program_id(1)
    rows = start + tl.arange(0, BLOCK)
    lowest = tl.load(first + rows, mask=rows < N, other=N)
    highest = tl.load(last + rows, mask=rows < N, other=-1)
    x = _tile(q + h * q_head, rows, N, q_row, E, WIDE)
    top = tl.full((BLOCK,), -1e30, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    sums = tl.zeros((BLOCK, WIDE), tl.float32)
    begin = tl.load(first + start) // BLOCK * BLOCK
    end = tl.load(last + tl.minimum(start + BLOCK, N) - 1) + 1
    for key in range(begin, end, BLOCK):
        columns = key + tl.arange(0, BLOCK)
        seen = (columns[None, :] >= lowest[:, None]) & (columns[None, :] <= highest[:, None])
        y = _tile(k + h * k_head, columns, N, k_row, E, WIDE)
        scores = tl.where(seen, tl.dot(x, tl.trans(y), input_precision="ieee") * scale, -1e30)
        before = top
        top = tl.maximum(top, tl.max(scores, 1))
        shrink = tl.exp2(before - top)
        weights = tl.where(seen, tl.exp2(scores - top[:, None]), 0.0)
        total = total * shrink + tl.sum(weights, 1)
        values = _tile(v + h * v_head, columns, N, v_row, E, WIDE)
        sums = sums * shrink[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
    total = tl.where(rows < N, total, 1.0)
    _store(out + h * E, rows, sums / total[:, None], N, H, E, WIDE)
    tl.store(level + rows.to(tl.int64) * H + h, top + tl.log2(total), mask=rows < N)


@jit("N")
def _backward_queries(
    q: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    out: tl.tensor,
    level: tl.tensor,
    gradient: tl.tensor,  # [N, H, E]
    product: tl.tensor,  # [N, H]: out · gradient, for `_backward_keys`
    dq: tl.tensor,  # [N, H, E]
    N: tl.tensor,
    H: tl.tensor,
    q_row: tl.tensor,
    q_head: tl.tensor,
    k_row: tl.tensor,
    k_head: tl.tensor,
    v_row: tl.tensor,
    v_head: tl.tensor,
    scale: tl.tensor,
    size: tl.tensor,  # 1 / √E
    E: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The gradient of a block of queries."""
    start, h = tl.program_id(0) * BLOCK, tl.program_id(1)
    rows = start + tl.arange(0, BLOCK)
    lowest = tl.load(first + rows, mask=rows < N, other=N)
    highest = tl.load(last + rows, mask=rows < N, other=-1)
    x = _tile(q + h * q_head, rows, N, q_row, E, WIDE)
    g = _tile(gradient + h * E, rows, N, H * E, E, WIDE)
    o = _tile(out + h * E, rows, N, H * E, E, WIDE)
    place = rows.to(tl.int64) * H + h
    delta = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
    tl.store(product + place, delta, mask=rows < N)
    own = tl.load(level + place, mask=rows < N, other=0.0)
    sums = tl.zeros((BLOCK, WIDE), tl.float32)
    begin = tl.load(first + start) // BLOCK * BLOCK
    end = tl.load(last + tl.minimum(start + BLOCK, N) - 1) + 1
    for key in range(begin, end, BLOCK):
        columns = key + tl.arange(0, BLOCK)
        seen = (columns[None, :] >= lowest[:, None]) & (columns[None, :] <= highest[:, None])
        y = _tile(k + h * k_head, columns, N, k_row, E, WIDE)
        values = _tile(v + h * v_head, columns, N, v_row, E, WIDE)
        scores = tl.dot(x, tl.trans(y), input_precision="ieee") * scale
        weights = tl.where(seen, tl.exp2(scores - own[:, None]), 0.0)
        change = weights * (tl.dot(g, tl.trans(values), input_precision="ieee") - delta[:, None])
        sums += tl.dot(change.to(y.dtype), y, input_precision="ieee")
    _store(dq + h * E, rows, sums * size, N, H, E, WIDE)


@jit("N")
def _backward_keys(
    q: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    level: tl.tensor,
    gradient: tl.tensor,
    product: tl.tensor,
    dk: tl.tensor,  # [N, H, E]
    dv: tl.tensor,  # [N, H, E]
    N: tl.tensor,
    H: tl.tensor,
    q_row: tl.tensor,
    q_head: tl.tensor,
    k_row: tl.tensor,
    k_head: tl.tensor,
    v_row: tl.tensor,
    v_head: tl.tensor,
    scale: tl.tensor,
    size: tl.tensor,
    window: tl.tensor,
    E: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The gradients of a block of keys and of its values, from the queries that see them."""
    start, h = tl.program_id(0) * BLOCK, tl.program_id(1)
    columns = start + tl.arange(0, BLOCK)
    y = _tile(k + h * k_head, columns, N, k_row, E, WIDE)
    values = _tile(v + h * v_head, columns, N, v_row, E, WIDE)
    sums_k = tl.zeros((BLOCK, WIDE), tl.float32)
    sums_v = tl.zeros((BLOCK, WIDE), tl.float32)
    begin = tl.maximum(start - window, 0) // BLOCK * BLOCK
    end = tl.minimum(start + BLOCK + window, N)
    for query in range(begin, end, BLOCK):
        nearest = tl.load(first + query)
        furthest = tl.load(last + tl.minimum(query + BLOCK, N) - 1)
        if (nearest < start + BLOCK) & (furthest >= start):
            rows = query + tl.arange(0, BLOCK)
            lowest = tl.load(first + rows, mask=rows < N, other=N)
            highest = tl.load(last + rows, mask=rows < N, other=-1)
            seen = (columns[None, :] >= lowest[:, None]) & (columns[None, :] <= highest[:, None])
            x = _tile(q + h * q_head, rows, N, q_row, E, WIDE)
            g = _tile(gradient + h * E, rows, N, H * E, E, WIDE)
            place = rows.to(tl.int64) * H + h
            own = tl.load(level + place, mask=rows < N, other=0.0)
            delta = tl.load(product + place, mask=rows < N, other=0.0)
            scores = tl.dot(x, tl.trans(y), input_precision="ieee") * scale
            weights = tl.where(seen, tl.exp2(scores - own[:, None]), 0.0)
            change = weights * (tl.dot(g, tl.trans(values), input_precision="ieee") - delta[:, None])
            sums_v += tl.dot(tl.trans(weights).to(g.dtype), g, input_precision="ieee")
            sums_k += tl.dot(tl.trans(change).to(x.dtype), x, input_precision="ieee")
    _store(dk + h * E, columns, sums_k * size, N, H, E, WIDE)
    _store(dv + h * E, columns, sums_v, N, H, E, WIDE)


def attend(q: Tensor, k: Tensor, v: Tensor, first: Tensor, last: Tensor, window: int) -> Tensor:
    """q, k, v [N, H, E] and the run of tokens [first, last] that each token sees, int32 [N] → [N, H, E].

    A run contains its own token, and ends at most `window` tokens before and after it.
    """
    found: Tensor = _attend(q, k, v, first, last, window)[0]
    return found


@torch.library.custom_op(
    "elmokit::attend",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, Tensor first, Tensor last, int window) -> (Tensor, Tensor)",
)
def _attend(q: Tensor, k: Tensor, v: Tensor, first: Tensor, last: Tensor, window: int) -> tuple[Tensor, Tensor]:
    q, k, v = (_with_rows(part) for part in (q, k, v))
    out, level = _empty(q)
    if len(q):
        grid, sizes, constants = _launch(q, k, v)
        _forward[grid](q, k, v, first, last, out, level, *sizes, **constants)
    return out, level


@torch.library.custom_op(
    "elmokit::attend_backward",
    mutates_args=(),
    schema="(Tensor gradient, Tensor q, Tensor k, Tensor v, Tensor first, Tensor last, Tensor out, Tensor level, "
    "int window) -> (Tensor, Tensor, Tensor)",
)
def _attend_backward(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    first: Tensor,
    last: Tensor,
    out: Tensor,
    level: Tensor,
    window: int,
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (_with_rows(part) for part in (q, k, v))
    gradient, out, level = gradient.contiguous(), out.contiguous(), level.contiguous()
    dq, dk, dv = (torch.empty_like(out) for _ in range(3))
    if len(q):
        grid, sizes, constants = _launch(q, k, v)
        product, size = torch.empty_like(level), q.shape[-1] ** -0.5
        given = (q, k, v, first, last)
        _backward_queries[grid](*given, out, level, gradient, product, dq, *sizes, size, **constants)
        _backward_keys[grid](*given, level, gradient, product, dk, dv, *sizes, size, window, **constants)
    return dq, dk, dv


def _launch(q: Tensor, k: Tensor, v: Tensor) -> tuple[tuple[int, int], tuple[float, ...], dict[str, int]]:
    """The grid, the sizes and strides that every kernel takes, and its constants."""
    tokens, heads, size = q.shape
    steps = (step for part in (q, k, v) for step in part.stride()[:2])
    wide = max(16, triton.next_power_of_2(size))  # tl.dot needs at least 16
    block = max(16, min(LARGEST_BLOCK, TILE_BYTES // (wide * q.element_size())))
    return (
        (triton.cdiv(tokens, block), heads),
        (tokens, heads, *steps, size**-0.5 * _LOG2_E),
        {"E": size, "WIDE": wide, "BLOCK": block},
    )


def _with_rows(part: Tensor) -> Tensor:
    return part if part.stride(-1) == 1 else part.contiguous()


def _empty(q: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty(q.shape, dtype=q.dtype, device=q.device), q.new_empty(q.shape[:2], dtype=torch.float32)


@_attend.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, first: Tensor, last: Tensor, window: int) -> tuple[Tensor, Tensor]:
    return _empty(q)


@_attend_backward.register_fake
def _(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    first: Tensor,
    last: Tensor,
    out: Tensor,
    level: Tensor,
    window: int,
) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = (torch.empty(q.shape, dtype=q.dtype, device=q.device) for _ in range(3))
    return dq, dk, dv


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:  # noqa: ANN401
    *tensors, ctx.window = inputs
    ctx.save_for_backward(*tensors, *output)


def _gradients(ctx: Any, gradient: Tensor, _level: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
    return (*_attend_backward(gradient, *ctx.saved_tensors, ctx.window), None, None, None)


_attend.register_autograd(_gradients, setup_context=_save)

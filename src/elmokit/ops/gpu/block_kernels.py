"""The operations between the matrix products of a Transformer block in inference, as Triton kernels.

N tokens, P numbers per token, H heads of E numbers, I numbers inside the feed-forward part. A program of `attend` has
BLOCK queries of one head of one segment, and reads the keys in blocks that start at the segment's beginning: so the
result does not depend on the segment's position in the batch. A program of the other kernels has ROWS whole rows.
"""

# ruff: noqa: N803  (dimension letters, as everywhere)

from __future__ import annotations

from typing import Any

from elmokit.ops.optional_triton import jit, tl
from elmokit.ops.windows_triton import sigmoid


@jit()
def _rotated(
    at: tl.tensor,  # [BLOCK]: the address of each row
    position: tl.tensor,  # [BLOCK]
    inside: tl.tensor,  # [BLOCK]: false for rows past the end
    cos: tl.tensor,  # [positions, E / 2]
    sin: tl.tensor,
    E: tl.constexpr,
    WIDE: tl.constexpr,
) -> Any:  # noqa: ANN401
    """The two halves [BLOCK, WIDE] of queries or keys, scaled to mean square 1 and rotated by their positions."""
    column = tl.arange(0, WIDE)
    mask = inside[:, None] & (column < E // 2)[None, :]
    a = tl.load(at[:, None] + column[None, :], mask=mask, other=0.0)
    b = tl.load(at[:, None] + column[None, :] + E // 2, mask=mask, other=0.0)
    x, y = a.to(tl.float32), b.to(tl.float32)
    scale = tl.rsqrt((tl.sum(x * x, 1) + tl.sum(y * y, 1)) / E + 1.1920928955078125e-07)  # torch's epsilon
    angle = position[:, None] * (E // 2) + column[None, :]
    c = tl.load(cos + angle, mask=mask, other=0.0) * scale[:, None]
    s = tl.load(sin + angle, mask=mask, other=0.0) * scale[:, None]
    return (x * c - y * s).to(a.dtype), (y * c + x * s).to(a.dtype)


@jit("window")
def attend(
    qkv: tl.tensor,  # [N, PITCH]: the queries, keys and values of all heads, then the gate of each head
    gate_bias: tl.tensor,  # [H]
    cos: tl.tensor,  # [positions, E / 2]
    sin: tl.tensor,
    tiles: tl.tensor,  # [tiles, 4]: a segment's start and end, the first query, the direction; all 0 for an empty tile
    out: tl.tensor,  # [N, P]
    window: tl.tensor,
    scale: tl.tensor,  # log2(e) / √E
    H: tl.constexpr,
    E: tl.constexpr,
    PITCH: tl.constexpr,
    HALF: tl.constexpr,  # at least E / 2 and 16, a power of 2
    WIDE: tl.constexpr,  # at least E and 16, a power of 2
    BLOCK: tl.constexpr,
) -> None:
    """The mean of the values that each query sees, weighted by softmax(q kᵀ / √E), times the gate of its head."""
    tile, head = tiles + tl.program_id(0) * 4, tl.program_id(1)
    start, stop, first, way = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2), tl.load(tile + 3)
    if start == stop:
        return
    row = first + tl.arange(0, BLOCK)
    of_row = qkv + row.to(tl.int64) * PITCH
    a, b = _rotated(of_row + head * E, row - start, row < stop, cos, sin, E, HALF)
    back, ahead = tl.where(way == 2, 0, window), tl.where(way == 1, 0, window)  # BACKWARD, FORWARD
    begin = start + (tl.maximum(first - back, start) - start) // BLOCK * BLOCK
    end = tl.minimum(tl.minimum(first + BLOCK, stop) + ahead, stop)
    column = tl.arange(0, WIDE)
    top = tl.full((BLOCK,), -1e30, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    sums = tl.zeros((BLOCK, WIDE), tl.float32)
    for key in range(begin, end, BLOCK):
        seen_row = key + tl.arange(0, BLOCK)
        of_key = qkv + seen_row.to(tl.int64) * PITCH
        within = seen_row < stop
        key_a, key_b = _rotated(of_key + (H + head) * E, seen_row - start, within, cos, sin, E, HALF)
        scores = tl.dot(a, tl.trans(key_a), input_precision="ieee")
        scores = tl.dot(b, tl.trans(key_b), scores, input_precision="ieee") * scale
        away = seen_row[None, :] - row[:, None]
        seen = within[None, :] & (away >= -back) & (away <= ahead)
        scores = tl.where(seen, scores, -1e30)
        before = top
        top = tl.maximum(top, tl.max(scores, 1))
        shrink = tl.exp2(before - top)
        weights = tl.where(seen, tl.exp2(scores - top[:, None]), 0.0)
        total = total * shrink + tl.sum(weights, 1)
        value_mask = within[:, None] & (column < E)[None, :]
        values = tl.load(of_key[:, None] + (2 * H + head) * E + column[None, :], mask=value_mask, other=0.0)
        sums = tl.dot(weights.to(values.dtype), values, sums * shrink[:, None], input_precision="ieee")
    gate = tl.load(of_row + 3 * H * E + head, mask=row < stop, other=0.0).to(tl.float32)
    gate = sigmoid(gate + tl.load(gate_bias + head))
    found = sums * (gate / tl.where(row < stop, total, 1.0))[:, None]
    into = out + row.to(tl.int64)[:, None] * (H * E) + head * E + column[None, :]
    tl.store(into, found, mask=(row < stop)[:, None] & (column < E)[None, :])


@jit()
def _layer_norm(x: tl.tensor, inside: tl.tensor, SIZE: tl.constexpr) -> tl.tensor:
    """x [ROWS, COLUMNS] with mean 0 and variance 1 in each row; x must be 0 in the padding, and so is the result."""
    mean = tl.sum(x, 1) / SIZE
    away = tl.where(inside, x - mean[:, None], 0.0)
    variance = tl.sum(away * away, 1) / SIZE
    return away * tl.rsqrt(variance + 1e-5)[:, None]


@jit("N")
def norm_tokens(
    tokens: tl.tensor,  # [N, P]
    x: tl.tensor,  # float32 [N, P]: the residual sum
    layer: tl.tensor,  # [N, P]: the same in the dtype of the computation
    y: tl.tensor,  # [N, P]: normalised once more, the input of the first product
    N: tl.tensor,
    P: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Compute the token layer, and the input of the first block."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    mask = (row < N) & (column < P)
    at = row.to(tl.int64) * P + column
    values = _layer_norm(tl.load(tokens + at, mask=mask, other=0.0).to(tl.float32), mask, P)
    tl.store(x + at, values, mask=mask)
    tl.store(layer + at, values, mask=mask)
    tl.store(y + at, _layer_norm(values, mask, P), mask=mask)


@jit("N")
def norm_rows(
    x: tl.tensor,  # [N, P]: overwritten
    N: tl.tensor,
    P: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Normalise the results of attention."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    mask = (row < N) & (column < P)
    at = x + row.to(tl.int64) * P + column
    tl.store(at, _layer_norm(tl.load(at, mask=mask, other=0.0).to(tl.float32), mask, P), mask=mask)


@jit("N")
def add_norm(
    x: tl.tensor,  # float32 [N, P]: the residual sum, overwritten
    product: tl.tensor,  # [N, P]: added to the sum
    y: tl.tensor,  # [N, P]: the normalised sum
    N: tl.tensor,
    P: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Add a product to the residual sum, and normalise the sum for the next product."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    mask = (row < N) & (column < P)
    at = row.to(tl.int64) * P + column
    total = tl.load(x + at, mask=mask, other=0.0) + tl.load(product + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(x + at, total, mask=mask)
    tl.store(y + at, _layer_norm(total, mask, P), mask=mask)


@jit("N")
def gelu_norm(
    up: tl.tensor,  # [N, 2I]: values, then their gates
    inner: tl.tensor,  # [N, I]
    N: tl.tensor,
    I: tl.constexpr,  # noqa: E741
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """values · gelu(gates), normalised."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    mask = (row < N) & (column < I)
    at = up + row.to(tl.int64) * (2 * I) + column
    values = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    gates = tl.load(at + I, mask=mask, other=0.0).to(tl.float32)
    values *= gates * (1 + tl.erf(gates * 0.7071067811865476)) * 0.5
    tl.store(inner + row.to(tl.int64) * I + column, _layer_norm(values, mask, I), mask=mask)

"""The steps of inference over ragged sentences, as Triton kernels.

D directions, T steps, B rows sorted by falling length, H cells, P outputs. Step s of the second direction is a
sentence's s-th token from its end. Each step computes only the first rows, whose sentences have not ended; a tile of
ended rows does nothing. The weights of the gates are [D, 4H, K], with rows in the order i₀ f₀ i₁ f₁ … g₀ o₀ g₁ o₁ …, so
that a thread has both gates of a pair after the product.
"""

# ruff: noqa: N803  (dimension letters, as everywhere)

from __future__ import annotations

from elmokit.ops.optional_triton import jit, tl
from elmokit.ops.windows_triton import clip, sigmoid, tanh


@jit()
def _update(
    first: tl.tensor,  # [ROWS, 2·CELLS]: i and f in pairs, before their activations
    second: tl.tensor,  # g and o
    cells: tl.tensor,  # [ROWS, CELLS] addresses, overwritten
    hidden: tl.tensor,
    mask: tl.tensor,
    CLIP: tl.constexpr,  # 0: none
    ROWS: tl.constexpr,
    CELLS: tl.constexpr,
) -> None:
    """Compute the gates, the cells and the hidden values of a tile."""
    i, f = tl.split(tl.reshape(first, (ROWS, CELLS, 2)))
    g, o = tl.split(tl.reshape(second, (ROWS, CELLS, 2)))
    c = sigmoid(f) * tl.load(cells, mask=mask, other=0) + sigmoid(i) * tanh(g)
    if CLIP > 0:
        c = clip(c, tl.full((1, 1), CLIP, tl.float32))
    tl.store(cells, c, mask=mask)
    tl.store(hidden, sigmoid(o) * tanh(c), mask=mask)


@jit("t")
def gates_step(
    values: tl.tensor,  # [D, B, K]: the inputs of the product, h, or x and h side by side
    values_stride: tl.tensor,  # between directions: values are a part of a larger array
    values_pitch: tl.tensor,  # between rows
    weight: tl.tensor,  # [D, 4H, K]
    weight_stride: tl.tensor,
    weight_pitch: tl.tensor,
    products: tl.tensor,  # [D, B, 4H]: with PRODUCTS, the products with x, which are added
    products_stride: tl.tensor,
    bias: tl.tensor,  # [D, 4H]
    cells: tl.tensor,  # [D, B, H]: overwritten
    hidden: tl.tensor,  # [D, B, H]
    running: tl.tensor,  # [T]: the number of rows at each step
    t: tl.tensor,
    B: tl.tensor,
    H: tl.tensor,
    K: tl.tensor,
    CLIP: tl.constexpr,  # 0: none
    PRODUCTS: tl.constexpr,
    EVEN: tl.constexpr,  # K is a multiple of BLOCK
    ROWS: tl.constexpr,
    CELLS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Step t: the product, the gates and the cells; the product is never stored."""
    n = tl.load(running + t)
    if tl.program_id(0) * ROWS >= n:
        return
    d = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    known = tl.minimum(row, B - 1).to(tl.int64)
    gate = tl.program_id(1) * (2 * CELLS) + tl.arange(0, 2 * CELLS)
    of_first = tl.minimum(gate, 2 * H - 1)
    of_second = of_first + 2 * H
    first = tl.zeros((ROWS, 2 * CELLS), tl.float32)
    second = tl.zeros((ROWS, 2 * CELLS), tl.float32)
    k = tl.arange(0, BLOCK)
    a_at = values + d * values_stride + known[:, None] * values_pitch + k[None, :]
    first_at = weight + d * weight_stride + of_first[None, :] * weight_pitch + k[:, None]
    second_at = weight + d * weight_stride + of_second[None, :] * weight_pitch + k[:, None]
    for start in range(0, K, BLOCK):
        if EVEN:
            a, one, two = tl.load(a_at), tl.load(first_at), tl.load(second_at)
        else:
            inside = start + k < K
            a = tl.load(a_at, mask=inside[None, :], other=0)
            one = tl.load(first_at, mask=inside[:, None], other=0)
            two = tl.load(second_at, mask=inside[:, None], other=0)
        first = tl.dot(a, one, first)
        second = tl.dot(a, two, second)
        a_at += BLOCK
        first_at += BLOCK
        second_at += BLOCK
    first += tl.load(bias + d * (4 * H) + of_first)[None, :]
    second += tl.load(bias + d * (4 * H) + of_second)[None, :]
    if PRODUCTS:
        at = products + d * products_stride + known[:, None] * (4 * H)
        first += tl.load(at + of_first[None, :])
        second += tl.load(at + of_second[None, :])
    cell = tl.program_id(1) * CELLS + tl.arange(0, CELLS)[None, :]
    at = (d * B + known[:, None]) * H + cell
    _update(first, second, cells + at, hidden + at, (row < n)[:, None] & (cell < H), CLIP, ROWS, CELLS)


@jit("t")
def project_step(
    hidden: tl.tensor,  # [D, B, H]
    weight: tl.tensor,  # [D, P, H]
    h: tl.tensor,  # [D, B, P]
    h_stride: tl.tensor,
    h_pitch: tl.tensor,
    running: tl.tensor,  # [T]
    t: tl.tensor,
    B: tl.tensor,
    H: tl.tensor,
    P: tl.tensor,
    CLIP: tl.constexpr,  # 0: none
    EVEN: tl.constexpr,  # H is a multiple of BLOCK
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Step t: the projected and clipped output."""
    n = tl.load(running + t)
    if tl.program_id(0) * ROWS >= n:
        return
    d = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    known = tl.minimum(row, B - 1).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    k = tl.arange(0, BLOCK)
    a_at = hidden + (d * B + known[:, None]) * H + k[None, :]
    w_at = weight + (d * P + tl.minimum(column, P - 1)[None, :]) * H + k[:, None]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, H, BLOCK):
        if EVEN:
            a, w = tl.load(a_at), tl.load(w_at)
        else:
            inside = start + k < H
            a = tl.load(a_at, mask=inside[None, :], other=0)
            w = tl.load(w_at, mask=inside[:, None], other=0)
        total = tl.dot(a, w, total)
        a_at += BLOCK
        w_at += BLOCK
    if CLIP > 0:
        total = clip(total, tl.full((1, 1), CLIP, tl.float32))
    into = h + d * h_stride + known[:, None] * h_pitch + column[None, :]
    tl.store(into, total, mask=(row < n)[:, None] & (column < P)[None, :])


@jit("t")
def cell_step(
    z: tl.tensor,  # [D, B, 4H]: the product
    bias: tl.tensor,  # [D, 4H]
    cells: tl.tensor,  # [D, B, H]: overwritten
    hidden: tl.tensor,  # [D, B, H]
    running: tl.tensor,  # [T]
    t: tl.tensor,
    B: tl.tensor,
    H: tl.tensor,
    CLIP: tl.constexpr,
    ROWS: tl.constexpr,
    CELLS: tl.constexpr,
) -> None:
    """Step t after a product of cuBLAS: the gates and the cells."""
    n = tl.load(running + t)
    if tl.program_id(0) * ROWS >= n:
        return
    d = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    gate = tl.program_id(1) * (2 * CELLS) + tl.arange(0, 2 * CELLS)[None, :]
    within = (row < n) & (gate < 2 * H)
    z_at = z + (d * B + row) * (4 * H) + gate
    b_at = bias + d * (4 * H) + gate
    first = tl.load(z_at, mask=within, other=0).to(tl.float32) + tl.load(b_at, mask=gate < 2 * H, other=0)
    second = tl.load(z_at + 2 * H, mask=within, other=0).to(tl.float32)
    second += tl.load(b_at + 2 * H, mask=gate < 2 * H, other=0)
    cell = tl.program_id(1) * CELLS + tl.arange(0, CELLS)[None, :]
    at = (d * B + row) * H + cell
    _update(first, second, cells + at, hidden + at, (row < n) & (cell < H), CLIP, ROWS, CELLS)


@jit("t")
def output_step(
    projected: tl.tensor,  # [D, B, P]
    h: tl.tensor,  # [D, B, P]
    h_stride: tl.tensor,
    h_pitch: tl.tensor,
    running: tl.tensor,  # [T]
    t: tl.tensor,
    B: tl.tensor,
    P: tl.tensor,
    CLIP: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Step t after a projection of cuBLAS: the clipped output."""
    row, d = tl.program_id(0), tl.program_id(1).to(tl.int64)
    if row >= tl.load(running + t):
        return
    for start in range(0, P, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        y = tl.load(projected + (d * B + row) * P + column, mask=column < P, other=0)
        if CLIP > 0:
            y = clip(y.to(tl.float32), tl.full((1,), CLIP, tl.float32))
        tl.store(h + d * h_stride + row * h_pitch + column, y, mask=column < P)


@jit()
def to_steps(
    x: tl.tensor,  # [B, T, P]
    order: tl.tensor,  # [B]: the sentence of each row
    lengths: tl.tensor,  # [B]: the length of each row
    steps: tl.tensor,  # [D, T, B, P]
    stride: tl.tensor,  # between directions
    pitch: tl.tensor,  # between rows
    T: tl.tensor,
    B: tl.tensor,
    P: tl.tensor,
    COLUMNS: tl.constexpr,
) -> None:
    """Copy sentences to the layout of the steps, with 0 past their ends."""
    row, s, d = tl.program_id(0) % B, tl.program_id(0) // B, tl.program_id(1).to(tl.int64)
    length = tl.load(lengths + row)
    sentence = tl.load(order + row).to(tl.int64)
    token = tl.where(d == 0, s, length - 1 - s)
    into = steps + d * stride + (s.to(tl.int64) * B + row) * pitch
    for start in range(0, P, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        mask = (column < P) & (s < length)
        values = tl.load(x + (sentence * T + token) * P + column, mask=mask, other=0)
        tl.store(into + column, values, mask=column < P)


@jit()
def from_steps(
    steps: tl.tensor,  # [D, T, B, P]
    stride: tl.tensor,
    pitch: tl.tensor,
    order: tl.tensor,  # [B]
    lengths: tl.tensor,  # [B] of the rows
    out: tl.tensor,  # [B, T, D·P]
    T: tl.tensor,
    B: tl.tensor,
    P: tl.tensor,
    COLUMNS: tl.constexpr,
) -> None:
    """Copy the outputs of the steps to the positions of their tokens, with 0 past a sentence's end."""
    row, token, d = tl.program_id(0) % B, tl.program_id(0) // B, tl.program_id(1).to(tl.int64)
    length = tl.load(lengths + row)
    sentence = tl.load(order + row).to(tl.int64)
    s = tl.where(d == 0, token, length - 1 - token)
    into = out + (sentence * T + token) * (tl.num_programs(1) * P) + d * P
    for start in range(0, P, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        mask = (column < P) & (token < length)
        values = tl.load(steps + d * stride + (s.to(tl.int64) * B + row) * pitch + column, mask=mask, other=0)
        tl.store(into + column, values, mask=column < P)


@jit()
def begin_states(
    h: tl.tensor,  # [D, L, B, P], of the layer
    c: tl.tensor,  # [D, L, B, H]
    order: tl.tensor,  # [B]
    states: tl.tensor,  # [D, B, P] at step 0
    stride: tl.tensor,
    pitch: tl.tensor,
    cells: tl.tensor,  # [D, B, H]
    layers: tl.tensor,
    B: tl.tensor,
    H: tl.tensor,
    P: tl.tensor,
    ZERO: tl.constexpr,  # start from zero instead of h and c
    COLUMNS: tl.constexpr,
) -> None:
    """Copy the states before the first step to the order of the rows."""
    row, d = tl.program_id(0), tl.program_id(1).to(tl.int64)
    given = d * layers * B + tl.load(order + row)
    for start in range(0, P, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        value = tl.zeros((COLUMNS,), states.dtype.element_ty)
        if not ZERO:
            value = tl.load(h + given * P + column, mask=column < P, other=0).to(value.dtype)
        tl.store(states + d * stride + row * pitch + column, value, mask=column < P)
    for start in range(0, H, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        cell = tl.zeros((COLUMNS,), tl.float32)
        if not ZERO:
            cell = tl.load(c + given * H + column, mask=column < H, other=0).to(tl.float32)
        tl.store(cells + (d * B + row) * H + column, cell, mask=column < H)


@jit()
def end_states(
    states: tl.tensor,  # [D, T + 1, B, P]
    stride: tl.tensor,
    pitch: tl.tensor,
    cells: tl.tensor,  # [D, B, H]
    order: tl.tensor,  # [B]
    lengths: tl.tensor,  # [B] of the rows
    h: tl.tensor,  # [D, L, B, P], of the layer
    c: tl.tensor,  # [D, L, B, H]
    layers: tl.tensor,
    B: tl.tensor,
    H: tl.tensor,
    P: tl.tensor,
    COLUMNS: tl.constexpr,
) -> None:
    """Copy the states after each sentence's last token to the order of the sentences."""
    row, d = tl.program_id(0), tl.program_id(1).to(tl.int64)
    into = d * layers * B + tl.load(order + row)
    last = states + d * stride + (tl.load(lengths + row) * B + row) * pitch
    for start in range(0, P, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        tl.store(h + into * P + column, tl.load(last + column, mask=column < P, other=0), mask=column < P)
    for start in range(0, H, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        cell = tl.load(cells + (d * B + row) * H + column, mask=column < H, other=0)
        tl.store(c + into * H + column, cell, mask=column < H)

"""The operations of the windowed recurrence between its matrix products, as Triton kernels.

D directions, T tokens, B rows, H cells, P outputs, J = P_in + P: the x and h of a step are side by side. A tile is some
rows of one step in one direction, and some of their cells or outputs.
"""

# ruff: noqa: N803  (dimension letters, as everywhere)

from __future__ import annotations

from elmokit.ops.optional_triton import jit, tl


@jit()
def sigmoid(x: tl.tensor) -> tl.tensor:
    """σ(x)."""
    return 1 / (1 + tl.exp(-x))


@jit()
def tanh(x: tl.tensor) -> tl.tensor:
    """tanh(x)."""
    e = tl.exp(-2 * tl.abs(x))  # of a negative number, which cannot overflow
    size = (1 - e) / (1 + e)
    return tl.where(x < 0, -size, size)


@jit()
def clip(x: tl.tensor, bound: tl.tensor) -> tl.tensor:
    """Limited to between -bound and bound."""
    # Not minimum and maximum, which would turn NaN into a number: the training loop must detect NaN.
    return tl.where(x > bound, bound, tl.where(x < -bound, -bound, x))


@jit()
def _gate(z: tl.tensor, bias: tl.tensor, at: tl.tensor, column: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """One gate of a tile before its activation."""
    b = tl.load(bias + column, mask=mask, other=0)
    return tl.load(z + at, mask=mask, other=0).to(b.dtype) + b


@jit("t")
def cell_forward(
    z: tl.tensor,  # [D, T, B, 4H]
    bias: tl.tensor,  # [D, 4H]
    keep: tl.tensor,  # [T, B]
    cells: tl.tensor,  # [D, T + 1, B, H]
    hidden: tl.tensor,  # [D, T, B, H]
    t: tl.tensor,
    T: tl.tensor,
    B: tl.tensor,
    H: tl.tensor,
    CLIP: tl.constexpr,  # 0: none
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Step t: z and cells[t] → cells[t + 1] and hidden[t]."""
    d = tl.program_id(2).to(tl.int64)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    mask = (row < B) & (column < H)
    of_bias = d * 4 * H + column
    at = ((d * T + t) * B + row) * (4 * H) + column
    i = sigmoid(_gate(z, bias, at, of_bias, mask))
    f = sigmoid(_gate(z, bias, at + H, of_bias + H, mask))
    g = tanh(_gate(z, bias, at + 2 * H, of_bias + 2 * H, mask))
    o = sigmoid(_gate(z, bias, at + 3 * H, of_bias + 3 * H, mask))
    old = cells + ((d * (T + 1) + t) * B + row) * H + column
    goes_on = tl.load(keep + t * B + row, mask=row < B, other=0)
    c = f * (tl.load(old, mask=mask, other=0) * goes_on) + i * g
    if CLIP > 0:
        c = clip(c, tl.full((1, 1), CLIP, c.dtype))
    tl.store(old + B * H, c, mask=mask)
    tl.store(hidden + ((d * T + t) * B + row) * H + column, o * tanh(c), mask=mask)


@jit("t")
def pass_on(
    projected: tl.tensor,  # [D, T, B, P]
    keep: tl.tensor,  # [T, B]
    y: tl.tensor,  # [D, T, B, P]
    joined: tl.tensor,  # [D, T, B, J]
    t: tl.tensor,
    T: tl.tensor,
    B: tl.tensor,
    P: tl.tensor,
    J: tl.tensor,
    CLIP: tl.constexpr,  # 0: none, and y is `projected`
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Copy step t's output, clipped, to y[t] and, where the state continues, to the input of step t + 1."""
    d = tl.program_id(2).to(tl.int64)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    mask = (row < B) & (column < P)
    at = ((d * T + t) * B + row) * P + column
    h = tl.load(projected + at, mask=mask, other=0)
    if CLIP > 0:
        real = keep.dtype.element_ty
        h = clip(h.to(real), tl.full((1, 1), CLIP, real)).to(h.dtype)
        tl.store(y + at, h, mask=mask)
    goes_on = tl.load(keep + (t + 1) * B + row, mask=(row < B) & (t + 1 < T), other=0)
    into = ((d * T + t + 1) * B + row) * J + (J - P) + column
    tl.store(joined + into, h * goes_on.to(h.dtype), mask=mask & (t + 1 < T))


@jit("t", "slot")
def arrive(
    dy: tl.tensor,  # [D, T, B, P]
    djoined: tl.tensor,  # [D, T, B, J]
    projected: tl.tensor,  # [D, T, B, P]
    keep: tl.tensor,  # [T, B]
    arriving: tl.tensor,  # [D, SLOTS, B, P]
    t: tl.tensor,
    slot: tl.tensor,
    T: tl.tensor,
    SLOTS: tl.tensor,
    B: tl.tensor,
    P: tl.tensor,
    J: tl.tensor,
    CLIP: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """The gradient of step t's output: dy plus the gradient that step t + 1 passes back."""
    d = tl.program_id(2).to(tl.int64)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    mask = (row < B) & (column < P)
    later = mask & (t + 1 < T)
    at = ((d * T + t) * B + row) * P + column
    goes_on = tl.load(keep + (t + 1) * B + row, mask=(row < B) & (t + 1 < T), other=0)
    passed = tl.load(djoined + ((d * T + t + 1) * B + row) * J + (J - P) + column, mask=later, other=0)
    gradient = tl.load(dy + at, mask=mask, other=0).to(goes_on.dtype) + passed.to(goes_on.dtype) * goes_on
    if CLIP > 0:
        real = keep.dtype.element_ty
        inside = tl.abs(tl.load(projected + at, mask=mask, other=0).to(real)) <= tl.full((1, 1), CLIP, real)
        gradient = tl.where(inside, gradient, 0)
    tl.store(arriving + ((d * SLOTS + slot) * B + row) * P + column, gradient, mask=mask)


@jit("t")
def cell_backward(
    z: tl.tensor,  # [D, T, B, 4H]: in: the gates before their activations; out: their gradients
    bias: tl.tensor,  # [D, 4H]
    keep: tl.tensor,  # [T, B]
    cells: tl.tensor,  # [D, T + 1, B, H]
    dhidden: tl.tensor,  # [D, B, H]
    dc: tl.tensor,  # [D, B, H]: in: the gradient of the cell after this step; out: of the cell before it
    dbias: tl.tensor,  # [D, row tiles, 4H]: summed over the steps
    t: tl.tensor,
    T: tl.tensor,
    B: tl.tensor,
    H: tl.tensor,
    CLIP: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Step t of the backward pass from the gradient of its hidden values, before the projection.

    A program goes from row to row, so that each thread sums the gradient of the bias for its own columns.
    """
    d = tl.program_id(2).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    real = bias.dtype.element_ty
    sum_i = tl.zeros((COLUMNS,), real)
    sum_f = tl.zeros((COLUMNS,), real)
    sum_g = tl.zeros((COLUMNS,), real)
    sum_o = tl.zeros((COLUMNS,), real)
    of_bias = d * 4 * H + column
    for row in range(tl.program_id(1) * ROWS, tl.program_id(1) * ROWS + ROWS):
        mask = (row < B) & (column < H)
        at = ((d * T + t) * B + row) * (4 * H) + column
        i = sigmoid(_gate(z, bias, at, of_bias, mask))
        f = sigmoid(_gate(z, bias, at + H, of_bias + H, mask))
        g = tanh(_gate(z, bias, at + 2 * H, of_bias + 2 * H, mask))
        o = sigmoid(_gate(z, bias, at + 3 * H, of_bias + 3 * H, mask))
        goes_on = tl.load(keep + t * B + row, mask=row < B, other=0)
        old = tl.load(cells + ((d * (T + 1) + t) * B + row) * H + column, mask=mask, other=0) * goes_on
        c = f * old + i * g
        inside = mask
        if CLIP > 0:
            bound = tl.full((1,), CLIP, real)
            inside = mask & (tl.abs(c) <= bound)
            c = clip(c, bound)
        squashed = tanh(c)
        of_state = (d * B + row) * H + column
        dh = tl.load(dhidden + of_state, mask=mask, other=0).to(real)
        later = tl.load(dc + of_state, mask=mask & (t + 1 < T), other=0)
        gradient = tl.where(inside, later + dh * o * (1 - squashed * squashed), 0)
        tl.store(dc + of_state, gradient * f * goes_on, mask=mask)
        di = gradient * g * i * (1 - i)
        df = gradient * old * f * (1 - f)
        dg = gradient * i * (1 - g * g)
        do = dh * squashed * o * (1 - o)
        tl.store(z + at, di, mask=mask)
        tl.store(z + at + H, df, mask=mask)
        tl.store(z + at + 2 * H, dg, mask=mask)
        tl.store(z + at + 3 * H, do, mask=mask)
        sum_i += di
        sum_f += df
        sum_g += dg
        sum_o += do
    within = column < H
    sums = dbias + (d * tl.num_programs(1) + tl.program_id(1)) * (4 * H) + column
    tl.store(sums, tl.load(sums, mask=within, other=0) + sum_i, mask=within)
    sums += H
    tl.store(sums, tl.load(sums, mask=within, other=0) + sum_f, mask=within)
    sums += H
    tl.store(sums, tl.load(sums, mask=within, other=0) + sum_g, mask=within)
    sums += H
    tl.store(sums, tl.load(sums, mask=within, other=0) + sum_o, mask=within)

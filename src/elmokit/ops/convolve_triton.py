"""The largest product of each filter over a word's positions on a CUDA GPU, in float16 or bfloat16.

U words, M characters of c numbers, F filters, K = c · (width of the widest filter), padded to a power of two. A word's
window at position p is K consecutive numbers of its characters, so each position takes one product of many words'
windows with all filters. The products are never stored: the forward pass stores only the largest so far. Words are in
the order of falling length, and each group of words is computed only at the positions that its longest word has.
"""

# ruff: noqa: N803  (dimension letters, as everywhere)

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from elmokit.ops.optional_triton import jit, tl, triton

WORDS = 128
"""Words of a program in the forward pass, and in the gradient of the weights."""
FILTERS = 64
"""Filters of a program."""
SHARES = 8
"""The number of programs that share the words in the gradient of a filter."""
BLOCK = 256
"""Numbers of a word's characters whose gradients a program computes."""


@jit()
def _window(
    characters: tl.tensor,
    word: tl.tensor,
    here: tl.tensor,
    position: tl.tensor,
    size: tl.tensor,
    M: tl.tensor,
    K: tl.constexpr,
) -> tl.tensor:
    """The windows [words, K] at one position; 0 after the last character."""
    k = position * size + tl.arange(0, K)[None, :]
    places = characters + word.to(tl.int64)[:, None] * (M * size) + k
    return tl.load(places, mask=here[:, None] & (k < M * size), other=0)


@jit("U", "M")
def _largest_products(
    characters: tl.tensor,  # [U, M, c]
    weight: tl.tensor,  # [F, K]
    bias: tl.tensor,  # [F]
    widths: tl.tensor,  # [F]
    order: tl.tensor,  # [U]: the words by falling length
    positions: tl.tensor,  # [U]: the number of positions of each word, in that order
    largest: tl.tensor,  # [U, F]
    where: tl.tensor,  # [U, F]
    U: tl.tensor,
    M: tl.tensor,
    size: tl.tensor,
    F: tl.tensor,
    K: tl.constexpr,
    WORDS: tl.constexpr,
    FILTERS: tl.constexpr,
) -> None:
    """The largest product of each filter, and its position."""
    n = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    here = n < U
    word = tl.load(order + n, mask=here, other=0)
    most = tl.load(positions + n, mask=here, other=0)
    f = tl.program_id(0) * FILTERS + tl.arange(0, FILTERS)
    width = tl.load(widths + f, mask=f < F, other=0)
    w = tl.load(weight + f[None, :] * K + tl.arange(0, K)[:, None], mask=f[None, :] < F, other=0)  # [K, FILTERS]
    best = tl.full((WORDS, FILTERS), float("-inf"), tl.float32)
    found = tl.zeros((WORDS, FILTERS), tl.int32)
    for p in range(tl.max(most, 0)):
        products = tl.dot(_window(characters, word, here, p, size, M, K), w)
        # NaN counts as the largest, so that it is detected.
        better = (p < most)[:, None] & (p + width <= M)[None, :] & ((products > best) | (products != products))
        best = tl.where(better, products, best)
        found = tl.where(better, p, found)
    best += tl.load(bias + f, mask=f < F, other=0)[None, :].to(tl.float32)
    places = word.to(tl.int64)[:, None] * F + f[None, :]
    mask = here[:, None] & (f < F)[None, :]
    tl.store(largest + places, best, mask=mask)
    tl.store(where + places, found.to(where.dtype.element_ty), mask=mask)


@jit("U", "M")
def _filter_gradients(
    characters: tl.tensor,  # [U, M, c]
    gradient: tl.tensor,  # [U, F]
    where: tl.tensor,  # [U, F]
    order: tl.tensor,  # [U]
    positions: tl.tensor,  # [U]
    shares: tl.tensor,  # [shares, F, K]
    U: tl.tensor,
    M: tl.tensor,
    size: tl.tensor,
    F: tl.tensor,
    K: tl.constexpr,
    WORDS: tl.constexpr,
    FILTERS: tl.constexpr,
) -> None:
    """The gradient of the filters from one share of the words."""
    f = tl.program_id(0) * FILTERS + tl.arange(0, FILTERS)
    total = tl.zeros((FILTERS, K), tl.float32)
    for group in range(tl.program_id(1), tl.cdiv(U, WORDS), tl.num_programs(1)):
        n = group * WORDS + tl.arange(0, WORDS)
        here = n < U
        word = tl.load(order + n, mask=here, other=0)
        most = tl.load(positions + n, mask=here, other=0)
        places = word.to(tl.int64)[None, :] * F + f[:, None]
        mask = here[None, :] & (f < F)[:, None]
        g = tl.load(gradient + places, mask=mask, other=0)  # [FILTERS, WORDS]
        at = tl.load(where + places, mask=mask, other=-1)
        for p in range(tl.max(most, 0)):
            chosen = tl.where(at == p, g, 0).to(g.dtype)
            total = tl.dot(chosen, _window(characters, word, here, p, size, M, K), total)
    out = shares + (tl.program_id(1) * F + f[:, None]) * K + tl.arange(0, K)[None, :]
    tl.store(out, total, mask=(f < F)[:, None])


@jit("U", "M")
def _window_gradients(
    weight: tl.tensor,  # [F, K]
    gradient: tl.tensor,  # [U, F]
    where: tl.tensor,  # [U, F]
    order: tl.tensor,  # [U]
    positions: tl.tensor,  # [U]
    dwindows: tl.tensor,  # [U, M, K]
    U: tl.tensor,
    M: tl.tensor,
    F: tl.tensor,
    K: tl.constexpr,
    WORDS: tl.constexpr,
    FILTERS: tl.constexpr,
) -> None:
    """The gradient of some words' windows at one position, if the words have this position."""
    n = tl.program_id(0) * WORDS + tl.arange(0, WORDS)
    p = tl.program_id(1)
    here = (n < U) & (p < tl.load(positions + n, mask=n < U, other=0))
    if tl.max(here.to(tl.int32), 0) > 0:
        word = tl.load(order + n, mask=here, other=0).to(tl.int64)
        window = tl.zeros((WORDS, K), tl.float32)
        for start in range(0, F, FILTERS):
            f = start + tl.arange(0, FILTERS)
            places = word[:, None] * F + f[None, :]
            mask = here[:, None] & (f < F)[None, :]
            g = tl.load(gradient + places, mask=mask, other=0)
            at = tl.load(where + places, mask=mask, other=-1)
            w = tl.load(weight + f[:, None] * K + tl.arange(0, K)[None, :], mask=(f < F)[:, None], other=0)
            window = tl.dot(tl.where(at == p, g, 0).to(g.dtype), w, window)
        into = dwindows + (word[:, None] * M + p) * K + tl.arange(0, K)[None, :]
        tl.store(into, window, mask=here[:, None])


@jit("M")
def _character_gradients(
    dwindows: tl.tensor,  # [U, M, K]
    order: tl.tensor,  # [U]
    positions: tl.tensor,  # [U]
    dcharacters: tl.tensor,  # [U, M, c]
    M: tl.tensor,
    size: tl.tensor,
    K: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The gradient of one word's characters: the sum over all windows that contain a character."""
    word = tl.load(order + tl.program_id(0)).to(tl.int64)
    most = tl.load(positions + tl.program_id(0))
    number = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    character = number // size
    total = tl.zeros((BLOCK,), tl.float32)
    for back in tl.static_range(WIDTH):
        p = character - back
        place = (word * M + p) * K + number % size + back * size
        total += tl.load(dwindows + place, mask=(p >= 0) & (p < most) & (number < M * size), other=0)
    tl.store(dcharacters + word * (M * size) + number, total, mask=number < M * size)


class ConvolveWords(torch.autograd.Function):
    """characters [U, M, c], weight [F, c, width], bias [F], widths [F], lengths [U] → [U, F].

    `lengths` are the numbers of characters before the padding, `widths` the widths of the filters before theirs.
    """

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        characters: Tensor,
        weight: Tensor,
        bias: Tensor,
        widths: Tensor,
        lengths: Tensor,
    ) -> Tensor:
        """The largest products."""
        (words, longest, size), filters = characters.shape, len(weight)
        # The numbers of a window are in the order of its positions, and so are those of a filter.
        window = triton.next_power_of_2(max(size * weight.shape[2], 16))
        laid = weight.new_zeros(filters, window)
        laid[:, : size * weight.shape[2]] = weight.transpose(1, 2).flatten(1)
        lengths, order = lengths.sort(descending=True)
        positions = (lengths + 1).clamp(max=longest).to(torch.int32)  # all windows of padding are equal
        order = order.to(torch.int32)
        characters = characters.contiguous()
        largest = characters.new_empty(words, filters)
        where = torch.empty(words, filters, dtype=torch.int16, device=characters.device)
        sizes = (words, longest, size, filters, window)
        _largest_products[(triton.cdiv(filters, FILTERS), triton.cdiv(words, WORDS))](
            *(characters, laid, bias, widths, order, positions, largest, where, *sizes, WORDS, FILTERS), num_warps=8
        )
        ctx.save_for_backward(characters, laid, order, positions, where)
        ctx.sizes, ctx.width = sizes, weight.shape[2]
        return largest

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """The gradients of the characters, the weight and the bias."""
        characters, laid, order, positions, where = ctx.saved_tensors
        words, longest, size, filters, window = ctx.sizes
        gradient = gradient.contiguous()
        shares = torch.empty(SHARES, filters, window, dtype=torch.float32, device=gradient.device)
        _filter_gradients[(triton.cdiv(filters, FILTERS), SHARES)](
            *(characters, gradient, where, order, positions, shares, *ctx.sizes, WORDS, FILTERS), num_warps=8
        )
        dwindows = torch.empty(words, longest, window, dtype=characters.dtype, device=gradient.device)
        _window_gradients[(triton.cdiv(words, WORDS // 2), longest)](
            *(laid, gradient, where, order, positions, dwindows, words, longest, filters, window, WORDS // 2, FILTERS)
        )
        dcharacters = torch.empty_like(characters)
        _character_gradients[(words, triton.cdiv(longest * size, BLOCK))](
            *(dwindows, order, positions, dcharacters, longest, size, window, ctx.width, BLOCK)
        )
        dlaid = shares.sum(dim=0)[:, : size * ctx.width]
        dweight = dlaid.view(filters, ctx.width, size).transpose(1, 2)
        dbias = gradient.sum(dim=0, dtype=torch.float32)
        return dcharacters, dweight.to(laid.dtype), dbias.to(laid.dtype), None, None

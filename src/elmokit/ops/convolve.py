"""The largest product of each filter over the positions of a word, with a backward pass of its own.

Only one position of each filter has a gradient: the forward pass stores its index instead of the products.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.weak import WeakTensorKeyDictionary

from elmokit.ops import kernels
from elmokit.ops.kernels import AutogradContext
from elmokit.ops.linear import linear

LARGEST_WINDOW = 256
"""The largest number of values in a window that the kernels support."""


def convolve(characters: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """characters [U, M, c], weight [count, c, width], bias [count] → [U, count], the largest of M − width + 1."""
    found: Tensor = _Convolve.apply(*_in_autocast_dtype(characters, weight, bias), ())  # type: ignore[no-untyped-call]
    return found


def convolve_together(characters: Tensor, filters: Sequence[tuple[Tensor, Tensor]], lengths: Tensor) -> Tensor:
    """`convolve` for filters of several widths, (weight, bias) each → [U, F], as one product for all of them.

    All filters are padded with zero weights to the widest width. After the first `lengths` [U] characters of a word,
    all its characters are the same padding.
    """
    sizes = tuple((weight.shape[2], len(weight)) for weight, _ in filters)
    widest = max(width for width, _ in sizes)
    together = torch.cat([F.pad(weight, (0, widest - weight.shape[2])) for weight, _ in filters])
    given = _in_autocast_dtype(characters, together, torch.cat([bias for _, bias in filters]))
    found: Tensor
    small = characters.shape[2] * widest <= LARGEST_WINDOW
    if kernels.available(characters.device) and given[0].dtype in (torch.bfloat16, torch.float16) and small:
        from elmokit.ops.convolve_triton import ConvolveWords

        found = ConvolveWords.apply(*given, _widths(sizes, characters.device), lengths)  # type: ignore[no-untyped-call]
        return found
    outside, start, longest = [], 0, characters.shape[1]
    for width, count in sizes:
        outside.append((start, start + count, longest - width + 1))
        start += count
    ended = F.pad(given[0], (0, 0, 0, widest - 1))
    found = _Convolve.apply(ended, *given[1:], tuple(outside))  # type: ignore[no-untyped-call]
    return found


@lru_cache(maxsize=8)
def _widths(sizes: tuple[tuple[int, int], ...], device: torch.device) -> Tensor:
    """The width of each filter [F]."""
    return torch.tensor([width for width, count in sizes for _ in range(count)], dtype=torch.int32, device=device)


def _in_autocast_dtype(characters: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same tensors in the dtype of autocast, if that is on."""
    device = characters.device.type
    if not torch.is_autocast_enabled(device):
        return characters, weight, bias
    dtype = torch.get_autocast_dtype(device)
    return characters.to(dtype), weight.to(dtype), bias.to(dtype)


class _Convolve(torch.autograd.Function):
    """Convolution and maximum as one node of the graph.

    `outside` lists (first filter, filter after the last, position): from this position on, these filters are ignored.
    """

    @staticmethod
    def forward(
        ctx: AutogradContext,
        characters: Tensor,
        weight: Tensor,
        bias: Tensor,
        outside: tuple[tuple[int, int, int], ...],
    ) -> Tensor:
        with torch.autocast(characters.device.type, enabled=False):
            windows = _windows(characters, weight)
            products = linear(windows, _flat(weight), bias).view(len(characters), -1, len(weight))
        for first, last, position in outside:
            products[:, position:, first:last] = float("-inf")
        if not any(ctx.needs_input_grad):
            return products.amax(dim=1)
        largest, where = products.max(dim=1)
        ctx.positions = products.shape[1]
        ctx.save_for_backward(characters, weight, where)
        return largest

    @staticmethod
    @once_differentiable
    def backward(ctx: AutogradContext, gradient: Tensor) -> tuple[Tensor | None, ...]:
        characters, weight, where = ctx.saved_tensors
        (words, _, size), width, positions = characters.shape, weight.shape[2], ctx.positions
        with torch.autocast(gradient.device.type, enabled=False):
            spread = gradient.new_zeros(words, positions, len(weight))
            spread.scatter_(1, where.unsqueeze(1), gradient.unsqueeze(1))
            flat = spread.flatten(0, 1)
            dweight = (flat.T @ _windows(characters, weight)).view_as(weight)
            dwindows = (flat @ weight.flatten(1)).view(words, positions, size, width)
        dcharacters = torch.zeros_like(characters)
        for offset in range(width):
            dcharacters[:, offset : offset + positions] += dwindows[..., offset]
        return dcharacters, dweight, gradient.sum(dim=0), None


_flats = WeakTensorKeyDictionary()


def _flat(weight: Tensor) -> Tensor:
    """weight [count, c, width] → [count, c·width], always the same tensor, so that its packed form can be cached."""
    found: Tensor | None = _flats.get(weight)  # type: ignore[no-untyped-call]
    if found is None or found.data_ptr() != weight.data_ptr() or found.dtype != weight.dtype:
        found = weight.detach().flatten(1)
        _flats[weight] = found
    return found


def _windows(characters: Tensor, weight: Tensor) -> Tensor:
    """characters [U, M, c] → [U·positions, c·width], all windows of all words."""
    return characters.unfold(1, weight.shape[2], 1).flatten(0, 1).flatten(1)

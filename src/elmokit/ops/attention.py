"""Attention inside segments of a flat batch: a token sees tokens of its own segment, at most `window` tokens away.

The sentences of a batch follow each other without padding, x [N, …]; `Segments` says where each begins. Each sentence
is computed separately, so its vectors do not depend on the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate, pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

BOTH, FORWARD, BACKWARD = 0, 1, 2
"""The tokens that each token sees: those before and after it, those before it, or those after it."""
_QUERIES = 256
"""Tokens of a long segment that are computed together, so that memory grows with its length, not with the square."""
_BASE = 10_000.0


@dataclass(frozen=True, eq=False)
class Segments:
    """Where the segments of a flat batch of N tokens begin, and what their tokens see."""

    starts: Sequence[int]
    """[S + 1]: the first token of each segment, then N."""
    directions: Sequence[int]
    """[S]: BOTH, FORWARD or BACKWARD."""
    on_gpu: Tensor | None = None
    """`reach` on the GPU, for batches of training: [3, N] int32."""

    @classmethod
    def of(cls, lengths: Sequence[int], direction: int = BOTH) -> Segments:
        """Segments of these lengths, one after the other, all with the same direction."""
        return cls(list(accumulate(lengths, initial=0)), [direction] * len(lengths))

    @property
    def longest(self) -> int:
        """The length of the longest segment."""
        return max((stop - start for start, stop in pairwise(self.starts)), default=0)

    @cached_property
    def lengths(self) -> Tensor:
        """[S]: the length of each segment, on the CPU."""
        return torch.tensor(self.starts, dtype=torch.int64).diff()

    @cached_property
    def positions(self) -> Tensor:
        """[N]: the position of each token in its segment, on the CPU."""
        return torch.arange(self.starts[-1]) - torch.tensor(self.starts[:-1], dtype=torch.int64).repeat_interleave(
            self.lengths
        )

    def reach(self, window: int) -> Tensor:
        """[3, N] int32 on the CPU: the first and the last token that each token sees, and its position."""
        tokens = torch.arange(self.starts[-1])
        start = tokens - self.positions
        stop = start + self.lengths.repeat_interleave(self.lengths) - 1
        direction = torch.tensor(self.directions, dtype=torch.int64).repeat_interleave(self.lengths)
        first = torch.where(direction == BACKWARD, tokens, torch.maximum(start, tokens - window))
        last = torch.where(direction == FORWARD, tokens, torch.minimum(stop, tokens + window))
        return torch.stack([first, last, self.positions]).int()


def attend(q: Tensor, k: Tensor, v: Tensor, segments: Segments, window: int) -> Tensor:
    """q, k, v [N, H, E] → [N, H, E]: softmax(q kᵀ / √E) v over what each token sees; 0 after the last segment."""
    q, k, v = q.transpose(0, 1)[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None]  # [1, H, N, E]
    if list(segments.directions) == [BOTH] and segments.starts[1] == q.shape[2] <= min(window + 1, _QUERIES):
        return F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1)  # one short sentence: nothing to cut or join
    parts = []
    # One split for all segments: the gradient of each slice would be as large as the whole tensor.
    sizes = [stop - start for start, stop in pairwise([*segments.starts, q.shape[2]])]
    cut = zip(*(torch.split(part, sizes, dim=2) for part in (q, k, v)), strict=True)
    for direction, (queries, keys, values) in zip(segments.directions, cut, strict=False):  # the last cut is padding
        size = queries.shape[2]
        for first in range(0, size, _QUERIES):
            last = min(first + _QUERIES, size)
            left = first if direction == BACKWARD else max(0, first - window)
            right = last if direction == FORWARD else min(size, last + window)
            mask = _mask(first - left, last - first, right - left, window, direction, q.device)
            near = keys[:, :, left:right], values[:, :, left:right]
            parts.append(F.scaled_dot_product_attention(queries[:, :, first:last], *near, attn_mask=mask))
    if segments.starts[-1] < q.shape[2]:
        parts.append(torch.zeros_like(v[:, :, segments.starts[-1] :]))
    seen = torch.cat(parts, dim=2) if len(parts) > 1 else parts[0] if parts else v
    return seen[0].transpose(0, 1)


def _mask(before: int, queries: int, keys: int, window: int, direction: int, device: torch.device) -> Tensor | None:
    """[queries, keys]: True where a query sees a key; None if all see all. The first query is the key `before`."""
    if direction == BOTH and keys <= window + 1:
        return None
    ahead = torch.arange(keys, device=device) - torch.arange(before, before + queries, device=device).unsqueeze(1)
    return (ahead >= (0 if direction == BACKWARD else -window)) & (ahead <= (0 if direction == FORWARD else window))


def rotary(
    positions: Tensor, size: int, dtype: torch.dtype, device: torch.device, *, longest: int | None = None
) -> tuple[Tensor, Tensor]:
    """positions [N], all below `longest` → the cosines and sines [N, size / 2] that rotate vectors of `size`."""
    if longest is None:
        longest = int(positions.max()) + 1 if len(positions) else 1
    # The tables double in length, so that few are made.
    cos, sin = _angles(1 << max(longest - 1, 0).bit_length(), size, dtype, device)
    return cos[positions], sin[positions]


@cache
def _angles(count: int, size: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the angles at positions below `count`, [count, size / 2]."""
    rates = _BASE ** -(torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles = torch.arange(count, dtype=torch.float64).unsqueeze(1) * rates
    return angles.cos().to(device, dtype), angles.sin().to(device, dtype)


def segment_rotations(segments: Segments, size: int) -> Tensor:
    """The rotation of each token as complex numbers [N, size / 2] of length √size, on the CPU."""
    rotations = _rotations(1 << max(segments.longest - 1, 0).bit_length(), size)
    return rotations[: segments.starts[1]] if len(segments.directions) == 1 else rotations[segments.positions]


@cache
def _rotations(count: int, size: int) -> Tensor:
    cos, sin = _angles(count, size, torch.float64, torch.device("cpu"))
    return (torch.complex(cos, sin) * math.sqrt(size)).to(torch.complex64)


def rotation_factors(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The cosines and sines [N, E / 2] of positions → the factors [N, 1, E] that `rotate` takes."""
    return torch.cat([cos, cos], dim=-1).unsqueeze(1), torch.cat([-sin, sin], dim=-1).unsqueeze(1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [N, H, E] → vectors of length √E, rotated by their position: products then depend on distances only."""
    y = torch.rms_norm(x, x.shape[-1:])
    return (y * cos + y.roll(y.shape[-1] // 2, dims=-1) * sin).to(x.dtype)

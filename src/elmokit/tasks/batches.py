"""Examples into batches: those of like length together, in an order that a seed decides."""

from __future__ import annotations

import random
from collections.abc import Sequence

_TOKENS_A_ROW = 64
"""A batch may have so many tokens for each example it should have; longer examples come in smaller batches."""
_POOL = 50
"""Batches that are sorted by length together: enough for little padding, few enough to keep the order random."""


def batches_of(lengths: Sequence[int], size: int, *, shuffle: random.Random | None = None) -> list[list[int]]:
    """Numbers of examples in batches of at most `size`; without `shuffle` all are sorted by length."""
    order = list(range(len(lengths)))
    if shuffle is None:
        return _cut(sorted(order, key=lengths.__getitem__), lengths, size)
    shuffle.shuffle(order)
    batches = []
    for start in range(0, len(order), _POOL * size):
        pool = sorted(order[start : start + _POOL * size], key=lengths.__getitem__)
        batches += _cut(pool, lengths, size)
    shuffle.shuffle(batches)
    return batches


def _cut(order: Sequence[int], lengths: Sequence[int], size: int) -> list[list[int]]:
    """`order` goes from short to long."""
    batches: list[list[int]] = []
    most = size * _TOKENS_A_ROW
    for number in order:
        last = batches[-1] if batches else None
        if last is None or len(last) == size or (len(last) + 1) * lengths[number] > most:
            batches.append([number])
        else:
            last.append(number)
    return batches

"""Random orders and random coins that are functions of a seed and a number, so that nothing of them needs storing.

An order of a billion sentences would not fit in memory; a cipher of few rounds over the index needs none, and any
place of any epoch can be asked for at once, which is what makes resuming exact.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
_ROUNDS = 6


def permuted(index: Ints, count: int, epochs: Ints, seed: int) -> Ints:
    """Index [N] below `count` → where each lies in its epoch's own random order of `count` things.

    A Feistel network over the next power of two, walked until the result is below `count`.
    """
    if count <= 1:
        return index
    bits = max(2, int(count - 1).bit_length())
    keys = [mixed(epochs.astype(np.uint64) * np.uint64(_ROUNDS) + np.uint64(r), seed) for r in range(_ROUNDS)]
    result = index.astype(np.uint64)
    outside = np.ones(len(index), dtype=bool)
    while outside.any():
        result[outside] = _feistel(result[outside], bits, [key[outside] for key in keys])
        outside = result >= count
    return result.astype(np.int64)


def uniform(numbers: Ints, seed: int) -> NDArray[np.float64]:
    """A random number from 0 to below 1 for each number [N], always the same for the same seed."""
    return (mixed(numbers.astype(np.uint64), seed) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def mixed(values: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """Values scattered over all 64 bits (the finaliser of splitmix64 over a sequence that the seed chooses)."""
    with np.errstate(over="ignore"):
        z = (values + np.uint64(seed % 2**63 + 1)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed % 2**31)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def _feistel(values: NDArray[np.uint64], bits: int, keys: list[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """Of the two parts of a number each in turn is changed by the other, which a second pass could undo."""
    low = np.uint64(bits // 2)
    low_mask, high_mask = np.uint64((1 << bits // 2) - 1), np.uint64((1 << bits - bits // 2) - 1)
    high, rest = values >> low, values & low_mask
    for number, key in enumerate(keys):
        if number % 2:
            rest = rest ^ (mixed(high ^ key, 1) & low_mask)
        else:
            high = high ^ (mixed(rest ^ key, 0) & high_mask)
    return (high << low) | rest

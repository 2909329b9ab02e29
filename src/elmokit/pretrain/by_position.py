"""Perplexity by position in the sentence: how well a direction predicts the first word it meets, the second, and so on.

A position counts from where a direction starts, so the backward one's first prediction is the sentence's last word; the
prediction after the last word is the boundary.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from elmokit.pretrain.evaluate import ROWS, HeldOut, StateUse, held_out, scored
from elmokit.pretrain.network import LanguageModelNetwork
from elmokit.pretrain.type_table import TypeTable
from elmokit.pretrain.windows import Ints, Sentences
from elmokit.storage.atomic import atomic_file

STARTS = (*range(1, 32), 41, 61)
"""The first position of each bin: 1 to 30 have one each, then come 31-40, 41-60 and the rest."""


@dataclass(frozen=True, eq=False)
class ByPosition:
    """Summed losses of a text by bins of positions; K bins, D directions."""

    losses: NDArray[np.float64]  # [D, K] −log p, summed
    counts: Ints  # [K] predictions of each direction

    def between(self, first: int, last: int | None = None) -> HeldOut | None:
        """Perplexities over the positions first to last, which begin and end with bins; None where no text has them."""
        stop = len(STARTS) if last is None else STARTS.index(last + 1)
        bins = slice(STARTS.index(first), stop)
        count = int(self.counts[bins].sum())
        return held_out(self.losses[:, bins].sum(axis=1).tolist(), count) if count else None

    def all(self) -> HeldOut:
        """Perplexities over the whole text."""
        return held_out(self.losses.sum(axis=1).tolist(), int(self.counts.sum()))

    def bins(self) -> list[tuple[str, HeldOut]]:
        """The bins that the text reaches, by their names: 1, 2, … 31-40, 41-60, 61+."""
        lasts = [start - 1 for start in STARTS[1:]]
        found = []
        for first, last in zip(STARTS, [*lasts, None], strict=True):
            name = f"{first}+" if last is None else f"{first}" if first == last else f"{first}-{last}"
            if (here := self.between(first, last)) is not None:
                found.append((name, here))
        return found


def by_position(
    network: LanguageModelNetwork,
    types: TypeTable,
    sentences: Sentences,
    *,
    state: StateUse = "zero",
    rows: int = ROWS,
    on_progress: Callable[[int], None] | None = None,
) -> ByPosition:
    """Read a text once, each sentence from zero or with the state carried, as `evaluate` does."""
    losses, counts = np.zeros((types.directions, len(STARTS))), np.zeros(len(STARTS), np.int64)
    for found in scored(network, types, sentences, state, rows=rows, on_progress=on_progress):
        bins = np.searchsorted(STARTS, found.positions, side="right") - 1
        counts += np.bincount(bins[0], minlength=len(STARTS))  # those of the other direction are the same
        for direction, part in enumerate(found.losses):
            losses[direction] += np.bincount(bins[direction], part, len(STARTS))
    return ByPosition(losses, counts)


def write_table(path: Path, measured: Mapping[StateUse, ByPosition]) -> None:
    """A TSV with a line for each bin: its predictions and, for each state, the perplexity of each direction."""
    binned = {state: found.bins() for state, found in measured.items()}
    rows = next(iter(binned.values()))
    ways = ["forward", "backward"][: len(next(iter(measured.values())).losses)]
    with atomic_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, dialect="excel-tab", lineterminator="\n")
        table.writerow(["position", "predictions", *(f"{way}_{state}" for state in measured for way in ways)])
        for number, (name, here) in enumerate(rows):
            values = [getattr(found[number][1], way) for found in binned.values() for way in ways]
            table.writerow([name, here.predictions, *(f"{value:.2f}" for value in values)])

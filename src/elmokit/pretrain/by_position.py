"""Perplexity by position in the sentence: how well a direction predicts the first word it meets, the second, and so on.

A position counts from where a direction starts, so the backward one's first prediction is the sentence's last word; the
prediction after the last word is the boundary.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from elmokit.pretrain.evaluate import ROWS, HeldOut, StateUse, held_out, window_losses
from elmokit.pretrain.network import LanguageModelNetwork
from elmokit.pretrain.type_table import TypeTable
from elmokit.pretrain.windows import NO_TARGET, Ints, Sentences
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
    precision: torch.dtype = torch.float32,
    state: StateUse = "zero",
    rows: int = ROWS,
) -> ByPosition:
    """Read a text once, each sentence from zero or with the state carried, as `evaluate` does."""
    losses, counts = np.zeros((types.directions, len(STARTS))), np.zeros(len(STARTS), np.int64)
    positions: _Positions | None = None
    for each, places in window_losses(network, types, sentences, precision, state, rows=rows):
        positions = positions or _Positions(places.shape[1])
        bins = np.searchsorted(STARTS, positions.of(places), side="right") - 1
        there = places != NO_TARGET
        counts += np.bincount(bins[there], minlength=len(STARTS))
        for direction, part in enumerate(each.double().cpu().numpy()):
            losses[direction] += np.bincount(bins[there], part[there], len(STARTS))
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


class _Positions:
    """Counts the tokens of each row's sentence from its first on, window after window."""

    def __init__(self, rows: int) -> None:
        self._place = np.full(rows, NO_TARGET, np.int64)
        self._read = np.zeros(rows, np.int64)  # inputs of it in earlier windows

    def of(self, places: Ints) -> Ints:
        """The sentences of the next window [T, B] → the position of each token in its own, from 1."""
        time = np.arange(len(places))[:, None]
        new = places != np.concatenate([self._place[None], places[:-1]])
        began = np.maximum.accumulate(np.where(new, time, -self._read), axis=0)
        self._place, self._read = places[-1], len(places) - began[-1]
        found: Ints = time - began + 1
        return found

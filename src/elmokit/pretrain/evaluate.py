"""Perplexity with the full softmax over text the model has not seen, sentence by sentence or in all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elmokit.model.bilm import State
from elmokit.pretrain.distributed import Processes
from elmokit.pretrain.in_order import InOrderReader
from elmokit.pretrain.network import LanguageModelNetwork
from elmokit.pretrain.prefetch import prefetched
from elmokit.pretrain.type_table import TypeTable
from elmokit.pretrain.windows import NO_TARGET, Sentences, WindowReader

ROWS, WINDOW = 64, 32
LEAST_STRETCH = 1024
"""Predictions that a row should have to itself where the state is carried: each row's first sentence starts cold."""

StateUse = Literal["zero", "carry"]


@dataclass(frozen=True)
class HeldOut:
    """Perplexities over all tokens of a text; a boundary a sentence counts as a prediction too."""

    mean: float
    """exp of the mean loss over both directions."""
    forward: float
    backward: float | None
    predictions: int
    """Of each direction."""


@dataclass(frozen=True)
class SentenceLoss:
    """A sentence's summed −log p."""

    index: int
    """Its number in the corpus, from 0."""
    tokens: int
    forward: float
    backward: float | None


def evaluate(
    network: LanguageModelNetwork,
    types: TypeTable,
    sentences: Sentences,
    *,
    precision: torch.dtype = torch.float32,
    state: StateUse = "zero",
    processes: Processes | None = None,
    rows: int = ROWS,
) -> HeldOut:
    """The perplexity over sentences, each read from a zero state or, with "carry", from where the one before ended.

    Rows read side by side; with "carry" each has a stretch of the text to itself, at whose beginning it starts cold.
    """
    processes = processes or Processes()
    sums = torch.zeros(types.directions + 1, dtype=torch.float64)
    for each, places in window_losses(network, types, sentences, precision, state, processes, rows):
        sums[: types.directions] += each.double().sum(dim=(1, 2)).cpu()
        sums[-1] += int((places != NO_TARGET).sum())
    sums = processes.total(sums)
    return held_out(sums[:-1].tolist(), int(sums[-1]))


def held_out(losses: Sequence[float], predictions: int) -> HeldOut:
    """Perplexities from the summed −log p of each direction."""
    means = [loss / predictions for loss in losses]
    perplexities = [perplexity_of(mean) for mean in means]
    return HeldOut(
        perplexity_of(sum(means) / len(means)),
        perplexities[0],
        perplexities[1] if len(means) > 1 else None,
        predictions,
    )


def sentence_losses(
    network: LanguageModelNetwork, types: TypeTable, sentences: Sentences, *, precision: torch.dtype = torch.float32
) -> Iterator[SentenceLoss]:
    """The loss of each sentence, in their order, from a zero state; few of them are held at a time."""
    started: dict[int, NDArray[np.float64]] = {}  # place → the losses of each direction, predictions so far
    finished: set[int] = set()
    next_index = 0
    for each, places in window_losses(network, types, sentences, precision):
        distinct, inverse = np.unique(places, return_inverse=True)
        columns = [*each.double().cpu().numpy(), np.ones(places.shape)]
        sums = np.stack([np.bincount(inverse.ravel(), column.ravel()) for column in columns], axis=1)
        for place, part in zip(distinct.tolist(), sums, strict=True):
            if place != NO_TARGET:
                started[place] = started.get(place, 0.0) + part
                if started[place][-1] == _length(sentences, place) + 1:
                    finished.add(place)
        while next_index in finished:
            finished.remove(next_index)
            forward, *backward, predictions = started.pop(next_index).tolist()
            yield SentenceLoss(next_index, int(predictions) - 1, forward, backward[0] if backward else None)
            next_index += 1


def _length(sentences: Sentences, place: int) -> int:
    return int(sentences.spans(sentences.at(np.array([place])))[1][0])


@torch.no_grad()
def window_losses(
    network: LanguageModelNetwork,
    types: TypeTable,
    sentences: Sentences,
    precision: torch.dtype = torch.float32,
    state: StateUse = "zero",
    processes: Processes | None = None,
    rows: int = ROWS,
) -> Iterator[tuple[Tensor, NDArray[np.int64]]]:
    """−log p [D, T, B] of window after window, and each token's sentence [T, B]; a process reads its own rows."""
    device = network.bilm.device
    processes = processes or Processes()
    reader: WindowReader
    if state == "zero":
        reader = WindowReader(sentences, rows=rows * processes.count, window=WINDOW, endless=False)
    else:
        rows = max(1, min(rows, sentences.n_predictions // (LEAST_STRETCH * processes.count)))
        reader = InOrderReader(sentences, rows=rows * processes.count, window=WINDOW)
    share = range(processes.rank * rows, (processes.rank + 1) * rows)
    training = network.training
    network.eval()
    current: State = network.bilm.zero_state(rows)
    try:

        def batches() -> Iterator[tuple[object, NDArray[np.int64]]]:
            while plan := reader.read():
                windows = reader.fill(plan, share)
                yield types.batch(windows), windows.place

        for batch, places in prefetched(batches()):
            _, each, current = network(batch.to(device), current, None, precision)  # type: ignore[attr-defined]
            yield each, places
    finally:
        network.train(training)


def perplexity_of(loss: float) -> float:
    """exp of a mean loss, infinite where that is too large for a number."""
    return math.exp(loss) if loss < 700 else math.inf

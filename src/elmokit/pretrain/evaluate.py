"""Perplexity with the full softmax over text the model has not seen: in all, by sentence, by position in the sentence.

Sentences are scored by the same function as in `Elmo.perplexity`. How the text is divided does not depend on the number
of processes, so neither does the result.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from elmokit.encode import BATCH_TOKENS, GPU_BATCH_TOKENS
from elmokit.layers import batches
from elmokit.model.language_model import masked_losses, score
from elmokit.model.placement import moved
from elmokit.pretrain.distributed import Processes
from elmokit.pretrain.network import LanguageModelNetwork
from elmokit.pretrain.sentences import Ints, Sentences, TypeTable
from elmokit.pretrain.windows import NO_TARGET, InOrderReader, window_batch
from elmokit.storage.atomic import atomic_file

ROWS = 64
"""Rows that are read next to each other where the state is carried."""
LEAST_STRETCH = 1024
"""Predictions that such a row should have to itself: its first sentence starts from zero."""
WINDOW = 32
"""Tokens of a row that are read at once there."""
WINDOW_SENTENCES = 4096
"""Sentences that are sorted by length together where each starts from zero."""

ALONE = Processes()
StateUse = Literal["zero", "carry"]
OnProgress = Callable[[float], None]
"""Is called with the share of the text that this process has scored."""


@dataclass(frozen=True)
class HeldOut:
    """Perplexities over all tokens of a text; one boundary per sentence counts as a prediction too."""

    mean: float
    """exp of the mean loss over both directions."""
    forward: float
    backward: float | None
    predictions: int
    """Of each direction."""
    masked: float | None = None
    """Of masked words, from both their sides at once, for encoders that can predict them."""

    def over(self, predictions: int) -> HeldOut:
        """The same losses as means over another number of predictions, such as words instead of their characters."""

        def again(perplexity: float) -> float:
            return perplexity_of(math.log(perplexity) * self.predictions / predictions)

        backward = None if self.backward is None else again(self.backward)
        return HeldOut(again(self.mean), again(self.forward), backward, predictions)


class ScoredPredictions(NamedTuple):
    """Some predictions of a text with their losses; D directions, N predictions in each."""

    losses: NDArray[np.float64]  # [D, N] −log p
    places: Ints  # [N] the sentence's place in the reading
    positions: Ints  # [D, N] the place in the sentence, counted from 1 where the direction starts
    parts: Ints  # [N] the part of the text that is summed together: a batch or, with a carried state, a row


def evaluate(
    network: LanguageModelNetwork,
    types: TypeTable,
    sentences: Sentences,
    *,
    state: StateUse = "zero",
    processes: Processes = ALONE,
    on_progress: OnProgress | None = None,
) -> HeldOut:
    """The perplexity over sentences, each read from a zero state or, with "carry", from where the one before ended.

    With "carry" the text is read in `ROWS` parts next to each other, each of which starts from zero.
    """
    masks, sums = network.bilm.context.predicts_masked, dict[int, NDArray[np.float64]]()
    first, second = _two_passes(on_progress) if masks else (on_progress, None)
    for found in scored(network, types, sentences, first, state=state, processes=processes):
        numbers, inverse = np.unique(found.parts, return_inverse=True)
        columns = [*found.losses, np.ones(len(inverse))]
        here = np.stack([np.bincount(inverse, column) for column in columns], axis=1)
        for part, values in zip(numbers.tolist(), here, strict=True):
            sums[part] = sums.get(part, 0.0) + values
    *losses, predictions = _totals(sums, types.directions + 1, processes)
    result = held_out(losses, int(predictions))
    return replace(result, masked=masked_perplexity(network, types, sentences, processes, second)) if masks else result


def _two_passes(on_progress: OnProgress | None) -> tuple[OnProgress | None, OnProgress | None]:
    """The progress functions of two passes over a text, of which each is half of the work."""
    if on_progress is None:
        return None, None
    return (lambda share: on_progress(share / 2)), (lambda share: on_progress((1 + share) / 2))


def masked_perplexity(
    network: LanguageModelNetwork,
    types: TypeTable,
    sentences: Sentences,
    processes: Processes = ALONE,
    on_progress: OnProgress | None = None,
) -> float | None:
    """The perplexity of 15 % of the words, all of a sentence masked at the same time; None where there is no word."""
    sums: dict[int, NDArray[np.float64]] = {}
    done = 0
    with _evaluating(network), torch.no_grad():
        for part, places, batch in _sentence_batches(network, types, sentences, processes):
            losses = masked_losses(network.bilm, network.losses, *batch)
            sums[part] = np.array([float(losses.double().sum()), len(losses)])
            done += len(places)
            if on_progress is not None:
                on_progress(min(1.0, done * processes.count / len(sentences)))
    loss, count = _totals(sums, 2, processes)
    return perplexity_of(loss / count) if count else None


def _totals(sums: Mapping[int, NDArray[np.float64]], size: int, processes: Processes) -> list[float]:
    """The sums of all parts of the text, `size` numbers each, over all processes.

    Every part is summed by one process, and then the parts in their order, however the work was divided.
    """
    table = torch.zeros(int(processes.largest(max(sums, default=-1))) + 1, size, dtype=torch.float64)
    for part, values in sums.items():
        table[part] = torch.from_numpy(values)
    found: list[float] = processes.total(table).sum(dim=0).tolist()
    return found


def held_out(losses: Sequence[float], predictions: int) -> HeldOut:
    """Perplexities from the summed −log p of each direction."""
    means = [loss / predictions for loss in losses]
    forward, backward, *_ = [*map(perplexity_of, means), None]
    assert forward is not None
    return HeldOut(perplexity_of(sum(means) / len(means)), forward, backward, predictions)


def sentence_losses(network: LanguageModelNetwork, types: TypeTable, sentences: Sentences) -> Iterator[list[float]]:
    """The summed −log p of each sentence, in their order, in each direction; few of them are in memory at a time."""
    waiting: dict[int, list[float]] = {}
    following = 0
    for found in scored(network, types, sentences):
        places, inverse = np.unique(found.places, return_inverse=True)
        sums = np.stack([np.bincount(inverse, column) for column in found.losses], axis=1)
        waiting |= zip(places.tolist(), sums.tolist(), strict=True)
        while following in waiting:
            yield waiting.pop(following)
            following += 1


def scored(
    network: LanguageModelNetwork,
    types: TypeTable,
    sentences: Sentences,
    on_progress: OnProgress | None = None,
    *,
    state: StateUse = "zero",
    processes: Processes = ALONE,
) -> Iterator[ScoredPredictions]:
    """All sentences with their losses, those that this process scores; the sentences must be in the text's order."""
    sentences.refuse_empty()
    done = 0
    with _evaluating(network):
        for found in (_carried if state == "carry" else _from_zero)(network, types, sentences, processes):
            done += len(found.places)
            if on_progress is not None:
                on_progress(min(1.0, done * processes.count / sentences.n_predictions))
            yield found


@torch.no_grad()
def _from_zero(
    network: LanguageModelNetwork, types: TypeTable, sentences: Sentences, processes: Processes
) -> Iterator[ScoredPredictions]:
    """Whole sentences, in batches of similar length."""
    for part, places, batch in _sentence_batches(network, types, sentences, processes):
        found = score(network.bilm, network.losses, *batch)
        losses, counts = found.losses.double().cpu().numpy(), np.array(found.counts)
        ends, number = np.repeat(np.cumsum(counts), counts), np.arange(counts.sum())
        backward = ends - number
        positions = np.stack([np.repeat(counts, counts) + 1 - backward, backward][: types.directions])
        yield ScoredPredictions(losses, np.repeat(places, counts), positions, np.full(len(number), part))


def _sentence_batches(
    network: LanguageModelNetwork, types: TypeTable, sentences: Sentences, processes: Processes
) -> Iterator[tuple[int, Ints, tuple[Tensor, Tensor, Tensor]]]:
    """This process's batches: their numbers, the places of their sentences in the reading, and what is scored.

    That is token vectors [B, T, P], lengths [B] and rows of the softmax [B, T].
    """
    bilm = network.bilm
    budget = BATCH_TOKENS if bilm.device.type == "cpu" else GPU_BATCH_TOKENS
    part = 0
    for start in range(0, len(sentences), WINDOW_SENTENCES):
        places = np.arange(start, min(len(sentences), start + WINDOW_SENTENCES))
        _, n_words = sentences.spans(sentences.at(places))
        for numbers in batches((n_words + 2).tolist(), budget):
            if part % processes.count == processes.rank:
                arrays, words, lengths = types.sentences(sentences, places[numbers])
                ids = {name: torch.from_numpy(array) for name, array in arrays.items()}
                table = bilm.encode_types(ids.get("characters"), ids.get("words"))
                tokens = nn.functional.embedding(moved(ids["inputs"], bilm.device), table)
                yield part, places[numbers], (tokens, torch.from_numpy(lengths), torch.from_numpy(words))
            part += 1


@torch.no_grad()
def _carried(
    network: LanguageModelNetwork, types: TypeTable, sentences: Sentences, processes: Processes
) -> Iterator[ScoredPredictions]:
    """Windows of running text as in training: a sentence's state is that in which the one before left it."""
    rows = max(1, min(ROWS, sentences.n_predictions // LEAST_STRETCH))
    own = range(rows * processes.rank // processes.count, rows * (processes.rank + 1) // processes.count)
    if not own:
        return
    reader = InOrderReader(sentences, rows=rows, window=WINDOW)
    state = network.bilm.context.zero_state(len(own))
    for plan in reader.plans():
        windows = reader.fill(plan, own)
        batch = window_batch(types, windows).to(network.bilm.device)
        top, state = network.contextualise(batch, state, torch.float32)
        there = torch.from_numpy(windows.place != NO_TARGET)
        losses = [network.losses(part[there], words[there]) for part, words in zip(top, batch.targets, strict=True)]
        time, row = np.nonzero(there.numpy())
        positions = np.stack([windows.read[time, row] + 1] * types.directions)
        parts = row + own.start
        yield ScoredPredictions(torch.stack(losses).double().cpu().numpy(), windows.place[time, row], positions, parts)


@contextmanager
def _evaluating(network: nn.Module) -> Iterator[None]:
    """The network in evaluation mode inside the block."""
    training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(training)


def perplexity_of(loss: float) -> float:
    """exp of a mean loss, infinite where that is too large for a number."""
    return math.exp(loss) if loss < 700 else math.inf


STARTS = (*range(1, 32), 41, 61)
"""The first position of each bin: 1 to 30 have one each, then come 31-40, 41-60 and the rest."""


@dataclass(frozen=True, eq=False)
class ByPosition:
    """Summed losses of a text by bins of positions; K bins, D directions."""

    losses: NDArray[np.float64]  # [D, K] −log p, summed
    counts: Ints  # [K] predictions of each direction

    def all(self) -> HeldOut:
        """Perplexities over the whole text."""
        return held_out(self.losses.sum(axis=1).tolist(), int(self.counts.sum()))

    def between(self, first: int, last: int | None = None) -> HeldOut | None:
        """Perplexities over the positions first to last, which begin and end with bins; None where no text has them."""
        bins = slice(STARTS.index(first), None if last is None else STARTS.index(last + 1))
        count = int(self.counts[bins].sum())
        return held_out(self.losses[:, bins].sum(axis=1).tolist(), count) if count else None

    def bins(self) -> list[tuple[str, HeldOut]]:
        """The bins that the text reaches, by their names: 1, 2, … 31-40, 41-60, 61+."""
        found = []
        for first, last in zip(STARTS, [*(start - 1 for start in STARTS[1:]), None], strict=True):
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
    on_progress: OnProgress | None = None,
) -> ByPosition:
    """Read a text once, each sentence from zero or with the state carried, as `evaluate` does."""
    losses, counts = np.zeros((types.directions, len(STARTS))), np.zeros(len(STARTS), np.int64)
    for found in scored(network, types, sentences, on_progress, state=state):
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

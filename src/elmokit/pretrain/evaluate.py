"""Held-out perplexity with the full softmax: overall, by sentence, and by position in the sentence.

Sentences are scored by the same function as in `Elmo.perplexity`. The text is divided in the same way for any number
of processes, so the result does not depend on their number.
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
"""Number of rows that are read in parallel when the state is carried."""
MIN_ROW_PREDICTIONS = 1024
"""Least number of predictions in such a row, because its first sentence starts from a zero state."""
WINDOW = 32
"""Number of tokens of such a row in one window."""
WINDOW_SENTENCES = 4096
"""Number of sentences that are sorted by length together when each starts from a zero state."""

ONE_PROCESS = Processes()
StateUse = Literal["zero", "carry"]
OnProgress = Callable[[float], None]
"""A function that is called with the share of the text that has been scored, from 0 to 1."""


@dataclass(frozen=True)
class HeldOutPerplexity:
    """Perplexities over all tokens of a text. One boundary per sentence is predicted too."""

    mean: float
    """exp of the mean loss of both directions."""
    forward: float
    backward: float | None
    predictions: int
    """Number of predictions in each direction."""
    masked: float | None = None
    """Perplexity of masked words, predicted from both sides, for encoders that can do this."""

    def over(self, predictions: int) -> HeldOutPerplexity:
        """The same summed losses divided by another number of predictions: per word instead of per character, say."""

        def rescaled(perplexity: float) -> float:
            return perplexity_of(math.log(perplexity) * self.predictions / predictions)

        backward = None if self.backward is None else rescaled(self.backward)
        return HeldOutPerplexity(rescaled(self.mean), rescaled(self.forward), backward, predictions)


class ScoredPredictions(NamedTuple):
    """The losses of N predictions in each of D directions."""

    losses: NDArray[np.float64]  # [D, N] −log p
    sentences: Ints  # [N] the sentence's index in the reading order
    positions: Ints  # [D, N] the position in the sentence, from 1 where the direction starts
    parts: Ints  # [N] the part of the text whose losses are summed together: a batch, or a row if the state is carried


def evaluate(
    network: LanguageModelNetwork,
    types: TypeTable,
    sentences: Sentences,
    *,
    state: StateUse = "zero",
    processes: Processes = ONE_PROCESS,
    on_progress: OnProgress | None = None,
) -> HeldOutPerplexity:
    """The perplexity of sentences, each read from a zero state or, with "carry", from the last state of the one before.

    With "carry" the text is cut into at most `ROWS` parts that are read in parallel, each from a zero state.
    """
    masks, sums = network.bilm.context.predicts_masked, dict[int, NDArray[np.float64]]()
    first, second = _two_passes(on_progress) if masks else (on_progress, None)
    for found in score_sentences(network, types, sentences, first, state=state, processes=processes):
        parts, inverse = np.unique(found.parts, return_inverse=True)
        columns = [*found.losses, np.ones(len(inverse))]
        found_sums = np.stack([np.bincount(inverse, column) for column in columns], axis=1)
        for part, values in zip(parts.tolist(), found_sums, strict=True):
            sums[part] = sums.get(part, 0.0) + values
    *losses, predictions = _totals(sums, types.directions + 1, processes)
    result = perplexities(losses, int(predictions))
    return replace(result, masked=masked_perplexity(network, types, sentences, processes, second)) if masks else result


def _two_passes(on_progress: OnProgress | None) -> tuple[OnProgress | None, OnProgress | None]:
    """The progress functions of two passes over a text, each half of the work."""
    if on_progress is None:
        return None, None
    return (lambda share: on_progress(share / 2)), (lambda share: on_progress((1 + share) / 2))


def masked_perplexity(
    network: LanguageModelNetwork,
    types: TypeTable,
    sentences: Sentences,
    processes: Processes = ONE_PROCESS,
    on_progress: OnProgress | None = None,
) -> float | None:
    """The perplexity of 15 % of the words, those of one sentence masked together; None for a text without words."""
    sums: dict[int, NDArray[np.float64]] = {}
    done = 0
    with _evaluating(network), torch.no_grad():
        for part, indices, batch in _sentence_batches(network, types, sentences, processes):
            losses = masked_losses(network.bilm, network.losses, *batch)
            sums[part] = np.array([float(losses.double().sum()), len(losses)])
            done += len(indices)
            if on_progress is not None:
                on_progress(min(1.0, done * processes.count / len(sentences)))
    loss, count = _totals(sums, 2, processes)
    return perplexity_of(loss / count) if count else None


def _totals(sums: Mapping[int, NDArray[np.float64]], size: int, processes: Processes) -> list[float]:
    """The totals of `size` sums over all parts of the text and all processes.

    One process sums each part, and the parts are added in a fixed order: the result does not depend on the processes.
    """
    table = torch.zeros(int(processes.largest(max(sums, default=-1))) + 1, size, dtype=torch.float64)
    for part, values in sums.items():
        table[part] = torch.from_numpy(values)
    found: list[float] = processes.total(table).sum(dim=0).tolist()
    return found


def perplexities(losses: Sequence[float], predictions: int) -> HeldOutPerplexity:
    """Perplexities from the summed −log p of each direction, with `predictions` in each."""
    means = [loss / predictions for loss in losses]
    forward, backward, *_ = [*map(perplexity_of, means), None]
    assert forward is not None
    return HeldOutPerplexity(perplexity_of(sum(means) / len(means)), forward, backward, predictions)


def sentence_losses(network: LanguageModelNetwork, types: TypeTable, sentences: Sentences) -> Iterator[list[float]]:
    """The summed −log p of each sentence in each direction, in reading order; only a few are in memory at a time."""
    waiting: dict[int, list[float]] = {}
    expected = 0
    for found in score_sentences(network, types, sentences):
        indices, inverse = np.unique(found.sentences, return_inverse=True)
        sums = np.stack([np.bincount(inverse, column) for column in found.losses], axis=1)
        waiting |= zip(indices.tolist(), sums.tolist(), strict=True)
        while expected in waiting:
            yield waiting.pop(expected)
            expected += 1


def score_sentences(
    network: LanguageModelNetwork,
    types: TypeTable,
    sentences: Sentences,
    on_progress: OnProgress | None = None,
    *,
    state: StateUse = "zero",
    processes: Processes = ONE_PROCESS,
) -> Iterator[ScoredPredictions]:
    """The losses of the sentences that this process scores; the sentences must be in file order."""
    sentences.refuse_empty()
    done = 0
    with _evaluating(network):
        for found in (_score_carried if state == "carry" else _score_from_zero)(network, types, sentences, processes):
            done += len(found.sentences)
            if on_progress is not None:
                on_progress(min(1.0, done * processes.count / sentences.n_predictions))
            yield found


@torch.no_grad()
def _score_from_zero(
    network: LanguageModelNetwork, types: TypeTable, sentences: Sentences, processes: Processes
) -> Iterator[ScoredPredictions]:
    """Score whole sentences, in batches of similar length."""
    for part, indices, batch in _sentence_batches(network, types, sentences, processes):
        found = score(network.bilm, network.losses, *batch)
        losses, counts = found.losses.double().cpu().numpy(), np.array(found.counts)
        ends, number = np.repeat(np.cumsum(counts), counts), np.arange(counts.sum())
        backward = ends - number
        positions = np.stack([np.repeat(counts, counts) + 1 - backward, backward][: types.directions])
        yield ScoredPredictions(losses, np.repeat(indices, counts), positions, np.full(len(number), part))


def _sentence_batches(
    network: LanguageModelNetwork, types: TypeTable, sentences: Sentences, processes: Processes
) -> Iterator[tuple[int, Ints, tuple[Tensor, Tensor, Tensor]]]:
    """This process's batches: the number of each, its sentences' indices in the reading order, and its tensors.

    The tensors are token vectors [B, T, P], lengths [B] and rows of the softmax [B, T].
    """
    bilm = network.bilm
    budget = BATCH_TOKENS if bilm.device.type == "cpu" else GPU_BATCH_TOKENS
    part = 0
    for start in range(0, len(sentences), WINDOW_SENTENCES):
        indices = np.arange(start, min(len(sentences), start + WINDOW_SENTENCES))
        _, n_words = sentences.spans(sentences.at(indices))
        for numbers in batches((n_words + 2).tolist(), budget):
            if part % processes.count == processes.rank:
                arrays, words, lengths = types.sentences(sentences, indices[numbers])
                ids = {name: torch.from_numpy(array) for name, array in arrays.items()}
                table = bilm.encode_types(ids.get("characters"), ids.get("words"))
                tokens = nn.functional.embedding(moved(ids["inputs"], bilm.device), table)
                yield part, indices[numbers], (tokens, torch.from_numpy(lengths), torch.from_numpy(words))
            part += 1


@torch.no_grad()
def _score_carried(
    network: LanguageModelNetwork, types: TypeTable, sentences: Sentences, processes: Processes
) -> Iterator[ScoredPredictions]:
    """Score windows of running text, as in training: each sentence starts from the last state of the one before."""
    rows = max(1, min(ROWS, sentences.n_predictions // MIN_ROW_PREDICTIONS))
    own = range(rows * processes.rank // processes.count, rows * (processes.rank + 1) // processes.count)
    if not own:
        return
    reader = InOrderReader(sentences, rows=rows, window=WINDOW)
    state = network.bilm.context.zero_state(len(own))
    for plan in reader.plans():
        windows = reader.fill(plan, own)
        batch = window_batch(types, windows).to(network.bilm.device)
        top, state = network.contextualise(batch, state, torch.float32)
        real = torch.from_numpy(windows.sentence != NO_TARGET)
        losses = [network.losses(part[real], words[real]) for part, words in zip(top, batch.targets, strict=True)]
        time, row = np.nonzero(real.numpy())
        positions = np.stack([windows.offset[time, row] + 1] * types.directions)
        parts = row + own.start
        found = torch.stack(losses).double().cpu().numpy()
        yield ScoredPredictions(found, windows.sentence[time, row], positions, parts)


@contextmanager
def _evaluating(network: nn.Module) -> Iterator[None]:
    """Set the network to evaluation mode inside the block."""
    training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(training)


def perplexity_of(loss: float) -> float:
    """exp of a mean loss, or infinity where that is too large for a float."""
    return math.exp(loss) if loss < 700 else math.inf


STARTS = (*range(1, 32), 41, 61)
"""The first position of each bin: 1 to 30 have one bin each, then come 31-40, 41-60 and 61+."""


@dataclass(frozen=True, eq=False)
class ByPosition:
    """The summed losses of a text in K bins of positions and D directions."""

    losses: NDArray[np.float64]  # [D, K] −log p, summed
    counts: Ints  # [K] number of predictions in each direction

    def all(self) -> HeldOutPerplexity:
        """Perplexities over the whole text."""
        return perplexities(self.losses.sum(axis=1).tolist(), int(self.counts.sum()))

    def between(self, first: int, last: int | None = None) -> HeldOutPerplexity | None:
        """Perplexities over the positions `first` to `last`, which must begin and end bins; None if there are none."""
        bins = slice(STARTS.index(first), None if last is None else STARTS.index(last + 1))
        count = int(self.counts[bins].sum())
        return perplexities(self.losses[:, bins].sum(axis=1).tolist(), count) if count else None

    def bins(self) -> list[tuple[str, HeldOutPerplexity]]:
        """The names and perplexities of the bins that are not empty: 1, 2, … 31-40, 41-60, 61+."""
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
    """The losses of a text by position in the sentence; `state` as for `evaluate`."""
    losses, counts = np.zeros((types.directions, len(STARTS))), np.zeros(len(STARTS), np.int64)
    for found in score_sentences(network, types, sentences, on_progress, state=state):
        bins = np.searchsorted(STARTS, found.positions, side="right") - 1
        counts += np.bincount(bins[0], minlength=len(STARTS))  # the backward direction has the same counts
        for direction, part in enumerate(found.losses):
            losses[direction] += np.bincount(bins[direction], part, len(STARTS))
    return ByPosition(losses, counts)


def write_table(path: Path, measured: Mapping[StateUse, ByPosition]) -> None:
    """Write a TSV with one line per bin: its predictions and, for each state, the perplexity of each direction."""
    binned = {state: found.bins() for state, found in measured.items()}
    rows = next(iter(binned.values()))
    directions = ["forward", "backward"][: len(next(iter(measured.values())).losses)]
    with atomic_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, dialect="excel-tab", lineterminator="\n")
        table.writerow(["position", "predictions", *(f"{name}_{state}" for state in measured for name in directions)])
        for number, (name, first) in enumerate(rows):
            values = [getattr(found[number][1], direction) for found in binned.values() for direction in directions]
            table.writerow([name, first.predictions, *(f"{value:.2f}" for value in values)])

"""From a prepared corpus to windows: rows of tokens that are read in parallel, sentence after sentence.

Rows are filled one after the other, as in bilm-tf: a row takes the next unread sentence until its window is full, and
keeps the rest of the sentence for its next window. A sentence of n words gives each direction n + 1 inputs and targets.
The backward direction has them in its own reading order, so both directions are at the same step of the same sentence.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from elmokit.pretrain.batches import Batch, Batches
from elmokit.pretrain.sentences import BEGIN_TYPE, END_TYPE, Arrays, Ints, Sentences, TypeTable, uniform

if TYPE_CHECKING:
    from torch import Tensor

    from elmokit.model.context import ContextEncoder, State

NO_TARGET = -1
_LOOK_AHEAD = 4096


@dataclass(frozen=True)
class Windows:
    """A batch of D directions (0 forward, 1 backward), T tokens in the order of the recurrence, and B rows."""

    inputs: Ints  # [D, T, B] types
    targets: Ints  # [D, T, B] types, NO_TARGET where a row has ended
    keep: NDArray[np.float32]  # [T, B] 0 where a token starts from a zero state
    sentence: Ints  # [T, B] the sentence's index in the reading order, NO_TARGET where a row has ended
    offset: Ints  # [T, B] number of inputs of the sentence before this one


@dataclass(frozen=True)
class WindowPosition:
    """The position in the text: all that is needed to resume."""

    next_index: int
    """Index in the reading order of the next unread sentence."""
    row_index: Ints  # [rows] index of the sentence in each row, NO_TARGET for none
    row_offset: Ints  # [rows] number of its inputs that were read

    @classmethod
    def start(cls, rows: int) -> WindowPosition:
        """The position before the first sentence."""
        return cls(0, np.full(rows, NO_TARGET, np.int64), np.zeros(rows, np.int64))


@dataclass(frozen=True)
class WindowPlan:
    """The pieces of sentences in one window."""

    pieces: Ints  # [N, 7]
    """Row, column and number of inputs; the sentence's index, inputs read before, position in the corpus and length."""
    position: WindowPosition
    """The position after this window."""


@dataclass(frozen=True)
class WindowReader:
    """Reads windows of `rows` x `window` tokens, endlessly or to the end of the sentences.

    `plans` yields a plan for each window, and `fill` makes the tokens of some of its rows: every process plans all rows
    and fills its own.
    """

    sentences: Sentences
    rows: int
    window: int
    reset: float = 1.0
    """Share of the sentences that start from a zero state."""
    seed: int = 0
    endless: bool = True
    position: WindowPosition | None = None
    """The position of the first window; None: before the first sentence."""

    def __post_init__(self) -> None:
        self.sentences.refuse_empty()

    def plans(self) -> Iterator[WindowPlan]:
        """The plan of each window, row by row."""
        position = self.position or WindowPosition.start(self.rows)
        begins, lengths = self.sentences.spans(self.sentences.at(np.maximum(position.row_index, 0)))
        columns = (position.row_index, position.row_offset, begins, lengths)
        current = list(zip(*(column.tolist() for column in columns), strict=True))  # the sentence in each row
        next_index = position.next_index
        queues = self._queues(next_index)
        while True:
            pieces: list[tuple[int, ...]] = []
            for row, queue in enumerate(queues):
                column, (index, offset, begin, length) = 0, current[row]
                while column < self.window:
                    if index == NO_TARGET or offset > length:
                        index, begin, length = next(queue, (NO_TARGET, begin, length))
                        if index == NO_TARGET:
                            break
                        offset, next_index = 0, index + 1
                    taken = min(length + 1 - offset, self.window - column)
                    pieces.append((row, column, taken, index, offset, begin, length))
                    column, offset = column + taken, offset + taken
                current[row] = index, offset, begin, length
            if not pieces:
                return
            indices, offsets = np.array(current, np.int64).T[:2]
            yield WindowPlan(np.array(pieces, np.int64), WindowPosition(next_index, indices.copy(), offsets.copy()))

    def _queues(self, first: int) -> list[Iterator[tuple[int, int, int]]]:
        """The sentences that each row takes from the index `first` on: here all rows share one queue."""
        return [self._sentences(first, None if self.endless else len(self.sentences))] * self.rows

    def _sentences(self, first: int, stop: int | None) -> Iterator[tuple[int, int, int]]:
        """The sentences from the index `first` on: index in the reading order, position in the corpus, length."""
        while stop is None or first < stop:
            indices = np.arange(first, first + _LOOK_AHEAD if stop is None else min(first + _LOOK_AHEAD, stop))
            begins, lengths = self.sentences.spans(self.sentences.at(indices))
            yield from zip(indices.tolist(), begins.tolist(), lengths.tolist(), strict=True)
            first += len(indices)

    def fill(self, plan: WindowPlan, rows: range) -> Windows:
        """The tokens of a contiguous range of rows."""
        pieces = plan.pieces
        first, last = np.searchsorted(pieces[:, 0], (rows.start, rows.stop))
        row, column, count, index, offset, begins, lengths = pieces[first:last].T
        which = np.repeat(np.arange(len(count)), count)
        inside = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
        k = offset[which] + inside  # number of inputs of the sentence before this one
        n, begin = lengths[which], begins[which]
        at = (column[which] + inside, row[which] - rows.start)
        tokens = np.asarray(self.sentences.corpus.tokens)  # without the overhead of a memmap at every access
        shape = (self.window, len(rows))
        inputs = np.full((2, *shape), BEGIN_TYPE, np.int64)
        targets = np.full((2, *shape), NO_TARGET, np.int64)
        last_token = begin + n - 1
        inputs[0][at] = np.where(k == 0, BEGIN_TYPE, tokens[begin + np.maximum(k - 1, 0)])
        inputs[1][at] = np.where(k == 0, END_TYPE, tokens[last_token - np.maximum(k - 1, 0)])
        targets[0][at] = np.where(k == n, END_TYPE, tokens[begin + np.minimum(k, n - 1)])
        targets[1][at] = np.where(k == n, BEGIN_TYPE, tokens[last_token - np.minimum(k, n - 1)])
        keep = np.ones(shape, np.float32)
        keep[at] = (k > 0) | (uniform(index, self.seed) >= self.reset)[which]
        sentence, offsets = np.full(shape, NO_TARGET, np.int64), np.zeros(shape, np.int64)
        sentence[at], offsets[at] = index[which], k
        return Windows(inputs, targets, keep, sentence, offsets)


@dataclass(frozen=True)
class InOrderReader(WindowReader):
    """Reads a text in file order: each row reads its own part of the sentences to the end.

    A state that a row carries then comes from the previous sentence of the text. In training the rows take sentences in
    turn, as in bilm-tf, and the state comes from an earlier sentence.
    """

    reset: float = 0.0

    def _queues(self, first: int) -> list[Iterator[tuple[int, int, int]]]:
        """The sentences of each row's own part."""
        assert not self.sentences.shuffle
        return [self._sentences(begin, stop) for begin, stop in pairwise(_cuts(self.sentences, self.rows))]


def _cuts(sentences: Sentences, rows: int) -> list[int]:
    """The boundaries, as sentence indices, of `rows` parts of about the same number of tokens."""
    count = len(sentences)

    def inputs_to(index: int) -> int:
        sentence = int(sentences.at(np.array([index]))[0])
        return int(sentences.corpus.ends[sentence]) + sentence + 1

    total = inputs_to(count - 1)
    inside = [bisect_left(range(count), total * row // rows, key=inputs_to) for row in range(1, rows)]
    return [0, *inside, count]


@dataclass(frozen=True, eq=False)
class WindowBatch(Batch):
    """Windows as the ids of their distinct tokens, and the index of each token among them."""

    characters: Tensor | None
    words: Tensor | None
    inputs: Tensor  # [D, T, B] index of the distinct token
    targets: Tensor  # [D, T, B]
    keep: Tensor  # [T, B]

    def read(
        self, context: ContextEncoder, types: Tensor, state: State | None, *, dropout: float
    ) -> tuple[Tensor, State | None]:
        """types [U, P] → the input of the softmax [D, T, B, S], and the state after the windows."""
        from torch.nn import functional as F

        return context.read_windows(F.embedding(self.inputs, types), self.keep, state, dropout=dropout)

    def row_weight(self) -> float:
        """Equal weights: the loss is the mean over all predictions."""
        return 1 / self.targets.numel()

    def sums(self, losses: Tensor) -> Tensor:
        """[D, T, B] → [D]."""
        import torch

        return losses.sum(dim=(1, 2), dtype=torch.float64)

    def counts(self) -> list[int]:
        """The number of predictions in each direction, one per token."""
        return [self.targets[0].numel()] * len(self.targets)


@dataclass(frozen=True, eq=False)
class WindowBatches(Batches):
    """The windows of each update; each process fills its own rows."""

    batch_type = WindowBatch
    types: TypeTable
    reader: WindowReader
    batch_rows: tuple[range, ...]
    """The rows of each of this process's batches."""

    def arrays(self) -> Iterator[tuple[list[Arrays], WindowPosition]]:
        """Each update's batches as arrays, and the position after them."""
        for plan in self.reader.plans():
            yield [window_arrays(self.types, self.reader.fill(plan, rows)) for rows in self.batch_rows], plan.position


def window_arrays(types: TypeTable, windows: Windows) -> Arrays:
    """The parts of a `WindowBatch` as arrays, by name."""
    inputs, targets = windows.inputs[: types.directions], windows.targets[: types.directions]
    vocab_rows = np.where(targets == NO_TARGET, NO_TARGET, types.vocab_index[targets])
    return {**types.arrays(inputs), "targets": vocab_rows, "keep": windows.keep}


def window_batch(types: TypeTable, windows: Windows) -> WindowBatch:
    """Windows as a batch for the network."""
    return WindowBatch.of_arrays(window_arrays(types, windows))

"""From a prepared corpus to windows: rows of tokens read side by side, sentence after sentence.

Rows are filled in the manner of bilm-tf: in order, and a row with nothing left takes the next unread sentence as often
as its window needs, keeping the rest for its next window. A sentence of n words gives each direction n + 1 inputs and
targets, the backward one in its own reading order, so both directions are at the same place of the same sentence.
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
    """A batch: D directions (0 forward, 1 backward), T tokens, B rows; time goes down, as the recurrence reads."""

    inputs: Ints  # [D, T, B] types
    targets: Ints  # [D, T, B] types, NO_TARGET where a row has ended
    keep: NDArray[np.float32]  # [T, B] 0 where a token starts from a zero state
    place: Ints  # [T, B] the sentence's place in the reading, NO_TARGET where a row has ended
    read: Ints  # [T, B] inputs of the sentence before this one


@dataclass(frozen=True)
class WindowPosition:
    """Where the reading is: all that is needed to continue."""

    next_place: int
    """The next unread sentence of the endless reading."""
    row_place: Ints  # [rows] the sentence each row is in, NO_TARGET for none
    row_offset: Ints  # [rows] inputs of it that were read

    @classmethod
    def start(cls, rows: int) -> WindowPosition:
        """Before the first sentence."""
        return cls(0, np.full(rows, NO_TARGET, np.int64), np.zeros(rows, np.int64))


@dataclass(frozen=True)
class WindowPlan:
    """Which piece of which sentence is where in a window."""

    pieces: Ints  # [N, 7]
    """Row, column, tokens; the sentence's place in the reading, inputs of it read before, where it begins, length."""
    position: WindowPosition
    """Where the reading is after this window."""


@dataclass(frozen=True)
class WindowReader:
    """Reads windows of `rows` x `window` tokens, endlessly or to the end of the sentences.

    `plans` gives the plan of each window, which `fill` turns into the tokens of some of its rows: every process plans
    all rows and fills its own.
    """

    sentences: Sentences
    rows: int
    window: int
    reset: float = 1.0
    """Share of the sentences that start from a zero state."""
    seed: int = 0
    endless: bool = True
    position: WindowPosition | None = None
    """Where the reading starts; None: before the first sentence."""

    def __post_init__(self) -> None:
        self.sentences.refuse_empty()

    def plans(self) -> Iterator[WindowPlan]:
        """The plan of each window, row by row."""
        position = self.position or WindowPosition.start(self.rows)
        begins, lengths = self.sentences.spans(self.sentences.at(np.maximum(position.row_place, 0)))
        columns = (position.row_place, position.row_offset, begins, lengths)
        current = list(zip(*(column.tolist() for column in columns), strict=True))  # the sentence that each row is in
        next_place = position.next_place
        queues = self._queues(next_place)
        while True:
            pieces: list[tuple[int, ...]] = []
            for row, queue in enumerate(queues):
                column, (place, offset, begin, length) = 0, current[row]
                while column < self.window:
                    if place == NO_TARGET or offset > length:
                        place, begin, length = next(queue, (NO_TARGET, begin, length))
                        if place == NO_TARGET:
                            break
                        offset, next_place = 0, place + 1
                    taken = min(length + 1 - offset, self.window - column)
                    pieces.append((row, column, taken, place, offset, begin, length))
                    column, offset = column + taken, offset + taken
                current[row] = place, offset, begin, length
            if not pieces:
                return
            places, offsets = np.array(current, np.int64).T[:2]
            yield WindowPlan(np.array(pieces, np.int64), WindowPosition(next_place, places.copy(), offsets.copy()))

    def _queues(self, place: int) -> list[Iterator[tuple[int, int, int]]]:
        """For each row the sentences that it takes: here the next unread one of all, from `place` on."""
        return [self._sentences(place, None if self.endless else len(self.sentences))] * self.rows

    def _sentences(self, place: int, stop: int | None) -> Iterator[tuple[int, int, int]]:
        """Each sentence from a place of the reading on: its place, where it begins in the corpus, its length."""
        while stop is None or place < stop:
            places = np.arange(place, place + _LOOK_AHEAD if stop is None else min(place + _LOOK_AHEAD, stop))
            begins, lengths = self.sentences.spans(self.sentences.at(places))
            yield from zip(places.tolist(), begins.tolist(), lengths.tolist(), strict=True)
            place += len(places)

    def fill(self, plan: WindowPlan, rows: range) -> Windows:
        """The tokens of a contiguous range of rows."""
        pieces = plan.pieces
        first, last = np.searchsorted(pieces[:, 0], (rows.start, rows.stop))
        row, column, count, place, offset, begins, lengths = pieces[first:last].T
        which = np.repeat(np.arange(len(count)), count)
        inside = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
        k = offset[which] + inside  # inputs read before this one
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
        keep[at] = (k > 0) | (uniform(place, self.seed) >= self.reset)[which]
        places, read = np.full(shape, NO_TARGET, np.int64), np.zeros(shape, np.int64)
        places[at], read[at] = place[which], k
        return Windows(inputs, targets, keep, places, read)


@dataclass(frozen=True)
class InOrderReader(WindowReader):
    """Reads a text in its own order: each row has a part of the sentences to itself, and reads it to its end.

    A state that a row carries then comes from the sentence before in the text. In training the rows take sentences in
    turn, as bilm-tf's do, and the state comes from a sentence further back.
    """

    reset: float = 0.0

    def _queues(self, place: int) -> list[Iterator[tuple[int, int, int]]]:
        """For each row the sentences of its own part."""
        assert not self.sentences.shuffle
        return [self._sentences(first, stop) for first, stop in pairwise(_cuts(self.sentences, self.rows))]


def _cuts(sentences: Sentences, rows: int) -> list[int]:
    """Where `rows` stretches of about the same number of tokens begin and end, in sentences."""
    count = len(sentences)

    def inputs_to(place: int) -> int:
        sentence = int(sentences.at(np.array([place]))[0])
        return int(sentences.corpus.ends[sentence]) + sentence + 1

    total = inputs_to(count - 1)
    inside = [bisect_left(range(count), total * row // rows, key=inputs_to) for row in range(1, rows)]
    return [0, *inside, count]


@dataclass(frozen=True, eq=False)
class WindowBatch(Batch):
    """Windows with their distinct tokens once, and where each occurs."""

    characters: Tensor | None
    words: Tensor | None
    inputs: Tensor  # [D, T, B] which of the U
    targets: Tensor  # [D, T, B]
    keep: Tensor  # [T, B]

    def read(
        self, context: ContextEncoder, types: Tensor, state: State | None, *, dropout: float
    ) -> tuple[Tensor, State | None]:
        """types [U, P] → what the softmax reads [D, T, B, S], and the state after the windows."""
        from torch.nn import functional as F

        return context.read_windows(F.embedding(self.inputs, types), self.keep, state, dropout=dropout)

    def row_weight(self) -> float:
        """The loss is a mean."""
        return 1 / self.targets.numel()

    def sums(self, losses: Tensor) -> Tensor:
        """[D, T, B] → [D]."""
        import torch

        return losses.sum(dim=(1, 2), dtype=torch.float64)

    def counts(self) -> list[int]:
        """Every token is predicted in each direction."""
        return [self.targets[0].numel()] * len(self.targets)


@dataclass(frozen=True, eq=False)
class WindowBatches(Batches):
    """The windows of each update; each process fills its own rows."""

    batch_type = WindowBatch
    types: TypeTable
    reader: WindowReader
    shares: tuple[range, ...]
    """The rows of each of this process's batches."""

    def arrays(self) -> Iterator[tuple[list[Arrays], WindowPosition]]:
        """Each update's batches as arrays, and the position after them."""
        for plan in self.reader.plans():
            yield [window_arrays(self.types, self.reader.fill(plan, share)) for share in self.shares], plan.position


def window_arrays(types: TypeTable, windows: Windows) -> Arrays:
    """The parts of a batch of windows."""
    inputs, targets = windows.inputs[: types.directions], windows.targets[: types.directions]
    wanted = np.where(targets == NO_TARGET, NO_TARGET, types.vocab_index[targets])
    return {**types.arrays(inputs), "targets": wanted, "keep": windows.keep}


def window_batch(types: TypeTable, windows: Windows) -> WindowBatch:
    """Windows as the network takes them."""
    return WindowBatch.of_arrays(window_arrays(types, windows))

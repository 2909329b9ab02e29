"""From a prepared corpus to windows: rows of tokens read side by side, sentence after sentence.

Rows are filled in the manner of bilm-tf: in order, and a row with nothing left takes the next unread sentence as often
as its window needs, keeping the rest for its next window. A sentence of n words gives each direction n + 1 inputs and
targets, the backward one in its own reading order, so both directions are at the same place of the same sentence.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
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
        """The plans of all windows.

        Sentences are taken in order, so those of a window are one run of the reading; only how many each row takes must
        be found row by row.
        """
        position, rows = self.position or WindowPosition.start(self.rows), np.arange(self.rows)
        row_begin, row_length = self.sentences.spans(self.sentences.at(np.maximum(position.row_place, 0)))
        upcoming = _UpcomingSentences(self.sentences, position.next_place, endless=self.endless)
        while True:
            before = position
            rest = np.where(before.row_place == NO_TARGET, 0, np.maximum(row_length + 1 - before.row_offset, 0))
            upcoming.start_at(before.next_place)
            ends, at = [], 0
            for need in (self.window - rest).tolist():
                if need > 0:
                    at = upcoming.after(at, need)
                ends.append(at)
            stops = np.array(ends, np.int64)
            firsts = np.concatenate([[0], stops[:-1]])
            begins, lengths, starts = upcoming.first(at)  # [at] sentences, and the inputs before each
            row = np.repeat(rows, stops - firsts)
            column = rest[row] + starts - (starts[firsts[row]] if at else 0)
            taken = np.minimum(lengths + 1, self.window - column)
            left, rest_taken = rest > 0, np.minimum(rest, self.window)
            old = [rows, 0 * rows, rest_taken, before.row_place, before.row_offset, row_begin, row_length]
            new = [row, column, taken, before.next_place + np.arange(at), 0 * row, begins, lengths]
            pieces = np.concatenate([np.stack(old, axis=1)[left], np.stack(new, axis=1)])
            if not len(pieces):
                return
            place = np.where(left, before.row_place, NO_TARGET)
            offset = np.where(left, before.row_offset + rest_taken, before.row_offset)
            fresh = stops > firsts
            last = stops[fresh] - 1
            place[fresh], offset[fresh] = before.next_place + last, taken[last]
            row_begin[fresh], row_length[fresh] = begins[last], lengths[last]
            position = WindowPosition(before.next_place + at, place, offset)
            yield WindowPlan(pieces[np.argsort(pieces[:, 0], kind="stable")], position)

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

    def plans(self) -> Iterator[WindowPlan]:
        """The plans of all windows, until all rows have ended."""
        assert not self.sentences.shuffle
        cuts, rows = _cuts(self.sentences, self.rows), np.arange(self.rows)
        place, offset = cuts[:-1], np.zeros(self.rows, np.int64)
        # Sentences of a row in a window: each has two inputs or more, but for the rest of the first.
        most = self.window // 2 + 2
        while True:
            places = place[:, None] + np.arange(most)
            there = places < cuts[1:, None]
            begins, lengths = self.sentences.spans(self.sentences.at(np.minimum(places, len(self.sentences) - 1)))
            offsets = np.zeros_like(places)
            offsets[:, 0] = offset
            left = np.where(there, lengths + 1 - offsets, 0)
            columns = np.cumsum(left, axis=1) - left
            taken = np.clip(self.window - columns, 0, left)
            if not taken.any():
                return
            row = np.broadcast_to(rows[:, None], places.shape)
            pieces = np.stack([row, columns, taken, places, offsets, begins, lengths], axis=-1)[taken > 0]
            ended = (there & (taken == left)).sum(axis=1)
            place, offset = place + ended, (offsets + taken)[rows, ended]
            yield WindowPlan(pieces, WindowPosition(len(self.sentences), place, offset))


def _cuts(sentences: Sentences, rows: int) -> Ints:
    """[rows + 1]: where stretches of about the same number of tokens begin and end, in sentences."""
    count = len(sentences)

    def inputs_to(place: int) -> int:
        sentence = int(sentences.at(np.array([place]))[0])
        return int(sentences.corpus.ends[sentence]) + sentence + 1

    total = inputs_to(count - 1)
    inside = [bisect_left(range(count), total * row // rows, key=inputs_to) for row in range(1, rows)]
    return np.array([0, *inside, count], np.int64)


class _UpcomingSentences:
    """The sentences that come next: where they begin, their lengths, the inputs before each; read in blocks."""

    def __init__(self, sentences: Sentences, place: int, *, endless: bool) -> None:
        self.sentences, self.endless = sentences, endless
        self._from = self._start = place
        self._begins, self._lengths = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._sums = [0]  # inputs before each sentence of the block, and after its last

    def start_at(self, place: int) -> None:
        """Count sentences from this place of the reading on."""
        self._start = place

    def after(self, first: int, need: int) -> int:
        """The sentence after those that give `need` inputs from sentence `first` on, or after the last there is."""
        while True:
            at = self._start + first - self._from
            target = self._sums[at] + need
            if target <= self._sums[-1] or not self._more():
                return min(bisect_left(self._sums, target, at), len(self._sums) - 1) + self._from - self._start

    def first(self, count: int) -> tuple[Ints, Ints, Ints]:
        """Of the next `count` sentences: begins, lengths, inputs before each."""
        at = slice(self._start - self._from, self._start - self._from + count)
        return self._begins[at], self._lengths[at], np.array(self._sums[at], np.int64)

    def _more(self) -> bool:
        """Read one more block and drop the sentences before the start; False where there are no more."""
        place = self._from + len(self._begins)
        stop = place + _LOOK_AHEAD if self.endless else min(place + _LOOK_AHEAD, len(self.sentences))
        if stop <= place:
            return False
        begins, lengths = self.sentences.spans(self.sentences.at(np.arange(place, stop)))
        read = self._start - self._from
        self._begins = np.concatenate([self._begins[read:], begins])
        self._lengths = np.concatenate([self._lengths[read:], lengths])
        self._from = self._start
        self._sums = [0, *np.cumsum(self._lengths + 1).tolist()]
        return True


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

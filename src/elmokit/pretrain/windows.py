"""From a prepared corpus to windows: rows of tokens read side by side, sentence after sentence.

Rows are filled in the manner of bilm-tf: in order, and a row with nothing left takes the next unread sentence as often
as its window needs, keeping the rest for its next window. A sentence of n words gives each direction n + 1 inputs and
targets, the backward one in its own reading order, so both directions stand at the same place of the same sentence.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import ElmoError
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


@dataclass(frozen=True)
class WindowPosition:
    """Where the reading stands; all that is needed to go on."""

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
    """Which piece of which sentence stands where in a window."""

    pieces: Ints  # [N, 7]
    """Row, column, tokens; the sentence's place in the reading, inputs of it read before, where it begins, length."""
    position: WindowPosition
    """Where the reading stands after this window."""


class WindowReader:
    """Reads windows of `rows` x `window` tokens, endlessly or to the end of the sentences.

    `read` gives a window's plan, which `fill` turns into the tokens of some of its rows: every process plans all rows
    and fills its own. `position` is where the reading stands after the last plan.
    """

    def __init__(
        self,
        sentences: Sentences,
        *,
        rows: int,
        window: int,
        reset: float = 1.0,
        endless: bool = True,
        seed: int = 0,
        position: WindowPosition | None = None,
    ) -> None:
        if not len(sentences):
            raise ElmoError("the corpus has no sentence to read: every line was empty or left out")
        self.sentences, self.rows, self.window = sentences, rows, window
        self.reset, self.endless, self.seed = reset, endless, seed
        self.position = position or WindowPosition.start(rows)
        self._begin, self._length = sentences.spans(sentences.at(np.maximum(self.position.row_place, 0)))
        self._coming = _UpcomingSentences(sentences, self.position.next_place, endless=endless)

    def read(self) -> WindowPlan | None:
        """The next window, or None where the sentences have ended.

        Sentences are taken in order, so those of a window are one run of the reading; only how many each row takes must
        be found row by row.
        """
        old, before = self.position, np.arange(self.rows)
        rest = np.where(old.row_place == NO_TARGET, 0, np.maximum(self._length + 1 - old.row_offset, 0))
        coming, ends, at = self._coming, [], 0
        coming.start_at(old.next_place)
        for need in (self.window - rest).tolist():
            if need > 0:
                at = coming.after(at, need)
            ends.append(at)
        stops = np.array(ends, np.int64)
        firsts = np.concatenate([[0], stops[:-1]])
        begins, lengths, starts = coming.first(at)  # [at] sentences, and the inputs before each
        row = np.repeat(before, stops - firsts)
        column = rest[row] + starts - (starts[firsts[row]] if at else 0)
        taken = np.minimum(lengths + 1, self.window - column)
        left = rest > 0
        pieces = np.concatenate(
            [
                np.stack([before, before * 0, np.minimum(rest, self.window), old.row_place, old.row_offset], axis=1)[
                    left
                ],
                np.stack([row, column, taken, old.next_place + np.arange(at), np.zeros_like(row)], axis=1),
            ]
        )
        if not len(pieces):
            return None
        spans = np.concatenate(
            [np.stack([self._begin, self._length], axis=1)[left], np.stack([begins, lengths], axis=1)]
        )
        order = np.argsort(pieces[:, 0], kind="stable")
        place = np.where(left, old.row_place, NO_TARGET)
        offset = np.where(left, old.row_offset + np.minimum(rest, self.window), old.row_offset)
        fresh = stops > firsts
        last = stops[fresh] - 1
        place[fresh], offset[fresh] = old.next_place + last, taken[last]
        self._begin, self._length = self._begin.copy(), self._length.copy()
        self._begin[fresh], self._length[fresh] = begins[last], lengths[last]
        self.position = WindowPosition(old.next_place + at, place, offset)
        return WindowPlan(np.concatenate([pieces, spans], axis=1)[order], self.position)

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
        places = np.full(shape, NO_TARGET, np.int64)
        places[at] = place[which]
        return Windows(inputs, targets, keep, places)


class InOrderReader(WindowReader):
    """Reads a text in its own order: each row has a part of the sentences to itself, and reads it to its end.

    A state that a row carries then comes from the sentence before in the text. In training the rows take sentences in
    turn, as bilm-tf's do, and the state comes from a sentence further back.
    """

    def __init__(self, sentences: Sentences, *, rows: int, window: int, reset: float = 0.0) -> None:
        assert not sentences.shuffle
        super().__init__(sentences, rows=rows, window=window, reset=reset, endless=False)
        cuts = _cuts(sentences, rows)
        self._stop = cuts[1:]
        self.position = WindowPosition(len(sentences), cuts[:-1], np.zeros(rows, np.int64))

    def read(self) -> WindowPlan | None:
        """The next window, or None where all rows have ended."""
        place, offset = self.position.row_place, self.position.row_offset
        # Sentences of a row in a window: each has two inputs or more, but for the rest of the first.
        most = self.window // 2 + 2
        places = place[:, None] + np.arange(most)
        there = places < self._stop[:, None]
        sentences = self.sentences.at(np.minimum(places, len(self.sentences) - 1))
        begins, lengths = self.sentences.spans(sentences)
        offsets = np.zeros_like(places)
        offsets[:, 0] = offset
        left = np.where(there, lengths + 1 - offsets, 0)
        columns = np.cumsum(left, axis=1) - left
        taken = np.clip(self.window - columns, 0, left)
        if not taken.any():
            return None
        row = np.broadcast_to(np.arange(self.rows)[:, None], places.shape)
        pieces = np.stack([row, columns, taken, places, offsets, begins, lengths], axis=-1)[taken > 0]
        ended = (there & (taken == left)).sum(axis=1)
        reached = (offsets + taken)[np.arange(self.rows), ended]
        self.position = WindowPosition(len(self.sentences), place + ended, reached)
        return WindowPlan(pieces, self.position)


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
    """The sentences that come next: where they begin, their lengths, the inputs before each; looked up in blocks."""

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
        """Look a block further, forgetting what was read; False where there is no more."""
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
    """Windows of `rows` x `window` tokens in the order of the reading; each process fills its own rows."""

    types: TypeTable
    sentences: Sentences
    rows: int
    """Rows of text, over all processes."""
    shares: tuple[range, ...]
    """The rows of each of this process's batches."""
    window: int
    reset: float
    seed: int
    position: WindowPosition

    def arrays(self) -> Iterator[tuple[list[Arrays], WindowPosition]]:
        """Each update's batches as arrays, and the position after them."""
        reader = WindowReader(
            self.sentences,
            rows=self.rows,
            window=self.window,
            reset=self.reset,
            seed=self.seed,
            position=self.position,
        )
        while plan := reader.read():
            yield [window_arrays(self.types, reader.fill(plan, share)) for share in self.shares], plan.position

    def batch(self, parts: Mapping[str, Tensor]) -> WindowBatch:
        """A batch of the tensors that these arrays became."""
        return WindowBatch.of(parts)


def window_arrays(types: TypeTable, windows: Windows) -> Arrays:
    """Windows → the parts of a batch."""
    inputs, targets = windows.inputs[: types.directions], windows.targets[: types.directions]
    wanted = np.where(targets == NO_TARGET, NO_TARGET, types.vocab_index[targets])
    return {**types.arrays(inputs), "targets": wanted, "keep": windows.keep}


def window_batch(types: TypeTable, windows: Windows) -> WindowBatch:
    """Windows → what the network takes."""
    return WindowBatch.of_arrays(window_arrays(types, windows))

"""From a prepared corpus to flat batches of segments, for encoders that read whole stretches of text at once.

A segment is a sentence or several consecutive ones, with one boundary before and one after. It is read in one of three
ways: words are masked and predicted from both sides, or each word is predicted from those before it, or from those
after it. Every choice is a function of the seed and the position, so the batches of a run are the same however the run
was interrupted, wherever they are made, and however many processes share them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from elmokit.pretrain.batches import Batch, Batches
from elmokit.pretrain.sentences import BEGIN_TYPE, END_TYPE, Arrays, Ints, Sentences, TypeTable, uniform

if TYPE_CHECKING:  # see `elmokit.pretrain.batches`
    from torch import Tensor

    from elmokit.model.context import ContextEncoder, State

MASKED, FORWARD, BACKWARD = WAYS = 0, 1, 2
"""What is predicted: masked words, the next word, the word before; see `elmokit.ops.attention`."""
WAY_NAMES = ("masked", "forward", "backward")
HIDDEN, SWAPPED = 0.8, 0.9
"""Of the words to predict, the share that is hidden, and up to where another word takes their place; the rest stays."""
_BOUNDARIES = 2
_LOOK_AHEAD = 4096
# One sequence of random numbers for each choice.
_JOINED, _LENGTH, _WAY, _CHOSEN, _CHANGE, _SWAP = range(6)


@dataclass(frozen=True)
class Pace:
    """How much each update reads, as a function of what was read before."""

    total: float
    """Tokens of the whole run, boundaries included."""
    update: int
    """Tokens of an update."""
    grow: float
    """From this share of the run on an update reads twice as many; 1: never."""

    @classmethod
    def for_steps(cls, steps: int, update: int, grow: float) -> Pace:
        """A run of `steps` updates."""
        total = 2 * steps * update / (1 + grow)
        pace = cls(total, update, grow)
        while pace.n_steps() > steps:
            total -= update / 4
            pace = cls(total, update, grow)
        return pace

    def done(self, tokens: int) -> float:
        """The share of the run that is done after `tokens`; all schedules follow it."""
        return min(1.0, tokens / self.total)

    def batches(self, tokens: int) -> int:
        """How many times its first size an update has after `tokens`."""
        return 2 if self.grow < 1 and tokens >= self.grow * self.total else 1

    def size(self, tokens: int) -> int:
        """Tokens of the update after `tokens`."""
        return self.update * self.batches(tokens)

    def n_steps(self, tokens: int = 0) -> int:
        """Updates from `tokens` to the end of the run."""
        small = max(0, -int((tokens - min(1.0, self.grow) * self.total) // self.update))
        left = self.total - tokens - small * self.update
        return small + max(0, -int(-left // (2 * self.update)))


@dataclass(frozen=True)
class SegmentPosition:
    """Where the reading is: all that is needed to continue."""

    place: int = 0
    """The next sentence of the endless reading that begins a segment."""
    tokens: int = 0
    """Tokens of the run before it; each update counts as many as it should have."""


@dataclass(frozen=True)
class SegmentPlan:
    """The segments of an update, of all processes."""

    places: Ints  # [S] the first sentence's place in the reading
    begins: Ints  # [S] the first word in the corpus
    words: Ints  # [S]
    before: SegmentPosition
    after: SegmentPosition


@dataclass(frozen=True, eq=False)
class Passage:
    """The tokens of an update, N of S segments one after the other."""

    starts: Ints  # [S + 1]
    ways: Ints  # [S]
    types: Ints  # [N]
    inputs: Ints  # [N] the types with other words in the place of some
    hidden: NDArray[np.bool_]  # [N] the words whose vector is that of a masked word
    rows: tuple[Ints, Ints, Ints]
    """By way: the tokens at which a word is predicted."""
    targets: tuple[Ints, Ints, Ints]
    """By way: the types that are predicted there."""


@dataclass(frozen=True)
class SegmentReader:
    """Plans updates of about `pace.size` tokens; each sentence of a pass begins one segment."""

    sentences: Sentences
    pace: Pace
    longest: int
    """Most tokens of a segment, its two boundaries included."""
    join: float
    """Share of the segments that are several consecutive sentences."""
    mask: tuple[float, float]
    """Share of the words that are masked, at the start and at the end of the run."""
    causal: tuple[float, float]
    """Share of the segments in which words are predicted from one side, at the start and at the end of the run."""
    seed: int = 0
    position: SegmentPosition = SegmentPosition()
    """Where the reading starts."""

    def __post_init__(self) -> None:
        self.sentences.refuse_empty()

    def plans(self) -> Iterator[SegmentPlan]:
        """The segments of each update: as many as come nearest to its size, and one at least."""
        position = self.position
        begins, words = np.zeros(0, np.int64), np.zeros(0, np.int64)  # of the segments from the position on
        while True:
            before, size = position, self.pace.size(position.tokens)
            while int(words.sum()) + _BOUNDARIES * len(words) < size + self.longest:
                more = self.spans(before.place + len(words) + np.arange(_LOOK_AHEAD))
                begins, words = np.concatenate([begins, more[0]]), np.concatenate([words, more[1]])
            ends = np.cumsum(words + _BOUNDARIES)
            count = int(np.argmin(np.abs(ends - size))) + 1
            position = SegmentPosition(before.place + count, before.tokens + size)
            places = before.place + np.arange(count)
            yield SegmentPlan(places, begins[:count], words[:count], before, position)
            begins, words = begins[count:], words[count:]

    def spans(self, places: Ints) -> tuple[Ints, Ints]:
        """Where the segments that begin at these places of the reading are in the corpus: first words, and lengths."""
        sentence = self.sentences.at(places)
        begins, words = self.sentences.spans(sentence)
        most = self.longest - _BOUNDARIES
        if self.join:
            ends = np.asarray(self.sentences.corpus.ends)
            want = most // 4 + (self._draw(places, _LENGTH) * (most - most // 4 + 1)).astype(np.int64)
            last = np.searchsorted(ends, begins + want, side="right") - 1
            last = np.minimum(last, self.sentences.last_of_run(sentence))
            joined = (self._draw(places, _JOINED) < self.join) & (last > sentence)
            words = np.where(joined, ends[np.maximum(last, 0)] - begins, words)
        return begins, np.minimum(words, most)

    def fill(self, plan: SegmentPlan) -> Passage:
        """The tokens of an update, with the words that are predicted."""
        done = self.pace.done(plan.before.tokens)
        mask, causal = (first + (last - first) * done for first, last in (self.mask, self.causal))
        lengths = plan.words + _BOUNDARIES
        starts = np.concatenate([[0], np.cumsum(lengths)])
        total = int(starts[-1])
        which = np.repeat(np.arange(len(lengths)), lengths)
        inside = np.arange(total) - starts[which]
        coin = self._draw(plan.places, _WAY)
        ways = np.select([coin < causal / 2, coin < causal], [FORWARD, BACKWARD], MASKED)
        tokens = np.asarray(self.sentences.corpus.tokens)  # without the overhead of a memmap at every access
        types = tokens.take(plan.begins[which] + inside - 1, mode="clip").astype(np.int64)
        first, last = inside == 0, inside == lengths[which] - 1
        types[first], types[last] = BEGIN_TYPE, END_TYPE
        way = ways[which]
        words = np.flatnonzero(~(first | last))
        # Two updates must not share numbers, though one may be a little larger than it counts.
        numbers = 2 * plan.before.tokens + np.arange(total)
        chosen = words[(way[words] == MASKED) & (self._draw(numbers[words], _CHOSEN) < mask)]
        change = self._draw(numbers[chosen], _CHANGE)
        hidden = np.zeros(total, np.bool_)
        hidden[chosen[change < HIDDEN]] = True
        swapped = chosen[(change >= HIDDEN) & (change < SWAPPED)]
        inputs = types.copy()
        inputs[swapped] = types[words[(self._draw(numbers[swapped], _SWAP) * len(words)).astype(np.int64)]]
        forward = np.flatnonzero((way == FORWARD) & ~last)
        backward = np.flatnonzero((way == BACKWARD) & ~first)
        targets = (types[chosen], types[forward + 1], types[backward - 1])
        return Passage(starts, ways, types, inputs, hidden, (chosen, forward, backward), targets)

    def _draw(self, numbers: Ints, choice: int) -> NDArray[np.float64]:
        return uniform(numbers, 8 * self.seed + choice + 1)


@dataclass(frozen=True, eq=False)
class SegmentBatch(Batch):
    """Segments one after the other, N tokens in all, and the R words that are predicted, way after way."""

    on_cpu = ("starts", "ways", "predictions")

    characters: Tensor | None
    words: Tensor | None
    inputs: Tensor  # [N] which of the U
    hidden: Tensor  # [N]
    starts: Tensor  # [S + 1] where the segments begin, then N
    ways: Tensor  # [S]
    reach: Tensor | None  # [3, N] for a GPU: the first and the last token that each sees, and its place in the segment
    rows: Tensor  # [R] the tokens at which a word is predicted
    targets: Tensor  # [R]
    weights: Tensor  # [R] what each prediction counts
    predictions: Tensor  # [3] of each way

    def read(
        self, context: ContextEncoder, types: Tensor, state: State | None, *, dropout: float
    ) -> tuple[Tensor, State | None]:
        """types [U, P] → what the softmax reads for each prediction [R, S]."""
        import torch
        from torch.nn import functional as F

        from elmokit.model.transformer import DIRECTIONS as HEADS
        from elmokit.model.transformer import TransformerEncoder
        from elmokit.ops.attention import Segments

        assert isinstance(context, TransformerEncoder)
        segments = Segments(self.starts.tolist(), self.ways.tolist(), self.reach)
        with torch.autocast(types.device.type, torch.bfloat16, enabled=types.dtype == torch.bfloat16):
            x = F.embedding(self.inputs, types)
            x = torch.where(self.hidden.unsqueeze(1), context.masked.to(x.dtype), x)
            top = context.top(x, segments, dropout=dropout).index_select(0, self.rows)
            parts = torch.split(top, self.counts())
            found = [context.softmax_input(part, word) for word, part in zip(HEADS, parts, strict=True)]
            return torch.cat(found), None

    def row_weight(self) -> Tensor:
        """A mean over each way's predictions; the ways count by their tokens in the whole update."""
        return self.weights

    def sums(self, losses: Tensor) -> Tensor:
        """[R] → [3]."""
        import torch

        return torch.stack([part.sum(dtype=torch.float64) for part in torch.split(losses, self.counts())])

    def counts(self) -> list[int]:
        """The predictions of each way."""
        counts: list[int] = self.predictions.tolist()
        return counts


@dataclass(frozen=True, eq=False)
class SegmentBatches(Batches):
    """The segments of each update, dealt to the processes in contiguous parts of about the same size."""

    batch_type = SegmentBatch
    types: TypeTable
    reader: SegmentReader
    parts: int = 1
    """Batches of an update of the first size, over all processes."""
    rank: int = 0
    processes: int = 1
    attention_window: int = 0
    """For a GPU: how far a token sees. Batches then have `reach`, and all the same number of tokens."""

    def arrays(self) -> Iterator[tuple[list[Arrays], SegmentPosition]]:
        """Each update's batches as arrays, and the position after them."""
        for plan in self.reader.plans():
            passage = self.reader.fill(plan)
            parts = self.parts * self.reader.pace.batches(plan.before.tokens)
            own = range(self.rank, parts, self.processes)
            yield [self._part(passage, number, parts) for number in own], plan.after

    def _part(self, passage: Passage, number: int, parts: int) -> Arrays:
        """One of the parts of an update: the segments that begin in its share of the tokens."""
        starts, total = passage.starts, int(passage.starts[-1])
        first, last = np.searchsorted(starts[:-1], [number * total // parts, (number + 1) * total // parts])
        begin, end = int(starts[first]), int(starts[last])
        found: dict[str, list[NDArray[Any]]] = {"rows": [], "targets": [], "weights": []}
        by_way = np.bincount(passage.ways, np.diff(starts), len(WAYS)) / total
        for way, (rows, targets) in enumerate(zip(passage.rows, passage.targets, strict=True)):
            there = slice(*np.searchsorted(rows, [begin, end]))
            found["rows"].append(rows[there] - begin)
            found["targets"].append(self.types.vocab_index[targets[there]])
            # The parts' losses are averaged: together they give the loss of one batch with all segments.
            weight = parts * by_way[way] / max(1, len(rows))
            found["weights"].append(np.full(len(rows[there]), weight, np.float32))
        arrays = {name: np.concatenate(values) for name, values in found.items()}
        predictions = np.array([len(rows) for rows in found["rows"]], np.int64)
        inputs, hidden = passage.inputs[begin:end], passage.hidden[begin:end]
        own_starts, ways = starts[first : last + 1] - begin, passage.ways[first:last]
        more = self._filling(end - begin)
        if more:  # a segment in which nothing is predicted
            inputs = np.concatenate([inputs, np.full(more, BEGIN_TYPE)])
            hidden = np.concatenate([hidden, np.zeros(more, np.bool_)])
            own_starts, ways = np.append(own_starts, own_starts[-1] + more), np.append(ways, MASKED)
        if self.attention_window:
            arrays["reach"] = reach(own_starts, ways, self.attention_window)
        return {
            **self.types.arrays(inputs),
            "hidden": hidden,
            "starts": own_starts,
            "ways": ways,
            "predictions": predictions,
            **arrays,
        }

    def _filling(self, size: int) -> int:
        """Tokens that are added to a part: a compiled network wants the same number in every batch."""
        if not self.attention_window:
            return 0 if size else _BOUNDARIES
        tokens = self.reader.pace.update // self.parts
        return -(-(tokens + 2 * self.reader.longest) // 128) * 128 - size


def reach(starts: Ints, ways: Ints, window: int) -> NDArray[np.int32]:
    """[3, N]: the first and the last token that each token sees, and its place in its segment."""
    lengths = np.diff(starts)
    at = np.arange(starts[-1])
    start, stop, way = (np.repeat(part, lengths) for part in (starts[:-1], starts[1:], ways))
    first = np.where(way == BACKWARD, at, np.maximum(start, at - window))
    last = np.where(way == FORWARD, at, np.minimum(stop - 1, at + window))
    return np.stack([first, last, at - start]).astype(np.int32)

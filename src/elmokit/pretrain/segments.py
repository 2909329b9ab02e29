"""From a prepared corpus to flat batches of segments, for encoders that read a whole segment at once.

A segment is one sentence or several consecutive ones, with one boundary before and one after. Its prediction mode is
one of three: masked words are predicted from both sides, each word from those before it, or each word from those
after it. Every random choice is a function of the seed and the position, so the batches of a run do not depend on
interruptions, on the machine or on the number of processes.
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

MASKED, FORWARD, BACKWARD = MODES = 0, 1, 2
"""The prediction modes: masked words, the next word, the previous word; the numbers are `elmokit.ops.attention`'s."""
MODE_NAMES = ("masked", "forward", "backward")
HIDDEN, SWAPPED = 0.8, 0.9
"""Of the words to predict, the first 80 % are hidden, the next 10 % are replaced by another word, the others stay."""
_BOUNDARIES = 2
"""Number of boundaries of a segment."""
_LOOK_AHEAD = 4096
# Each random choice has its own sequence of random numbers.
_JOINED, _LENGTH, _MODE, _CHOSEN, _CHANGE, _SWAP = range(6)


@dataclass(frozen=True)
class UpdateSchedule:
    """The number of tokens in each update, as a function of the tokens read before it."""

    total: float
    """Tokens of the whole run, boundaries included."""
    update: int
    """Tokens of an update before it grows."""
    grow: float
    """The share of the run from which an update reads twice as many tokens; 1: never."""

    @classmethod
    def for_steps(cls, steps: int, update: int, grow: float) -> UpdateSchedule:
        """The schedule of a run of `steps` updates."""
        total = 2 * steps * update / (1 + grow)
        schedule = cls(total, update, grow)
        while schedule.n_steps() > steps:
            total -= update / 4
            schedule = cls(total, update, grow)
        return schedule

    def done(self, tokens: int) -> float:
        """The share of the run that is done after `tokens` tokens; all schedules follow it."""
        return min(1.0, tokens / self.total)

    def growth(self, tokens: int) -> int:
        """The size of the update after the first `tokens` tokens, as a multiple of the first update's size."""
        return 2 if self.grow < 1 and tokens >= self.grow * self.total else 1

    def size(self, tokens: int) -> int:
        """Tokens of the update that follows the first `tokens` tokens."""
        return self.update * self.growth(tokens)

    def n_steps(self, tokens: int = 0) -> int:
        """Number of updates from the first `tokens` tokens to the end of the run."""
        small = max(0, -int((tokens - min(1.0, self.grow) * self.total) // self.update))
        left = self.total - tokens - small * self.update
        return small + max(0, -int(-left // (2 * self.update)))


@dataclass(frozen=True)
class SegmentPosition:
    """The position in the text: all that is needed to resume."""

    next_index: int = 0
    """Index in the reading order of the sentence that begins the next segment."""
    tokens: int = 0
    """Tokens read before; each update counts with its scheduled size."""


@dataclass(frozen=True)
class SegmentPlan:
    """The segments of one update, of all processes."""

    indices: Ints  # [S] the first sentence's index in the reading order
    begins: Ints  # [S] the first word's position in the corpus
    words: Ints  # [S] number of words
    before: SegmentPosition
    after: SegmentPosition


@dataclass(frozen=True, eq=False)
class Passage:
    """The N tokens of the S segments of an update, one segment after the other."""

    starts: Ints  # [S + 1]
    modes: Ints  # [S]
    types: Ints  # [N]
    inputs: Ints  # [N] the types that the model reads, some of them replaced
    hidden: NDArray[np.bool_]  # [N] whether the token is read as the mask vector
    rows: tuple[Ints, Ints, Ints]
    """By mode: the positions of the tokens at which a word is predicted."""
    targets: tuple[Ints, Ints, Ints]
    """By mode: the types to predict there."""


@dataclass(frozen=True)
class SegmentReader:
    """Plans updates of about `schedule.size` tokens; in each epoch every sentence begins one segment."""

    sentences: Sentences
    schedule: UpdateSchedule
    longest: int
    """Largest number of tokens in a segment, its two boundaries included."""
    join: float
    """Share of the segments that are several consecutive sentences."""
    mask: tuple[float, float]
    """Share of the words that are masked, at the start and at the end of the run."""
    causal: tuple[float, float]
    """Share of the segments in which words are predicted from one side, at the start and at the end of the run."""
    seed: int = 0
    position: SegmentPosition = SegmentPosition()
    """The position of the first update."""

    def __post_init__(self) -> None:
        self.sentences.refuse_empty()

    def plans(self) -> Iterator[SegmentPlan]:
        """The segments of each update: the number that comes nearest to its scheduled size, at least one."""
        position = self.position
        begins, words = np.zeros(0, np.int64), np.zeros(0, np.int64)  # of the next segments
        while True:
            before, size = position, self.schedule.size(position.tokens)
            while int(words.sum()) + _BOUNDARIES * len(words) < size + self.longest:
                more = self.spans(before.next_index + len(words) + np.arange(_LOOK_AHEAD))
                begins, words = np.concatenate([begins, more[0]]), np.concatenate([words, more[1]])
            ends = np.cumsum(words + _BOUNDARIES)
            count = int(np.argmin(np.abs(ends - size))) + 1
            position = SegmentPosition(before.next_index + count, before.tokens + size)
            indices = before.next_index + np.arange(count)
            yield SegmentPlan(indices, begins[:count], words[:count], before, position)
            begins, words = begins[count:], words[count:]

    def spans(self, indices: Ints) -> tuple[Ints, Ints]:
        """The first words in the corpus, and the lengths, of the segments at these indices of the reading order."""
        sentence = self.sentences.at(indices)
        begins, words = self.sentences.spans(sentence)
        most = self.longest - _BOUNDARIES
        if self.join:
            ends = np.asarray(self.sentences.corpus.ends)
            want = most // 4 + (self._draw(indices, _LENGTH) * (most - most // 4 + 1)).astype(np.int64)
            last = np.searchsorted(ends, begins + want, side="right") - 1
            last = np.minimum(last, self.sentences.last_of_run(sentence))
            joined = (self._draw(indices, _JOINED) < self.join) & (last > sentence)
            words = np.where(joined, ends[np.maximum(last, 0)] - begins, words)
        return begins, np.minimum(words, most)

    def fill(self, plan: SegmentPlan) -> Passage:
        """The tokens of an update and the words to predict."""
        done = self.schedule.done(plan.before.tokens)
        mask, causal = (first + (last - first) * done for first, last in (self.mask, self.causal))
        lengths = plan.words + _BOUNDARIES
        starts = np.concatenate([[0], np.cumsum(lengths)])
        total = int(starts[-1])
        which = np.repeat(np.arange(len(lengths)), lengths)
        inside = np.arange(total) - starts[which]
        coin = self._draw(plan.indices, _MODE)
        modes = np.select([coin < causal / 2, coin < causal], [FORWARD, BACKWARD], MASKED)
        tokens = np.asarray(self.sentences.corpus.tokens)  # without the overhead of a memmap at every access
        types = tokens.take(plan.begins[which] + inside - 1, mode="clip").astype(np.int64)
        first, last = inside == 0, inside == lengths[which] - 1
        types[first], types[last] = BEGIN_TYPE, END_TYPE
        mode = modes[which]
        words = np.flatnonzero(~(first | last))
        # Twice the position: updates must not share numbers, and one may be a little larger than its scheduled size.
        numbers = 2 * plan.before.tokens + np.arange(total)
        chosen = words[(mode[words] == MASKED) & (self._draw(numbers[words], _CHOSEN) < mask)]
        change = self._draw(numbers[chosen], _CHANGE)
        hidden = np.zeros(total, np.bool_)
        hidden[chosen[change < HIDDEN]] = True
        swapped = chosen[(change >= HIDDEN) & (change < SWAPPED)]
        inputs = types.copy()
        inputs[swapped] = types[words[(self._draw(numbers[swapped], _SWAP) * len(words)).astype(np.int64)]]
        forward = np.flatnonzero((mode == FORWARD) & ~last)
        backward = np.flatnonzero((mode == BACKWARD) & ~first)
        targets = (types[chosen], types[forward + 1], types[backward - 1])
        return Passage(starts, modes, types, inputs, hidden, (chosen, forward, backward), targets)

    def _draw(self, numbers: Ints, choice: int) -> NDArray[np.float64]:
        return uniform(numbers, 8 * self.seed + choice + 1)


@dataclass(frozen=True, eq=False)
class SegmentBatch(Batch):
    """Segments of N tokens in total, one after the other, and the R words to predict, sorted by mode."""

    on_cpu = ("starts", "modes", "predictions")

    characters: Tensor | None
    words: Tensor | None
    inputs: Tensor  # [N] index of the distinct token
    hidden: Tensor  # [N]
    starts: Tensor  # [S + 1] the first token of each segment, then N
    modes: Tensor  # [S]
    reach: Tensor | None  # [3, N] for a GPU: see `reach` below
    rows: Tensor  # [R] positions of the tokens at which a word is predicted
    targets: Tensor  # [R]
    weights: Tensor  # [R] weight of each prediction in the loss
    predictions: Tensor  # [3] number of predictions in each mode

    def read(
        self, context: ContextEncoder, types: Tensor, state: State | None, *, dropout: float
    ) -> tuple[Tensor, State | None]:
        """types [U, P] → the input of the softmax for each prediction [R, S]."""
        import torch
        from torch.nn import functional as F

        from elmokit.model.transformer import DIRECTIONS as HEADS
        from elmokit.model.transformer import TransformerEncoder
        from elmokit.ops.attention import Segments

        assert isinstance(context, TransformerEncoder)
        segments = Segments(self.starts.tolist(), self.modes.tolist(), self.reach)
        with torch.autocast(types.device.type, torch.bfloat16, enabled=types.dtype == torch.bfloat16):
            x = F.embedding(self.inputs, types)
            x = torch.where(self.hidden.unsqueeze(1), context.masked.to(x.dtype), x)
            top = context.top(x, segments, dropout=dropout).index_select(0, self.rows)
            parts = torch.split(top, self.counts())
            found = [context.softmax_input(part, word) for word, part in zip(HEADS, parts, strict=True)]
            return torch.cat(found), None

    def row_weight(self) -> Tensor:
        """Weights for a mean over each mode's predictions; modes are weighted by their tokens in the whole update."""
        return self.weights

    def sums(self, losses: Tensor) -> Tensor:
        """[R] → [3]."""
        import torch

        return torch.stack([part.sum(dtype=torch.float64) for part in torch.split(losses, self.counts())])

    def counts(self) -> list[int]:
        """The number of predictions in each mode."""
        counts: list[int] = self.predictions.tolist()
        return counts


@dataclass(frozen=True, eq=False)
class SegmentBatches(Batches):
    """The segments of each update, divided among the processes in contiguous parts of about the same size."""

    batch_type = SegmentBatch
    types: TypeTable
    reader: SegmentReader
    parts: int = 1
    """Number of batches of all processes in an update before it grows."""
    rank: int = 0
    processes: int = 1
    attention_window: int = 0
    """For a GPU: the number of tokens that a token sees on each side. Batches then have `reach` and equal sizes."""

    def arrays(self) -> Iterator[tuple[list[Arrays], SegmentPosition]]:
        """Each update's batches as arrays, and the position after them."""
        for plan in self.reader.plans():
            passage = self.reader.fill(plan)
            parts = self.parts * self.reader.schedule.growth(plan.before.tokens)
            own = range(self.rank, parts, self.processes)
            yield [self._part(passage, number, parts) for number in own], plan.after

    def _part(self, passage: Passage, number: int, parts: int) -> Arrays:
        """One part of an update: the segments that begin in its share of the tokens."""
        starts, total = passage.starts, int(passage.starts[-1])
        first, last = np.searchsorted(starts[:-1], [number * total // parts, (number + 1) * total // parts])
        begin, end = int(starts[first]), int(starts[last])
        found: dict[str, list[NDArray[Any]]] = {"rows": [], "targets": [], "weights": []}
        by_mode = np.bincount(passage.modes, np.diff(starts), len(MODES)) / total
        for mode, (rows, targets) in enumerate(zip(passage.rows, passage.targets, strict=True)):
            inside = slice(*np.searchsorted(rows, [begin, end]))
            found["rows"].append(rows[inside] - begin)
            found["targets"].append(self.types.vocab_index[targets[inside]])
            # The losses of the parts are averaged: the mean equals the loss of one batch with all segments.
            weight = parts * by_mode[mode] / max(1, len(rows))
            found["weights"].append(np.full(len(rows[inside]), weight, np.float32))
        arrays = {name: np.concatenate(values) for name, values in found.items()}
        predictions = np.array([len(rows) for rows in found["rows"]], np.int64)
        inputs, hidden = passage.inputs[begin:end], passage.hidden[begin:end]
        own_starts, modes = starts[first : last + 1] - begin, passage.modes[first:last]
        padding = self._padding_tokens(end - begin)
        if padding:  # a segment in which nothing is predicted
            inputs = np.concatenate([inputs, np.full(padding, BEGIN_TYPE)])
            hidden = np.concatenate([hidden, np.zeros(padding, np.bool_)])
            own_starts, modes = np.append(own_starts, own_starts[-1] + padding), np.append(modes, MASKED)
        if self.attention_window:
            arrays["reach"] = reach(own_starts, modes, self.attention_window)
        return {
            **self.types.arrays(inputs),
            "hidden": hidden,
            "starts": own_starts,
            "modes": modes,
            "predictions": predictions,
            **arrays,
        }

    def _padding_tokens(self, size: int) -> int:
        """Number of tokens to add to a part: a compiled network needs the same number in every batch."""
        if not self.attention_window:
            return 0 if size else _BOUNDARIES
        tokens = self.reader.schedule.update // self.parts
        return -(-(tokens + 2 * self.reader.longest) // 128) * 128 - size


def reach(starts: Ints, modes: Ints, window: int) -> NDArray[np.int32]:
    """[3, N]: the first and the last token that each token sees, and its position in its segment."""
    lengths = np.diff(starts)
    at = np.arange(starts[-1])
    start, stop, mode = (np.repeat(part, lengths) for part in (starts[:-1], starts[1:], modes))
    first = np.where(mode == BACKWARD, at, np.maximum(start, at - window))
    last = np.where(mode == FORWARD, at, np.minimum(stop - 1, at + window))
    return np.stack([first, last, at - start]).astype(np.int32)

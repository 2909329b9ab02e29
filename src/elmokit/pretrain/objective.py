"""Training objectives: what an update reads and predicts, and the schedules of the run.

Each kind of context encoder names its objective in `ContextConfig.objective`:
    windows    rows of running text, for encoders with a state; they predict the next and the previous word
    segments   segments of one or more sentences, for encoders that read both sides; they predict masked words too
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch

from elmokit.errors import ElmoError
from elmokit.pretrain.batches import Batches, Position
from elmokit.pretrain.checkpoints import Snapshot
from elmokit.pretrain.distributed import Processes
from elmokit.pretrain.evaluate import HeldOutPerplexity
from elmokit.pretrain.optimizer import rate_at
from elmokit.pretrain.recipe import Recipe, parse_range
from elmokit.pretrain.segments import MODE_NAMES, SegmentBatches, SegmentPosition, SegmentReader, UpdateSchedule
from elmokit.pretrain.sentences import Sentences, TypeTable
from elmokit.pretrain.windows import WindowBatches, WindowPosition, WindowReader

_FIRST_RATE = 0.05
"""The first rate of a warm-up, as a share of the largest, if the number of updates is not known in advance."""
_REWARM, _REWARM_SHARE = 200, 0.05
"""Warm-up of a run that continues with weights but no optimiser state: updates, and their largest share of the run."""


@dataclass
class Objective(ABC):
    """The text and schedules of one run, from its first update or a checkpoint to its end."""

    recipe: Recipe
    types: TypeTable
    sentences: Sentences
    processes: Processes
    device: torch.device
    modes: tuple[str, ...] = field(init=False)
    """The names of the prediction modes; the loss has a part for each."""
    position: Position = field(init=False)
    """The position in the text."""

    @property
    @abstractmethod
    def n_steps(self) -> int | None:
        """Number of updates of the run; None if only the time limits it."""

    @property
    def total(self) -> int | None:
        """Tokens of the whole run; None if only the time limits it."""
        return self.n_steps and self.n_steps * self.size(0)

    @abstractmethod
    def size(self, tokens: int) -> int:
        """Tokens that all processes read in the update that follows the first `tokens` tokens."""

    @abstractmethod
    def done(self, step: int, tokens: int, seconds: float) -> float:
        """The share of the run that is done, from 0 to 1; all schedules follow it."""

    @abstractmethod
    def rate(self, step: int, tokens: int, done: float) -> float:
        """The learning rate of the next update."""

    @abstractmethod
    def batches(self) -> Batches:
        """The batches of the updates from the current position on."""

    @abstractmethod
    def save_position(self, snapshot: Snapshot) -> None:
        """Add the position to a checkpoint."""

    @abstractmethod
    def restore_position(self, snapshot: Snapshot) -> None:
        """Continue from the position of a checkpoint."""

    @abstractmethod
    def describe(self) -> str:
        """A text that says what an update reads."""

    def facts(self) -> dict[str, str]:
        """More facts about the objective for the model card."""
        return {}

    def tokens_before(self) -> int:
        """Tokens that the model read before this run."""
        return 0

    def leg_ended(self, done: float, seconds: float) -> bool:
        """Whether to stop this leg of the run, given the done share of the run and the seconds of the leg."""
        return False

    def selection_perplexity(self, result: HeldOutPerplexity) -> float:
        """The held-out perplexity by which the best checkpoint is chosen."""
        return result.mean


@dataclass
class WindowObjective(Objective):
    """Windows of running text, row by row; each direction predicts every token."""

    position: WindowPosition = field(init=False)

    def __post_init__(self) -> None:
        self.modes = ("forward", "backward")[: self.types.directions]
        self.rows = self.recipe.batch_size * self.processes.count * self.recipe.accumulate
        self.position = WindowPosition.start(self.rows)

    @property
    def n_steps(self) -> int | None:
        """Number of updates of the run; None if only the time limits it."""
        recipe, size = self.recipe, self.size(0)
        limits = [recipe.steps] if recipe.steps else []
        if recipe.epochs:
            limits.append(math.ceil(recipe.epochs * self.sentences.n_predictions / size))
        if recipe.tokens:
            limits.append(math.ceil(recipe.tokens / size))
        return min(limits) if limits else None

    def size(self, tokens: int) -> int:
        """Predictions of one direction in an update of all processes."""
        return self.rows * self.recipe.window

    def done(self, step: int, tokens: int, seconds: float) -> float:
        """The share of the run that is done: of its updates if their number is known, otherwise of its minutes.

        With a known number of updates `minutes` only ends the run, so that the schedules are the same on all machines.
        """
        n_steps, minutes = self.n_steps, self.recipe.minutes
        passed = self.processes.broadcast(seconds) / (60 * minutes) if minutes else 0.0
        return min(1.0, passed if n_steps is None or passed >= 1 else step / n_steps)

    def rate(self, step: int, tokens: int, done: float) -> float:
        """The learning rate of the next update; that of the first is not 0."""
        n_steps, warmup = self.n_steps, self.recipe.warmup
        return rate_at(self.recipe, done + 1 / n_steps if n_steps and warmup else max(done, _FIRST_RATE * warmup))

    def batches(self) -> WindowBatches:
        """The batches of the updates from the current position on."""
        recipe, size, processes = self.recipe, self.recipe.batch_size, self.processes
        blocks = [processes.rank + number * processes.count for number in range(recipe.accumulate)]
        reader = WindowReader(
            self.sentences, self.rows, recipe.window, recipe.reset, recipe.seed, position=self.position
        )
        batch_rows = tuple(range(block * size, (block + 1) * size) for block in blocks)
        return WindowBatches(self.types, reader, batch_rows)

    def save_position(self, snapshot: Snapshot) -> None:
        """Add the position to a checkpoint."""
        snapshot.tensors["data.row_place"] = torch.from_numpy(self.position.row_index)
        snapshot.tensors["data.row_offset"] = torch.from_numpy(self.position.row_offset)
        snapshot.facts["next_place"] = self.position.next_index

    def restore_position(self, snapshot: Snapshot) -> None:
        """Continue from the position of a checkpoint."""
        data = snapshot.part("data")
        if len(data["row_place"]) != self.rows:
            raise ElmoError(
                f"the checkpoint has {len(data['row_place'])} rows of text and this run {self.rows}: keep batch_size x "
                "accumulate x processes as it was"
            )
        index, offset = data["row_place"].numpy(), data["row_offset"].numpy()
        self.position = WindowPosition(snapshot.facts["next_place"], index, offset)

    def describe(self) -> str:
        """A text that says what an update reads."""
        return f"{self.rows} rows x {self.recipe.window} tokens per update"

    def facts(self) -> dict[str, str]:
        """More facts about the objective for the model card."""
        return {"state": f"{self.recipe.reset:.0%} of the sentences started from a zero state in training"}


@dataclass
class SegmentObjective(Objective):
    """Flat batches of segments; all schedules follow the share of the run's tokens, never the clock."""

    position: SegmentPosition = field(init=False)

    def __post_init__(self) -> None:
        self.modes = MODE_NAMES
        recipe, epoch = self.recipe, self.sentences.n_predictions
        update = recipe.batch_tokens * self.processes.count * recipe.accumulate
        schedules = [
            UpdateSchedule(total, update, recipe.grow) for total in (recipe.tokens, recipe.epochs * epoch) if total
        ]
        if recipe.steps:
            schedules.append(UpdateSchedule.for_steps(recipe.steps, update, recipe.grow))
        self.schedule = min(schedules, key=lambda schedule: schedule.total)
        # Start with an epoch that was not read before: each has its own order.
        passes = math.ceil(self.tokens_before() / epoch)
        self.position = SegmentPosition(passes * len(self.sentences), self.tokens_before())

    @property
    def n_steps(self) -> int:
        """Number of updates of this run."""
        return self.schedule.n_steps(self.tokens_before())

    @property
    def total(self) -> int:
        """Tokens of the whole run."""
        return round(self.schedule.total)

    def tokens_before(self) -> int:
        """Tokens that the model read in earlier legs."""
        return round(self.recipe.done * self.schedule.total)

    def size(self, tokens: int) -> int:
        """Tokens, boundaries included, that all processes read in the update that follows the first `tokens` tokens."""
        return self.schedule.size(tokens)

    def done(self, step: int, tokens: int, seconds: float) -> float:
        """The share of the run's tokens that was read."""
        return self.schedule.done(tokens)

    def rate(self, step: int, tokens: int, done: float) -> float:
        """The learning rate at the middle of the next update, so that neither the first nor the last is 0.

        A run that continues from weights alone has an empty optimiser state, so its rate rises first.
        """
        half = self.size(tokens) / 2
        rate = rate_at(self.recipe, (tokens + half) / (self.schedule.total + half))
        rewarm = min(_REWARM, math.ceil(_REWARM_SHARE * self.n_steps)) if self.recipe.done else 0
        return rate * min(1.0, (step + 1) / (rewarm + 1))

    def leg_ended(self, done: float, seconds: float) -> bool:
        """Whether the share `until` of the run or the minutes of this leg are over."""
        minutes = self.recipe.minutes
        return done >= self.recipe.until or (bool(minutes) and self.processes.broadcast(seconds) >= 60 * minutes)

    def selection_perplexity(self, result: HeldOutPerplexity) -> float:
        """The geometric mean of the masked perplexity and that of both directions, or the only one that is trained."""
        causal = parse_range("causal", self.recipe.causal)[1]
        if causal == 1 or result.masked is None:
            return result.mean
        return math.sqrt(result.masked) * math.sqrt(result.mean) if causal else result.masked

    def batches(self) -> SegmentBatches:
        """The batches of the updates from the current position on."""
        recipe, processes = self.recipe, self.processes
        reader = SegmentReader(
            self.sentences,
            self.schedule,
            longest=recipe.segment_tokens,
            join=recipe.join,
            mask=parse_range("mask", recipe.mask),
            causal=parse_range("causal", recipe.causal),
            seed=recipe.seed,
            position=self.position,
        )
        return SegmentBatches(
            self.types,
            reader,
            parts=recipe.accumulate * processes.count,
            rank=processes.rank,
            processes=processes.count,
            attention_window=recipe.attention_window if self.device.type == "cuda" else 0,
        )

    def save_position(self, snapshot: Snapshot) -> None:
        """Add the position to a checkpoint."""
        snapshot.facts |= {"next_place": self.position.next_index, "update_tokens": self.schedule.update}

    def restore_position(self, snapshot: Snapshot) -> None:
        """Continue from the position of a checkpoint."""
        facts = snapshot.facts
        if facts["update_tokens"] != self.schedule.update:
            raise ElmoError(
                f"the checkpoint has updates of {facts['update_tokens']:,} tokens and this run "
                f"{self.schedule.update:,}: keep batch_tokens x accumulate x processes as it was"
            )
        self.position = SegmentPosition(facts["next_place"], facts["progressed"]["predictions"])

    def describe(self) -> str:
        """A text that says what an update reads."""
        later = f", twice as many from {self.recipe.grow:.0%} of the run on" if self.recipe.grow < 1 else ""
        return f"{self.schedule.update:,} tokens per update{later}"

    def facts(self) -> dict[str, str]:
        """More facts about the objective for the model card."""
        shares = {name: parse_range(name, getattr(self.recipe, name)) for name in ("causal", "mask")}
        causal, mask = (" → ".join(f"{share:.1%}" for share in shares[name]) for name in shares)
        return {
            "segments": f"{self.recipe.join:.0%} of the segments are several sentences, up to "
            f"{self.recipe.segment_tokens} tokens; {causal} are read from one side, in the others {mask} of the words "
            "are predicted"
        }


OBJECTIVES: dict[str, type[Objective]] = {"windows": WindowObjective, "segments": SegmentObjective}
"""The objectives by their name in `ContextConfig.objective`."""

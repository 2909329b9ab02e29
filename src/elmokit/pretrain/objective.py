"""What a network is trained to do: what an update reads, what the loss is made of, and the schedules of the run.

Each kind of context encoder names its objective in `ContextConfig.objective`:
    windows    rows of running text for encoders with a state; the next word and the word before are predicted
    segments   whole stretches of text for encoders that read both sides; masked words are predicted too
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
from elmokit.pretrain.evaluate import HeldOut
from elmokit.pretrain.optimizer import rate_at
from elmokit.pretrain.recipe import Recipe, parse_range
from elmokit.pretrain.segments import WAY_NAMES, Pace, SegmentBatches, SegmentPosition, SegmentReader
from elmokit.pretrain.sentences import Sentences, TypeTable
from elmokit.pretrain.windows import WindowBatches, WindowPosition, WindowReader

_FIRST_RATE = 0.05
"""Where the rate begins to rise, as a share of the largest, in a run whose updates cannot be counted beforehand."""
_REWARM, _REWARM_SHARE = 200, 0.05
"""Updates in which the rate of a leg that starts from weights alone rises, and their largest share of the run."""


@dataclass
class Objective(ABC):
    """The reading of one run, from its first update or from a checkpoint to its end."""

    recipe: Recipe
    types: TypeTable
    sentences: Sentences
    processes: Processes
    device: torch.device
    ways: tuple[str, ...] = field(init=False)
    """The parts of the loss."""
    position: Position = field(init=False)
    """Where the reading is."""

    @property
    @abstractmethod
    def n_steps(self) -> int | None:
        """Updates until the end; None where the time decides."""

    @property
    def total(self) -> int | None:
        """Tokens of the whole run; None where the time decides."""
        return self.n_steps and self.n_steps * self.size(0)

    @abstractmethod
    def size(self, tokens: int) -> int:
        """Tokens of the update after `tokens`, over all processes."""

    @abstractmethod
    def done(self, step: int, tokens: int, seconds: float) -> float:
        """The share of the run that is done, from 0 to 1; all schedules follow it."""

    @abstractmethod
    def rate(self, step: int, tokens: int, done: float) -> float:
        """The learning rate of the next update."""

    @abstractmethod
    def batches(self) -> Batches:
        """What the updates from here on read."""

    @abstractmethod
    def save_position(self, snapshot: Snapshot) -> None:
        """Add the position to a checkpoint."""

    @abstractmethod
    def restore_position(self, snapshot: Snapshot) -> None:
        """Continue from the position of a checkpoint."""

    @abstractmethod
    def describe(self) -> str:
        """What an update reads, in words."""

    def facts(self) -> dict[str, str]:
        """Further facts about the reading for the model card."""
        return {}

    def tokens_before(self) -> int:
        """Tokens that the model has read before the run."""
        return 0

    def leg_ended(self, done: float, seconds: float) -> bool:
        """Whether to stop before the end of the run: its share that is done, the seconds since it was resumed."""
        return False

    def merit(self, result: HeldOut) -> float:
        """The held-out perplexity by which the best checkpoint is chosen."""
        return result.mean


@dataclass
class WindowObjective(Objective):
    """Windows of running text, row by row; each direction predicts every token."""

    position: WindowPosition = field(init=False)

    def __post_init__(self) -> None:
        self.ways = ("forward", "backward")[: self.types.directions]
        self.rows = self.recipe.batch_size * self.processes.count * self.recipe.accumulate
        self.position = WindowPosition.start(self.rows)

    @property
    def n_steps(self) -> int | None:
        """Updates until the end, where the time does not decide."""
        recipe, size = self.recipe, self.size(0)
        limits = [recipe.steps] if recipe.steps else []
        if recipe.epochs:
            limits.append(math.ceil(recipe.epochs * self.sentences.n_predictions / size))
        if recipe.tokens:
            limits.append(math.ceil(recipe.tokens / size))
        return min(limits) if limits else None

    def size(self, tokens: int) -> int:
        """Predictions of one direction in an update, over all processes."""
        return self.rows * self.recipe.window

    def done(self, step: int, tokens: int, seconds: float) -> float:
        """Where the updates are known beforehand they decide, and `minutes` only ends the run.

        Otherwise a slow machine would train with other learning rates than a fast one.
        """
        n_steps, minutes = self.n_steps, self.recipe.minutes
        passed = self.processes.agree(seconds) / (60 * minutes) if minutes else 0.0
        return min(1.0, passed if n_steps is None or passed >= 1 else step / n_steps)

    def rate(self, step: int, tokens: int, done: float) -> float:
        """The first update must not have the rate 0."""
        n_steps, warmup = self.n_steps, self.recipe.warmup
        return rate_at(self.recipe, done + 1 / n_steps if n_steps and warmup else max(done, _FIRST_RATE * warmup))

    def batches(self) -> WindowBatches:
        """What the updates from here on read."""
        recipe, size, processes = self.recipe, self.recipe.batch_size, self.processes
        parts = [processes.rank + number * processes.count for number in range(recipe.accumulate)]
        reader = WindowReader(
            self.sentences, self.rows, recipe.window, recipe.reset, recipe.seed, position=self.position
        )
        shares = tuple(range(part * size, (part + 1) * size) for part in parts)
        return WindowBatches(self.types, reader, shares)

    def save_position(self, snapshot: Snapshot) -> None:
        """Add the position to a checkpoint."""
        snapshot.tensors["data.row_place"] = torch.from_numpy(self.position.row_place)
        snapshot.tensors["data.row_offset"] = torch.from_numpy(self.position.row_offset)
        snapshot.facts["next_place"] = self.position.next_place

    def restore_position(self, snapshot: Snapshot) -> None:
        """Continue from the position of a checkpoint."""
        data = snapshot.part("data")
        if len(data["row_place"]) != self.rows:
            raise ElmoError(
                f"the checkpoint has {len(data['row_place'])} rows of text and this run {self.rows}: keep batch_size x "
                "accumulate x processes as it was"
            )
        place, offset = data["row_place"].numpy(), data["row_offset"].numpy()
        self.position = WindowPosition(snapshot.facts["next_place"], place, offset)

    def describe(self) -> str:
        """What an update reads, in words."""
        return f"{self.rows} rows x {self.recipe.window} tokens per update"

    def facts(self) -> dict[str, str]:
        """Further facts about the reading for the model card."""
        return {"state": f"{self.recipe.reset:.0%} of the sentences started from a zero state in training"}


@dataclass
class SegmentObjective(Objective):
    """Flat batches of segments; every schedule follows the share of the run's tokens, never the clock."""

    position: SegmentPosition = field(init=False)

    def __post_init__(self) -> None:
        recipe, self.ways, epoch = self.recipe, WAY_NAMES, self.sentences.n_predictions
        update = recipe.batch_tokens * self.processes.count * recipe.accumulate
        paces = [Pace(total, update, recipe.grow) for total in (recipe.tokens, recipe.epochs * epoch) if total]
        if recipe.steps:
            paces.append(Pace.for_steps(recipe.steps, update, recipe.grow))
        self.pace = min(paces, key=lambda pace: pace.total)
        # A pass that was not read before: each has an order of its own.
        passes = math.ceil(self.tokens_before() / epoch)
        self.position = SegmentPosition(passes * len(self.sentences), self.tokens_before())

    @property
    def n_steps(self) -> int:
        """Updates of this run to its end."""
        return self.pace.n_steps(self.tokens_before())

    @property
    def total(self) -> int:
        """Tokens of the whole run."""
        return round(self.pace.total)

    def tokens_before(self) -> int:
        """Tokens that the model has read in earlier legs."""
        return round(self.recipe.done * self.pace.total)

    def size(self, tokens: int) -> int:
        """Tokens of the update after `tokens`, boundaries included, over all processes."""
        return self.pace.size(tokens)

    def done(self, step: int, tokens: int, seconds: float) -> float:
        """The share of the run's tokens."""
        return self.pace.done(tokens)

    def rate(self, step: int, tokens: int, done: float) -> float:
        """That of the middle of the update, so that neither the first nor the last is 0.

        A leg that starts from weights alone has an optimiser that knows nothing yet: its rate rises first.
        """
        half = self.size(tokens) / 2
        rate = rate_at(self.recipe, (tokens + half) / (self.pace.total + half))
        rewarm = min(_REWARM, math.ceil(_REWARM_SHARE * self.n_steps)) if self.recipe.done else 0
        return rate * min(1.0, (step + 1) / (rewarm + 1))

    def leg_ended(self, done: float, seconds: float) -> bool:
        """Whether the leg has had its share of the run or its minutes."""
        minutes = self.recipe.minutes
        return done >= self.recipe.until or (bool(minutes) and self.processes.agree(seconds) >= 60 * minutes)

    def merit(self, result: HeldOut) -> float:
        """The geometric mean of the masked perplexity and that of both directions, as far as both are trained."""
        causal = parse_range("causal", self.recipe.causal)[1]
        if causal == 1 or result.masked is None:
            return result.mean
        return math.sqrt(result.masked) * math.sqrt(result.mean) if causal else result.masked

    def batches(self) -> SegmentBatches:
        """What the updates from here on read."""
        recipe, processes = self.recipe, self.processes
        reader = SegmentReader(
            self.sentences,
            self.pace,
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
        snapshot.facts |= {"next_place": self.position.place, "update_tokens": self.pace.update}

    def restore_position(self, snapshot: Snapshot) -> None:
        """Continue from the position of a checkpoint."""
        facts = snapshot.facts
        if facts["update_tokens"] != self.pace.update:
            raise ElmoError(
                f"the checkpoint has updates of {facts['update_tokens']:,} tokens and this run {self.pace.update:,}: "
                "keep batch_tokens x accumulate x processes as it was"
            )
        self.position = SegmentPosition(facts["next_place"], facts["progressed"]["predictions"])

    def describe(self) -> str:
        """What an update reads, in words."""
        later = f", twice as many from {self.recipe.grow:.0%} of the run on" if self.recipe.grow < 1 else ""
        return f"{self.pace.update:,} tokens per update{later}"

    def facts(self) -> dict[str, str]:
        """Further facts about the reading for the model card."""
        shares = {name: parse_range(name, getattr(self.recipe, name)) for name in ("causal", "mask")}
        causal, mask = (" → ".join(f"{share:.1%}" for share in shares[name]) for name in shares)
        return {
            "segments": f"{self.recipe.join:.0%} of the segments are several sentences, up to "
            f"{self.recipe.segment_tokens} tokens; {causal} are read from one side, in the others {mask} of the words "
            "are predicted"
        }


OBJECTIVES: dict[str, type[Objective]] = {"windows": WindowObjective, "segments": SegmentObjective}
"""The objectives by the name that `ContextConfig.objective` has."""

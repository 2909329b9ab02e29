"""The training loop: windows in, updates, what is shown and kept on the way.

Every random number of an update follows from the seed and the update's number, so a checkpoint holds no random state
and a resumed run draws what the first would have drawn.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from elmokit.errors import ElmoError
from elmokit.model.bilm import State
from elmokit.pretrain.distributed import Processes
from elmokit.pretrain.evaluate import HeldOut, evaluate
from elmokit.pretrain.network import LanguageModelNetwork, Negatives
from elmokit.pretrain.optimizer import (
    clip_gradients,
    make_optimizer,
    rate_at,
    restore_slots,
    set_rate,
    slots_of,
    start_from_sums,
)
from elmokit.pretrain.permutation import mixed
from elmokit.pretrain.prefetch import prefetched
from elmokit.pretrain.recipe import Recipe
from elmokit.pretrain.run_files import RunFolder, Snapshot, state_dict_of
from elmokit.pretrain.sampled_softmax import sample_negatives
from elmokit.pretrain.type_table import Batch, TypeTable
from elmokit.pretrain.windows import Position, Sentences, WindowReader

MOST_SKIPPED = 20
"""Updates in a row without a finite gradient before a run gives up."""
_EVALUATIONS, _LOG_LINES = 20, 500
_FIRST_RATE = 0.05
"""Where the rate begins to rise, as a share of the largest, in a run whose updates cannot be counted beforehand."""
_READ_PER_HELD_OUT = 5
"""Tokens read in training for each token of a held-out perplexity, at least."""


class Watcher(Protocol):
    """Whoever shows and records how a run goes; the first process alone has one that does anything."""

    def measured(self, values: Mapping[str, Any], *, done: float) -> None:
        """Numbers of the updates since the last call."""
        ...

    def held_out(self, values: Mapping[str, Any], *, best: bool) -> None:
        """A held-out perplexity."""
        ...

    def note(self, step: int, text: str) -> None:
        """Something a person should know."""
        ...


@dataclass
class Progressed:
    """How far a run is; all of it is in every checkpoint."""

    step: int = 0
    predictions: int = 0
    """Of one direction, over all processes."""
    seconds: float = 0.0
    best: float = math.inf
    """The lowest held-out perplexity."""
    best_step: int = 0
    since_best: int = 0
    """Held-out perplexities since then."""
    skipped: int = 0
    """Updates that were left out because a gradient was not finite."""
    stopped_early: bool = False


@dataclass(frozen=True)
class Data:
    """What is read in training and what is held out."""

    types: TypeTable
    sentences: Sentences
    heldout_types: TypeTable | None
    heldout: Sentences | None


class Training:
    """One run, from its first update or from a checkpoint to its end."""

    def __init__(
        self,
        recipe: Recipe,
        network: LanguageModelNetwork,
        data: Data,
        folder: RunFolder,
        watcher: Watcher,
        *,
        device: torch.device,
        processes: Processes,
        slots: Mapping[str, Tensor] | None = None,
    ) -> None:
        """`slots`: Adagrad's sums by the network's names, of a run that another system began."""
        self.recipe, self.data, self.folder, self.watcher = recipe, data, folder, watcher
        self.device, self.processes = device, processes
        self.network = network.to(device)
        self.trained = [p for p in self.network.parameters() if p.requires_grad]
        self.names: dict[Tensor, str] = {parameter: name for name, parameter in self.network.named_parameters()}
        self.optimizer = make_optimizer(recipe, self.trained)
        if slots and recipe.optimizer == "adagrad":
            start_from_sums(self.optimizer, self.names, slots)
        self.precision = choose_precision(recipe, device)
        self.sampled = choose_sampled(recipe, len(network.head.bias), device)
        self.parallel: nn.Module = self.network
        if processes.count > 1:
            self.parallel = DistributedDataParallel(self.network)
        self.rows = recipe.batch_size * processes.count * recipe.accumulate
        self.position = Position.start(self.rows)
        self.states = [self.network.bilm.zero_state(recipe.batch_size) for _ in range(recipe.accumulate)]
        self.progressed = Progressed()
        self.last: HeldOut | None = None
        self._asked = 0  # the signal that this process was sent
        self._signal = 0  # the one that all of them stop for
        self._started = 0.0
        self._bad = torch.zeros((), dtype=torch.int64, device=device)  # updates left out in a row
        self._bad_since_log = torch.zeros((), dtype=torch.int64, device=device)
        self._sums = torch.zeros(data.types.directions, dtype=torch.float64, device=device)
        self._sums_steps = 0  # updates that the sums are over
        self._norm = torch.zeros((), device=device)

    @property
    def n_steps(self) -> int | None:
        """Updates until the end, where the time does not decide."""
        limits = [self.recipe.steps] if self.recipe.steps else []
        if self.recipe.epochs:
            limits.append(math.ceil(self.recipe.epochs * self.data.sentences.n_predictions / self.step_predictions))
        return min(limits) if limits else None

    @property
    def step_predictions(self) -> int:
        """Predictions of one direction in an update, over all processes."""
        return self.rows * self.recipe.window

    def done(self) -> float:
        """The share of the run that lies behind, from 0 to 1."""
        n_steps, progressed = self.n_steps, self.progressed
        shares = [progressed.step / n_steps] if n_steps else []
        if self.recipe.minutes:
            shares.append(self.processes.agree(progressed.seconds) / (60 * self.recipe.minutes))
        return min(1.0, max(shares))

    def run(self) -> int:
        """Train to the end and return 0, or the number of the signal that asked to stop."""
        recipe, progressed = self.recipe, self.progressed
        self._started = time.monotonic() - progressed.seconds
        saved_at, saved_step = progressed.seconds, progressed.step
        done = evaluated = self.done()
        with self._signals():
            batches = prefetched(self._batches())
            try:
                while done < 1 and not progressed.stopped_early and not self._stop_requested():
                    micro_batches, position = next(batches)
                    self._update(micro_batches, rate_at(recipe, self._schedule(done)))
                    self.position = position
                    progressed.step += 1
                    progressed.predictions += self.step_predictions
                    self._tick()
                    if self.device.type == "cpu":
                        self._report_bad()
                    before, done = done, self.done()
                    if self._due(recipe.log_every, _LOG_LINES, before, done) or progressed.step == 1:
                        self._log(done)
                    better = False
                    if due := self._evaluation_due(before, done, evaluated):
                        better, evaluated = self._evaluate(), done
                    if recipe.checkpoint_every:
                        due = progressed.step % recipe.checkpoint_every == 0 or done >= 1
                    late = recipe.checkpoint_minutes and progressed.seconds - saved_at > 60 * recipe.checkpoint_minutes
                    if self._agreed(bool(late)) or due or better:
                        self.save(best=better)
                        saved_at, saved_step = progressed.seconds, progressed.step
            finally:
                batches.close()
        if saved_step != progressed.step:
            self.save(best=False)
        return self._signal

    def _tick(self) -> None:
        self.progressed.seconds = time.monotonic() - self._started

    def _evaluation_due(self, before: float, done: float, evaluated: float) -> bool:
        """`evaluated`: where the run stood at the last one, or when it was begun or resumed."""
        often = self._evaluations(done)
        if self.n_steps or self.recipe.eval_every:
            return self._due(self.recipe.eval_every, often, before, done)
        return done >= 1 or done - evaluated >= 1 / often

    def _evaluations(self, done: float) -> int:
        """How often the held-out text is read in the run: so that it takes a small part of the time."""
        if self.data.heldout is None:
            return _EVALUATIONS
        n_steps = self.n_steps or self.progressed.step / done  # where the time decides: at the speed so far
        read, heldout = n_steps * self.step_predictions, self.data.heldout.n_predictions
        return max(1, min(_EVALUATIONS, int(read / (_READ_PER_HELD_OUT * heldout))))

    def _schedule(self, done: float) -> float:
        """Where the next update stands in the schedule of the learning rate; the first must not have the rate 0."""
        n_steps = self.n_steps
        if n_steps and self.recipe.warmup:
            return done + 1 / n_steps
        return max(done, _FIRST_RATE * self.recipe.warmup)

    def _due(self, every: int, in_all: int, before: float, done: float) -> bool:
        if every:
            return self.progressed.step % every == 0 or done >= 1
        return math.floor(before * in_all) < math.floor(done * in_all)

    def _batches(self) -> Iterator[tuple[list[Batch], Position]]:
        recipe, size = self.recipe, self.recipe.batch_size
        reader = WindowReader(
            self.data.sentences,
            rows=self.rows,
            window=recipe.window,
            reset=recipe.reset,
            seed=recipe.seed,
            position=self.position,
        )
        while plan := reader.read():
            first = [
                (number * self.processes.count + self.processes.rank) * size for number in range(recipe.accumulate)
            ]
            yield [self.data.types.batch(reader.fill(plan, range(f, f + size))) for f in first], plan.position

    def _update(self, batches: list[Batch], rate: float) -> None:
        """One update of the weights; left out where a gradient is not finite."""
        recipe, step = self.recipe, self.progressed.step
        self.network.train()
        torch.manual_seed(_seed(recipe.seed, step, self.processes.rank))
        negatives = self._negatives(step)
        scale = (recipe.window if recipe.scale_by_window else 1) / len(batches)
        after: list[State] = []
        losses = torch.zeros_like(self._sums)
        self.optimizer.zero_grad(set_to_none=True)
        for number, (batch, state) in enumerate(zip(batches, self.states, strict=True)):
            last = number == len(batches) - 1
            with nullcontext() if last or self.processes.count == 1 else self.parallel.no_sync():  # type: ignore[operator]
                loss, each, state_after = self.parallel(batch.to(self.device), state, negatives, self.precision)
                torch.autograd.backward(loss * scale)
            losses += each.sum(dim=(1, 2), dtype=torch.float64)
            after.append(state_after.detach())
        self._norm = clip_gradients(self.trained, recipe.clip_norm)
        self._apply(after, losses, torch.isfinite(self._norm), rate)

    def _apply(self, after: list[State], losses: Tensor, finite: Tensor, rate: float) -> None:
        """Take the update and the state after it, or neither; on a GPU without waiting to know which."""
        set_rate(self.optimizer, rate)
        if self.device.type == "cuda" and self.recipe.optimizer == "adam":
            self.optimizer.found_inf = (~finite).float()  # type: ignore[attr-defined]
            self.optimizer.grad_scale = None  # type: ignore[attr-defined]
            self.optimizer.step()
            self.states = [
                State(torch.where(finite, new.h, old.h), torch.where(finite, new.c, old.c))
                for new, old in zip(after, self.states, strict=True)
            ]
            self._sums += torch.where(finite, losses, 0.0)
        elif bool(finite):
            self.optimizer.step()
            self.states = after
            self._sums += losses
        bad = (~finite).long()
        self._sums_steps += 1
        self._bad = (self._bad + bad) * bad
        self._bad_since_log += bad

    def _report_bad(self) -> None:
        """Count updates that were left out, say so, and give up where there are too many in a row."""
        in_row, since = int(self._bad), int(self._bad_since_log)
        self._bad_since_log.zero_()
        self._sums_steps -= since
        self.progressed.skipped += since
        if since:
            self.watcher.note(
                self.progressed.step,
                f"{since} update{'s' if since > 1 else ''} left out: the loss or a gradient was not a finite number",
            )
        if in_row >= MOST_SKIPPED:
            raise ElmoError(
                f"{in_row} updates in a row gave no finite gradient (learning_rate {self.recipe.learning_rate:g}): the "
                f"last checkpoint is whole; go on from it with a lower --learning-rate or a lower --clip-norm"
            )

    def _negatives(self, step: int) -> Negatives | None:
        """The same words in every process, as one process with all rows would have."""
        if not self.sampled:
            return None
        generator = torch.Generator().manual_seed(_seed(self.recipe.seed, step, -1))
        words, tries = sample_negatives(len(self.network.head.bias), self.recipe.negatives, generator)
        return Negatives(words.to(self.device), tries)

    def _log(self, done: float) -> None:
        if self.device.type != "cpu":
            self._report_bad()
        if not self._sums_steps:
            return
        sums = self.processes.total(self._sums.cpu())
        means = (sums / (self._sums_steps * self.step_predictions)).tolist()
        self._sums.zero_()
        self._sums_steps = 0
        names = ("forward_perplexity", "backward_perplexity")
        loss = sum(means) / len(means)
        values = {
            **self._where(),
            "loss": loss,
            "perplexity": _exp(loss),
            **{name: _exp(mean) for name, mean in zip(names, means, strict=False)},
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            "gradient_norm": float(self._norm),
        }
        self.watcher.measured(values, done=done)

    def _where(self) -> dict[str, Any]:
        progressed = self.progressed
        epoch = progressed.predictions / max(1, self.data.sentences.n_predictions)
        return {
            "step": progressed.step,
            "tokens": progressed.predictions,
            "seconds": round(progressed.seconds, 3),
            "epoch": round(epoch, 4),
        }

    def _evaluate(self) -> bool:
        """Held-out perplexity, where there is text for it; whether it is the best so far."""
        if self.data.heldout is None or self.data.heldout_types is None:
            return False
        result = evaluate(
            self.network,
            self.data.heldout_types,
            self.data.heldout,
            precision=self.precision,
            processes=self.processes,
        )
        progressed, self.last = self.progressed, result
        self._tick()
        better = result.mean < progressed.best
        if better:
            progressed.best, progressed.best_step, progressed.since_best = result.mean, progressed.step, 0
        else:
            progressed.since_best += 1
            progressed.stopped_early = bool(self.recipe.patience) and progressed.since_best >= self.recipe.patience
        self.watcher.held_out(
            {
                **self._where(),
                "heldout_perplexity": result.mean,
                "heldout_forward": result.forward,
                "heldout_backward": result.backward,
            },
            best=better,
        )
        return better

    def save(self, *, best: bool) -> None:
        """Write a checkpoint of all processes' rows."""
        self._report_bad()
        h, c = ([torch.stack(self.processes.gathered(part)) for part in parts] for parts in self._state_parts())
        sums = self.processes.total(self._sums.cpu())
        if self.processes.first:
            tensors = {
                **state_dict_of(self.network, "network"),
                **{f"optimizer.{k}": v for k, v in slots_of(self.optimizer, self.names, self.recipe.optimizer).items()},
                "state.h": torch.stack(h),  # [micro-batches, processes, D, L, B, P]
                "state.c": torch.stack(c),
                "data.row_place": torch.from_numpy(self.position.row_place),
                "data.row_offset": torch.from_numpy(self.position.row_offset),
                "metrics.sums": sums,
            }
            facts = {
                "progressed": asdict(self.progressed),
                "next_place": self.position.next_place,
                "heldout": asdict(self.last) if self.last else None,
                "sums_steps": self._sums_steps,
            }
            step = self.progressed.step
            self.folder.save(Snapshot(tensors, facts), step=step, keep=self.recipe.keep, best=best)
        self.processes.wait()

    def _state_parts(self) -> tuple[list[Tensor], list[Tensor]]:
        return [state.h for state in self.states], [state.c for state in self.states]

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from a checkpoint; the rows may be dealt to another number of processes than wrote it."""
        self.network.load_state_dict(snapshot.part("network"))
        restore_slots(self.optimizer, self.names, self.recipe.optimizer, snapshot.part("optimizer"))
        data, facts = snapshot.part("data"), snapshot.facts
        if len(data["row_place"]) != self.rows:
            raise ElmoError(
                f"the checkpoint has {len(data['row_place'])} rows of text and this run {self.rows}: keep batch_size x "
                "accumulate x processes as it was"
            )
        self.position = Position(facts["next_place"], data["row_place"].numpy(), data["row_offset"].numpy())
        self.states = self._dealt(snapshot.part("state"))
        progressed = self.progressed = Progressed(**facts["progressed"])
        if progressed.stopped_early:  # a run that is resumed may be given more patience
            progressed.stopped_early = 0 < self.recipe.patience <= progressed.since_best
        self.last = HeldOut(**facts["heldout"]) if facts["heldout"] else None
        if self.processes.first:  # the others add nothing to the first one's sums
            self._sums = snapshot.tensors["metrics.sums"].to(self.device)
        self._sums_steps = facts["sums_steps"]

    def _dealt(self, saved: Mapping[str, Tensor]) -> list[State]:
        size, count = self.recipe.batch_size, self.processes.count
        rows = {part: _rows(saved[part]) for part in ("h", "c")}  # [D, L, rows, …]
        states = []
        for number in range(self.recipe.accumulate):
            first = (number * count + self.processes.rank) * size
            h, c = (rows[part][:, :, first : first + size].to(self.device).contiguous() for part in ("h", "c"))
            states.append(State(h, c))
        return states

    def _agreed(self, late: bool) -> bool:
        """Whether all processes save now, as the first one's clock says; a signal to any of them stops all of them."""
        if self.processes.count == 1:
            self._signal = self._asked
            return late
        told = torch.stack(self.processes.gathered(torch.tensor([int(late), self._asked])))  # [processes, 2]
        self._signal = int(told[:, 1].max())
        return bool(told[0, 0])

    def _stop_requested(self) -> bool:
        return bool(self._signal)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Ctrl-C and a polite kill, which torchrun passes on to all processes, let the update end and be saved."""

        def stop(number: int, frame: FrameType | None) -> None:
            if self._asked:  # asked twice: do not wait for the update
                raise KeyboardInterrupt
            self._asked = number

        try:
            before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # not the main thread: whoever runs it deals with signals
            before = {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def choose_precision(recipe: Recipe, device: torch.device) -> torch.dtype:
    """The numbers to compute in; weights and optimiser are float32 in any case."""
    if recipe.precision == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.bfloat16 if recipe.precision == "bfloat16" else torch.float32


def choose_sampled(recipe: Recipe, n_words: int, device: torch.device) -> bool:
    """Whether the softmax is sampled: on a GPU all words cost little, on a CPU many do."""
    if recipe.loss == "auto":
        return device.type == "cpu" and n_words > 4 * recipe.negatives
    return recipe.loss == "sampled" and recipe.negatives < n_words


def _rows(saved: Tensor) -> Tensor:
    """[micro-batches, processes, D, L, B, S] → [D, L, rows, S]."""
    return saved.permute(2, 3, 0, 1, 4, 5).flatten(2, 4)


def _seed(seed: int, step: int, rank: int) -> int:
    value = mixed(np.array([step], np.uint64), seed) ^ mixed(np.array([rank + 1], np.uint64), 0)
    return int(value[0] >> np.uint64(1))


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf

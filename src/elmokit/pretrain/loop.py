"""The training loop: updates, held-out perplexities, checkpoints, and after divergence a return to the best one."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from elmokit.errors import ElmoError
from elmokit.messages import counted
from elmokit.pretrain.batches import batches_ahead
from elmokit.pretrain.checkpoints import RunFolder, RunProgress, Snapshot
from elmokit.pretrain.distributed import Processes, StopSignals
from elmokit.pretrain.evaluate import HeldOutPerplexity, evaluate, perplexity_of
from elmokit.pretrain.metrics import RunRecorder
from elmokit.pretrain.network import LanguageModelNetwork
from elmokit.pretrain.objective import OBJECTIVES
from elmokit.pretrain.recipe import Recipe
from elmokit.pretrain.sentences import Sentences, TypeTable
from elmokit.pretrain.updates import Updates

MOST_SKIPPED = 20
"""Number of consecutive updates without a finite gradient after which a run gives up."""
MOST_RETURNS = 3
"""Number of returns to the best checkpoint, each with half the learning rate, after which a run gives up."""
DIVERGED = 1.5
"""A run has diverged if the held-out perplexity is more than this factor above the best, ..."""
TRAINING_ROSE = 0.1
"""... and the training loss rose by more than this; otherwise it is overfitting."""
_EVALUATIONS, _LOG_LINES = 20, 500
_READ_PER_HELD_OUT = 5
"""Least number of tokens read in training for each token read in evaluations."""


@dataclass(frozen=True)
class Data:
    """The text of a run: the sentences for training and the held-out ones, if any."""

    types: TypeTable
    sentences: Sentences
    heldout_types: TypeTable | None
    heldout: Sentences | None


class Training:
    """One run, from its first update or a checkpoint to its end."""

    def __init__(
        self,
        recipe: Recipe,
        network: LanguageModelNetwork,
        data: Data,
        folder: RunFolder,
        *,
        device: torch.device,
        processes: Processes,
        slots: Mapping[str, Tensor] | None = None,
    ) -> None:
        """`slots`: Adagrad's sums from a TensorFlow checkpoint, by the network's names of weights."""
        self.recipe, self.data, self.folder = recipe, data, folder
        self.device, self.processes = device, processes
        self.recorder = RunRecorder()
        self.objective = OBJECTIVES[network.bilm.config.context.objective](
            recipe, data.types, data.sentences, processes, device
        )
        n_modes = len(self.objective.modes)
        self.updates = Updates(recipe, network, n_modes=n_modes, device=device, processes=processes, slots=slots)
        self.progress = RunProgress(predictions=self.objective.tokens_before())
        self.stop_signals = StopSignals(processes)
        self.last: HeldOutPerplexity | None = None
        self.unwritten: list[dict[str, Any]] = []  # lines that an earlier process could not record
        self._reason_to_go_back = ""  # why the run must go back to the best checkpoint
        self._started = 0.0
        self.ended, self.share = False, 0.0  # whether the run is complete, and its share that is done

    def done(self) -> float:
        """The share of the run that is done, from 0 to 1; all schedules follow it."""
        progress = self.progress
        return self.objective.done(progress.step, progress.predictions, progress.seconds)

    @property
    def diverged(self) -> bool:
        """Whether the last weights are unusable because the run must go back to its best checkpoint."""
        return bool(self._reason_to_go_back)

    def run(self) -> int:
        """Train to the end and return 0, or the number of the signal that asked to stop."""
        recipe, progress = self.recipe, self.progress
        begun = time.monotonic()
        self._started = begun - progress.seconds
        saved_at, saved_step = progress.seconds, progress.step
        done = evaluated = self.done()
        with self.stop_signals.listening():
            batches = batches_ahead(self.objective.batches(), self.device)
            try:
                while (
                    done < 1
                    and not progress.stopped_early
                    and not self._stop_requested()
                    and not self.objective.leg_ended(done, time.monotonic() - begun)
                ):
                    if self._reason_to_go_back:
                        batches.close()
                        progress = self._fall_back()
                        batches = batches_ahead(self.objective.batches(), self.device)
                        saved_at, saved_step = progress.seconds, progress.step
                        done = evaluated = self.done()
                    micro_batches, position = next(batches)
                    rate = self.objective.rate(progress.step, progress.predictions, done)
                    self.updates.update(progress.step, micro_batches, progress.rate_factor * rate)
                    self.objective.position = position
                    progress.step += 1
                    progress.predictions += self.objective.size(progress.predictions)
                    self._tick()
                    if self.device.type == "cpu":
                        self._report_left_out()
                    before, done = done, self.done()
                    if self._due(recipe.log_every, _LOG_LINES, before, done) or progress.step == 1:
                        self._log()
                    self.share = done
                    better = False
                    if due := self._evaluation_due(before, done, evaluated):
                        better, evaluated = self._evaluate(), done
                    self.recorder.show_progress(progress, done)
                    if recipe.checkpoint_every:
                        due = progress.step % recipe.checkpoint_every == 0 or done >= 1
                    late = recipe.checkpoint_minutes and progress.seconds - saved_at > 60 * recipe.checkpoint_minutes
                    if self.recorder.failed:
                        self.stop_signals.request_stop()
                    # All processes decide alike: one that saved by its own clock would wait for the others forever.
                    due = self.stop_signals.save_now(bool(late)) or due or better
                    if due:
                        self._report_left_out()
                    if due and not self._reason_to_go_back:
                        self.save(best=better)
                        saved_at, saved_step = progress.seconds, progress.step
            finally:
                batches.close()
        self.ended, self.share = done >= 1 or progress.stopped_early, done
        if saved_step != progress.step and not self._reason_to_go_back:
            self.save(best=False)
        if self.recorder.failed:
            raise self.recorder.failed
        return self.stop_signals.signal

    def _tick(self) -> None:
        self.progress.seconds = time.monotonic() - self._started

    def _evaluation_due(self, before: float, done: float, evaluated: float) -> bool:
        """Whether to evaluate now; `evaluated` is the share that was done at the last evaluation, start or resume."""
        in_all = self._evaluations(done)
        if self.objective.n_steps or self.recipe.eval_every:
            return self._due(self.recipe.eval_every, in_all, before, done)
        return done >= 1 or done - evaluated >= 1 / in_all

    def _evaluations(self, done: float) -> int:
        """Number of evaluations in the run, limited so that they take a small part of the time."""
        if self.data.heldout is None:
            return _EVALUATIONS
        progress, n_steps = self.progress, self.objective.n_steps
        # Without a number of updates, the run's length is estimated from the speed so far.
        read = n_steps * self.objective.size(0) if n_steps else progress.predictions / done
        heldout = self.data.heldout.n_predictions
        return max(1, min(_EVALUATIONS, int(read / (_READ_PER_HELD_OUT * heldout))))

    def _due(self, every: int, in_all: int, before: float, done: float) -> bool:
        if every:
            return self.progress.step % every == 0 or done >= 1
        return math.floor(before * in_all) < math.floor(done * in_all)

    def _report_left_out(self) -> None:
        """Count and report updates that were skipped, and give up after too many in a row."""
        in_a_row, since = self.updates.left_out()
        self.progress.skipped += since
        if since:
            text = f"{counted(since, 'update')} left out: the loss or a gradient was not a finite number"
            self.recorder.note(self.progress.step, text)
        if in_a_row >= MOST_SKIPPED:
            self._diverged(f"{in_a_row} updates in a row gave no finite gradient")

    def _diverged(self, reason: str) -> None:
        """Request a return to the best checkpoint, or raise an error if the run cannot go back."""
        progress = self.progress
        if not progress.best_step or progress.fall_backs >= MOST_RETURNS:
            rate = progress.rate_factor * self.recipe.learning_rate
            raise ElmoError(
                f"{reason} with learning_rate {rate:g}: resume with a lower one, or with a lower clip_norm",
                "learning_rate",
                "clip_norm",
            )
        self._reason_to_go_back = reason

    def _fall_back(self) -> RunProgress:
        """Continue from the best checkpoint with half the learning rate; later checkpoints are removed."""
        reason, self._reason_to_go_back = self._reason_to_go_back, ""
        seconds, fall_backs = self.progress.seconds, self.progress.fall_backs + 1
        self.processes.wait()  # the first process may still be writing it
        best = self.folder.best()
        if best is None:
            raise ElmoError(f"{reason}, and {self.folder.checkpoints} has no best checkpoint: start a new run")
        self.restore(best)
        self.progress.seconds, self.progress.fall_backs = seconds, fall_backs
        self.recorder.record_return(
            self._progress_values(),
            f"{reason}: back to the best checkpoint, with {self.progress.rate_factor:g} of the rate",
        )
        self.save(best=False)
        return self.progress

    def _log(self) -> None:
        if self.device.type != "cpu":
            self._report_left_out()
        found = zip(self.objective.modes, self.updates.losses(), strict=False)
        means = {mode: mean for mode, mean in found if not math.isnan(mean)}
        if not means:
            return
        loss = self.progress.loss = sum(means.values()) / len(means)
        values = {
            **self._progress_values(),
            "loss": loss,
            "perplexity": perplexity_of(loss),
            **{f"{mode}_perplexity": perplexity_of(mean) for mode, mean in means.items()},
            "learning_rate": self.updates.rate,
            "gradient_norm": self.updates.gradient_norm(),
            **({"sampled_words": self.recipe.negatives} if self.updates.sampled else {}),
        }
        self.recorder.record_training(values)

    def _progress_values(self) -> dict[str, Any]:
        progress = self.progress
        epoch = progress.predictions / max(1, self.data.sentences.n_predictions)
        return {
            "step": progress.step,
            "tokens": progress.predictions,
            "seconds": round(progress.seconds, 3),
            "epoch": round(epoch, 4),
        }

    def _evaluate(self) -> bool:
        """Measure the held-out perplexity, if there is held-out text; returns whether it is the best so far."""
        if self.data.heldout is None or self.data.heldout_types is None:
            return False
        result = evaluate(
            self.updates.network,
            self.data.heldout_types,
            self.data.heldout,
            state=held_out_state(self.recipe) if self.updates.network.bilm.context.carries_state else "zero",
            processes=self.processes,
            on_progress=self._show_evaluation,
        )
        progress, self.last = self.progress, result
        self._tick()
        criterion = self.objective.selection_perplexity(result)
        better = criterion < progress.best
        if better:
            progress.best, progress.best_step, progress.since_best = criterion, progress.step, 0
            progress.best_loss = progress.loss
        else:
            progress.since_best += 1
            progress.stopped_early = bool(self.recipe.patience) and progress.since_best >= self.recipe.patience
        self.recorder.record_held_out(
            {
                **self._progress_values(),
                "heldout_perplexity": result.mean,
                "heldout_forward": result.forward,
                "heldout_backward": result.backward,
                **({} if result.masked is None else {"heldout_masked": result.masked}),
            },
            best=better,
        )
        rose = criterion > DIVERGED * progress.best and progress.loss > progress.best_loss + TRAINING_ROSE
        if rose and not progress.stopped_early:
            self._diverged(
                f"the perplexity rose in training and, held out, from {progress.best:.4g} at step "
                f"{progress.best_step:,} to {criterion:.4g} at step {progress.step:,}"
            )
        return better

    def _show_evaluation(self, done: float) -> None:
        self.recorder.show_progress(self.progress, self.share, f"held-out text {done:.0%}")

    def save(self, *, best: bool) -> None:
        """Write a checkpoint with the state of all processes."""
        self._report_left_out()
        snapshot = self.updates.snapshot()
        if self.processes.first:
            self.objective.save_position(snapshot)
            snapshot.facts |= {
                "progressed": asdict(self.progress),
                "learning_rate": self.recipe.learning_rate,
                "heldout": asdict(self.last) if self.last else None,
                "unwritten": self.recorder.unwritten,
            }
            self.folder.save(snapshot, step=self.progress.step, keep=self.recipe.keep, best=best)
        self.processes.wait()

    def restore(self, snapshot: Snapshot) -> None:
        """Continue from a checkpoint."""
        facts = snapshot.facts
        self.objective.restore_position(snapshot)
        self.updates.restore(snapshot)
        progress = self.progress = RunProgress(**facts["progressed"])
        if progress.stopped_early:  # a run that is resumed may be given more patience
            progress.stopped_early = 0 < self.recipe.patience <= progress.since_best
        if facts.get("learning_rate") != self.recipe.learning_rate:  # a new rate applies without the earlier reductions
            progress.fall_backs = 0
        self.last = HeldOutPerplexity(**facts["heldout"]) if facts["heldout"] else None
        self.unwritten = facts["unwritten"]

    def _stop_requested(self) -> bool:
        return bool(self.stop_signals.signal)


def held_out_state(recipe: Recipe) -> Literal["zero", "carry"]:
    """How held-out sentences start: from zero, as in use, unless training never started a sentence from zero."""
    return "zero" if recipe.reset else "carry"

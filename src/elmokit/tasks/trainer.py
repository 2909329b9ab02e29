"""Training of task models: one trainer for all tasks, which scores each epoch on dev data and returns the best.

`_parameter_groups` selects the weights to train and their learning rates.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from elmokit.elmo import Elmo
from elmokit.errors import ElmoError
from elmokit.messages import counted
from elmokit.model.placement import choose_device
from elmokit.tasks.inputs import ExampleInputs, batches_of
from elmokit.tasks.model import TaskModel
from elmokit.tasks.network import InputSpec
from elmokit.tasks.options import TaskOptions
from elmokit.tasks.reading import Segment
from elmokit.tasks.scores import TaskScores
from elmokit.tasks.static import StaticVectors, WordVectorTable
from elmokit.tasks.task import AnyTask, Example, task_named
from elmokit.text.policy import TextPolicy
from elmokit.text.tokens import word_splitter

_EXAMPLES_PER_DEV_EXAMPLE = 10
"""Without dev data, one in this many examples is held out."""
_CHECKED_SENTENCES = 1000
"""Number of sentences whose tokenisation is checked."""
_MAX_MISMATCH_SHARE = 0.05
"""Share of tokens that may be tokenised differently before there is a warning."""
_RATE_DECAY = 0.5
"""Factor of the learning rates after an epoch with a lower score than the best."""
_MAX_DECAY = 0.998
"""Maximum decay of the weight averages, which average over about 500 updates."""


class TrainingListener:
    """Receives the progress of training; a subclass overrides the methods that it needs."""

    def note(self, text: str) -> None:
        """Called with each message for the user."""

    def features(self, done: int, total: int) -> None:
        """Called with the number of sentences whose ELMo vectors are computed so far, and their total."""

    def batch(self, epoch: int, done: int, total: int) -> None:
        """Called after each batch with the number of batches done in the epoch, and their total."""

    def epoch(self, line: dict[str, Any], *, best: bool) -> None:
        """Called after each epoch with its line of the history, and whether it is the best so far."""


@dataclass(frozen=True)
class Fitted:
    """A trained model and how its training went."""

    model: TaskModel
    scores: TaskScores
    """The model's scores on the dev data."""
    epoch: int
    """The best epoch, from 1; the model has its weights."""
    history: list[dict[str, Any]]
    """For each epoch: epoch, loss, score, learning_rate, seconds."""
    seconds: float
    notes: list[str]
    """Warnings about the data."""


def fit(
    kind: str,
    train: Iterable[Any],
    dev: Iterable[Any] | None,
    options: TaskOptions | None = None,
    *,
    elmo: Elmo | None = None,
    static: WordVectorTable | None = None,
    segment: Segment | None = None,
    cache: Path | None = None,
    device: str | torch.device | None = None,
    watch: TrainingListener | None = None,
    paths: tuple[str | None, str | None] = (None, None),
) -> Fitted:
    """Train a model for a task (classify, tag, pair or a registered one) on examples.

    Without `dev`, one example in ten is held out. `elmo` is not changed: fine-tuning trains a copy. `static`: vectors
    in memory, used instead of `options.static`. `segment`: how the task model will tokenise strings, by default as
    `elmo` does; read the texts with the same value (`read_texts(path, segment=elmo.segment)`). `cache`: the folder for
    frozen ELMo vectors. `watch` receives the progress. `paths`: the names of the two files for messages.
    """
    task = task_named(kind)
    options, watch = task.completed(options or task.options()), watch or TrainingListener()
    if options.elmo != "none" and elmo is None:
        raise ElmoError("the task needs ELMo vectors, got no model: give elmo=, or the option elmo='none'")
    if isinstance(elmo, str | Path):
        raise ElmoError(f"elmo must be an Elmo, got {elmo!r}: open a model with Elmo.load", "elmo")
    train, dev = list(train), None if dev is None else list(dev)
    task.check_examples([*train, *(dev or ())])
    task.refuse_unused(options)
    if not train:
        raise ElmoError("there must be examples to train on, got none")
    if dev is not None and not dev:
        raise ElmoError("there must be dev examples to score on, got none")
    started, is_held_out = time.monotonic(), dev is None
    if dev is None:
        train, dev = hold_out(task, train, options, paths[0])
        are = "is" if len(dev) == 1 else "are"
        watch.note(f"no dev data: {len(dev):,} of the {len(train) + len(dev):,} examples {are} held out to score on")
        paths = (paths[0], paths[0])
    chosen = choose_device(device) if device is not None or elmo is None else elmo.device
    with torch.random.fork_rng(devices=[chosen] if chosen.type == "cuda" else []):
        reader = None if elmo is None or options.elmo == "none" else elmo
        if reader is not None and options.fine_tune:
            reader = _trainable_copy(reader)
        torch.manual_seed(options.seed)
        policy = elmo.text_policy if segment is None and elmo is not None else TextPolicy.of(segment or "whitespace")
        learned, notes = task.from_examples(train, options, paths[0])
        notes += learned.check(dev, paths[1], held_out=is_held_out)
        notes += [*task.cut_notes(train, options, paths[0]), *task.cut_notes(dev, options, paths[1])]
        sides = [task.cut_sentences(part, options) for part in (train, dev)]
        sentences = [tokens for side in sides[0] for tokens in side]
        if task.splits_text:
            notes += _tokenisation_notes(sentences[:_CHECKED_SENTENCES], policy)
        table = StaticVectors.for_task(options, static, sentences)
        notes += [table.note] if table is not None and table.note else []
        for note in notes:
            watch.note(note)
        store = not options.fine_tune
        inputs = [
            ExampleInputs(part, options, elmo=reader, static=table, store=store, cache=cache, progress=watch.features)
            for part in sides
        ]
        network = learned.build_network(options, InputSpec.of(reader, table)).to(chosen)
        learned.prepare_network(network, train)
        model = TaskModel(network, learned, reader, segment=policy, device=chosen)
        return _Trainer(model, (train, inputs[0]), (dev, inputs[1]), watch).run(notes, started)


def hold_out(
    task: type[AnyTask], examples: Sequence[Any], options: TaskOptions, path: str | None = None
) -> tuple[list[Any], list[Any]]:
    """Split examples into those to train on and one in ten to score on, drawn at random with the seed.

    Each label keeps at least one example to train on.
    """
    found, _ = task.from_examples(examples, options, path)  # before the split, so that errors can name the file
    if len(examples) < 2:
        raise ElmoError(
            f"there must be at least two examples, one to train on and one to score on, got {len(examples)}: give dev "
            "data",
            "dev",
        )
    order = list(range(len(examples)))
    random.Random(options.seed).shuffle(order)
    labels = [found.label(example) for example in examples]
    if None not in labels:
        reserved = set({labels[number]: number for number in order}.values())  # the last example of each label
        order = [number for number in order if number not in reserved]
        if not order:
            raise ElmoError(f"each of the {len(examples)} examples is the only one of its label: give dev data", "dev")
    chosen = set(order[: max(1, len(examples) // _EXAMPLES_PER_DEV_EXAMPLE)])
    parts: tuple[list[Any], list[Any]] = ([], [])
    for number, example in enumerate(examples):
        parts[number in chosen].append(example)
    return parts


class WeightAverages:
    """Running averages of weights, whose scores are better and more stable than those of the weights themselves.

    torch's AveragedModel is not used: it copies the whole model with its static vectors and has no decay warm-up.
    """

    def __init__(self, weights: Sequence[nn.Parameter]) -> None:
        self._weights = [weight.data for weight in weights]
        self._averages = [weight.clone() for weight in self._weights]
        self._updates = 0

    def update(self) -> None:
        """Add the current weights to the averages; the decay grows from 0.1 to its maximum."""
        decay = min(_MAX_DECAY, (1 + self._updates) / (10 + self._updates))
        self._updates += 1
        torch._foreach_lerp_(self._averages, self._weights, 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """A context in which the network has the averages as its weights."""
        own = [weight.clone() for weight in self._weights]
        torch._foreach_copy_(self._weights, self._averages)
        try:
            yield
        finally:
            torch._foreach_copy_(self._weights, own)

    def copies(self) -> list[Tensor]:
        """Copies of the current averages."""
        return [average.clone() for average in self._averages]


Data = tuple[Sequence[Example], ExampleInputs]


class _Trainer:
    """Epochs over the training data until the dev score stops rising."""

    def __init__(self, model: TaskModel, train: Data, dev: Data, watch: TrainingListener) -> None:
        self.model, self.task, self.options, self.watch = model, model.task, model.options, watch
        self.train, self.dev = train, dev
        self.optimizer = torch.optim.Adam(_parameter_groups(model), fused=True)
        self.parameters: list[nn.Parameter] = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.averages = WeightAverages(self.parameters)

    def run(self, notes: list[str], started: float) -> Fitted:
        """Train; `notes` are warnings about the data, and `started` is the time when `fit` was called."""
        options = self.options
        order = random.Random(options.seed)
        history: list[dict[str, Any]] = []
        best: TaskScores | None = None
        best_weights: list[Tensor] = []
        best_epoch = epochs_since = 0
        for epoch in range(1, options.epochs + 1):
            began = time.monotonic()
            rate = self.optimizer.param_groups[0]["lr"]
            loss = self._epoch(epoch, order)
            scores = self._score()
            value = scores.main.value
            # While the score is 0, each epoch counts as an improvement, so that training continues.
            better = best is None or value > best.main.value or value == best.main.value == 0.0
            seconds = round(time.monotonic() - began, 2)
            line = {"epoch": epoch, "loss": loss, "score": value, "learning_rate": rate, "seconds": seconds}
            history.append(line)
            self.watch.epoch({**line, "name": scores.main.name}, best=better)
            if best is None or better:
                best, best_epoch, epochs_since = scores, epoch, 0
                best_weights = self.averages.copies()
            else:
                epochs_since += 1
                if value < best.main.value:  # equal scores, common with little dev data, are no reason to slow down
                    for group in self.optimizer.param_groups:
                        group["lr"] *= _RATE_DECAY
            if options.patience and epochs_since >= options.patience and epoch < options.epochs:
                self.watch.note(
                    f"{counted(epochs_since, 'epoch')} without a better dev score: training stops (patience)"
                )
                break
        assert best is not None
        with torch.no_grad():
            for parameter, weights in zip(self.parameters, best_weights, strict=True):
                parameter.copy_(weights)
        self.model.network.eval()
        if self.model.elmo is not None and options.fine_tune:
            self.model.elmo.bilm.requires_grad_(False)
        return Fitted(self.model, best, best_epoch, history, time.monotonic() - started, notes)

    def _epoch(self, epoch: int, order: random.Random) -> float:
        """Train for one pass over the examples and return the mean loss."""
        examples, inputs = self.train
        network, device = self.model.network.train(), self.model.device
        batches = batches_of(inputs.lengths, self.options.batch_size_for(len(examples)), shuffle=order)
        total, n_examples, skipped = 0.0, 0, 0
        for done, numbers in enumerate(batches, start=1):
            targets = self.task.targets([examples[number] for number in numbers]).to(device)
            loss = network.loss(inputs.batch(numbers, device), targets)
            self.optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            norm = nn.utils.clip_grad_norm_(self.parameters, self.options.clip_norm or math.inf)
            if math.isfinite(float(norm)):
                self.optimizer.step()
                self.averages.update()
                total += float(loss.detach()) * len(numbers)
                n_examples += len(numbers)
            else:
                skipped += 1
            self.watch.batch(epoch, done, len(batches))
        advice = f"(learning_rate {self.options.learning_rate:g}): try a lower learning rate"
        if skipped == len(batches):
            raise ElmoError(f"no update of epoch {epoch} had finite gradients {advice}", "learning_rate")
        if skipped:
            of_all = f"{skipped:,} of the {len(batches):,} updates of epoch {epoch}"
            self.watch.note(f"{of_all} had gradients that were not finite, and were skipped {advice}")
        return total / n_examples

    def _score(self) -> TaskScores:
        examples, inputs = self.dev
        with self.averages.applied():
            answers = self.model.answer(examples, inputs)
        return self.task.score(examples, answers)


def _parameter_groups(model: TaskModel) -> list[dict[str, Any]]:
    """The weights to train with their learning rates: those of the network and, with fine_tune, of its ELMo model."""
    parts: list[tuple[nn.Module, float]] = [(model.network, model.options.learning_rate)]
    if model.elmo is not None and model.options.fine_tune:
        parts.append((model.elmo.bilm, model.options.elmo_learning_rate))
    return [{"params": [p for p in part.parameters() if p.requires_grad], "lr": rate} for part, rate in parts]


def _trainable_copy(elmo: Elmo) -> Elmo:
    """A copy to fine-tune, without the softmax, so that the user's model is not changed."""
    checkpoint = elmo.checkpoint()
    weights = {name: value.clone() for name, value in checkpoint.weights.items()}
    copied = Elmo(replace(checkpoint, weights=weights, head={}), state=elmo.state, trainable=True)
    return copied.to(elmo.device)


def _tokenisation_notes(sentences: Sequence[Sequence[str]], policy: TextPolicy) -> list[str]:
    """A warning if the texts are not tokenised as `predict` will tokenise strings."""
    split = word_splitter(policy.name)
    tokens = [token for sentence in sentences for token in sentence]
    other = [token for token in tokens if split(token) != [token]]
    if len(other) <= _MAX_MISMATCH_SHARE * len(tokens):
        return []
    return [
        f"{len(other):,} of {counted(len(tokens), 'token')}, such as {other[0]!r}, would be split further in a string "
        f"for predict (segment={policy.name!r}): read the texts with that segment, or give fit the segment that they "
        "were read with"
    ]

"""The training of a task model: epochs over the examples, a score on dev data after each; the best epoch is returned.

One trainer serves every task. `_parameter_groups` decides what is trained, and with which learning rate.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Sequence
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

_DEV_SHARE = 10
"""Without dev data, one example in this many is held out."""
_SAMPLED = 1000
"""Sentences that show how texts were tokenised."""
_OTHER_TOKENS = 0.05
"""The share of tokens that may be tokenised in another way by chance."""
_SLOWER = 0.5
"""What the learning rate is multiplied by after an epoch that was worse than the best."""
_LONGEST_MEMORY = 0.998
"""The largest share of an average that an update leaves as it was: a memory of 500 updates."""


class TrainingListener:
    """Receives the progress of a training; a subclass overrides what it wants to know."""

    def note(self, text: str) -> None:
        """Something a person should know."""

    def features(self, done: int, total: int) -> None:
        """Sentences whose ELMo vectors are computed."""

    def batch(self, epoch: int, done: int, total: int) -> None:
        """Batches of an epoch that are done."""

    def epoch(self, line: dict[str, Any], *, best: bool) -> None:
        """An epoch's loss and score."""


@dataclass(frozen=True)
class Fitted:
    """A trained model and how its training went."""

    model: TaskModel
    scores: TaskScores
    """On the dev data, of the best epoch, which is the model's."""
    epoch: int
    """The best epoch, from 1."""
    history: list[dict[str, Any]]
    """For each epoch: epoch, loss, score, learning_rate, seconds."""
    seconds: float
    notes: list[str]
    """What looked odd in the data, one sentence each."""


def fit(
    kind: str,
    train: Sequence[Any],
    dev: Sequence[Any] | None,
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
    """Train a model of a task (classify, tag, pair or a registered one) on examples.

    Without `dev`, one example in ten is held out. `elmo` is not changed: fine-tuning trains a copy. `static`: vectors
    in memory, used instead of `options.static`. `segment`: how the task model will tokenise strings, by default as
    `elmo` does; texts should be read in the same way (`read_texts(path, segment=elmo.segment)`). `cache`: the folder of
    frozen ELMo vectors. `watch` receives the progress. `paths`: the names of the two files in messages.
    """
    task = task_named(kind)
    options, watch = task.completed(options or task.options()), watch or TrainingListener()
    if options.elmo != "none" and elmo is None:
        raise ElmoError("the task reads ELMo vectors: give elmo=, or the option elmo='none'")
    task.check_examples([*train, *(dev or ())])
    task.refuse_unused(options)
    if not train:
        raise ElmoError("there must be examples to train on, got none")
    if dev is not None and not dev:
        raise ElmoError("there must be dev examples to score on, got none")
    started, is_held_out = time.monotonic(), dev is None
    if dev is None:
        train, dev = held_out(task, train, options, paths[0])
        are = "is" if len(dev) == 1 else "are"
        watch.note(f"no dev data: {len(dev):,} of the {len(train) + len(dev):,} examples {are} held out to score on")
        paths = (paths[0], paths[0])
    chosen = choose_device(device) if device is not None or elmo is None else elmo.device
    with torch.random.fork_rng(devices=[chosen] if chosen.type == "cuda" else []):
        used = None if elmo is None or options.elmo == "none" else _trainable_copy(elmo) if options.fine_tune else elmo
        torch.manual_seed(options.seed)
        policy = elmo.text_policy if segment is None and elmo is not None else TextPolicy.of(segment or "whitespace")
        learned, notes = task.from_examples(train, options, paths[0])
        notes += learned.check(dev, paths[1], held_out=is_held_out)
        notes += [*task.cut_notes(train, options, paths[0]), *task.cut_notes(dev, options, paths[1])]
        sides = [task.cut_sentences(part, options) for part in (train, dev)]
        sentences = [tokens for side in sides[0] for tokens in side]
        if task.splits_text:
            notes += _other_tokens(sentences[:_SAMPLED], policy)
        table = StaticVectors.for_task(options, static, sentences)
        notes += [table.note] if table is not None and table.note else []
        for note in notes:
            watch.note(note)
        store = not options.fine_tune
        inputs = [
            ExampleInputs(part, options, elmo=used, static=table, store=store, cache=cache, progress=watch.features)
            for part in sides
        ]
        network = learned.build_network(options, InputSpec.of(used, table)).to(chosen)
        learned.prepare_network(network, train)
        model = TaskModel(network, learned, used, segment=policy, device=chosen)
        return _Trainer(model, (train, inputs[0]), (dev, inputs[1]), watch).run(notes, started)


def held_out(
    task: type[AnyTask], examples: Sequence[Any], options: TaskOptions, path: str | None = None
) -> tuple[list[Any], list[Any]]:
    """Examples to train on and examples to score on, one in ten, drawn by the seed.

    Every label still has an example to train on.
    """
    found, _ = task.from_examples(examples, options, path)  # a mistake is named with its file before the split
    if len(examples) < 2:
        raise ElmoError(f"there must be at least two examples, one to train and one to score on, got {len(examples)}")
    order = list(range(len(examples)))
    random.Random(options.seed).shuffle(order)
    labels = [found.label(example) for example in examples]
    if None not in labels:
        last = set({labels[number]: number for number in order}.values())  # the last of each label in this order
        order = [number for number in order if number not in last]
        if not order:
            raise ElmoError(f"each of the {len(examples)} examples is the only one of its label: give dev data", "dev")
    chosen = set(order[: max(1, len(examples) // _DEV_SHARE)])
    parts: tuple[list[Any], list[Any]] = ([], [])
    for number, example in enumerate(examples):
        parts[number in chosen].append(example)
    return parts


class WeightAverages:
    """Running averages of weights, which score better and steadier than the weights of any one update.

    torch's AveragedModel copies the whole model, static vectors included, and has no warm-up of the decay.
    """

    def __init__(self, weights: Sequence[nn.Parameter]) -> None:
        self._weights = [weight.data for weight in weights]
        self._averages = [weight.clone() for weight in self._weights]
        self._updates = 0

    def update(self) -> None:
        """Include the weights after an update; the first updates count for more."""
        memory = min(_LONGEST_MEMORY, (1 + self._updates) / (10 + self._updates))
        self._updates += 1
        torch._foreach_lerp_(self._averages, self._weights, 1 - memory)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside the block, the network has the averages as its weights."""
        own = [weight.clone() for weight in self._weights]
        torch._foreach_copy_(self._weights, self._averages)
        try:
            yield
        finally:
            torch._foreach_copy_(self._weights, own)

    def copies(self) -> list[Tensor]:
        """The averages as they are now."""
        return [average.clone() for average in self._averages]


Data = tuple[Sequence[Example], ExampleInputs]


class _Trainer:
    """Epochs over the training data until the dev score stops rising."""

    def __init__(self, model: TaskModel, train: Data, dev: Data, watch: TrainingListener) -> None:
        self.model, self.task, self.options, self.watch = model, model.task, model.options, watch
        self.train, self.dev = train, dev
        self.optimizer = torch.optim.Adam(_parameter_groups(model), fused=True)
        self.learned: list[nn.Parameter] = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.averages = WeightAverages(self.learned)

    def run(self, notes: list[str], started: float) -> Fitted:
        """Train; `notes` are what looked odd in the data, and `started` is when the work on it began."""
        options = self.options
        order = random.Random(options.seed)
        history: list[dict[str, Any]] = []
        best: TaskScores | None = None
        best_weights: list[Tensor] = []
        best_epoch = since = 0
        for epoch in range(1, options.epochs + 1):
            began = time.monotonic()
            rate = self.optimizer.param_groups[0]["lr"]
            loss = self._epoch(epoch, order)
            scores = self._score()
            value = scores.main.value
            # While nothing is found at all, a later epoch is no worse, and training continues.
            better = best is None or value > best.main.value or value == best.main.value == 0.0
            seconds = round(time.monotonic() - began, 2)
            line = {"epoch": epoch, "loss": loss, "score": value, "learning_rate": rate, "seconds": seconds}
            history.append(line)
            self.watch.epoch({**line, "name": scores.main.name}, best=better)
            if best is None or better:
                best, best_epoch, since = scores, epoch, 0
                best_weights = self.averages.copies()
            else:
                since += 1
                if value < best.main.value:  # an equal score, as small dev data has it, says nothing
                    for group in self.optimizer.param_groups:
                        group["lr"] *= _SLOWER
            if options.patience and since >= options.patience and epoch < options.epochs:
                self.watch.note(f"{counted(since, 'epoch')} without a better dev score: that is enough (patience)")
                break
        assert best is not None
        with torch.no_grad():
            for parameter, weights in zip(self.learned, best_weights, strict=True):
                parameter.copy_(weights)
        self.model.network.eval()
        if self.model.elmo is not None and options.fine_tune:
            self.model.elmo.bilm.requires_grad_(False)
        return Fitted(self.model, best, best_epoch, history, time.monotonic() - started, notes)

    def _epoch(self, epoch: int, order: random.Random) -> float:
        """One pass over the examples; the mean loss."""
        examples, inputs = self.train
        network, device = self.model.network.train(), self.model.device
        batches = batches_of(inputs.lengths, self.options.batch_size_for(len(examples)), shuffle=order)
        total, n_examples, skipped = 0.0, 0, 0
        for done, numbers in enumerate(batches, start=1):
            targets = self.task.targets([examples[number] for number in numbers]).to(device)
            loss = network.loss(inputs.batch(numbers, device), targets)
            self.optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            norm = nn.utils.clip_grad_norm_(self.learned, self.options.clip_norm or math.inf)
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
            self.watch.note(f"{of_all} were skipped, because their gradients were not finite {advice}")
        return total / n_examples

    def _score(self) -> TaskScores:
        examples, inputs = self.dev
        with self.averages.applied():
            answers = self.model.answer(examples, inputs)
        return self.task.score(examples, answers)


def _parameter_groups(model: TaskModel) -> list[dict[str, Any]]:
    """What is trained, and with which learning rate: the network and, with fine_tune, the ELMo model it reads."""
    parts: list[tuple[nn.Module, float]] = [(model.network, model.options.learning_rate)]
    if model.elmo is not None and model.options.fine_tune:
        parts.append((model.elmo.bilm, model.options.elmo_learning_rate))
    return [{"params": [p for p in part.parameters() if p.requires_grad], "lr": rate} for part, rate in parts]


def _trainable_copy(elmo: Elmo) -> Elmo:
    """A copy to fine-tune, without its softmax: the user's own model is not changed."""
    checkpoint = elmo.checkpoint()
    weights = {name: value.clone() for name, value in checkpoint.weights.items()}
    copied = Elmo(replace(checkpoint, weights=weights, head={}), state=elmo.state, trainable=True)
    return copied.to(elmo.device)


def _other_tokens(sentences: Sequence[Sequence[str]], policy: TextPolicy) -> list[str]:
    """A sentence if the texts were tokenised in another way than `predict` will tokenise strings."""
    split = word_splitter(policy.name)
    tokens = [token for sentence in sentences for token in sentence]
    other = [token for token in tokens if split(token) != [token]]
    if len(other) <= _OTHER_TOKENS * len(tokens):
        return []
    return [
        f"{len(other):,} of {counted(len(tokens), 'token')}, such as {other[0]!r}, would be several in a string that "
        f"predict gets (segment={policy.name!r}): read the texts with that segment, or give fit the one they were read "
        "with"
    ]

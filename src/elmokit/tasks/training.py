"""The training of a task model: epochs over the examples, a score on dev data after each, the best one kept."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from elmokit.elmo import Elmo
from elmokit.errors import ElmoError
from elmokit.messages import counted
from elmokit.model.placement import choose_device
from elmokit.tasks.answers import Answers, check_kind
from elmokit.tasks.averaging import Averages
from elmokit.tasks.batches import batches_of
from elmokit.tasks.examples import Example, Kind, PairExample, TextExample
from elmokit.tasks.labels import label_of, scores_of
from elmokit.tasks.model import TaskModel
from elmokit.tasks.network import TaskNetwork
from elmokit.tasks.options import TaskOptions
from elmokit.tasks.scores import Scores
from elmokit.tasks.sources import Source, cut_note, sentences_of
from elmokit.tasks.static import StaticVectors
from elmokit.text.policy import TextPolicy
from elmokit.text.tokens import SegmenterName, word_splitter

Given = tuple[Sequence[str], NDArray[np.float32]]
"""Static vectors that are in memory: words, and vectors [V, size]."""
_DEV_SHARE = 10
"""Without dev data one example in so many is held out."""
_LOOKED_AT = 1000
"""Sentences that tell how texts were tokenised."""
_OTHER_TOKENS = 0.05
"""The share of tokens that may be tokenised in another way, by chance."""
_SLOWER = 0.5
"""What the learning rate is multiplied with after an epoch that was not the best."""


class Watcher(Protocol):
    """Whoever shows how a training goes."""

    def note(self, text: str) -> None:
        """Something a person should know."""
        ...

    def features(self, done: int, total: int) -> None:
        """Sentences whose ELMo vectors are computed."""
        ...

    def batch(self, epoch: int, done: int, total: int) -> None:
        """Batches of an epoch that are done."""
        ...

    def epoch(self, line: dict[str, Any], *, best: bool) -> None:
        """An epoch's loss and score."""
        ...


class Unwatched:
    """Shows nothing."""

    def note(self, text: str) -> None:
        """Say nothing."""

    def features(self, done: int, total: int) -> None:
        """Say nothing."""

    def batch(self, epoch: int, done: int, total: int) -> None:
        """Say nothing."""

    def epoch(self, line: dict[str, Any], *, best: bool) -> None:
        """Say nothing."""


@dataclass(frozen=True)
class Fitted:
    """A trained model and how its training went."""

    model: TaskModel
    scores: Scores
    """On the dev data, of the best epoch, which is the model's."""
    epoch: int
    """The best epoch, from 1."""
    history: list[dict[str, Any]]
    """For each epoch: epoch, loss, score, learning_rate, seconds."""
    seconds: float
    notes: list[str]
    """What looked odd in the data, in a sentence each."""


def fit(
    kind: Kind,
    train: Sequence[Example],
    dev: Sequence[Example] | None,
    options: TaskOptions | None = None,
    *,
    elmo: Elmo | None = None,
    static: Given | None = None,
    segment: SegmenterName | TextPolicy | None = None,
    cache: Path | None = None,
    device: str | torch.device | None = None,
    watch: Watcher | None = None,
    paths: tuple[str | None, str | None] = (None, None),
) -> Fitted:
    """Train a classifier, a tagger or a pair model on examples.

    Without `dev`, one example in ten is held out. `elmo` stays as it is: where it is to be fine-tuned, a copy is.
    `static`: vectors in memory, which go before `options.static`. `segment`: how the task model will tokenise strings,
    by default as `elmo` does; texts should be read in the same way (`read_texts(path, segment=elmo.segment)`).
    `cache`: the folder of frozen ELMo vectors. `paths`: the names of the two files in messages.
    """
    options, watch = options or TaskOptions(), watch or Unwatched()
    if options.elmo != "none" and elmo is None:
        raise ElmoError("the task reads ELMo vectors: give elmo=, or the option elmo='none'")
    check_kind(kind, [*train, *(dev or ())])
    _refuse_other_kinds(kind, options)
    if dev is not None and not dev:
        raise ElmoError("there must be dev examples to score on, got none")
    is_held_out = dev is None
    if dev is None:
        Answers.of(kind, train, options, paths[0])  # a mistake in what will be held out is named with its file
        train, dev = held_out(train, options.seed, by_label=kind != "tag" and options.target == "label")
        are = "is" if len(dev) == 1 else "are"
        watch.note(f"no dev data: {len(dev):,} of the {len(train) + len(dev):,} examples {are} held out to score on")
        paths = (paths[0], paths[0])
    chosen = choose_device(device) if device is not None or elmo is None else elmo.device
    with torch.random.fork_rng(devices=[chosen] if chosen.type == "cuda" else []):
        used = None if elmo is None or options.elmo == "none" else _to_train(elmo) if options.fine_tune else elmo
        torch.manual_seed(options.seed)
        policy = elmo.text_policy if segment is None and elmo is not None else TextPolicy.of(segment or "whitespace")
        training = _Training(kind, train, dev, options, used, static, policy, chosen, watch, cache, paths, is_held_out)
        return training.run()


def held_out(examples: Sequence[Example], seed: int, *, by_label: bool = False) -> tuple[list[Example], list[Example]]:
    """Examples to train on and examples to score on, one in ten, drawn by the seed.

    `by_label`: every label keeps an example to train on.
    """
    if len(examples) < 2:
        raise ElmoError(f"there must be at least two examples, one to train and one to score on, got {len(examples)}")
    order = list(range(len(examples)))
    random.Random(seed).shuffle(order)
    if by_label:
        labels = [label_of(cast(TextExample | PairExample, example)) for example in examples]
        kept = set({labels[number]: number for number in order}.values())  # the last of each label in this order
        order = [number for number in order if number not in kept]
        if not order:
            raise ElmoError(f"each of the {len(examples)} examples is the only one of its label: give dev data (--dev)")
    chosen = set(order[: max(1, len(examples) // _DEV_SHARE)])
    return (
        [example for number, example in enumerate(examples) if number not in chosen],
        [example for number, example in enumerate(examples) if number in chosen],
    )


class _Training:
    def __init__(
        self,
        kind: Kind,
        train: Sequence[Example],
        dev: Sequence[Example],
        options: TaskOptions,
        elmo: Elmo | None,
        static: Given | None,
        policy: TextPolicy,
        device: torch.device,
        watch: Watcher,
        cache: Path | None,
        paths: tuple[str | None, str | None],
        is_held_out: bool,
    ) -> None:
        self.options, self.device, self.watch = options, device, watch
        self.started = time.monotonic()
        self.train, self.dev = train, dev
        self.answers, self.notes = Answers.of(kind, train, options, paths[0])
        self.notes += self.answers.check(dev, paths[1], held_out=is_held_out)
        self.notes += [*cut_note(train, options, paths[0]), *cut_note(dev, options, paths[1])]
        sentences = [tokens for side in sentences_of(train, options) for tokens in side]
        if kind != "tag":
            self.notes += _other_tokens(sentences[:_LOOKED_AT], policy)
        table = _static(options, static, sentences)
        if table is not None and table.note:
            self.notes.append(table.note)
        for note in self.notes:
            watch.note(note)
        keep = not options.fine_tune
        self.train_source, self.dev_source = (
            Source(part, options, elmo=elmo, static=table, keep=keep, cache=cache, progress=watch.features)
            for part in (train, dev)
        )
        network = TaskNetwork(
            kind,
            options,
            n_outputs=self.answers.n_outputs,
            elmo_layers=elmo.config.n_outputs if elmo else 0,
            elmo_size=elmo.config.vector_size if elmo else 0,
            static=table,
            allowed=self.answers.allowed(),
        ).to(device)
        if self.answers.labels is None:
            network.standardise(torch.tensor(scores_of(cast(Sequence[PairExample], train))))
        self.model = TaskModel(network, self.answers, elmo, segment=policy, device=device)
        self.learned: list[nn.Parameter] = [p for p in network.parameters() if p.requires_grad]
        groups: list[dict[str, Any]] = [{"params": list(self.learned), "lr": options.learning_rate}]
        if elmo is not None and options.fine_tune:
            tuned = [p for p in elmo.bilm.parameters() if p.requires_grad]
            groups.append({"params": tuned, "lr": options.elmo_learning_rate})
            self.learned += tuned
        self.optimizer = torch.optim.Adam(groups)
        self.averages = Averages(self.learned)

    def run(self) -> Fitted:
        options, network = self.options, self.model.network
        order = random.Random(options.seed)
        history: list[dict[str, Any]] = []
        best: Scores | None = None
        kept: list[Tensor] = []
        kept_epoch = since = 0
        for epoch in range(1, options.epochs + 1):
            began = time.monotonic()
            rate = self.optimizer.param_groups[0]["lr"]
            loss = self._epoch(epoch, order)
            scores = self._score()
            # While nothing is found at all, a later epoch is no worse, and training goes on.
            better = best is None or scores.main.value > best.main.value or scores.main.value == best.main.value == 0.0
            line = {
                "epoch": epoch,
                "loss": loss,
                "score": scores.main.value,
                "learning_rate": rate,
                "seconds": round(time.monotonic() - began, 2),
            }
            history.append(line)
            self.watch.epoch({**line, "name": scores.main.name}, best=better)
            if best is None or better:
                best, kept_epoch, since = scores, epoch, 0
                kept = self.averages.copies()
            else:
                since += 1
                if scores.main.value < best.main.value:  # an equal score, as small dev data has it, says nothing
                    for group in self.optimizer.param_groups:
                        group["lr"] *= _SLOWER
            if options.patience and since >= options.patience and epoch < options.epochs:
                self.watch.note(f"{counted(since, 'epoch')} without a better dev score: that is enough (--patience)")
                break
        assert best is not None
        with torch.no_grad():
            for parameter, value in zip(self.learned, kept, strict=True):
                parameter.copy_(value)
        network.eval()
        if self.model.elmo is not None and options.fine_tune:
            self.model.elmo.bilm.requires_grad_(False)
        return Fitted(self.model, best, kept_epoch, history, time.monotonic() - self.started, self.notes)

    def _epoch(self, epoch: int, order: random.Random) -> float:
        """One time through the examples; the mean loss."""
        network = self.model.network.train()
        batches = batches_of(self.train_source.lengths, self.options.batch_size_for(len(self.train)), shuffle=order)
        total, counted_examples, left_out = 0.0, 0, 0
        for done, numbers in enumerate(batches, start=1):
            targets = self.answers.targets([self.train[number] for number in numbers]).to(self.device)
            loss = network.loss(self.train_source.batch(numbers, self.device), targets)
            self.optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            norm = nn.utils.clip_grad_norm_(self.learned, self.options.clip_norm or math.inf)
            if math.isfinite(float(norm)):
                self.optimizer.step()
                self.averages.update()
                total += float(loss.detach()) * len(numbers)
                counted_examples += len(numbers)
            else:
                left_out += 1
            self.watch.batch(epoch, done, len(batches))
        if left_out == len(batches):
            raise ElmoError(
                f"no update of epoch {epoch} had finite gradients (learning_rate {self.options.learning_rate:g}): "
                "try a lower learning rate"
            )
        if left_out:
            self.watch.note(
                f"{left_out:,} of the {len(batches):,} updates of epoch {epoch} were left out, for their gradients "
                f"were not finite (learning_rate {self.options.learning_rate:g}): try a lower learning rate"
            )
        return total / counted_examples

    def _score(self) -> Scores:
        with self.averages.in_use():
            answers = self.model.answer(self.dev, self.dev_source)
        return self.answers.score(self.dev, [answer.answer for answer in answers])


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


def without_elmo(options: TaskOptions) -> TaskOptions:
    """The same head on static vectors alone."""
    static = "train" if options.static == "none" else options.static
    return replace(options, elmo="none", elmo_output=False, fine_tune=False, static=static)


def with_layer_0(options: TaskOptions) -> TaskOptions:
    """The same head on the layer that knows no context."""
    return replace(options, elmo="0")


def _refuse_other_kinds(kind: Kind, options: TaskOptions) -> None:
    """Options for other kinds of task must be left alone; those for other inputs may be shared by a comparison."""
    usual, idle = TaskOptions(), options.idle(kind)
    for name in ("pooling", "crf", "alignment", "target"):
        if name in idle and getattr(options, name) != getattr(usual, name):
            raise ElmoError(f"{name} is for {idle[name]}, and this task is {kind}: leave it out")


def _to_train(elmo: Elmo) -> Elmo:
    """A copy to fine-tune, without its softmax: the user's own model stays as it is."""
    checkpoint = elmo.checkpoint()
    weights = {name: value.clone() for name, value in checkpoint.weights.items()}
    copied = Elmo(replace(checkpoint, weights=weights, head={}), state=elmo.state, trainable=True)
    return copied.to(elmo.device)


def _static(options: TaskOptions, given: Given | None, sentences: Sequence[Sequence[str]]) -> StaticVectors | None:
    if given is not None:
        return StaticVectors.given(*given, sentences, frozen=options.static_frozen)
    if options.static == "none":
        return None
    if options.static == "train":
        return StaticVectors.train_from(
            sentences, size=options.static_size, min_count=options.static_min_count, seed=options.seed
        )
    return StaticVectors.read(Path(options.static), sentences, frozen=options.static_frozen)

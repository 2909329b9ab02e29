"""The task `classify`, one label for each text: [static vectors; ELMo] → biLSTM → pooling → label.

`LabelTask` is also the base of other tasks that choose one label.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn

from elmokit.errors import ElmoError, MissingExtraError
from elmokit.messages import counted
from elmokit.tasks.network import Inputs, InputSpec, Pooling, TaskNetwork
from elmokit.tasks.options import TaskOptions
from elmokit.tasks.reading import FilePath, Segment, Tokens, location, quoted, suffix_of
from elmokit.tasks.scores import TaskScores, score_labels
from elmokit.tasks.task import Answer, AnswerT, Example, Task

_MAX_LISTED = 5
_MAX_RANKED = 3


class LabelledExample(Example):
    """An example with one label as its file spells it, or with none."""

    label: str | None


@dataclass(frozen=True)
class TextExample(LabelledExample):
    """A text and its label; `line` is its line in the file, for messages."""

    tokens: Tokens
    label: str | None = None
    line: int = 0
    raw: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class LabelAnswer(Answer):
    """The label of a text or a pair, and the probability of each label."""

    label: str
    probabilities: dict[str, float]

    @property
    def probability(self) -> float:
        """The probability of the chosen label."""
        return self.probabilities[self.label]

    def to_dict(self) -> dict[str, Any]:
        """The answer for JSON."""
        return {"label": self.label, "probability": self.probability, "probabilities": self.probabilities}

    def on_screen(self) -> str:
        """The most probable labels with their probabilities."""
        ranked = sorted(self.probabilities.items(), key=lambda item: -item[1])
        return "  ".join(f"{label} {probability:.3f}" for label, probability in ranked[:_MAX_RANKED])


def label_names(labels: Iterable[str]) -> tuple[str, ...]:
    """The distinct labels in the order of their ids: O first, then numbers by value, then the others by name."""
    return tuple(sorted(set(labels), key=_sort_key))


def _sort_key(name: str) -> tuple[bool, bool, float, str]:
    try:
        number = float(name)
    except ValueError:
        number = math.nan
    is_number = math.isfinite(number)
    return name != "O", not is_number, number if is_number else 0.0, name


def check_training_labels(
    labels: Iterable[str], path: FilePath | None = None, first_line: str | None = None
) -> list[str]:
    """Refuse training labels from which nothing can be learned; return warnings about labels that look like errors.

    `first_line` is the label that was read in line 1, where a header with unusual names looks like an example.
    """
    counts, where = Counter(labels), "the training data" if path is None else str(path)
    total, names = counts.total(), label_names(counts)
    if len(names) == 1:
        raise ElmoError(
            f"there must be at least two classes, got only {quoted(names[0])}, {counted(total, 'time')}, in {where}: "
            "is that the column of the labels?"
        )
    if len(names) > 10 and 2 * len(names) > total:
        raise ElmoError(
            f"{where} has {len(names):,} classes in {total:,} examples ({_listed(names)}): "
            "is that the column of the labels?"
        )
    single = [name for name in names if counts[name] == 1]
    if single and total > 10:
        each = "" if len(single) == 1 else " each"
        header = ", or is line 1 a header, whose columns must be named?" if first_line in single else "?"
        return [f"{where} has only one example{each} of {_listed(single)}: is that a typing error{header}"]
    return []


def check_unseen_labels(known: Iterable[str], labels: Iterable[tuple[str, Callable[[], str]]]) -> list[str]:
    """A warning about labels that are not among the `known` ones of training; an ElmoError if none is among them.

    Each label comes with a function that returns its location in the file.
    """
    known, unseen = dict.fromkeys(known), Counter[str]()
    first, any_seen = "", False
    for label, location_of in labels:
        any_seen = any_seen or label in known
        if label not in known:
            unseen[label] += 1
            first = first or location_of()
    if not unseen:
        return []
    if not any_seen:
        raise ElmoError(
            f"{first}: the training data has none of these labels ({_listed(unseen)}), only {_listed(known)}: is that "
            "the column of the labels?"
        )
    plural = "s" if len(unseen) > 1 else ""
    return [
        f"{first}: the training data does not have the label{plural} {_listed(unseen)}, so "
        f"{counted(unseen.total(), 'answer')} will count as wrong"
    ]


def _listed(names: Iterable[str]) -> str:
    listed = [quoted(name) for name in names]
    more = len(listed) - _MAX_LISTED
    return ", ".join(listed[:_MAX_LISTED]) + (f" and {more:,} more" if more > 0 else "")


LabelledT = TypeVar("LabelledT", bound=LabelledExample)


def label_of(example: LabelledExample, path: FilePath | None = None) -> str:
    """The label of an example that must have one."""
    if example.label is None:
        raise ElmoError(f"{location(path, example.line)}: an example must have a label to train or score, got none")
    if not isinstance(example.label, str):
        raise ElmoError(f"{location(path, example.line)}: a label must be a string, got {example.label!r}")
    return example.label


@dataclass(frozen=True)
class LabelTask(Task[LabelledT, AnswerT]):
    """A task that chooses one label for each example; without labels, a subclass can predict a score instead."""

    labels: tuple[str, ...]

    @classmethod
    def from_examples(
        cls, examples: Sequence[LabelledT], options: TaskOptions, path: FilePath | None = None
    ) -> tuple[Self, list[str]]:
        """The task with the labels of training examples, and warnings about labels that look like errors."""
        labels = [label_of(example, path) for example in examples]
        in_table = path is not None and suffix_of(path) in (".tsv", ".csv", ".txt")
        first = next((label_of(example) for example in examples if in_table and example.line == 1), None)
        return cls(label_names(labels)), check_training_labels(labels, path, first)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any], options: TaskOptions) -> Self:
        """The task that `to_dict` describes."""
        return cls(tuple(stored["labels"]))

    def to_dict(self) -> dict[str, Any]:
        """The task for JSON."""
        return {"kind": self.name, "labels": self.labels}

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of each label."""
        return {name: number for number, name in enumerate(self.labels)}

    def label(self, example: LabelledT) -> str | None:
        """The label of an example, or None if the task has no labels."""
        return example.label if self.labels else None

    def check(
        self, examples: Sequence[LabelledT], path: FilePath | None = None, *, held_out: bool = False
    ) -> list[str]:
        """Refuse examples without a label; return warnings about labels that the training data or these lack."""
        named = [(label_of(example, path), example.line) for example in examples]
        notes = check_unseen_labels(self.labels, ((label, partial(location, path, line)) for label, line in named))
        found = {label for label, _ in named}
        if missing := [name for name in self.labels if name not in found]:
            notes.append(f"the scores do not cover {_listed(missing)}: no example to score on has that label")
        return notes

    def targets(self, examples: Sequence[LabelledT]) -> Tensor:
        """The ids of the labels, [B]."""
        return torch.tensor([self.ids[label_of(example)] for example in examples])

    def answer(self, example: LabelledT, decoded: tuple[Tensor, ...]) -> AnswerT:
        """The most probable label; `decoded` is the probabilities [K]."""
        (probabilities,) = decoded
        values = dict(zip(self.labels, probabilities.tolist(), strict=True))
        return LabelAnswer(self.labels[int(probabilities.argmax())], values)  # type: ignore[return-value]

    def score(self, examples: Sequence[LabelledT], answers: Sequence[Any]) -> TaskScores:
        """Accuracy, and precision, recall and F1 of each label."""
        gold = [label_of(example) for example in examples]
        return score_labels(gold, [answer.label for answer in answers], self.labels)


class ClassifyNetwork(TaskNetwork):
    """Pooling of the word vectors of a text, then a linear layer."""

    def __init__(self, options: TaskOptions, spec: InputSpec, n_outputs: int) -> None:
        super().__init__(options, spec, n_outputs)
        self.pooling = Pooling(options.pooling, self.state_size)
        self.output = nn.Linear(self.pooling.output_size, n_outputs)

    def vectors(self, inputs: Inputs) -> Tensor:
        """The pooled vector of each text, [B, size]."""
        (batch,) = inputs
        pooled: Tensor = self.pooling(self.states(batch), batch.mask)
        return pooled


class ClassifyTask(LabelTask[TextExample, LabelAnswer]):
    """One label for each text."""

    name = "classify"
    example = TextExample
    own_options: ClassVar = ("pooling", "max_tokens")

    def build_network(self, options: TaskOptions, spec: InputSpec) -> TaskNetwork:
        """A network with one output per label."""
        return ClassifyNetwork(options, spec, len(self.labels))

    @classmethod
    def baselines(cls, train: Sequence[TextExample], dev: Sequence[TextExample]) -> list[tuple[str, TaskScores]]:
        """Logistic regression on TF-IDF of words and word pairs."""
        try:
            from sklearn.feature_extraction.text import TfidfVectorizer
            from sklearn.linear_model import LogisticRegression
            from sklearn.pipeline import make_pipeline
        except ImportError as error:
            raise MissingExtraError("scikit-learn", "tasks", "the TF-IDF baseline") from error
        model = make_pipeline(
            TfidfVectorizer(analyzer=_words_and_pairs, sublinear_tf=True), LogisticRegression(C=10, max_iter=1000)
        )
        model.fit([example.tokens for example in train], labels := [label_of(example) for example in train])
        guessed = model.predict([example.tokens for example in dev]).tolist()
        scores = score_labels([label_of(example) for example in dev], guessed, label_names(labels))
        return [("TF-IDF + logistic regression", scores)]


TASK = ClassifyTask


def _words_and_pairs(tokens: Sequence[str]) -> list[str]:
    words = [token.lower() for token in tokens]
    return words + [" ".join(pair) for pair in pairwise(words)]


def read_texts(
    path: FilePath,
    *,
    text: str | None = None,
    label: str | None = None,
    segment: Segment = "whitespace",
    labelled: bool = True,
) -> list[TextExample]:
    """The texts of a table and their labels; `text` and `label` are columns by name, or by number from 1.

    By default the columns are found by the usual names in a header; a table of two columns without a header is read as
    `label TAB text`. `segment` says how texts are split into tokens; `elmo.segment` is the model's own choice. With
    labelled=False no label is read, and a .txt file or a table of one column has one text per line.
    """
    return list(ClassifyTask.read(path, text=text, label=label, segment=segment, labelled=labelled))

"""The task `classify`, a label for each text: [static vectors; ELMo] → biLSTM → pooling → labels.

Tasks with other inputs that also choose one label build on `LabelTask`.
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
from elmokit.tasks.reading import FilePath, Segment, Tokens, place, shown
from elmokit.tasks.scores import TaskScores, score_labels
from elmokit.tasks.task import Answer, AnswerT, Example, Task

_LISTED = 5
_RANKED = 3


class LabelledExample(Example):
    """An example with at most one label, spelled as in its file."""

    label: str | None


@dataclass(frozen=True)
class TextExample(LabelledExample):
    """A text and its class; `line` is its line in the file, for messages."""

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
        """Of the label."""
        return self.probabilities[self.label]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"label": self.label, "probability": self.probability, "probabilities": self.probabilities}

    def on_screen(self) -> str:
        """The most probable labels."""
        ranked = sorted(self.probabilities.items(), key=lambda item: -item[1])
        return "  ".join(f"{label} {probability:.3f}" for label, probability in ranked[:_RANKED])


def label_names(labels: Iterable[str]) -> tuple[str, ...]:
    """The different labels, each at its id: O first, numbers by value, others by name."""
    return tuple(sorted(set(labels), key=_order))


def _order(name: str) -> tuple[bool, bool, float, str]:
    try:
        number = float(name)
    except ValueError:
        number = math.nan
    known = math.isfinite(number)
    return name != "O", not known, number if known else 0.0, name


def check_training_labels(labels: Iterable[str], path: FilePath | None = None) -> list[str]:
    """Refuse labels of training data that nothing can be learned from; a sentence on those that look like a slip."""
    counts, where = Counter(labels), "the training data" if path is None else str(path)
    total, names = counts.total(), label_names(counts)
    if len(names) == 1:
        raise ElmoError(
            f"there must be at least two classes to tell apart, got {shown(names[0])} alone, {counted(total, 'time')}, "
            f"in {where}: is that the column of the labels?"
        )
    if len(names) > 10 and 2 * len(names) > total:
        raise ElmoError(
            f"{where} has {len(names):,} classes in {total:,} examples ({_listed(names)}): "
            "is that the column of the labels?"
        )
    single = [name for name in names if counts[name] == 1]
    if single and total > 10:
        each = "" if len(single) == 1 else " each"
        return [f"{where} has only one example{each} of {_listed(single)}: is that a slip?"]
    return []


def check_unseen_labels(known: Iterable[str], labels: Iterable[tuple[str, Callable[[], str]]]) -> list[str]:
    """A sentence on labels that training never saw, which count as wrong; an ElmoError if it saw none of them.

    `known`: those that it saw. Each label comes with a function that returns its place in the file.
    """
    known, unseen = dict.fromkeys(known), Counter[str]()
    first, any_seen = "", False
    for label, place_of in labels:
        any_seen = any_seen or label in known
        if label not in known:
            unseen[label] += 1
            first = first or place_of()
    if not unseen:
        return []
    if not any_seen:
        raise ElmoError(
            f"{first}: training saw none of the labels here ({_listed(unseen)}), only {_listed(known)}: is that the "
            "column of the labels?"
        )
    plural, them = ("s", "them") if len(unseen) > 1 else ("", "it")
    return [
        f"{first}: training never saw the label{plural} {_listed(unseen)}; {counted(unseen.total(), 'place')} with "
        f"{them} will count as wrong"
    ]


def _listed(names: Iterable[str]) -> str:
    listed = [shown(name) for name in names]
    more = len(listed) - _LISTED
    return ", ".join(listed[:_LISTED]) + (f" and {more:,} more" if more > 0 else "")


LabelledT = TypeVar("LabelledT", bound=LabelledExample)


def label_of(example: LabelledExample, path: FilePath | None = None) -> str:
    """The label of an example that must have one."""
    if example.label is None:
        raise ElmoError(f"{place(path, example.line)}: an example must have a label here, got none")
    return example.label


@dataclass(frozen=True)
class LabelTask(Task[LabelledT, AnswerT]):
    """A task that chooses one label for each example; a subclass whose answer is a score has no labels."""

    labels: tuple[str, ...]

    @classmethod
    def from_examples(
        cls, examples: Sequence[LabelledT], options: TaskOptions, path: FilePath | None = None
    ) -> tuple[Self, list[str]]:
        """The labels of training examples, and a sentence on labels that look like a slip."""
        labels = [label_of(example, path) for example in examples]
        return cls(label_names(labels)), check_training_labels(labels, path)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any], options: TaskOptions) -> Self:
        """The task that `to_dict` describes."""
        return cls(tuple(stored["labels"]))

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"kind": self.name, "labels": self.labels}

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of each label."""
        return {name: number for number, name in enumerate(self.labels)}

    def label(self, example: LabelledT) -> str | None:
        """The label, if there are labels."""
        return example.label if self.labels else None

    def check(
        self, examples: Sequence[LabelledT], path: FilePath | None = None, *, held_out: bool = False
    ) -> list[str]:
        """Refuse examples without a label; sentences on labels that training or these examples lack."""
        named = [(label_of(example, path), example.line) for example in examples]
        notes = check_unseen_labels(self.labels, ((label, partial(place, path, line)) for label, line in named))
        found = {label for label, _ in named}
        if missing := [name for name in self.labels if name not in found]:
            notes.append(f"there is no example of {_listed(missing)} to score on, so no score speaks for that")
        return notes

    def targets(self, examples: Sequence[LabelledT]) -> Tensor:
        """The ids of the labels [B]."""
        return torch.tensor([self.ids[label_of(example)] for example in examples])

    def answer(self, example: LabelledT, decoded: tuple[Tensor, ...]) -> AnswerT:
        """The most probable label; decoded: probabilities [K]."""
        (probabilities,) = decoded
        values = dict(zip(self.labels, probabilities.tolist(), strict=True))
        return LabelAnswer(self.labels[int(probabilities.argmax())], values)  # type: ignore[return-value]

    def score(self, examples: Sequence[LabelledT], answers: Sequence[Any]) -> TaskScores:
        """Accuracy, and precision, recall and F1 of each label."""
        gold = [label_of(example) for example in examples]
        return score_labels(gold, [answer.label for answer in answers], self.labels)


class ClassifyNetwork(TaskNetwork):
    """A pooled vector of the text, and a linear layer."""

    def __init__(self, options: TaskOptions, spec: InputSpec, n_outputs: int) -> None:
        super().__init__(options, spec, n_outputs)
        self.pooling = Pooling(options.pooling, self.state_size)
        self.output = nn.Linear(self.pooling.output_size, n_outputs)

    def vectors(self, inputs: Inputs) -> Tensor:
        """[B, size]."""
        (batch,) = inputs
        pooled: Tensor = self.pooling(self.states(batch), batch.mask)
        return pooled


class ClassifyTask(LabelTask[TextExample, LabelAnswer]):
    """A label for each text."""

    name = "classify"
    example = TextExample
    own_options: ClassVar = ("pooling", "max_tokens")

    def build_network(self, options: TaskOptions, spec: InputSpec) -> TaskNetwork:
        """A network with one output per label."""
        return ClassifyNetwork(options, spec, len(self.labels))

    @classmethod
    def baselines(cls, train: Sequence[TextExample], dev: Sequence[TextExample]) -> list[tuple[str, TaskScores]]:
        """Logistic regression on counts of words and pairs of words."""
        try:
            from sklearn.feature_extraction.text import TfidfVectorizer
            from sklearn.linear_model import LogisticRegression
            from sklearn.pipeline import make_pipeline
        except ImportError as error:
            raise MissingExtraError("scikit-learn", "tasks", "the row of TF-IDF") from error
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
    """The texts of a table and their classes; `text` and `label` are columns by name or by number from 1.

    Without them, usual names in a header are known, and two columns without a header are `label TAB text`. `segment`:
    how a text becomes tokens; `elmo.segment` is the model's own way. With labelled=False no label is read, and a .txt
    file or one of a single column has one text per line.
    """
    return list(ClassifyTask.read(path, text=text, label=label, segment=segment, labelled=labelled))

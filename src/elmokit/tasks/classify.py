"""The task `classify`, a label for each text: [static vectors; ELMo] → biLSTM → pooling → labels.

Tasks with other inputs that also choose one label build on `LabelTask`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from elmokit.errors import ElmoError
from elmokit.messages import counted
from elmokit.tasks.network import Inputs, InputSpec, Pooling, TaskNetwork
from elmokit.tasks.options import TaskOptions
from elmokit.tasks.reading import FilePath, Segment, Tokens, place, shown
from elmokit.tasks.schemes import Scheme
from elmokit.tasks.scores import TaskScores, score_labels
from elmokit.tasks.task import Answer, AnswerT, Example, Task

_LISTED = 5
_RANKED = 3


@dataclass(frozen=True)
class TextExample:
    """A text and its class; `line` is its line in the file, for messages."""

    tokens: Tokens
    label: str | None = None
    line: int = 0

    @property
    def sentences(self) -> tuple[Tokens, ...]:
        """The text alone."""
        return (self.tokens,)


@dataclass(frozen=True)
class LabelAnswer(Answer):
    """The label of a text or a pair, and the probability of each label."""

    label: str
    probabilities: dict[str, float]

    @property
    def answer(self) -> str:
        """The label."""
        return self.label

    @property
    def probability(self) -> float:
        """Of the label."""
        return self.probabilities[self.label]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"label": self.label, "probability": self.probability, "probabilities": self.probabilities}

    def to_cells(self) -> dict[str, str]:
        """For a table."""
        return {"label": " ".join(self.label.split()), "probability": f"{self.probability:.6f}"}

    def on_screen(self) -> str:
        """The most probable labels."""
        ranked = sorted(self.probabilities.items(), key=lambda item: -item[1])
        return "  ".join(f"{label} {probability:.3f}" for label, probability in ranked[:_RANKED])


@dataclass(frozen=True)
class Labels:
    """The names of the classes, each at its id, and how often each occurs in the training data."""

    names: tuple[str, ...]
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.names or len(self.names) != len(self.counts) or len(set(self.names)) != len(self.names):
            raise ElmoError(f"labels must be different names with a count each, got {self.names} and {self.counts}")

    @classmethod
    def of(cls, labels: Iterable[str]) -> Labels:
        """The labels of all examples, or the tags of all tokens: O first, numbers by value, others by name."""
        counts = Counter(labels)
        names = sorted(counts, key=_order)
        return cls(tuple(names), tuple(counts[name] for name in names))

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Labels:
        """What `to_dict` returned."""
        return cls(tuple(stored["names"]), tuple(stored["counts"]))

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"names": list(self.names), "counts": list(self.counts)}

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of each class."""
        return {name: number for number, name in enumerate(self.names)}

    def check_training(self, path: FilePath | None = None) -> list[str]:
        """Refuse data that nothing can be learned from; a sentence on labels that look like a slip."""
        where = "the training data" if path is None else str(path)
        if len(self.names) == 1:
            raise ElmoError(
                f"there must be at least two classes to tell apart, got {shown(self.names[0])} alone, "
                f"{counted(sum(self.counts), 'time')}, in {where}: is that the column of the labels?"
            )
        if len(self.names) > 10 and 2 * len(self.names) > sum(self.counts):
            raise ElmoError(
                f"{where} has {len(self.names):,} classes in {sum(self.counts):,} examples ({_listed(self.names)}): "
                "is that the column of the labels?"
            )
        single = [name for name, count in zip(self.names, self.counts, strict=True) if count == 1]
        if single and sum(self.counts) > 10:
            each = "" if len(single) == 1 else " each"
            return [f"{where} has only one example{each} of {_listed(single)}: is that a slip?"]
        return []

    def check_unseen(self, labels: Iterable[tuple[str, Callable[[], str]]]) -> list[str]:
        """A sentence on labels that training never saw, which count as wrong; an ElmoError if it saw none of them.

        Each label comes with a function that returns its place in the file.
        """
        unseen: Counter[str] = Counter()
        first, any_seen = "", False
        for label, place_of in labels:
            any_seen = any_seen or label in self.ids
            if label not in self.ids:
                unseen[label] += 1
                first = first or place_of()
        if not unseen:
            return []
        if not any_seen:
            raise ElmoError(
                f"{first}: training saw none of the labels here ({_listed(unseen)}), only "
                f"{_listed(self.names)}: is that the column of the labels?"
            )
        many = len(unseen) > 1
        return [
            f"{first}: training never saw the label{'s' if many else ''} {_listed(unseen)}; "
            f"{counted(unseen.total(), 'place')} with {'them' if many else 'it'} will count as wrong"
        ]


def _listed(names: Iterable[str]) -> str:
    listed = [shown(name) for name in names]
    more = len(listed) - _LISTED
    return ", ".join(listed[:_LISTED]) + (f" and {more:,} more" if more > 0 else "")


def _order(name: str) -> tuple[bool, bool, float, str]:
    try:
        number = float(name)
    except ValueError:
        number = math.nan
    known = math.isfinite(number)
    return name != "O", not known, number if known else 0.0, name


class LabelledExample(Example, Protocol):
    """An example with at most one label."""

    @property
    def label(self) -> str | None:
        """Its label as the file spells it."""


LabelledT = TypeVar("LabelledT", bound=LabelledExample)


def label_of(example: LabelledExample, path: FilePath | None = None) -> str:
    """The label of an example that must have one."""
    if example.label is None:
        raise ElmoError(f"{place(path, example.line)}: an example must have a label here, got none")
    return example.label


@dataclass(frozen=True)
class LabelTask(Task[LabelledT, AnswerT]):
    """A task that chooses one label for each example; `labels` is None in a subclass whose answer is a score."""

    labels: Labels | None

    @classmethod
    def from_examples(
        cls, examples: Sequence[LabelledT], options: TaskOptions, path: FilePath | None = None
    ) -> tuple[Self, list[str]]:
        """The labels of training examples, and a sentence on labels that look like a slip."""
        labels = Labels.of(label_of(example, path) for example in examples)
        return cls(labels), labels.check_training(path)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any], options: TaskOptions) -> Self:
        """The task that `to_dict` describes."""
        labels = stored["labels"]
        if (labels is None) != (options.target == "score"):
            raise ElmoError(f"a {cls.name} model with target={options.target!r} must have labels if it predicts them")
        return cls(labels and Labels.from_dict(labels))

    def to_dict(self) -> dict[str, Any]:
        """For JSON; the scheme is only of use for tags, but readers of the first version expect one."""
        labels = None if self.labels is None else self.labels.to_dict()
        return {"kind": self.name, "labels": labels, "scheme": asdict(Scheme())}

    @property
    def names(self) -> tuple[str, ...]:
        """The labels; none if the answer is a score."""
        return () if self.labels is None else self.labels.names

    @property
    def labels_shown(self) -> tuple[str, ...]:
        """The labels."""
        return self.names

    def label(self, example: LabelledT) -> str | None:
        """The label."""
        return example.label

    def check(
        self, examples: Sequence[LabelledT], path: FilePath | None = None, *, held_out: bool = False
    ) -> list[str]:
        """Refuse examples without a label; sentences on labels that training or these examples lack."""
        assert self.labels is not None
        named = [(label_of(example, path), example.line) for example in examples]
        notes = self.labels.check_unseen((label, partial(place, path, line)) for label, line in named)
        missing = set(self.names) - {label for label, _ in named}
        if missing:
            listed = _listed(name for name in self.names if name in missing)
            notes.append(f"there is no example of {listed} to score on, so no score speaks for that")
        return notes

    def targets(self, examples: Sequence[LabelledT]) -> Tensor:
        """The ids of the labels [B]."""
        assert self.labels is not None
        return torch.tensor([self.labels.ids[label_of(example)] for example in examples])

    def answer(self, example: LabelledT, decoded: tuple[Tensor, ...]) -> AnswerT:
        """The most probable label; decoded: probabilities [K]."""
        (probabilities,) = decoded
        values = dict(zip(self.names, probabilities.tolist(), strict=True))
        return LabelAnswer(self.names[int(probabilities.argmax())], values)  # type: ignore[return-value]

    def score(self, examples: Sequence[LabelledT], answers: Sequence[AnswerT]) -> TaskScores:
        """Accuracy, and precision, recall and F1 of each label."""
        gold = [label_of(example) for example in examples]
        return score_labels(gold, [answer.answer for answer in answers], self.names)


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
        return ClassifyNetwork(options, spec, len(self.names))


TASK = ClassifyTask


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

"""The scores of a model on some examples, and the functions that score a classifier.

These are a few lines on top of a confusion matrix. scikit-learn is not used: it is an optional package, and importing
it takes longer than scoring a small model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import ElmoError
from elmokit.messages import display_width, padded

Confusion = tuple[tuple[int, ...], ...]
"""How often each class (row) was predicted as each class (column)."""
UNTYPED = "(span)"
"""The name in tables of spans whose tags have no type."""


class MainScore(NamedTuple):
    """A score over all examples by name; early stopping watches the first of a task, where higher is better."""

    name: str
    value: float


@dataclass(frozen=True)
class ClassScore:
    """Precision, recall and F1 of one class or one type of span."""

    name: str
    correct: int
    predicted: int
    gold: int

    @property
    def precision(self) -> float:
        """The share of the predictions of this class that are correct; 0 if there are none."""
        return self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """The share of the gold answers of this class that were predicted; 0 if there are none."""
        return self.correct / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        return 2 * self.correct / (self.predicted + self.gold) if self.predicted + self.gold else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The scores for JSON."""
        counts = {"correct": self.correct, "predicted": self.predicted, "gold": self.gold}
        return {"name": self.name, "precision": self.precision, "recall": self.recall, "f1": self.f1, **counts}


@dataclass(frozen=True)
class TaskScores:
    """The scores of a model on some examples; `scores["accuracy"]` is one of them."""

    all: tuple[MainScore, ...]
    """Every score over all examples; the first is the main one."""
    classes: tuple[ClassScore, ...] = ()
    """The scores of each class; empty for a task without classes."""
    names: tuple[str, ...] = ()
    """The names of the rows and columns of the confusion matrix."""
    confusion: Confusion = ()
    counts: dict[str, int] = field(default_factory=dict)
    """The number of examples or tokens that were scored, for JSON."""
    noun: Literal["class", "type", "tag"] = "class"
    """The word for a class in tables."""
    total: ClassScore | None = None
    """The scores of all classes together, shown as the last line of a table."""
    confusion_title: str = ""
    """What the confusion matrix counts, if not examples."""
    has_errors: bool = True
    """Whether 1 - main score is an error rate; false for a correlation."""

    @property
    def main(self) -> MainScore:
        """The score that early stopping watches."""
        return self.all[0]

    def __getitem__(self, name: str) -> float:
        return dict(self.all)[name]

    def to_dict(self) -> dict[str, Any]:
        """The scores for JSON."""
        named = {item.name.replace(" ", "_").replace("-", "_").lower(): item.value for item in self.all}
        stored: dict[str, Any] = {"main": self.main._asdict(), **named, **self.counts}
        if self.confusion:
            stored["classes" if self.noun == "class" else f"{self.noun}s"] = [item.to_dict() for item in self.classes]
            stored["confusion"] = {"names": list(self.names), "counts": [list(row) for row in self.confusion]}
        return stored

    def table(self) -> list[str]:
        """The scores as a table, one string per line."""
        lines = []
        if self.confusion:
            rows = [*self.classes, *([self.total] if self.total else [])]
            width = max(display_width(name) for name in (self.noun, *(item.name or UNTYPED for item in rows)))
            lines.append(f"{padded(self.noun, width)}  precision  recall      F1     gold")
            for item in rows:
                shares = f"{item.precision:9.4f} {item.recall:7.4f} {item.f1:7.4f}"
                lines.append(f"{padded(item.name or UNTYPED, width)}  {shares} {item.gold:8,}")
        width = max(len(item.name) for item in self.all)
        return lines + [f"{item.name:<{width}}  {item.value:7.4f}" for item in self.all]


def score_labels(gold: Sequence[str], predicted: Sequence[str], names: Sequence[str]) -> TaskScores:
    """Score predicted classes; a gold class that is not in `names`, the model's classes, counts as missed."""
    names = [*names, *sorted({*gold, *predicted} - set(names))]
    classes, confusion = class_scores(gold, predicted, names)
    return TaskScores(accuracy_scores(classes), classes, tuple(names), confusion)


def accuracy_scores(classes: Sequence[ClassScore]) -> tuple[MainScore, MainScore]:
    """The accuracy, and the mean F1 of the classes that occur in the gold answers or the predictions."""
    accuracy = sum(item.correct for item in classes) / sum(item.gold for item in classes)
    f1 = float(np.mean([item.f1 for item in classes if item.gold or item.predicted]))
    return MainScore("accuracy", accuracy), MainScore("macro-F1", f1)


def class_scores(
    gold: Sequence[str], predicted: Sequence[str], names: Sequence[str]
) -> tuple[tuple[ClassScore, ...], Confusion]:
    """The scores of each class, and the confusion matrix."""
    check_lengths(len(gold), len(predicted))
    ids = {name: number for number, name in enumerate(names)}
    matrix: NDArray[np.int64] = np.zeros((len(names), len(names)), dtype=np.int64)
    np.add.at(matrix, ([ids[name] for name in gold], [ids[name] for name in predicted]), 1)
    counts = zip(
        names, matrix.diagonal().tolist(), matrix.sum(axis=0).tolist(), matrix.sum(axis=1).tolist(), strict=True
    )
    return tuple(ClassScore(*row) for row in counts), tuple(tuple(row) for row in matrix.tolist())


def check_lengths(gold: int, predicted: int) -> None:
    """Refuse to score if the numbers of gold answers and predictions differ or are 0."""
    if gold != predicted or not gold:
        raise ElmoError(
            f"scoring needs one prediction for each gold answer and at least one of each, got {predicted} predictions "
            f"for {gold} gold answers"
        )

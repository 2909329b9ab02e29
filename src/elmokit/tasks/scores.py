"""How good predictions are: classes, tags and spans, numbers; each kind with the one score that training watches."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from elmokit.errors import ElmoError
from elmokit.tasks.schemes import OUTSIDE, Scheme, Span, spans

Confusion = tuple[tuple[int, ...], ...]
"""How often each class (row) was predicted as each (column)."""
UNTYPED = "(span)"
"""What a table calls spans whose tags have no type."""


class MainScore(NamedTuple):
    """The score that early stopping watches; more is better."""

    name: str
    value: float


@dataclass(frozen=True)
class ClassScore:
    """How well one class, or one type of span, was found."""

    name: str
    correct: int
    predicted: int
    gold: int

    @property
    def precision(self) -> float:
        """The share of the predicted that is right; 0 where nothing was predicted."""
        return self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """The share of the gold that was found; 0 where there is none."""
        return self.correct / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of the two."""
        return 2 * self.correct / (self.predicted + self.gold) if self.predicted + self.gold else 0.0

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        counts = {"correct": self.correct, "predicted": self.predicted, "gold": self.gold}
        return {"name": self.name, "precision": self.precision, "recall": self.recall, "f1": self.f1, **counts}


@dataclass(frozen=True)
class LabelScores:
    """Of a classifier: accuracy, and precision, recall and F1 by class."""

    classes: tuple[ClassScore, ...]
    """Every class of the model, then gold classes that it does not know."""
    confusion: Confusion
    """In the order of `classes`."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the classes, which are the confusion's rows and columns."""
        return tuple(item.name for item in self.classes)

    @property
    def accuracy(self) -> float:
        """The share of examples whose class is right."""
        return sum(item.correct for item in self.classes) / sum(item.gold for item in self.classes)

    @property
    def macro_f1(self) -> float:
        """The mean F1 of the classes that occur in the gold or in the predictions."""
        return float(np.mean([item.f1 for item in self.classes if item.gold or item.predicted]))

    @property
    def main(self) -> MainScore:
        """Accuracy."""
        return MainScore("accuracy", self.accuracy)

    @property
    def all(self) -> tuple[MainScore, ...]:
        """Every score over all classes."""
        return self.main, MainScore("macro-F1", self.macro_f1)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**_overall(self), **_by_class(self.classes, "classes"), "confusion": _confusion_dict(self)}

    def table(self) -> list[str]:
        """The lines to print."""
        return [*_class_table(self.classes, "class"), *_overall_lines(self)]


@dataclass(frozen=True)
class TagScores:
    """Of a tagger: accuracy by token and, where tags mark spans, precision, recall and F1 of whole spans by type."""

    correct_tokens: int
    tokens: int
    types: tuple[ClassScore, ...]
    """By type of span; by tag where the tags mark none."""
    has_spans: bool
    names: tuple[str, ...]
    """Of the confusion's rows and columns: types of spans and O, or tags."""
    confusion: Confusion
    """Of tokens."""

    @property
    def accuracy(self) -> float:
        """The share of tokens whose tag is right."""
        return self.correct_tokens / self.tokens

    @property
    def entities(self) -> ClassScore:
        """All types together: a span is right where its start, end and type are."""
        sums = (sum(getattr(item, name) for item in self.types) for name in ("correct", "predicted", "gold"))
        return ClassScore("all", *sums)

    @property
    def macro_f1(self) -> float:
        """The mean F1 of the types, or tags, that occur in the gold or in the predictions."""
        return float(np.mean([item.f1 for item in self.types if item.gold or item.predicted] or [0.0]))

    @property
    def main(self) -> MainScore:
        """The F1 of spans; accuracy where the tags mark none."""
        return MainScore("entity F1", self.entities.f1) if self.has_spans else MainScore("accuracy", self.accuracy)

    @property
    def all(self) -> tuple[MainScore, ...]:
        """Every score over all types."""
        if not self.has_spans:
            return self.main, MainScore("macro-F1", self.macro_f1)
        entities = self.entities
        return (
            self.main,
            MainScore("entity precision", entities.precision),
            MainScore("entity recall", entities.recall),
            MainScore("token accuracy", self.accuracy),
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        name = "types" if self.has_spans else "tags"
        return {
            **_overall(self),
            "tokens": self.tokens,
            **_by_class(self.types, name),
            "confusion": _confusion_dict(self),
        }

    def table(self) -> list[str]:
        """The lines to print."""
        if self.has_spans:
            return [*_class_table([*self.types, self.entities], "type"), *_overall_lines(self)]
        return [*_class_table(self.types, "tag"), *_overall_lines(self)]


@dataclass(frozen=True)
class NumberScores:
    """Of predicted numbers: how they go with the gold ones, and how far they are off."""

    pearson: float
    spearman: float
    mse: float
    examples: int

    @property
    def main(self) -> MainScore:
        """Pearson's correlation."""
        return MainScore("Pearson", self.pearson)

    @property
    def all(self) -> tuple[MainScore, ...]:
        """Every score."""
        return self.main, MainScore("Spearman", self.spearman), MainScore("mean squared error", self.mse)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**_overall(self), "examples": self.examples}

    def table(self) -> list[str]:
        """The lines to print."""
        return _overall_lines(self)


Scores = LabelScores | TagScores | NumberScores


def score_labels(gold: Sequence[str], predicted: Sequence[str], names: Sequence[str]) -> LabelScores:
    """Score predicted classes; `names` are the model's, and a gold class that is not among them counts as missed."""
    _check_lengths(len(gold), len(predicted))
    names = [*names, *sorted({*gold, *predicted} - set(names))]
    matrix = _confusion(gold, predicted, names)
    return LabelScores(_class_scores(matrix, names), _tuples(matrix))


def score_tags(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], scheme: Scheme) -> TagScores:
    """Score predicted tags, both spelled as the file's; a broken sequence is read as conlleval reads it."""
    _check_lengths(len(gold), len(predicted))
    for right, guess in zip(gold, predicted, strict=True):
        if len(right) != len(guess):
            raise ElmoError(f"each token needs one predicted tag, got {len(guess)} for {len(right)} tokens")
    flat_gold = [tag for tags in gold for tag in tags]
    flat_predicted = [tag for tags in predicted for tag in tags]
    _check_lengths(len(flat_gold), len(flat_predicted))
    correct = sum(right == guess for right, guess in zip(flat_gold, flat_predicted, strict=True))
    if not scheme.has_spans:
        names = sorted({*flat_gold, *flat_predicted})
        matrix = _confusion(flat_gold, flat_predicted, names)
        return TagScores(correct, len(flat_gold), _class_scores(matrix, names), False, tuple(names), _tuples(matrix))
    gold_spans = [spans(tags, scheme) for tags in gold]
    predicted_spans = [spans(tags, scheme) for tags in predicted]
    types = sorted({span.type for found in (*gold_spans, *predicted_spans) for span in found})
    names = [*types, OUTSIDE]
    lengths = [len(tags) for tags in gold]
    matrix = _confusion(_token_types(gold_spans, lengths), _token_types(predicted_spans, lengths), names)
    by_type = _span_scores(gold_spans, predicted_spans, types)
    return TagScores(correct, len(flat_gold), by_type, True, tuple(names), _tuples(matrix))


def score_numbers(gold: ArrayLike, predicted: ArrayLike) -> NumberScores:
    """Score predicted numbers, both [N]; a correlation with numbers that are all the same counts as 0."""
    right, guess = np.asarray(gold, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    _check_lengths(len(right), len(guess))
    mse = float(np.mean((right - guess) ** 2))
    return NumberScores(_pearson(right, guess), _pearson(_ranks(right), _ranks(guess)), mse, len(right))


def _check_lengths(gold: int, predicted: int) -> None:
    if gold != predicted or not gold:
        raise ElmoError(f"scores need as many predictions as gold answers and at least one, got {predicted} for {gold}")


def _confusion(gold: Sequence[str], predicted: Sequence[str], names: Sequence[str]) -> NDArray[np.int64]:
    ids = {name: number for number, name in enumerate(names)}
    matrix = np.zeros((len(names), len(names)), dtype=np.int64)
    np.add.at(matrix, ([ids[name] for name in gold], [ids[name] for name in predicted]), 1)
    return matrix


def _class_scores(matrix: NDArray[np.int64], names: Sequence[str]) -> tuple[ClassScore, ...]:
    correct, predicted, gold = matrix.diagonal(), matrix.sum(axis=0), matrix.sum(axis=1)
    return tuple(ClassScore(name, int(correct[i]), int(predicted[i]), int(gold[i])) for i, name in enumerate(names))


def _span_scores(
    gold: Sequence[Sequence[Span]], predicted: Sequence[Sequence[Span]], types: Sequence[str]
) -> tuple[ClassScore, ...]:
    counts = {name: [0, 0, 0] for name in types}
    for right, guess in zip(gold, predicted, strict=True):
        for place, found in enumerate((set(right) & set(guess), guess, right)):
            for span in found:
                counts[span.type][place] += 1
    return tuple(ClassScore(name, *counts[name]) for name in types)


def _token_types(found: Sequence[Sequence[Span]], lengths: Sequence[int]) -> list[str]:
    """The type of the span that each token of each sentence is in, O outside."""
    kinds: list[str] = []
    for sentence, length in zip(found, lengths, strict=True):
        row = [OUTSIDE] * length
        for span in sentence:
            row[span.start : span.end] = [span.type] * (span.end - span.start)
        kinds += row
    return kinds


def _pearson(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    # Where all values are the same, subtracting their mean leaves rounding errors that would correlate.
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0 or not np.isfinite([x, y]).all():
        return 0.0
    x, y = x - x.mean(), y - y.mean()
    return float(np.clip(x @ y / (np.linalg.norm(x) * np.linalg.norm(y)), -1, 1))


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks from 0; equal values share the mean of theirs."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: NDArray[np.float64] = (ends - (counts + 1) / 2)[places]
    return ranks


def _tuples(matrix: NDArray[np.int64]) -> Confusion:
    return tuple(tuple(row) for row in matrix.tolist())


def _overall(scores: Scores) -> dict[str, Any]:
    named = {item.name.replace(" ", "_").replace("-", "_").lower(): item.value for item in scores.all}
    return {"main": {"name": scores.main.name, "value": scores.main.value}, **named}


def _by_class(classes: Iterable[ClassScore], name: str) -> dict[str, Any]:
    return {name: [item.to_dict() for item in classes]}


def _confusion_dict(scores: LabelScores | TagScores) -> dict[str, Any]:
    return {"names": list(scores.names), "counts": [list(row) for row in scores.confusion]}


def _overall_lines(scores: Scores) -> list[str]:
    width = max(len(item.name) for item in scores.all)
    return [f"{item.name:<{width}}  {item.value:7.4f}" for item in scores.all]


def _class_table(classes: Sequence[ClassScore], head: str) -> list[str]:
    names = [item.name or UNTYPED for item in classes]
    width = max(columns(name) for name in (head, *names))
    lines = [f"{padded(head, width)}  precision  recall      F1     gold"]
    for name, item in zip(names, classes, strict=True):
        lines.append(f"{padded(name, width)}  {item.precision:9.4f} {item.recall:7.4f} {item.f1:7.4f} {item.gold:8,}")
    return lines


def columns(text: str) -> int:
    """How wide a terminal shows a text; a Chinese character takes two columns."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def padded(text: str, width: int) -> str:
    """The text with spaces up to that width."""
    return text + " " * (width - columns(text))

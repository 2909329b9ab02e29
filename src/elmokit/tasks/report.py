"""The report of a trained task: scores.json for programs, report.md with pictures for people."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import MissingExtraError
from elmokit.messages import aligned, quantity
from elmokit.plots.style import BLUE, DARK, GREY, LEGEND, drawable, drawing, open_panel, require_matplotlib, shortened
from elmokit.storage.atomic import update_folder, write_text
from elmokit.tasks.scores import UNTYPED, TaskScores

Mix = tuple[Sequence[float], float]
"""The softmax weights of the layers, and γ."""
History = Sequence[Mapping[str, Any]]
"""One mapping per epoch with `epoch`, `loss`, `score` (the main score on dev data) and any other columns."""
PICTURES = ("confusion.png", "mix.png", "curve.png")
MAX_CLASSES = 40
OTHERS = "(others)"
_MAX_MISTAKES = 10
_MAX_NAME_LENGTH = 24
_FEW_CLASSES = 12


@dataclass(frozen=True, kw_only=True)
class TaskReport:
    """The contents of a report; the fact `command` is shown as a code block."""

    title: str
    scores: TaskScores
    history: History = ()
    mixes: Sequence[Mix] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    comparison: Sequence[tuple[str, TaskScores]] = ()
    """Models by name with their scores; the first is the model of the report."""
    best_epoch: int | None = None
    """The epoch that the learning curve marks."""


def write_report(folder: Path, report: TaskReport) -> str | None:
    """Write scores.json, report.md and pictures into a folder, all or none; return a note if pictures are missing."""
    note = None
    with update_folder(folder, "scores.json", PICTURES) as staging:
        drawn: list[str] = []
        for name, draw in _pictures(report):
            try:
                draw(staging / name)
                drawn.append(name)
            except MissingExtraError as error:
                note = f"no pictures: {error}"
        write_text(staging / "report.md", _markdown(report, drawn, note))
        stored = {
            "title": report.title,
            "scores": report.scores.to_dict(),
            "history": report.history,
            "mixes": [{"weights": weights, "gamma": gamma} for weights, gamma in report.mixes],
            "facts": report.facts,
            "comparison": [{"name": name, "scores": other.to_dict()} for name, other in report.comparison],
        }
        write_text(staging / "scores.json", json.dumps(stored, ensure_ascii=False, indent=2, default=str) + "\n")
    return note


def comparison_table(comparison: Sequence[tuple[str, TaskScores]]) -> list[str]:
    """A table of the models' scores, one string per line; it compares the first model with each of the others."""
    return aligned(_comparison_rows(comparison), right=True)


def _pictures(report: TaskReport) -> Iterable[tuple[str, Callable[[Path], None]]]:
    scores = report.scores
    if scores.confusion:
        yield (
            "confusion.png",
            lambda path: draw_confusion(path, _class_names(scores), scores.confusion, scores.confusion_title),
        )
    if report.mixes:
        yield "mix.png", lambda path: draw_mixes(path, report.mixes)
    if report.history:
        yield "curve.png", lambda path: draw_learning(path, report.history, scores.main.name, report.best_epoch)


def _markdown(report: TaskReport, drawn: Sequence[str], note: str | None) -> str:
    def picture(name: str, words: str) -> list[str]:
        return [f"![{words}]({name})", ""] if name in drawn else []

    scores, facts = report.scores, dict(report.facts)
    command = facts.pop("command", None)
    lines = [f"# {_escaped(report.title)}", "", f"**{scores.main.name} {scores.main.value:.4f}**", ""]
    lines += [*(f"- {_escaped(name)}: {_escaped(str(value))}" for name, value in facts.items()), ""]
    lines += ["```bash", str(command), "```", ""] if command else []
    lines += ["## Scores", "", *_table([("score", "value"), *scores.all])]
    if report.comparison:
        lines += ["## Comparison", "", *_table(_comparison_rows(report.comparison))]
    if scores.confusion:
        heads = ("class", "number", "precision", "recall", "F1", "gold", "predicted")
        classes = [
            (
                item.name or UNTYPED,
                number,
                item.precision,
                item.recall,
                item.f1,
                f"{item.gold:,}",
                f"{item.predicted:,}",
            )
            for number, item in enumerate(scores.classes, start=1)
        ]
        lines += ["## By class", "", *_table([heads, *classes])]
        lines += picture("confusion.png", "confusion matrix")
        if mistakes := _mistakes(scores):
            lines += ["The most frequent mistakes:", "", *_table([("gold", "predicted", "times"), *mistakes])]
    if report.mixes:
        layers = (f"layer {layer}" for layer in range(len(report.mixes[0][0])))
        names = _mix_names(len(report.mixes))
        mixes = [(name, *weights, gamma) for name, (weights, gamma) in zip(names, report.mixes, strict=True)]
        lines += ["## What the mix learned", "", *_table([("mix", *layers, "γ"), *mixes])]
        lines += picture("mix.png", "weights of the layers")
    if report.history:
        lines += ["## Training", "", *picture("curve.png", "score and loss by epoch")]
        lines += _table([tuple(report.history[0]), *(tuple(line.values()) for line in report.history)])
    return "\n".join([*lines, *([note, ""] if note else [])])


def _table(rows: Sequence[Sequence[object]]) -> list[str]:
    """A Markdown table; the first row is the header, the first column is text and the others are numbers."""
    cells = [" | ".join(_escaped(_formatted(cell)) for cell in row) for row in rows]
    rule = " | ".join(["---", *["---:"] * (len(rows[0]) - 1)])
    return [f"| {line} |" for line in (cells[0], rule, *cells[1:])] + [""]


def _formatted(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    small = 0 < abs(value) < 0.01  # a learning rate
    return f"{value:.3g}" if small else f"{value:.4f}" if abs(value) < 1000 else f"{value:,.0f}"


def _class_names(scores: TaskScores) -> list[str]:
    return [name or UNTYPED for name in scores.names]


def _mistakes(scores: TaskScores) -> list[tuple[str, str, str]]:
    """The most frequent mistakes: gold, predicted, and how often."""
    names = _class_names(scores)
    cells = [
        (count, gold, predicted)
        for gold, row in zip(names, scores.confusion, strict=True)
        for predicted, count in zip(names, row, strict=True)
        if count and gold != predicted
    ]
    ranked = sorted(cells, key=lambda cell: -cell[0])
    return [(gold, predicted, f"{count:,}") for count, gold, predicted in ranked[:_MAX_MISTAKES]]


def _mix_names(count: int) -> Sequence[str]:
    return ("input", "output") if count == 2 else ("the mix",)


def _comparison_rows(comparison: Sequence[tuple[str, TaskScores]]) -> list[tuple[str, ...]]:
    first = comparison[0][1]
    errors = ["errors the first avoids"] * first.has_errors
    rows: list[tuple[str, ...]] = [("model", *(item.name for item in first.all), *errors)]
    for number, (name, scores) in enumerate(comparison):
        error_rate = 1 - scores.main.value
        avoided = f"{(first.main.value - scores.main.value) / error_rate:.1%}" if error_rate > 0 else "–"
        values = (f"{item.value:.4f}" for item in scores.all)
        rows.append((name, *values, *[avoided if number else ""] * len(errors)))
    return rows


def _escaped(text: str) -> str:
    """The text on one line, escaped so that Markdown shows it unchanged, also in a table."""
    return re.sub(r"([\\`*_<|])", r"\\\1", " ".join(text.split()))


def draw_confusion(path: Path, names: Sequence[str], counts: Sequence[Sequence[int]], title: str = "") -> None:
    """Draw a confusion matrix as a PNG: counts [K, K], shaded by their share of the row.

    If there are more than 40 classes, the rare ones are drawn as one class.
    """
    purpose = "a confusion picture"
    require_matplotlib(purpose)  # needed before the labels, which depend on the fonts
    labels, matrix = most_frequent(_picture_labels(names), np.asarray(counts, dtype=np.int64))
    size = len(labels)
    cell, points = (0.62, 9.0) if size <= _FEW_CLASSES else (0.42, 7.5)
    inches = (3.2 + cell * size, 2.4 + cell * size)
    look: Any = {"layout": "constrained", "crop": True, "skip_missing": True}
    with drawing(path, inches, labels, purpose=purpose, **look) as figure:
        axes = figure.subplots()
        shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
        picture = axes.imshow(shares, cmap="Greys", vmin=0, vmax=1)
        for row, column in np.ndindex(size, size):
            if matrix[row, column] or size <= _FEW_CLASSES:
                color = "white" if shares[row, column] > 0.5 else "black"
                count = int(matrix[row, column])
                text = str(count) if count < 10_000 else quantity(count)
                axes.text(column, row, text, ha="center", va="center", fontsize=points, color=color)
        longest = max(len(label) for label in labels)
        axes.set_xticks(range(size), labels=labels, rotation=90 if longest > 4 else 0)
        axes.set_yticks(range(size), labels=labels)
        axes.set_xticks(np.arange(size + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(size + 1) - 0.5, minor=True)
        axes.grid(which="minor", color="#cccccc", linewidth=0.5)
        axes.tick_params(which="minor", length=0)
        axes.set_xlabel("predicted")
        axes.set_ylabel("gold")
        axes.set_title(title)
        bar = figure.colorbar(picture, ax=axes, shrink=min(1.0, 3 / (cell * size)), pad=0.02)
        bar.set_label("share of the row")


def most_frequent(names: Sequence[str], counts: NDArray[np.int64]) -> tuple[list[str], NDArray[np.int64]]:
    """The names and counts [K, K] to draw: classes beyond the most frequent, in gold or predictions, become one."""
    if len(names) <= MAX_CLASSES:
        return list(names), counts
    frequency = counts.sum(axis=0) + counts.sum(axis=1)
    drawn = np.sort(np.argsort(-frequency, kind="stable")[: MAX_CLASSES - 1])
    group = np.full(len(names), MAX_CLASSES - 1)
    group[drawn] = np.arange(len(drawn))
    smaller = np.zeros((MAX_CLASSES, MAX_CLASSES), dtype=np.int64)
    np.add.at(smaller, (group[:, None], group[None, :]), counts)
    return [*(names[number] for number in drawn), OTHERS], smaller


def draw_mixes(path: Path, mixes: Sequence[Mix]) -> None:
    """Draw the learned mixes as a PNG: the softmax weight of each layer as a bar, and γ."""
    inches = (1.2 + sum(max(3.2, 0.8 * len(weights) + 0.6) for weights, _ in mixes), 3.8)
    with drawing(path, inches, purpose="a picture of the mix", layout="constrained") as figure:
        panels: Any = figure.subplots(1, len(mixes), sharey=True, squeeze=False)
        highest = max(max(*weights, 1 / len(weights)) for weights, _ in mixes)
        for axes, name, (weights, gamma) in zip(panels[0], _mix_names(len(mixes)), mixes, strict=True):
            positions = np.arange(len(weights))
            bars = axes.bar(positions, weights, width=0.62, color=BLUE, edgecolor=DARK)
            shown = axes.bar_label(bars, labels=[f"{weight:.3f}" for weight in weights], padding=3)
            for label in shown:  # a white background, because the line of equal weights may cross the label
                label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.8})
            equal = 1 / len(weights)
            axes.axhline(equal, color=GREY, linestyle=(0, (4, 2)), linewidth=1, zorder=0, label="equal weights")
            axes.set_xticks(positions, labels=[f"layer {layer}" for layer in positions])
            axes.set_xlim(-0.6, len(weights) - 0.4)
            axes.set_ylim(0, 1.3 * highest)
            axes.set_title(f"{name}: γ = {gamma:.3f}")
            axes.spines[["top", "right"]].set_visible(False)
        panels[0, 0].set_ylabel("softmax weight")
        panels[0, 0].legend(loc="upper right", fontsize=8, **LEGEND)


def draw_learning(path: Path, history: History, score_name: str, best_epoch: int | None = None) -> None:
    """Draw score and loss by epoch as a PNG; a star marks `best_epoch`, by default the first with the highest score."""
    epochs = [line["epoch"] for line in history]
    scores = [line["score"] for line in history]
    curves = [
        (f"dev {score_name}", scores, DARK, "o"),
        ("training loss", [line["loss"] for line in history], BLUE, "s"),
    ]
    with drawing(path, (7, 5.6), purpose="a learning curve", layout="constrained") as figure:
        from matplotlib.ticker import MaxNLocator

        panels: Any = figure.subplots(len(curves), 1, sharex=True)
        for axes, (name, values, color, marker) in zip(panels, curves, strict=True):
            axes.plot(epochs, values, color=color, marker=marker, markersize=4.5, zorder=2)
            axes.set_ylabel(name)
            open_panel(axes)
            axes.margins(y=0.15)
        best = scores.index(max(scores)) if best_epoch is None else epochs.index(best_epoch)
        panels[0].plot(
            epochs[best], scores[best], color="white", markeredgecolor=DARK, marker="*", markersize=14,
            linestyle="none", zorder=3, label=f"best: {scores[best]:.4f} in epoch {epochs[best]}",
        )  # fmt: skip
        panels[0].legend(loc="best", **LEGEND)
        panels[-1].set_xlabel("epoch")
        panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _picture_labels(names: Sequence[str]) -> list[str]:
    """The names as a picture can show them: shortened, or as "class N" if no font has their characters.

    Two names whose short forms are equal show their beginnings and ends instead, or their numbers.
    """
    half = _MAX_NAME_LENGTH // 2
    choices = []
    for number, name in enumerate(names, start=1):
        both_ends = name if len(name) <= _MAX_NAME_LENGTH else f"{name[: half - 1]}…{name[-half:]}"
        choices.append((shortened(name, _MAX_NAME_LENGTH), both_ends, f"class {number}"))
    uses = Counter(text for row in choices for text in set(row))
    return [next(text for text in row if text == row[-1] or (uses[text] == 1 and drawable(text))) for row in choices]

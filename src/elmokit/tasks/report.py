"""The report of a trained task: scores.json for programs; report.md and its pictures for people."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import MissingExtraError
from elmokit.plots.style import BLUE, DARK, GREY, LEGEND, drawable, drawing, open_panel, require_matplotlib, shortened
from elmokit.storage.atomic import update_folder, write_text
from elmokit.tasks.scores import UNTYPED, ClassScore, TaskScores, columns, padded

Mix = tuple[Sequence[float], float]
"""The softmax weights of the layers, and γ."""
History = Sequence[Mapping[str, Any]]
"""One line per epoch, with `epoch`, `loss`, `score` (the main score on dev data) and what else is worth a column."""
PICTURES = ("confusion.png", "mix.png", "curve.png")
MOST_CLASSES = 40
OTHERS = "(others)"
_CONFUSIONS_LISTED = 10
_LONGEST_NAME = 24
_FEW_CLASSES = 12


def write_report(
    folder: Path,
    *,
    title: str,
    scores: TaskScores,
    history: History,
    mixes: Sequence[Mix],
    facts: Mapping[str, Any],
    comparison: Sequence[tuple[str, TaskScores]] | None = None,
    best_epoch: int | None = None,
) -> str | None:
    """Write scores.json, report.md and pictures into a folder, all or none; returns why pictures are missing, if so.

    The fact `command` becomes a block to copy. `best_epoch` is marked in the curve.
    """
    note = None
    with update_folder(folder, "scores.json", PICTURES) as staging:
        drawn: list[str] = []
        for name, draw in _pictures(scores, history, mixes, best_epoch):
            try:
                draw(staging / name)
                drawn.append(name)
            except MissingExtraError as error:
                note = f"no pictures: {error}"
        write_text(staging / "report.md", _markdown(title, scores, history, mixes, facts, comparison, drawn, note))
        stored = {
            "title": title,
            "scores": scores.to_dict(),
            "history": list(history),
            "mixes": [{"weights": list(weights), "gamma": gamma} for weights, gamma in mixes],
            "facts": dict(facts),
        }
        if comparison:
            stored["comparison"] = [{"name": name, "scores": other.to_dict()} for name, other in comparison]
        text = json.dumps(_finite(stored), ensure_ascii=False, indent=2, allow_nan=False, default=str)
        write_text(staging / "scores.json", text + "\n")
    return note


def comparison_table(comparison: Sequence[tuple[str, TaskScores]]) -> list[str]:
    """Models next to each other, as lines to print; the first is compared with each of the others."""
    rows = _comparison_rows(comparison)
    widths = [max(columns(row[place]) for row in rows) for place in range(len(rows[0]))]
    return [
        padded(name, widths[0]) + "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True))
        for name, *cells in rows
    ]


def _pictures(
    scores: TaskScores, history: History, mixes: Sequence[Mix], best_epoch: int | None
) -> Iterable[tuple[str, Callable[[Path], None]]]:
    if scores.confusion:
        names = [name or UNTYPED for name in scores.names]
        yield "confusion.png", lambda path: draw_confusion(path, names, scores.confusion, scores.confusion_title)
    if mixes:
        yield "mix.png", lambda path: draw_mixes(path, mixes)
    if history:
        yield "curve.png", lambda path: draw_learning(path, history, scores.main.name, best_epoch)


def _markdown(
    title: str,
    scores: TaskScores,
    history: History,
    mixes: Sequence[Mix],
    facts: Mapping[str, Any],
    comparison: Sequence[tuple[str, TaskScores]] | None,
    drawn: Sequence[str],
    note: str | None,
) -> str:
    def picture(name: str, words: str) -> list[str]:
        return [f"![{words}]({name})", ""] if name in drawn else []

    lines = [f"# {_plain(title)}", "", f"**{scores.main.name} {scores.main.value:.4f}**", ""]
    listed = [f"- {_plain(name)}: {_plain(str(value))}" for name, value in facts.items() if name != "command"]
    lines += [*listed, ""] if listed else []
    if "command" in facts:
        lines += ["```bash", str(facts["command"]), "```", ""]
    values = [(item.name, f"{item.value:.4f}") for item in scores.all]
    lines += ["## Scores", "", *_table([("score", "value"), *values])]
    if comparison:
        lines += ["## Comparison", "", *_table(_comparison_rows(comparison))]
    if scores.confusion:
        lines += ["## By class", "", *_table(_class_rows(scores.classes))]
        lines += picture("confusion.png", "how often each class was predicted as each")
        if confusions := _confusion_rows(scores):
            lines += ["The most frequent mistakes:", "", *_table([("gold", "predicted", "times"), *confusions])]
    if mixes:
        weights = picture("mix.png", "weights of the layers")
        lines += ["## What the mix learned", "", *_table(_mix_rows(mixes)), *weights]
    if history:
        lines += ["## Training", "", *picture("curve.png", "score and loss by epoch"), *_table(_history_rows(history))]
    if note:
        lines += [note, ""]
    return "\n".join(lines)


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table; the first row is its head, the first column is text and the others are numbers."""
    cells = [" | ".join(_plain(cell) for cell in row) for row in rows]
    rule = " | ".join(["---", *["---:"] * (len(rows[0]) - 1)])
    return [f"| {line} |" for line in (cells[0], rule, *cells[1:])] + [""]


def _class_rows(classes: Iterable[ClassScore]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("class", "number", "precision", "recall", "F1", "gold", "predicted")]
    for number, item in enumerate(classes, start=1):
        shares = (f"{value:.4f}" for value in (item.precision, item.recall, item.f1))
        rows.append((item.name or UNTYPED, str(number), *shares, f"{item.gold:,}", f"{item.predicted:,}"))
    return rows


def _confusion_rows(scores: TaskScores) -> list[tuple[str, str, str]]:
    names = [name or UNTYPED for name in scores.names]
    cells = [
        (count, gold, predicted)
        for gold, row in zip(names, scores.confusion, strict=True)
        for predicted, count in zip(names, row, strict=True)
    ]
    wrong = sorted((cell for cell in cells if cell[0] and cell[1] != cell[2]), key=lambda cell: -cell[0])
    return [(gold, predicted, f"{count:,}") for count, gold, predicted in wrong[:_CONFUSIONS_LISTED]]


def _mix_rows(mixes: Sequence[Mix]) -> list[tuple[str, ...]]:
    layers = max(len(weights) for weights, _ in mixes)
    rows = [("mix", *(f"layer {layer}" for layer in range(layers)), "γ")]
    for number, (weights, gamma) in enumerate(mixes):
        shown = [f"{weight:.4f}" for weight in weights] + [""] * (layers - len(weights))
        rows.append((_mix_name(number, len(mixes)), *shown, f"{gamma:.4f}"))
    return rows


def _mix_name(number: int, count: int) -> str:
    if count == 1:
        return "the mix"
    return ("input", "output")[number] if count == 2 else f"mix {number + 1}"


def _history_rows(history: History) -> list[tuple[str, ...]]:
    names = list(dict.fromkeys(name for line in history for name in line))
    return [tuple(names), *(tuple(_value(line.get(name)) for name in names) for line in history)]


def _comparison_rows(comparison: Sequence[tuple[str, TaskScores]]) -> list[tuple[str, ...]]:
    first = comparison[0][1]
    errors = ["errors the first avoids"] * first.has_errors
    rows: list[tuple[str, ...]] = [("model", *(item.name for item in first.all), *errors)]
    for number, (name, scores) in enumerate(comparison):
        avoided = _avoided(first, scores) if number else ""
        rows.append((name, *(f"{item.value:.4f}" for item in scores.all), *[avoided] * len(errors)))
    return rows


def _avoided(first: TaskScores, other: TaskScores) -> str:
    """The share of the other's errors that the first does not make."""
    left = 1 - other.main.value
    return f"{(first.main.value - other.main.value) / left:.1%}" if left > 0 else "–"


def _value(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        if 0 < abs(value) < 0.01:  # a learning rate
            return f"{value:.3g}"
        return f"{value:.4f}" if abs(value) < 1000 else f"{value:,.0f}"
    return str(value)


def _plain(text: str) -> str:
    """The text as Markdown shows it unchanged, on one line and within a table."""
    text = " ".join(text.split())
    for mark in "\\`*_<|":
        text = text.replace(mark, "\\" + mark)
    return text


def _finite(value: Any) -> Any:  # noqa: ANN401
    """The value with null for numbers that JSON does not have."""
    if isinstance(value, Mapping):
        return {str(name): _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def draw_confusion(path: Path, names: Sequence[str], counts: Sequence[Sequence[int]], title: str = "") -> None:
    """How often each class was predicted as each, as a PNG: counts [K, K], shaded by their share of the row.

    Of more than 40 classes the most frequent are drawn, and the others as one.
    """
    purpose = "a confusion picture"
    require_matplotlib(purpose)  # the labels depend on the fonts
    labels, matrix = most_frequent(_labels(names), np.asarray(counts, dtype=np.int64))
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
                text = _count(int(matrix[row, column]))
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
    """The names and counts [K, K] to draw: the classes with the most gold and predictions, the rest as one."""
    if len(names) <= MOST_CLASSES:
        return list(names), counts
    frequency = counts.sum(axis=0) + counts.sum(axis=1)
    drawn = np.sort(np.argsort(-frequency, kind="stable")[: MOST_CLASSES - 1])
    group = np.full(len(names), MOST_CLASSES - 1)
    group[drawn] = np.arange(len(drawn))
    smaller = np.zeros((MOST_CLASSES, MOST_CLASSES), dtype=np.int64)
    np.add.at(smaller, (group[:, None], group[None, :]), counts)
    return [*(names[number] for number in drawn), OTHERS], smaller


def draw_mixes(path: Path, mixes: Sequence[Mix]) -> None:
    """What each mix learned, as a PNG: the softmax weight of each layer as a bar, and γ."""
    inches = (1.2 + sum(max(3.2, 0.8 * len(weights) + 0.6) for weights, _ in mixes), 3.8)
    with drawing(path, inches, purpose="a picture of the mix", layout="constrained") as figure:
        panels: Any = figure.subplots(1, len(mixes), sharey=True, squeeze=False)
        highest = max(max(*weights, 1 / len(weights)) for weights, _ in mixes)
        for number, (axes, (weights, gamma)) in enumerate(zip(panels[0], mixes, strict=True)):
            positions = np.arange(len(weights))
            bars = axes.bar(positions, weights, width=0.62, color=BLUE, edgecolor=DARK)
            shown = axes.bar_label(bars, labels=[f"{weight:.3f}" for weight in weights], padding=3)
            for label in shown:  # the line of equal weights may pass behind it
                label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.8})
            equal = 1 / len(weights)
            axes.axhline(equal, color=GREY, linestyle=(0, (4, 2)), linewidth=1, zorder=0, label="equal weights")
            axes.set_xticks(positions, labels=[f"layer {layer}" for layer in positions])
            axes.set_xlim(-0.6, len(weights) - 0.4)
            axes.set_ylim(0, 1.3 * highest)
            axes.set_title(f"{_mix_name(number, len(mixes))}: γ = {gamma:.3f}")
            axes.spines[["top", "right"]].set_visible(False)
        panels[0, 0].set_ylabel("softmax weight")
        panels[0, 0].legend(loc="upper right", fontsize=8, **LEGEND)


def draw_learning(path: Path, history: History, score_name: str, best_epoch: int | None = None) -> None:
    """How training went, as a PNG; gaps stay gaps.

    A star marks the best epoch: the one given, or the first with the highest score.
    """
    epochs = [line.get("epoch", number) for number, line in enumerate(history, start=1)]
    curves = [
        (f"dev {score_name}", _values(history, "score"), DARK, "o"),
        ("training loss", _values(history, "loss"), BLUE, "s"),
    ]
    curves = [curve for curve in curves if any(math.isfinite(value) for value in curve[1])]
    inches = (7, 2.5 * max(len(curves), 1) + 0.6)
    with drawing(path, inches, purpose="a learning curve", layout="constrained") as figure:
        from matplotlib.ticker import MaxNLocator

        panels: Any = figure.subplots(max(len(curves), 1), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (name, values, color, marker) in zip(panels, curves, strict=False):
            axes.plot(epochs, values, color=color, marker=marker, markersize=4.5, zorder=2)
            axes.set_ylabel(name)
            open_panel(axes)
            axes.margins(y=0.15)
            if marker == "o":
                best = epochs.index(best_epoch) if best_epoch in epochs else int(np.nanargmax(values))
                axes.plot(
                    epochs[best], values[best], color="white", markeredgecolor=color, marker="*", markersize=14,
                    linestyle="none", zorder=3, label=f"best: {values[best]:.4f} in epoch {epochs[best]}",
                )  # fmt: skip
                axes.legend(loc="best", **LEGEND)
        panels[-1].set_xlabel("epoch")
        panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _values(history: History, name: str) -> list[float]:
    values = (line.get(name) for line in history)
    # None and infinity cannot be drawn.
    return [float(value) if value is not None and math.isfinite(value) else math.nan for value in values]


def _labels(names: Sequence[str]) -> list[str]:
    """The names as a picture can show them: cut, and numbered if no font has their characters.

    If what is left of two names is the same, both show their two ends, or their numbers.
    """
    half = _LONGEST_NAME // 2
    choices = []
    for number, name in enumerate(names, start=1):
        both_ends = name if len(name) <= _LONGEST_NAME else f"{name[: half - 1]}…{name[-half:]}"
        choices.append((shortened(name, _LONGEST_NAME), both_ends, f"class {number}"))
    uses = Counter(text for row in choices for text in set(row))
    return [next(text for text in row if text == row[-1] or (uses[text] == 1 and drawable(text))) for row in choices]


def _count(count: int) -> str:
    return str(count) if count < 10_000 else f"{count / 1000:.3g}k" if count < 1_000_000 else f"{count / 1e6:.3g}M"

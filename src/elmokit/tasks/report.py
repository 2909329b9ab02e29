"""The report of a trained task: scores.json for programs; report.md and its pictures for people."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from elmokit.errors import MissingExtraError
from elmokit.storage.atomic import update_folder, write_text
from elmokit.tasks.pictures import draw_confusion, draw_learning, draw_mixes, mix_name
from elmokit.tasks.scores import UNTYPED, ClassScore, LabelScores, NumberScores, Scores, columns, padded

Mix = tuple[Sequence[float], float]
"""The softmax weights of the layers, and γ."""
PICTURES = ("confusion.png", "mix.png", "curve.png")
_CONFUSIONS_LISTED = 10


def write_report(
    folder: Path,
    *,
    title: str,
    scores: Scores,
    history: Sequence[Mapping[str, Any]],
    mixes: Sequence[Mix],
    facts: Mapping[str, Any],
    comparison: Sequence[tuple[str, Scores]] | None = None,
    best_epoch: int | None = None,
) -> str | None:
    """Write scores.json, report.md and pictures into a folder, all or none; where pictures are missing, say why.

    A line of `history` has `epoch`, `loss`, `score` (the main score on dev data) and what else is worth a column;
    the fact `command` becomes a block to copy. `best_epoch` is marked in the curve.
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


def comparison_table(comparison: Sequence[tuple[str, Scores]]) -> list[str]:
    """Models side by side, as lines to print; the first is compared with each of the others."""
    rows = _comparison_rows(comparison)
    widths = [max(columns(row[place]) for row in rows) for place in range(len(rows[0]))]
    return [
        padded(name, widths[0]) + "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True))
        for name, *cells in rows
    ]


def _pictures(
    scores: Scores, history: Sequence[Mapping[str, Any]], mixes: Sequence[Mix], best_epoch: int | None
) -> Iterable[tuple[str, Callable[[Path], None]]]:
    if not isinstance(scores, NumberScores):
        names, counts = [name or UNTYPED for name in scores.names], scores.confusion
        what = "" if isinstance(scores, LabelScores) else "tokens by type of span" if scores.has_spans else "tokens"
        yield "confusion.png", lambda path: draw_confusion(path, names, counts, what)
    if mixes:
        yield "mix.png", lambda path: draw_mixes(path, mixes)
    if history:
        yield "curve.png", lambda path: draw_learning(path, history, scores.main.name, best_epoch)


def _markdown(
    title: str,
    scores: Scores,
    history: Sequence[Mapping[str, Any]],
    mixes: Sequence[Mix],
    facts: Mapping[str, Any],
    comparison: Sequence[tuple[str, Scores]] | None,
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
    lines += [
        "## Scores",
        "",
        *_table([("score", "value"), *((item.name, f"{item.value:.4f}") for item in scores.all)]),
    ]
    if comparison:
        lines += ["## Side by side", "", *_table(_comparison_rows(comparison))]
    if not isinstance(scores, NumberScores):
        classes = scores.classes if isinstance(scores, LabelScores) else scores.types
        lines += ["## By class", "", *_table(_class_rows(classes))]
        lines += picture("confusion.png", "which class was taken for which")
        if confusions := _confusion_rows(scores.names, scores.confusion):
            lines += ["The commonest mistakes:", "", *_table([("gold", "predicted", "times"), *confusions])]
    if mixes:
        lines += [
            "## What the mix learned",
            "",
            *_table(_mix_rows(mixes)),
            *picture("mix.png", "weights of the layers"),
        ]
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


def _confusion_rows(names: Sequence[str], confusion: Sequence[Sequence[int]]) -> list[tuple[str, str, str]]:
    wrong = [
        (count, gold, predicted)
        for gold, row in enumerate(confusion)
        for predicted, count in enumerate(row)
        if gold != predicted and count
    ]
    wrong.sort(key=lambda item: -item[0])
    return [
        (names[gold] or UNTYPED, names[predicted] or UNTYPED, f"{count:,}")
        for count, gold, predicted in wrong[:_CONFUSIONS_LISTED]
    ]


def _mix_rows(mixes: Sequence[Mix]) -> list[tuple[str, ...]]:
    layers = max(len(weights) for weights, _ in mixes)
    rows = [("mix", *(f"layer {layer}" for layer in range(layers)), "γ")]
    for number, (weights, gamma) in enumerate(mixes):
        shown = [f"{weight:.4f}" for weight in weights] + [""] * (layers - len(weights))
        rows.append((mix_name(number, len(mixes)), *shown, f"{gamma:.4f}"))
    return rows


def _history_rows(history: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    names = list(dict.fromkeys(name for line in history for name in line))
    return [tuple(names), *(tuple(_value(line.get(name)) for name in names) for line in history)]


def _comparison_rows(comparison: Sequence[tuple[str, Scores]]) -> list[tuple[str, ...]]:
    first = comparison[0][1]
    # 1 less a correlation is no share of errors.
    errors = not isinstance(first, NumberScores)
    rows: list[tuple[str, ...]] = [("model", *(item.name for item in first.all), *["errors the first avoids"] * errors)]
    for number, (name, scores) in enumerate(comparison):
        avoided = _avoided(first, scores) if number else ""
        rows.append((name, *(f"{item.value:.4f}" for item in scores.all), *[avoided] * errors))
    return rows


def _avoided(first: Scores, other: Scores) -> str:
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
    """The value with null for what JSON has no number for."""
    if isinstance(value, Mapping):
        return {str(name): _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""The file of scores, one line of JSON per score, and the table made from it."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from cells import Input, Score
from rows import Row

from elmokit.storage.atomic import disk_errors, write_text

NAMES: dict[Input, str] = {
    "elmo": "ELMo",
    "layer0": "layer 0",
    "static": "no ELMo",
}


class Journal:
    """A JSON Lines file to which scores are appended; the key in a line identifies the settings of the score."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.path = path
        self.lines: list[dict[str, Any]] = _read(path) if resume and path.exists() else []
        # Written again without the incomplete last line of a killed run.
        write_text(path, "".join(_line(line) for line in self.lines))

    def scores(self, keys: Mapping[str, str]) -> list[Score]:
        """The scores whose key, which identifies their settings, is the current key of their task."""
        fields = Score.__dataclass_fields__
        return [
            Score(**{name: line[name] for name in fields})
            for line in self.lines
            if keys.get(line["task"]) == line["key"]
        ]

    def add(self, scores: Iterable[Score], key: str) -> None:
        """Append scores, and flush them to the disk."""
        lines = [{**asdict(score), "key": key} for score in scores]
        with disk_errors(self.path), self.path.open("a", encoding="utf-8") as file:
            file.writelines(map(_line, lines))
            file.flush()
            os.fsync(file.fileno())
        self.lines += lines


def _line(line: dict[str, Any]) -> str:
    return json.dumps(line, ensure_ascii=False) + "\n"


def _read(path: Path) -> list[dict[str, Any]]:
    lines = []
    for text in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and {"key", *Score.__dataclass_fields__} <= line.keys():
            lines.append(line)
    return lines


def render(
    rows: Sequence[Row],
    scores: Sequence[Score],
    absent: Mapping[str, str],
    inputs: Sequence[Input],
    facts: Sequence[str],
) -> str:
    """The table in Markdown; `absent` contains the reason why a row, or a cell ("row input"), has no score."""
    english, chinese = ([row for row in rows if row.language == language] for language in ("en", "zh"))
    parts = ["# Quality", *facts]
    if english:
        parts.append(_table(english, scores, inputs))
    if chinese:
        parts.append(
            "## Chinese\n\nThere is no Chinese GloVe here: static vectors are learned from a task's own training data."
        )
        parts.append(_table(chinese, scores, inputs))
    if layers := _by_layer(rows, scores):
        parts.append("## By layer\n\n" + layers)
    if absent:
        reasons = dict.fromkeys(absent.values())
        lines = [f"- {'; '.join(name for name in absent if absent[name] == reason)}: {reason}" for reason in reasons]
        parts.append("## Not measured\n\n" + "\n".join(lines))
    parts.append(
        "Means over the seeds ± their standard deviation, in percent. Fewer errors: the share of the other's errors "
        "(100 − score) that ELMo does not make. Probes without anything random have one seed."
    )
    return "\n\n".join(parts) + "\n"


def _table(rows: Sequence[Row], scores: Sequence[Score], inputs: Sequence[Input]) -> str:
    others = [name for name in inputs if "elmo" in inputs and name != "elmo"]
    head = ["task", "metric", "seeds", *(NAMES[name] for name in inputs)]
    head += [f"fewer errors than {NAMES[name]}" for name in others]
    lines = [head, ["---", "---", *["---:"] * (len(head) - 2)]]
    for row in rows:
        values = {name: [s.value for s in scores if (s.task, s.input) == (row.name, name)] for name in inputs}
        seeds = max(map(len, values.values()), default=0)
        cells = [row.title, row.metric, str(seeds or "—"), *(_shown(values[name]) for name in inputs)]
        lines.append(cells + [_reduction(values["elmo"], values[name]) for name in others])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _shown(values: Sequence[float]) -> str:
    if not values:
        return "—"
    return f"{100 * mean(values):.2f}" + (f" ± {100 * stdev(values):.2f}" if len(values) > 1 else "")


def _reduction(better: Sequence[float], base: Sequence[float]) -> str:
    if not better or not base or mean(base) >= 1:
        return "—"
    return f"{100 * (mean(better) - mean(base)) / (1 - mean(base)):.1f} %"


def _by_layer(rows: Sequence[Row], scores: Sequence[Score]) -> str:
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        seeds = [
            s.details["by layer"] for s in scores if (s.task, s.input) == (row.name, "elmo") and "by layer" in s.details
        ]
        if seeds:
            found[row.title] = {name: mean(layers[name] for layers in seeds) for name in seeds[0]}
    names = list(dict.fromkeys(name for layers in found.values() for name in layers))
    if not found:
        return ""
    shown = {"mean": "mean of the layers", "mix": "learned mix"}
    lines = [["task", *(shown.get(name, f"layer {name}") for name in names)], ["---", *["---:"] * len(names)]]
    for title, layers in found.items():
        lines.append([title, *(f"{100 * layers[name]:.2f}" if name in layers else "—" for name in names)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def machine(device: str | None) -> str:
    """The machine and the versions as one line of text."""
    import torch

    from elmokit import __version__

    gpu = torch.cuda.get_device_name() if device != "cpu" and torch.cuda.is_available() else "no GPU"
    versions = f"elmokit {__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    return f"{platform.machine()}, {os.cpu_count()} cores, {gpu}; {versions}"

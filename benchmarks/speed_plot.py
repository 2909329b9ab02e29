"""Draw the figure of docs/speed.md from the JSON files of the tables.

    python benchmarks/speed_plot.py speed-cpu.json speed-gpu.json --output docs/speed.png

One panel per file: bars for the CPU's table of the original size, lines over the batch size for the GPU's in bfloat16.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speed.table import run_script, times

from elmokit.errors import ElmoError
from elmokit.plots.style import POINT_STYLES, check_picture, drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BARS = {
    "allennlp": ("#16324f", ""),
    "loop": ("#16324f", ""),
    "minilm-onnx": ("#16324f", ""),
    "minilm-onnx-int8": ("#16324f", "xx"),
    "minilm-transformers": ("#5b8db8", ""),
    "packed": ("#dddddd", ".."),
    "float32": ("#f2a541", "//"),
    "int8": ("#f2a541", "xx"),
}
"""The colour and the pattern of each system, which also differ in greyscale."""
OURS = ("packed", "float32", "int8")
"""Columns whose titles do not say that they are elmokit's."""
LINES = {"loop": POINT_STYLES[0], "cudnn": POINT_STYLES[3], "packed": POINT_STYLES[7], "ours": POINT_STYLES[1]}


def tables_of(path: Path) -> list[dict[str, Any]]:
    """The tables in the JSON file of a benchmark."""
    try:
        tables: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["tables"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ElmoError(f"{path} must be the JSON of a table of speed, and cannot be read: {error}") from error
    return tables


def value_of(table: Mapping[str, Any], key: str) -> dict[str, float]:
    """The values of a row by system; empty if the table does not have the row."""
    values: dict[str, float] = next((row["values"] for row in table["rows"] if row["key"] == key), {})
    return values


def label_of(table: Mapping[str, Any], name: str) -> str:
    """A system's title, with elmokit's name if it is one of ours."""
    title: str = table["columns"][name]
    return f"elmokit, {title}" if name in OURS else title


def draw_bars(axes: Axes, table: Mapping[str, Any], key: str, title: str) -> None:
    """The systems of one row of the CPU's table, in its order."""
    values = value_of(table, key)
    names = [name for name in BARS if name in values]
    base, less = values[names[0]], key == "alone"
    for position, name in enumerate(names):
        color, hatch = BARS[name]
        ratio = base / values[name] if less else values[name] / base
        axes.barh(position, values[name], color=color, edgecolor="#333333", hatch=hatch, height=0.7)
        words = f" {values[name]:,.0f}" + (f"  ({times(ratio)})" if position else "")
        axes.annotate(words, (values[name], position), va="center", fontsize=9)
    axes.set_yticks(range(len(names)), [label_of(table, name) for name in names])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.5 * max(values[name] for name in names))
    axes.set_title(title, fontsize=10, loc="left")
    _clean(axes)


def draw_lines(axes: Axes, table: Mapping[str, Any]) -> None:
    """Tokens per second over sentences in a batch."""
    sizes = sorted(int(row["key"].split()[0]) for row in table["rows"] if row["key"].endswith("tokens/s"))
    for name in ("floor", *LINES):
        known = [(n, value) for n in sizes if (value := value_of(table, f"{n} tokens/s").get(name)) is not None]
        style: dict[str, Any] = {"linestyle": ":", "color": "#777777"}
        if name in LINES:
            look = LINES[name]
            style = {"color": look.color, "marker": look.marker, "markeredgecolor": "#333333"}
        if known:
            axes.plot([n for n, _ in known], [v for _, v in known], label=label_of(table, name), **style)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes, [f"{n:,}" for n in sizes])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel("sentences of 22 tokens in a batch", fontsize=9)
    axes.set_title("GPU, biLSTM alone, bfloat16: tokens/s", fontsize=10, loc="left")
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)  # lines cross all the panel
    _clean(axes)


def _clean(axes: Axes) -> None:
    axes.tick_params(labelsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def draw(tables: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw a figure with a panel for each table that is present."""
    cpu = next((t for t in tables if value_of(t, "alone")), None)
    gpu = next((t for t in tables if "bfloat16" in t["title"] and value_of(t, "1 tokens/s")), None)
    if cpu is None and gpu is None:
        raise ElmoError("the files must contain a table of the CPU or of the GPU in bfloat16, got neither")
    panels = 2 * (cpu is not None) + (gpu is not None)
    with drawing(path, (5 * panels, 3.4)) as figure:
        widths = [1.0] * panels
        if gpu is not None:
            widths[-1] = 0.9
        axes = figure.subplots(1, panels, squeeze=False, width_ratios=widths)[0]
        if cpu is not None:
            size = cpu["title"].split(",")[0]
            draw_bars(axes[0], cpu, "alone", f"CPU, {size} size: one sentence, ms")
            draw_bars(axes[1], cpu, "batches of 32", f"CPU, {size} size: batches of 32, tokens/s")
        if gpu is not None:
            draw_lines(axes[-1], gpu)
        figure.tight_layout()


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.json")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE.png")
    options = parser.parse_args(given)
    check_picture(options.output)
    draw([table for path in options.files for table in tables_of(path)], options.output)


if __name__ == "__main__":
    run_script(main)

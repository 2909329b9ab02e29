"""Draw the held-out perplexity of several training runs in one figure, and print their table.

    python benchmarks/training_curves.py RUN… --output docs/curves.png
    python benchmarks/training_curves.py runs/small "twice the rows=runs/wide" paper=other/metrics.jsonl --output c.png

A RUN is the folder of a run or its metrics.jsonl; NAME= before it replaces the folder's name. The x-axis of the left
panel is the number of tokens seen, that of the right panel the seconds of the run; `--over tokens` draws only the left
one, for runs that shared a machine. `--masked` draws the perplexity of masked words, which only some encoders have.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from elmokit.config import ElmoConfig
from elmokit.errors import ElmoError
from elmokit.messages import perplexity, quantity
from elmokit.model.bilm import BiLM
from elmokit.plots.style import POINT_STYLES, check_groups, check_picture, drawing
from elmokit.pretrain.curve import perplexity_axis
from elmokit.pretrain.metrics import read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANELS = ("tokens", "seconds")
COLUMNS = ("name", "parameters", "updates", "tokens", "seconds", "tokens/s", "held-out perplexity")


@dataclass(frozen=True)
class Run:
    """The metrics of a run."""

    name: str
    heldout: list[dict[str, float]]
    """tokens, seconds and perplexity, in the order of the updates."""
    updates: int
    tokens: int
    seconds: float
    parameters: int | None
    """Parameters of the network without its softmax; None if there is no config.json next to the metrics."""

    def cells(self) -> list[str]:
        """The run's row of the table."""
        return [
            self.name.replace("|", "\\|"),
            "" if self.parameters is None else f"{self.parameters:,}",
            f"{self.updates:,}",
            f"{self.tokens:,}",
            f"{self.seconds:,.0f}",
            f"{self.tokens / self.seconds:,.0f}" if self.seconds else "",
            perplexity(self.heldout[-1]["perplexity"]),
        ]


def read_run(given: str, *, masked: bool = False) -> Run:
    """The run of an argument [NAME=]FOLDER or [NAME=]metrics.jsonl; `masked`: the perplexity of masked words."""
    # The name and the path may also contain equals signs: the first one that is followed by an existing path counts.
    signs = [-1, *(index for index, character in enumerate(given) if character == "=")]
    split = next((index for index in signs if Path(given[index + 1 :]).exists()), -1)
    name, path = given[: max(split, 0)], Path(given[split + 1 :])
    metrics = path / "metrics.jsonl" if path.is_dir() else path
    lines = read_metrics(metrics)
    wanted = "heldout_masked" if masked else "heldout_perplexity"
    heldout = [
        {"tokens": line["tokens"], "seconds": line["seconds"], "perplexity": line[wanted]}
        for line in lines
        if line.get(wanted) is not None
    ]
    if not heldout:
        kind = "masked" if masked else "held-out"
        raise ElmoError(
            f"{metrics} must have a {kind} perplexity, got none: train with --heldout, or leave the run out"
        )
    counted = [line for line in lines if "tokens" in line and "seconds" in line]
    return Run(
        name or metrics.absolute().parent.name,
        heldout,
        max(line["step"] for line in counted),
        max(line["tokens"] for line in counted),
        max(line["seconds"] for line in counted),
        parameters_of(metrics.with_name("config.json")),
    )


def parameters_of(config: Path) -> int | None:
    """The number of parameters of the network of a config.json, without its softmax."""
    if not config.is_file():
        return None
    try:
        model = ElmoConfig.from_dict(json.loads(config.read_text(encoding="utf-8"))["model"])
    except (ValueError, KeyError, TypeError) as error:
        raise ElmoError(f"{config} must be the config.json of a model, and cannot be read: {error}") from error
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in BiLM(model).parameters())


def table(runs: Sequence[Run]) -> str:
    """The runs as a Markdown table."""
    rows = [list(COLUMNS), ["---"] * len(COLUMNS), *(run.cells() for run in runs)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def draw(runs: Sequence[Run], path: Path, panels: Sequence[str] = PANELS) -> None:
    """Held-out perplexity over tokens and over seconds, one line per run."""
    check_groups(len(runs), "runs")
    with drawing(path, (5 * len(panels) + (len(panels) == 1), 4.6), [run.name for run in runs]) as figure:
        grid: Any = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, over in zip(grid, panels, strict=True):
            draw_panel(axes, runs, over)
        for axes in grid[1:]:
            axes.set_ylabel("")
        labels = [f"{perplexity(run.heldout[-1]['perplexity'])}  {run.name}" for run in runs]
        grid[-1].legend(
            grid[0].lines, labels, framealpha=0.8, edgecolor="none", loc="upper right", title="last value",
            alignment="left", fontsize=9,
        )  # fmt: skip
        figure.tight_layout()


def draw_panel(axes: Axes, runs: Sequence[Run], over: str) -> None:
    """Draw one panel of the figure."""
    for run, look in zip(runs, POINT_STYLES, strict=False):
        axes.plot(
            [point[over] for point in run.heldout],
            [point["perplexity"] for point in run.heldout],
            color=look.color,
            marker=look.marker,
            markersize=4.5,
            markeredgecolor=look.edge,
            markeredgewidth=0.6,
        )
    perplexity_axis(axes, np.array([point["perplexity"] for run in runs for point in run.heldout]))
    axes.set_ylabel("held-out perplexity")
    axes.set_xlim(left=0)
    if over == "tokens":
        axes.xaxis.set_major_formatter(lambda value, _: quantity(value) if value >= 1 else "0")
    axes.set_xlabel("tokens seen" if over == "tokens" else "seconds of the run")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="[NAME=]RUN")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE.png")
    parser.add_argument("--over", choices=PANELS, help="draw only this panel [both]")
    parser.add_argument("--masked", action="store_true", help="draw the perplexity of masked words")
    options = parser.parse_args(given)
    check_picture(options.output)
    runs = [read_run(run, masked=options.masked) for run in options.runs]
    draw(runs, options.output, [options.over] if options.over else PANELS)
    print(table(runs))


if __name__ == "__main__":
    try:
        main()
    except ElmoError as error:
        print(f"training_curves.py: {error}", file=sys.stderr)
        sys.exit(2)

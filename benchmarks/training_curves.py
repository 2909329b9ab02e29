"""Draw the held-out perplexity of several training runs in one picture, and print their table.

    python benchmarks/training_curves.py RUN… --output docs/curves.png
    python benchmarks/training_curves.py runs/small "twice the rows=runs/wide" paper=other/metrics.jsonl --output c.png

A RUN is the folder of a run or its metrics.jsonl, with a name before it where the folder's will not do. The left panel
is over the tokens seen, the right one over the seconds that the run took; `--over tokens` leaves that out, for runs
that shared a machine. `--masked` takes the perplexity of masked words, which only some encoders have.
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
    """What is known of a run."""

    name: str
    heldout: list[dict[str, float]]
    """tokens, seconds and perplexity, in the order of the updates."""
    updates: int
    tokens: int
    seconds: float
    parameters: int | None
    """Of the network without its softmax; None if there is no config.json next to the metrics."""

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
    """A run by the argument that names it: [NAME=]FOLDER or [NAME=]metrics.jsonl; `masked`: of masked words."""
    # A path may have equals signs too, and so may the name before it: what is there decides.
    signs = [-1, *(place for place, sign in enumerate(given) if sign == "=")]
    at = next((place for place in signs if Path(given[place + 1 :]).exists()), -1)
    name, path = given[: max(at, 0)], Path(given[at + 1 :])
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
        raise ElmoError(f"{metrics} has no {kind} perplexity: give the run --heldout text, or leave it out here")
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
    """How many numbers the network of a config.json has, its softmax left out."""
    if not config.is_file():
        return None
    try:
        shape = ElmoConfig.from_dict(json.loads(config.read_text(encoding="utf-8"))["model"])
    except (ValueError, KeyError, TypeError) as error:
        raise ElmoError(f"{config} must be the config.json of a model, and cannot be read: {error}") from error
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in BiLM(shape).parameters())


def table(runs: Sequence[Run]) -> str:
    """The runs as Markdown."""
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
    """One panel of the picture."""
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
    parser.add_argument("--over", choices=PANELS, help="one panel alone [both]")
    parser.add_argument("--masked", action="store_true", help="the perplexity of masked words")
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

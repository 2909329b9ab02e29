"""curve.png: the perplexities of a training run, drawn from its metrics.jsonl."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import ElmoError
from elmokit.messages import perplexity, quantity
from elmokit.plots.style import drawing, open_panel, require_matplotlib
from elmokit.pretrain.metrics import read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Values = NDArray[np.float64]

# Lines differ in lightness and style as well as in colour, for print and for colour-blind readers.
_TRAINING, _HELDOUT, _RATE = "#6f9fd8", "#16324f", "#666666"
_FORWARD, _BACKWARD, _MASKED = "-", (0, (4, 1.6)), (0, (1, 1.2))
_SMOOTHED_FROM = 40
"""Number of points from which a curve is smoothed."""


def draw_curve(metrics_path: Path, png_path: Path) -> None:
    """Draw a run's perplexity and learning rate over the tokens seen; the title is the name of the metrics' folder."""
    require_matplotlib("the curve of a training run")
    curves, title = _curves(read_metrics(metrics_path)), metrics_path.absolute().parent.name
    if not any(np.isfinite(curve).any() for _, curve in curves.values()):
        raise ElmoError(f"{metrics_path} has no perplexity to draw: continue the run for longer")
    with drawing(png_path, (8, 5.2), [title], layout="constrained", skip_missing=True) as figure:
        _draw(figure, curves, title)


def _curves(lines: Sequence[dict[str, Any]]) -> dict[str, tuple[Values, Values]]:
    """The tokens and values of each curve that has any, by its name in metrics.jsonl; NaN where a value is null."""
    curves = {}
    for name in (
        "perplexity", "masked_perplexity", "forward_perplexity", "backward_perplexity",
        "heldout_perplexity", "heldout_masked", "heldout_forward", "heldout_backward", "learning_rate",
    ):  # fmt: skip
        points = [(line["tokens"], line[name]) for line in lines if name in line and "tokens" in line]
        table = np.array(points, dtype=np.float64).reshape(-1, 2)
        values = table[:, 1]
        if name != "learning_rate":
            values = np.where(values > 0, values, np.nan)  # a logarithmic axis cannot show the others
        if np.isfinite(values).any():
            curves[name] = (table[:, 0], values)
    return curves


def _draw(figure: Figure, curves: dict[str, tuple[Values, Values]], title: str) -> None:
    from matplotlib.ticker import FuncFormatter

    panels = 2 if "learning_rate" in curves else 1
    grid: Any = figure.subplots(panels, 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": [5, 1][:panels]})
    axes: list[Axes] = list(grid[:, 0])
    top = axes[0]
    top.set_title(title, parse_math=False)
    perplexity_axis(top, _draw_perplexity(top, curves))
    top.legend(framealpha=0.8, edgecolor="none", loc="upper right", title="last value", alignment="left")
    if panels == 2:
        tokens, rates = curves["learning_rate"]
        axes[1].plot(tokens, rates, color=_RATE, **_marks(rates))
        highest = float(np.nanmax(rates)) or 1.0
        axes[1].set_ylim(0, 1.15 * highest)
        axes[1].set_yticks([0.0, highest], labels=["0", f"{highest:.3g}"])
        axes[1].set_ylabel("learning\nrate")
    axes[-1].xaxis.set_major_formatter(FuncFormatter(lambda value, _: quantity(value) if value >= 1 else "0"))
    axes[-1].set_xlabel("tokens seen")
    for panel in axes:
        open_panel(panel)
    figure.align_ylabels(axes)


def perplexity_axis(axes: Axes, shown: Values) -> None:
    """Give a panel a logarithmic axis for these perplexities, with round numbers."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    low, high = float(shown.min()), float(shown.max())
    margin = max((high / low) ** 0.04, 1.1)
    low, high = low / margin, high * margin
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(FixedLocator(_ticks(low, high)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes.set_ylabel("perplexity")


def _draw_perplexity(top: Axes, curves: dict[str, tuple[Values, Values]]) -> Values:
    """Draw training and held-out perplexity, and return all values that are shown."""
    shown = []
    if "perplexity" in curves and len(curves["perplexity"][1]) >= _SMOOTHED_FROM:
        tokens, values = curves["perplexity"]
        top.plot(tokens, values, color=_TRAINING, linewidth=0.6, alpha=0.35)
    for label, whole, names, color in (
        ("training", "perplexity", "{}_perplexity", _TRAINING),
        ("held-out", "heldout_perplexity", "heldout_{}", _HELDOUT),
    ):
        modes = {"forward": _FORWARD, "backward": _BACKWARD, "masked": _MASKED}
        styles = [(names.format(mode), f", {mode}", style) for mode, style in modes.items()]
        several = sum(name in curves for name, _, _ in styles) > 1
        for name, mode, style in styles if several else [(whole, "", _FORWARD)]:
            if name in curves:
                tokens, values = curves[name]
                smooth = _smoothed(values) if label == "training" else values
                known = np.isfinite(values)
                text = f"{perplexity(float(smooth[known][-1]))}  {label}{mode}"
                top.plot(tokens, smooth, color=color, linestyle=style, label=text, **_marks(smooth))
                shown.append(values[known])
    return np.concatenate(shown)


def _marks(values: Values) -> dict[str, Any]:
    """Dots if there are few points: without them, a point without neighbours would be invisible."""
    known = np.isfinite(values)
    return {"marker": "o", "markersize": 4} if known.sum() <= _SMOOTHED_FROM else {}


def _smoothed(values: Values) -> Values:
    """A moving geometric mean over 4 % of the run; missing values stay missing."""
    reach = len(values) // 50 if len(values) >= _SMOOTHED_FROM else 0
    known = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.log(values, where=known, out=np.zeros_like(values)))])
    counts = np.concatenate([[0], np.cumsum(known)])
    at = np.arange(len(values))
    # The window is symmetric: at the start, where the curve is steep, an asymmetric mean would distort it.
    first, last = np.maximum(at - reach, 0), np.minimum(at + np.minimum(reach, at) + 1, len(values))
    smooth = np.exp((sums[last] - sums[first]) / np.maximum(counts[last] - counts[first], 1))
    return np.where(known, smooth, np.nan)


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers between low and high: 1, 2 and 5 times powers of ten over a wide range, otherwise equal steps."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    wide = high > 30 * low
    digits = [1.0] if high > 3000 * low else [1.0, 2.0, 5.0]
    locator = LogLocator(subs=digits, numticks=12) if wide else MaxNLocator(6)
    return [float(tick) for tick in locator.tick_values(low, high) if low <= tick <= high]

"""Pictures of a trained task: which classes are taken for which, what the mixes learned, how training went."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import MissingExtraError
from elmokit.storage.atomic import atomic_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_CLASSES = 40
OTHERS = "(others)"
_LONGEST_NAME = 24
_FEW_CLASSES = 12
# Told apart by lightness and marker as well as by colour, for print and for eyes that see few colours.
_SCORE, _LOSS, _BARS, _QUIET = "#16324f", "#5b8fcf", "#5b8fcf", "#666666"
_CHINESE_FONTS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Source Han Sans SC", "Source Han Sans CN",
    "WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "Microsoft YaHei", "SimHei", "PingFang SC", "Hiragino Sans GB",
    "Heiti SC", "Heiti TC", "Arial Unicode MS", "Droid Sans Fallback",
)  # fmt: skip


def draw_confusion(path: Path, names: Sequence[str], counts: Sequence[Sequence[int]], title: str = "") -> None:
    """How often each class was predicted as each, as a PNG: counts [K, K], shaded by their share of the row.

    Of more than 40 classes the most frequent are drawn, and the others as one.
    """
    with _figure(path, "a confusion picture") as new:
        labels, matrix = most_frequent(_labels(names), np.asarray(counts, dtype=np.int64))
        size = len(labels)
        cell, points = (0.62, 9.0) if size <= _FEW_CLASSES else (0.42, 7.5)
        figure = new(3.2 + cell * size, 2.4 + cell * size)
        axes: Axes = figure.subplots()
        rows = matrix.sum(axis=1, keepdims=True)
        shares = matrix / np.maximum(rows, 1)
        picture = axes.imshow(shares, cmap="Greys", vmin=0, vmax=1)
        for row in range(size):
            for column in range(size):
                if matrix[row, column] or size <= _FEW_CLASSES:
                    axes.text(
                        column, row, _count(int(matrix[row, column])), ha="center", va="center",
                        fontsize=points, color="white" if shares[row, column] > 0.5 else "black",
                    )  # fmt: skip
        longest = max(len(label) for label in labels)
        axes.set_xticks(range(size), labels=labels, rotation=90 if longest > 4 else 0, parse_math=False)
        axes.set_yticks(range(size), labels=labels, parse_math=False)
        axes.set_xticks(np.arange(size + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(size + 1) - 0.5, minor=True)
        axes.grid(which="minor", color="#cccccc", linewidth=0.5)
        axes.tick_params(which="minor", length=0)
        axes.set_xlabel("predicted")
        axes.set_ylabel("gold")
        if title:
            axes.set_title(title, parse_math=False)
        bar = figure.colorbar(picture, ax=axes, shrink=min(1.0, 3 / (cell * size)), pad=0.02)
        bar.set_label("share of the row")


def most_frequent(names: Sequence[str], counts: NDArray[np.int64]) -> tuple[list[str], NDArray[np.int64]]:
    """The names and counts [K, K] of a picture: the classes with the most gold and predictions, the rest as one."""
    if len(names) <= MOST_CLASSES:
        return list(names), counts
    frequency = counts.sum(axis=0) + counts.sum(axis=1)
    kept = np.sort(np.argsort(-frequency, kind="stable")[: MOST_CLASSES - 1])
    group = np.full(len(names), MOST_CLASSES - 1)
    group[kept] = np.arange(len(kept))
    smaller = np.zeros((MOST_CLASSES, MOST_CLASSES), dtype=np.int64)
    np.add.at(smaller, (group[:, None], group[None, :]), counts)
    return [*(names[number] for number in kept), OTHERS], smaller


def draw_mixes(path: Path, mixes: Sequence[tuple[Sequence[float], float]]) -> None:
    """What each mix learned, as a PNG: the softmax weight of each layer as a bar, and γ."""
    with _figure(path, "a picture of the mix") as new:
        figure = new(1.2 + sum(max(3.2, 0.8 * len(weights) + 0.6) for weights, _ in mixes), 3.8)
        panels: Any = figure.subplots(1, len(mixes), sharey=True, squeeze=False)
        highest = max(max(*weights, 1 / len(weights)) for weights, _ in mixes)
        for number, (axes, (weights, gamma)) in enumerate(zip(panels[0], mixes, strict=True)):
            positions = np.arange(len(weights))
            bars = axes.bar(positions, weights, width=0.62, color=_BARS, edgecolor=_SCORE)
            shown = axes.bar_label(bars, labels=[f"{weight:.3f}" for weight in weights], padding=3)
            for label in shown:  # which the line of equal weights may pass behind
                label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.8})
            equal = 1 / len(weights)
            axes.axhline(equal, color=_QUIET, linestyle=(0, (4, 2)), linewidth=1, zorder=0, label="equal weights")
            axes.set_xticks(positions, labels=[f"layer {layer}" for layer in positions])
            axes.set_xlim(-0.6, len(weights) - 0.4)
            axes.set_ylim(0, 1.3 * highest)
            axes.set_title(f"{mix_name(number, len(mixes))}: γ = {gamma:.3f}")
            axes.spines[["top", "right"]].set_visible(False)
        panels[0, 0].set_ylabel("softmax weight")
        panels[0, 0].legend(loc="upper right", framealpha=0.8, edgecolor="none", fontsize=8)


def mix_name(number: int, count: int) -> str:
    """What the mix of that number, from 0, is called."""
    if count == 1:
        return "the mix"
    return ("input", "output")[number] if count == 2 else f"mix {number + 1}"


def draw_learning(
    path: Path, history: Sequence[Mapping[str, Any]], score_name: str, best_epoch: int | None = None
) -> None:
    """How training went, as a PNG, from lines with `epoch`, `loss` and `score` (on dev data); gaps stay gaps.

    A star marks the best epoch: the one given, or the first with the highest score.
    """
    with _figure(path, "a learning curve") as new:
        from matplotlib.ticker import MaxNLocator

        epochs = [line.get("epoch", number) for number, line in enumerate(history, start=1)]
        curves = [
            (f"dev {score_name}", _values(history, "score"), _SCORE, "o"),
            ("training loss", _values(history, "loss"), _LOSS, "s"),
        ]
        curves = [curve for curve in curves if any(math.isfinite(value) for value in curve[1])]
        figure = new(7, 2.5 * max(len(curves), 1) + 0.6)
        panels: Any = figure.subplots(max(len(curves), 1), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (name, values, color, marker) in zip(panels, curves, strict=False):
            axes.plot(epochs, values, color=color, marker=marker, markersize=4.5, zorder=2)
            axes.set_ylabel(name)
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
            axes.margins(y=0.15)
            if marker == "o":
                best = epochs.index(best_epoch) if best_epoch in epochs else int(np.nanargmax(values))
                axes.plot(
                    epochs[best], values[best], color="white", markeredgecolor=color, marker="*", markersize=14,
                    linestyle="none", zorder=3, label=f"best: {values[best]:.4f} in epoch {epochs[best]}",
                )  # fmt: skip
                axes.legend(loc="best", framealpha=0.8, edgecolor="none")
        panels[-1].set_xlabel("epoch")
        panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _values(history: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    values = (line.get(name) for line in history)
    # None and infinity have no place in a picture.
    return [float(value) if value is not None and math.isfinite(value) else math.nan for value in values]


@contextmanager
def _figure(path: Path, purpose: str) -> Iterator[Callable[[float, float], Figure]]:
    """A maker of one figure, of so many inches, that becomes the file once the block has ended well."""
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plot", purpose) from error
    made: list[Figure] = []

    def new(width: float, height: float) -> Figure:
        figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
        FigureCanvasAgg(figure)
        made.append(figure)
        return figure

    with rc_context({"font.family": _families()}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .*missing from")  # a title may be in any script
        yield new
        with atomic_file(path) as temporary:
            # "tight", for a square picture can push its title and labels beyond the edge.
            made[0].savefig(temporary, format="png", bbox_inches="tight")


def _families() -> list[str]:
    """matplotlib's own font, and one with Chinese characters where there is one."""
    from matplotlib.font_manager import fontManager

    installed = {font.name for font in fontManager.ttflist}
    return ["DejaVu Sans", *[name for name in _CHINESE_FONTS if name in installed][:1]]


def _labels(names: Sequence[str]) -> list[str]:
    """The names as a picture can show them: cut, and numbered where no font has their characters.

    Where what is left of two names is the same, both their ends are shown, or else their numbers.
    """
    from matplotlib.font_manager import FontProperties, findfont, get_font

    known: set[int] = set()
    for family in _families():
        known |= set(get_font(findfont(FontProperties(family=family))).get_charmap())
    shortened = [(_beginning(name), _both_ends(name), f"class {number}") for number, name in enumerate(names, start=1)]
    uses = Counter(text for row in shortened for text in set(row))
    return [
        next(text for text in row if text == row[-1] or (uses[text] == 1 and set(map(ord, text)) <= known))
        for row in shortened
    ]


def _beginning(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


def _both_ends(name: str) -> str:
    half = _LONGEST_NAME // 2
    return name if len(name) <= _LONGEST_NAME else f"{name[: half - 1]}…{name[-half:]}"


def _count(count: int) -> str:
    return str(count) if count < 10_000 else f"{count / 1000:.3g}k" if count < 1_000_000 else f"{count / 1e6:.3g}M"

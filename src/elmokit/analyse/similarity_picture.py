"""The picture of `elmo plot similarity`: the cosines of the words of two sentences, a panel a layer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from elmokit.analyse.figures import drawing
from elmokit.analyse.fonts import families_for
from elmokit.analyse.showing import width_of
from elmokit.analyse.vectors import normalised
from elmokit.errors import ElmoError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from elmokit.elmo import Elmo

MOST_TOKENS = 60
_VALUES_UP_TO = 16
"""Tokens of the longer sentence; with more there is no room for numbers in the squares."""
_LONGEST = 18
_CELL, _SMALL_CELL = 0.42, 0.24
"""Inches of a square with its number, and without."""
_LETTER = 0.085
"""Inches of a letter of a label, about."""
_COLOURS = "cividis"
"""Its lightness rises evenly, so it reads in grey as in colour."""


def similarities(elmo: Elmo, first: Sequence[str], second: Sequence[str]) -> NDArray[np.float32]:
    """The cosine of every token of one sentence with every token of the other in every layer, [L+1, T1, T2]."""
    one, other = (normalised(layers) for layers in elmo.stream([list(first), list(second)], layer="all"))
    return np.asarray(one @ other.transpose(0, 2, 1), dtype=np.float32)


def draw_similarity(values: NDArray[np.float32], first: Sequence[str], second: Sequence[str], path: Path) -> None:
    """Write a heat map of cosines [L+1, T1, T2], a panel a layer, all on one scale, as .png, .svg or .pdf."""
    longest = max(len(first), len(second))
    if not first or not second or longest > MOST_TOKENS:
        raise ElmoError(
            f"a heat map is of two sentences of 1 to {MOST_TOKENS} tokens, got {len(first)} and {len(second)}"
        )
    rows, columns = ([_shortened(token) for token in tokens] for tokens in (first, second))
    numbers = longest <= _VALUES_UP_TO
    cell = _CELL if numbers else _SMALL_CELL
    left = 0.25 + _LETTER * max(map(width_of, rows))
    bottom = 0.25 + _LETTER * max(map(width_of, columns))
    upright = max(map(width_of, columns)) * _LETTER < 0.9 * cell
    bottom = 0.35 if upright else bottom
    panel_width, panel_height = max(cell * len(columns), 1.1), max(cell * len(rows), 0.6)
    gap, bar, top = 0.25, 0.9, 0.4
    count = len(values)
    width = left + count * panel_width + (count - 1) * gap + bar
    height = bottom + panel_height + top
    with drawing(path, (width, height), families_for([*rows, *columns])) as figure:
        low = float(np.floor(values.min() * 10) / 10)
        for number in range(count):
            start = left + number * (panel_width + gap)
            place = (start / width, bottom / height, panel_width / width, panel_height / height)
            axes = figure.add_axes(place)
            image = axes.imshow(values[number], cmap=_COLOURS, vmin=low, vmax=1.0, aspect="auto")
            axes.set_title("layer 0, no context" if number == 0 else f"layer {number}", fontsize=9)
            axes.set_xticks(range(len(columns)), labels=columns, rotation=0 if upright else 90, fontsize=8)
            axes.set_yticks(range(len(rows)), labels=rows if number == 0 else [], fontsize=8)
            axes.tick_params(length=0)
            for spine in axes.spines.values():
                spine.set_visible(False)
            if numbers:
                _write_numbers(axes, values[number], low)
        _draw_bar(figure, image, (width - bar + 0.2, bottom, panel_height), (width, height))


def _write_numbers(axes: Axes, values: NDArray[np.float32], low: float) -> None:
    for (row, column), value in np.ndenumerate(values):
        light = (value - low) / max(1.0 - low, 1e-6) > 0.55
        text = f"{round(float(value), 2) + 0.0:.2f}".replace("0.", ".", 1)
        axes.text(column, row, text, ha="center", va="center", fontsize=7, color="black" if light else "white")


def _draw_bar(figure: Figure, image: object, place: tuple[float, float, float], size: tuple[float, float]) -> None:
    left, bottom, tall = place
    axes = figure.add_axes((left / size[0], bottom / size[1], 0.14 / size[0], tall / size[1]))
    bar = figure.colorbar(image, cax=axes)  # type: ignore[arg-type]
    bar.outline.set_visible(False)
    axes.tick_params(labelsize=7, length=2)
    axes.set_title("cosine", fontsize=8)


def _shortened(token: str) -> str:
    return token if len(token) <= _LONGEST else token[: _LONGEST - 1] + "…"

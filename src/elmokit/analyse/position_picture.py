"""Perplexity by position in the sentence as a picture: a panel for each direction, from zero and carried in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from elmokit.analyse.figures import LOOKS, drawing
from elmokit.analyse.fonts import drawable, families_for
from elmokit.errors import ElmoError
from elmokit.pretrain.curve import perplexity_axis
from elmokit.pretrain.evaluate import ByPosition, StateUse
from elmokit.pretrain.progress import perplexity

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LINES: dict[StateUse, tuple[str, dict[str, Any]]] = {
    "zero": ("every sentence from zero", {"color": LOOKS[0].color, "linestyle": "-", "marker": "o"}),
    "carry": ("state carried", {"color": LOOKS[2].color, "linestyle": (0, (4, 1.6)), "marker": "s"}),
}
_PANELS = {"forward": "forward: 1 is the first word", "backward": "backward: 1 is the last word"}
_NARROW = 30
"""Bins of one position; the wider ones after them are set apart on the axis."""
_FEWEST = 100
"""Predictions that a point must rest on, where there are so many sentences."""


def draw_by_position(path: Path, measured: Mapping[StateUse, ByPosition], name: str) -> None:
    """Draw what was measured for each state; the title has the model's name."""
    some = next(iter(measured.values()))
    panels = list(_PANELS)[: len(some.losses)]
    bins = some.bins()
    fewest = _FEWEST if bins[0][1].predictions >= _FEWEST else 0  # the first words are what the picture is for
    drawn = [number for number, (_, here) in enumerate(bins) if here.predictions >= fewest]
    title = f"Perplexity by position in the sentence: {name if drawable(name) else 'a model'}"
    with drawing(path, (8, 0.8 + 2.7 * len(panels)), families_for([title])) as figure:
        grid: Any = figure.subplots(len(panels), 1, sharex=True, squeeze=False)
        for axes, way in zip(grid[:, 0], panels, strict=True):
            _draw_direction(axes, measured, way, drawn)
        ticks = [number for number in drawn if number >= _NARROW or not number or number % 5 == 4]
        axes.set_xticks(_places(ticks), [bins[number][0].replace("-", "–") for number in ticks])
        axes.set_xlabel("position, counted from where the direction starts")
        figure.suptitle(title, fontsize=11)
        figure.tight_layout()


def _draw_direction(axes: Axes, measured: Mapping[StateUse, ByPosition], way: str, drawn: Sequence[int]) -> None:
    shown = []
    places = _places(drawn)
    for state, found in measured.items():
        words, look = _LINES[state]
        bins = found.bins()
        values = np.array([getattr(bins[number][1], way) for number in drawn])
        label: str | None = f"{perplexity(getattr(found.all(), way))}  {words}"
        for part in (places <= _NARROW, places > _NARROW):
            axes.plot(places[part], values[part], label=label, markersize=3.5, **look)
            label = None
        shown.append(values[np.isfinite(values)])
    if not (finite := np.concatenate(shown)).size:
        raise ElmoError(f"every {way} perplexity is infinite, so there is nothing to draw: leave out the picture")
    perplexity_axis(axes, finite)
    axes.set_title(_PANELS[way], fontsize=10, loc="left")
    axes.legend(framealpha=0.8, edgecolor="none", title="over all positions", alignment="left", fontsize=9)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _places(bins: Sequence[int]) -> NDArray[np.float64]:
    """Where bins stand on the axis: the position itself, and wide ones further apart."""
    number = np.array(bins, np.float64)
    return np.where(number < _NARROW, number + 1, _NARROW + 3 + 3 * (number - _NARROW))

"""Labels beside points that overlap neither each other nor the points, and stay inside the panel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GAP = 5.0
"""Pixels between a point and its label, at 100 dots per inch."""
_DISTANCES = (1.0, 2.5, 4.0, 6.0, 8.0, 10.0, 13.0, 16.0, 20.0, 25.0, 32.0, 40.0)
"""The distances between a point and its label that are tried, in gaps."""
_DIRECTIONS = 24
_MARK = 0.8
"""The radius of a point, in gaps."""
_COVERING = 30.0
"""The cost of covering a point, as a distance in gaps."""
_LINE_POINTS = 9
_LINE_FROM = 1.5
"""The distance in gaps from which on a line connects a label with its point."""


class Box(NamedTuple):
    """A rectangle in pixels."""

    left: float
    bottom: float
    right: float
    top: float

    def overlaps(self, other: Box) -> bool:
        """Whether the two share an area."""
        return (
            self.left < other.right and other.left < self.right and self.bottom < other.top and other.bottom < self.top
        )

    def inside(self, other: Box) -> bool:
        """Whether this one is inside the other."""
        low = self.left >= other.left and self.bottom >= other.bottom
        return low and self.right <= other.right and self.top <= other.top

    def covers(self, points: NDArray[np.float64], margin: float = 0.0) -> int:
        """The number of points [N, 2] inside this box with a margin around it."""
        x, y = points[:, 0], points[:, 1]
        inside = (x > self.left - margin) & (x < self.right + margin)
        return int((inside & (y > self.bottom - margin) & (y < self.top + margin)).sum())


def place_boxes(
    anchors: NDArray[np.float64],
    sizes: Sequence[tuple[float, float]],
    obstacles: NDArray[np.float64],
    frame: Box,
    *,
    gap: float,
    forbidden: Sequence[Box] = (),
    cost: float = np.inf,
    most: int | None = None,
) -> list[Box | None]:
    """A box of each size near its anchor [N, 2]; None where no place is free.

    No box overlaps another or a forbidden one, and no line from a box to its anchor crosses a box. Each box takes the
    place with the lowest cost: its distance in gaps, plus 30 for every obstacle [M, 2] that it covers. Places that
    cost more than `cost` are not used, and no more than `most` boxes are placed.
    """
    placed = list(forbidden)
    lines = np.empty((0, 2))
    result: list[Box | None] = []
    for anchor, size in zip(anchors, sizes, strict=True):
        chosen: Box | None = None
        least = cost
        full = most is not None and len(placed) - len(forbidden) >= most
        for distance in () if full else _DISTANCES:
            if distance > least:
                break
            for box in _boxes_around(anchor, size, gap * distance):
                if not box.inside(frame) or any(box.overlaps(other) for other in placed):
                    continue
                line = leader(anchor, box)
                if box.covers(lines) or any(other.covers(line) for other in placed):
                    continue
                price = _COVERING * box.covers(obstacles, _MARK * gap) + distance
                if price < least:
                    chosen, least = box, price
        if chosen is not None:
            placed.append(chosen)
            lines = np.concatenate([lines, leader(anchor, chosen)])
        result.append(chosen)
    return result


def leader(anchor: NDArray[np.float64], box: Box) -> NDArray[np.float64]:
    """Points on the line from an anchor to the nearest point of its box, [9, 2]."""
    end = np.clip(anchor, (box.left, box.bottom), (box.right, box.top))
    return anchor + (end - anchor) * np.linspace(0, 1, _LINE_POINTS)[:, None]


def _boxes_around(anchor: NDArray[np.float64], size: tuple[float, float], gap: float) -> list[Box]:
    """Boxes all around a point, the gap away from it on the sides and nearer at the corners."""
    angles = 2 * np.pi * np.arange(_DIRECTIONS) / _DIRECTIONS
    half = np.array(size) / 2
    centres = anchor + np.stack([np.cos(angles), np.sin(angles)], axis=1) * (gap + half)
    return [Box(*row) for row in np.concatenate([centres - half, centres + half], axis=1).tolist()]


def label_points(
    axes: Axes,
    points: NDArray[np.float64],
    texts: Sequence[str],
    obstacles: NDArray[np.float64],
    *,
    size: float = 7.5,
    most: int | None = None,
    forbidden: Sequence[Box] = (),
    cost: float = np.inf,
) -> list[Box]:
    """Write texts beside points [N, 2] of a panel whose limits are set, and return the boxes of those that fit.

    `obstacles` [M, 2] are all points of the panel; `most`, `forbidden` and `cost` are as for `place_boxes`. A line
    connects a label with its point where the two are far apart.
    """
    from matplotlib.patheffects import withStroke

    figure = axes.figure
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    unit = figure.dpi / 100.0
    labels = [axes.text(0, 0, text, fontsize=size, color="#111111", zorder=5) for text in texts]
    extents = [label.get_window_extent(renderer) for label in labels]
    frame = axes.get_window_extent(renderer)
    anchors = axes.transData.transform(points)
    boxes = place_boxes(
        anchors,
        [(extent.width + 4 * unit, extent.height + 2 * unit) for extent in extents],
        axes.transData.transform(obstacles),
        Box(frame.x0 + 2, frame.y0 + 2, frame.x1 - 2, frame.y1 - 2),
        gap=_GAP * unit,
        forbidden=forbidden,
        cost=cost,
        most=most,
    )
    to_data = axes.transData.inverted().transform
    for label, anchor, box in zip(labels, anchors, boxes, strict=True):
        if box is None:
            label.remove()
            continue
        label.set_position(tuple(to_data(((box.left + box.right) / 2, (box.bottom + box.top) / 2))))
        label.set(ha="center", va="center", path_effects=[withStroke(linewidth=2.5, foreground="white")])
        ends = leader(anchor, box)[[0, -1]]
        if np.hypot(*(ends[1] - ends[0])) > _LINE_FROM * _GAP * unit:
            axes.plot(*to_data(ends).T, color="#777777", linewidth=0.6, zorder=4)
    return [box for box in boxes if box is not None]

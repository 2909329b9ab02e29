"""Labels beside points that overlap neither each other nor the points, nor leave the picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GAP = 5.0
"""Pixels at 100 dots an inch between a point and its label."""
_DISTANCES = (1.0, 2.5, 4.0, 6.0, 8.0, 10.0, 13.0, 16.0, 20.0, 25.0, 32.0, 40.0)
_DIRECTIONS = 24
_HALO = 2.5
_MARK = 0.8
"""Gaps from the middle of a point's mark to its edge."""
_COVERING = 30.0
"""A label stands so much farther from its point rather than on another one."""
_LINE_POINTS = 9
_LINE_FROM = 1.5
"""Gaps between a point and its label from which on a line joins them."""


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
        return (
            self.left >= other.left
            and self.right <= other.right
            and self.bottom >= other.bottom
            and self.top <= other.top
        )


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
    """A box of each size near its anchor [N, 2]; None where there is no room.

    No box overlaps another or a forbidden one, and no line from a box to its anchor crosses a box. Of the places that
    are left, the one is taken that covers the fewest obstacles [M, 2], then the nearest. One that costs more than
    `cost` is none: its distance in gaps, and 30 for each obstacle. After the first `most` boxes there are no more.
    """
    placed: list[Box] = list(forbidden)
    lines = np.empty((0, 2))
    result: list[Box | None] = []
    for anchor, (width, height) in zip(anchors, sizes, strict=True):
        choice: Box | None = None
        least = cost
        if most is not None and len(placed) - len(forbidden) >= most:
            result.append(None)
            continue
        for distance in _DISTANCES:
            if distance > least:
                break
            for box in _around(float(anchor[0]), float(anchor[1]), width, height, gap * distance):
                if not box.inside(frame) or any(box.overlaps(other) for other in placed):
                    continue
                line = leader(anchor, box)
                if _covered(box, lines, 0.0) or any(_covered(other, line, 0.0) for other in placed):
                    continue
                price = _COVERING * _covered(box, obstacles, _MARK * gap) + distance
                if price < least:
                    choice, least = box, price
        if choice is not None:
            placed.append(choice)
            lines = np.concatenate([lines, leader(anchor, choice)])
        result.append(choice)
    return result


def leader(anchor: NDArray[np.float64], box: Box) -> NDArray[np.float64]:
    """Points on the line from an anchor to the nearest point of its box, [9, 2]."""
    end = np.array([min(max(anchor[0], box.left), box.right), min(max(anchor[1], box.bottom), box.top)])
    return anchor + (end - anchor) * np.linspace(0, 1, _LINE_POINTS)[:, None]


def _around(x: float, y: float, width: float, height: float, gap: float) -> list[Box]:
    """Boxes all around a point, the gap away from it on the sides and nearer at the corners."""
    boxes = []
    for step in range(_DIRECTIONS):
        angle = 2 * np.pi * step / _DIRECTIONS
        cosine, sine = float(np.cos(angle)), float(np.sin(angle))
        centre_x = x + cosine * (gap + width / 2)
        centre_y = y + sine * (gap + height / 2)
        boxes.append(Box(centre_x - width / 2, centre_y - height / 2, centre_x + width / 2, centre_y + height / 2))
    return boxes


def _covered(box: Box, points: NDArray[np.float64], margin: float) -> int:
    inside = (
        (points[:, 0] > box.left - margin)
        & (points[:, 0] < box.right + margin)
        & (points[:, 1] > box.bottom - margin)
        & (points[:, 1] < box.top + margin)
    )
    return int(inside.sum())


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
    """Write texts beside points [N, 2] of a panel whose limits are set, at most so many; the boxes of those with room.

    All points of the panel are the obstacles [M, 2]. A line leads from a label to its point where it had to stand away.
    `cost` is as for `place_boxes`.
    """
    figure = axes.figure
    canvas = figure.canvas
    renderer = canvas.get_renderer()  # type: ignore[attr-defined]
    unit = figure.dpi / 100.0
    anchors, blocks = axes.transData.transform(points), axes.transData.transform(obstacles)
    written = []
    sizes = []
    for text in texts:
        label = axes.text(0, 0, text, fontsize=size, color="#111111", zorder=5)
        extent = label.get_window_extent(renderer)
        written.append(label)
        sizes.append((extent.width + 4 * unit, extent.height + 2 * unit))
    frame = axes.get_window_extent(renderer)
    inner = Box(frame.x0 + 2, frame.y0 + 2, frame.x1 - 2, frame.y1 - 2)
    boxes = place_boxes(anchors, sizes, blocks, inner, gap=_GAP * unit, forbidden=forbidden, cost=cost, most=most)
    back = axes.transData.inverted()
    taken: list[Box] = []
    for label, anchor, box in zip(written, anchors, boxes, strict=True):
        if box is None:
            label.remove()
            continue
        taken.append(box)
        middle = ((box.left + box.right) / 2, (box.bottom + box.top) / 2)
        label.set_position(tuple(back.transform(middle)))
        label.set_horizontalalignment("center")
        label.set_verticalalignment("center")
        _halo(label)
        ends = leader(anchor, box)[[0, -1]]
        line = back.transform(ends)
        if np.hypot(*(ends[1] - ends[0])) > _LINE_FROM * _GAP * unit:
            axes.plot(line[:, 0], line[:, 1], color="#777777", linewidth=0.6, zorder=4)
    return taken


def _halo(label: object) -> None:
    from matplotlib.patheffects import withStroke

    label.set_path_effects([withStroke(linewidth=_HALO, foreground="white")])  # type: ignore[attr-defined]

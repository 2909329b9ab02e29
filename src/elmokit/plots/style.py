"""The style that all pictures share: colours, fonts for every script, panels, labels, and files written atomically.

check_picture(path)                                     # before anything is computed
with drawing(path, (8, 5), [title]) as figure:          # size in inches; the fonts are chosen for the texts
    axes = figure.subplots()
    axes.plot(x, y, color=DARK)
    open_panel(axes)
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import ElmoError, MissingExtraError
from elmokit.storage.atomic import atomic_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
DARK, BLUE, GREY, PALE = "#16324f", "#5b8fcf", "#666666", "#bbbbbb"
"""Colours of lines and bars; they also differ in lightness, for print and for colour-blind people."""
LEGEND: dict[str, Any] = {"framealpha": 0.8, "edgecolor": "none"}
"""The style of a legend inside a panel."""
_DPI = 150
_OWN_FONT = "DejaVu Sans"
"""The font that is part of matplotlib."""
_GOOD_FONTS = (
    "Noto Sans CJK", "Noto Sans SC", "Noto Sans TC", "Source Han Sans", "WenQuanYi", "PingFang", "Hiragino Sans",
    "Microsoft YaHei", "Microsoft JhengHei", "SimHei", "Heiti", "Droid Sans Fallback", "Arial Unicode", "Noto Sans",
)  # fmt: skip
"""Readable fonts for other scripts, which are tried first; all other fonts follow by name."""
_added_fonts: list[str] = []


class PointStyle(NamedTuple):
    """The style of the points of one group."""

    color: str
    marker: str
    edge: str


# Dark, light and medium colours alternate, so that neighbouring groups in the list differ most in print.
POINT_STYLES = (
    PointStyle(DARK, "o", "white"), PointStyle("#f2a541", "s", "#555555"), PointStyle("#c8475a", "^", "white"),
    PointStyle("#a8dcec", "P", "#555555"), PointStyle("#2f6d3a", "v", "white"), PointStyle("#d8b4e2", "D", "#555555"),
    PointStyle("#6b4226", "X", "white"), PointStyle("#dddddd", "*", "#555555"),
)  # fmt: skip


def check_groups(count: int, kind: str) -> None:
    """Refuse more words or clusters than there are point styles."""
    if count > len(POINT_STYLES):
        raise ElmoError(f"a picture shows at most {len(POINT_STYLES)} {kind}, got {count}: ask for fewer")


def check_picture(path: Path, argument: str = "output") -> None:
    """Check, before anything is computed, that a picture can be written; `argument` is the name of the argument."""
    if path.suffix.lower() not in SUFFIXES:
        raise ElmoError(f"{argument} must end in {', '.join(SUFFIXES)}, got {path}", argument)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ElmoError(f"{argument} must be a file in a folder that exists, got {path}", argument)
    require_matplotlib("a picture")


@contextmanager
def drawing(
    path: Path,
    size: tuple[float, float],
    texts: Iterable[str] = (),
    *,
    purpose: str = "a picture",
    layout: Literal["constrained", "tight"] | None = None,
    crop: bool = False,
    skip_missing: bool = False,
) -> Iterator[Figure]:
    """A context with a new figure of a size in inches, which is written when the block ends without an error.

    The fonts are chosen for `texts`. A character that no font has is an error, or with `skip_missing` an empty box.
    `crop` fits the picture to its contents, which may be smaller or larger than the figure.
    """
    require_matplotlib(purpose)
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    suffix = path.suffix.lower()[1:]
    # No dates and no random names, so that the same picture always has the same bytes.
    settings: Any = {"svg.hashsalt": "elmokit", "text.parse_math": False}
    settings["font.family"] = _families(texts)[0] if skip_missing else font_families(texts)
    with rc_context(settings), warnings.catch_warnings():
        if skip_missing:
            warnings.filterwarnings("ignore", r"Glyph \d+ .*missing from")
        figure = Figure(figsize=size, dpi=_DPI, layout=layout)
        FigureCanvasAgg(figure)
        yield figure
        dates = {"png": None, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[suffix]
        with atomic_file(path) as temporary:
            figure.savefig(temporary, format=suffix, metadata=dates, bbox_inches="tight" if crop else None)


def open_panel(axes: Axes) -> None:
    """Give a panel of curves or bars a faint grid, and a frame only at the left and the bottom."""
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def blank_panel(axes: Axes) -> None:
    """Give a panel whose axes have no units a pale frame and no ticks."""
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color(PALE)


def shortened(text: str, longest: int) -> str:
    """The text, cut to at most `longest` characters.

    >>> shortened("incomprehensible", 10)
    'incompreh…'
    """
    return text if len(text) <= longest else text[: longest - 1] + "…"


def add_font(font: str | Path) -> None:
    """Register a font file for all pictures; it is tried before the other fonts."""
    from matplotlib.font_manager import fontManager

    try:
        fontManager.addfont(str(font))
    except (OSError, RuntimeError) as error:
        raise ElmoError(f"font must be a file that ends in .ttf, .otf or .ttc, got {font}: {error}", "font") from error
    _added_fonts.insert(0, fontManager.ttflist[-1].name)
    _characters.cache_clear()


def font_families(texts: Iterable[str]) -> list[str]:
    """The fonts for some texts; an error if no font has one of their characters."""
    families, missing = _families(texts)
    if missing:
        shown = "".join(sorted(missing)[:8])
        raise ElmoError(
            f"this machine has no fonts for the characters {shown}: install one that has them (for Chinese, "
            "fonts-noto-cjk), or give its file as font",
            "font",
        )
    return families


def drawable(text: str) -> bool:
    """Whether the fonts of this machine have all characters of a text."""
    return not _families([text])[1]


def _families(texts: Iterable[str]) -> tuple[list[str], set[str]]:
    """The fonts for some texts, and the characters that no font has."""
    files = _font_files()
    missing = {c for text in texts for c in text if not c.isspace()} - _characters(files[_OWN_FONT])
    families = [_OWN_FONT]

    def rank(name: str) -> tuple[int, str]:
        return next((index for index, good in enumerate(_GOOD_FONTS) if name.startswith(good)), len(_GOOD_FONTS)), name

    for name in [*_added_fonts, *sorted(files.keys() - {_OWN_FONT, *_added_fonts}, key=rank)] if missing else ():
        if found := missing & _characters(files[name]):
            families.append(name)
            missing -= found
        if not missing:
            break
    return families, missing


def _font_files() -> dict[str, str]:
    """The file of each font; if there are several, that of the regular, upright style."""
    from matplotlib.font_manager import fontManager, weight_dict

    def rank(font: Any) -> tuple[bool, int]:  # noqa: ANN401 - matplotlib has no public type for it
        weight = font.weight if isinstance(font.weight, int) else weight_dict.get(font.weight, 400)
        return font.style != "normal", abs(weight - 400)

    files: dict[str, str] = {}
    for font in sorted(fontManager.ttflist, key=rank):
        # The font "Last Resort" has every character, but shows only a box for it.
        if not font.name.startswith("Last Resort"):
            files.setdefault(font.name, font.fname)
    return files


@cache
def _characters(path: str) -> frozenset[str]:
    """The characters that a font file has."""
    from matplotlib.ft2font import FT2Font

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return frozenset(map(chr, FT2Font(path).get_charmap()))
    except (OSError, RuntimeError):  # not a font, despite its name
        return frozenset()


def require_matplotlib(purpose: str) -> None:
    """Raise an error that says how to install matplotlib if it is missing."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plot", purpose) from error


# Labels next to points, which do not overlap and avoid the points.

_GAP = 5.0
"""The unit of distances between a point and its label, in pixels at 100 dots per inch."""
_DISTANCES = (1.0, 2.5, 4.0, 6.0, 8.0, 10.0, 13.0, 16.0, 20.0, 25.0, 32.0, 40.0)
"""The distances between a point and its label to try, in gaps."""
_DIRECTIONS = 24
_POINT_RADIUS = 0.8
"""The radius of a point, in gaps."""
_COVER_COST = 30.0
"""The cost of covering a point; it is compared with distances in gaps."""
_LINE_POINTS = 9
_MIN_LINE = 1.5
"""Minimum distance between a label and its point for a line to connect them, in gaps."""


class Box(NamedTuple):
    """A rectangle in pixels."""

    left: float
    bottom: float
    right: float
    top: float

    def overlaps(self, other: Box) -> bool:
        """Whether the two boxes overlap."""
        return (
            self.left < other.right and other.left < self.right and self.bottom < other.top and other.bottom < self.top
        )

    def inside(self, other: Box) -> bool:
        """Whether this box is inside the other."""
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
    """A box of each size near its anchor [N, 2], or None if there is no space for it.

    No box overlaps another box or a forbidden one, and no line from a box to its anchor crosses a box. Each box gets
    the position with the lowest cost: its distance in gaps, plus 30 for each obstacle [M, 2] that it covers. Positions
    with a cost of `cost` or more are not used, and at most `most` boxes are placed.
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
                box_cost = _COVER_COST * box.covers(obstacles, _POINT_RADIUS * gap) + distance
                if box_cost < least:
                    chosen, least = box, box_cost
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
    """Boxes in all directions around a point, at the distance `gap` at the sides and nearer at the corners."""
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
    """Write texts next to points [N, 2] of a panel whose limits are set, and return the boxes of the written texts.

    A text for which there is no space is left out. `obstacles` [M, 2] are all points of the panel; `most`, `forbidden`
    and `cost` are as in `place_boxes`. If a label is far from its point, a line connects them.
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
        if np.hypot(*(ends[1] - ends[0])) > _MIN_LINE * _GAP * unit:
            axes.plot(*to_data(ends).T, color="#777777", linewidth=0.6, zorder=4)
    return [box for box in boxes if box is not None]

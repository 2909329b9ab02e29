"""The one style of all pictures: colours, fonts for every script, panels, and the file, written whole or not at all.

check_picture(path)                                     # before anything is computed
with drawing(path, (8, 5), [title]) as figure:          # inches; the texts decide which fonts are used
    axes = figure.subplots()
    axes.plot(x, y, color=DARK)
    open_panel(axes)
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from elmokit.errors import ElmoError, MissingExtraError
from elmokit.storage.atomic import atomic_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
DARK, BLUE, GREY, PALE = "#16324f", "#5b8fcf", "#666666", "#bbbbbb"
"""Colours of lines and bars, which differ in lightness too: they can be read in print and by colour-blind people."""
LEGEND: dict[str, Any] = {"framealpha": 0.8, "edgecolor": "none"}
"""How a legend inside a panel looks."""
_DPI = 150
_OWN_FONT = "DejaVu Sans"
"""The font that matplotlib contains."""
_GOOD_FONTS = (
    "Noto Sans CJK", "Noto Sans SC", "Noto Sans TC", "Source Han Sans", "WenQuanYi", "PingFang", "Hiragino Sans",
    "Microsoft YaHei", "Microsoft JhengHei", "SimHei", "Heiti", "Droid Sans Fallback", "Arial Unicode", "Noto Sans",
)  # fmt: skip
"""Readable fonts for other scripts, tried first; then all others by name."""
_added_fonts: list[str] = []


class PointStyle(NamedTuple):
    """How the points of one group are drawn."""

    color: str
    marker: str
    edge: str


# Dark, light, middle and light again, so that groups near each other in the list differ most in print.
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
    """Refuse a file that could not be written after everything has been computed; `argument` is its Python name."""
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
    """A new figure of a size in inches, written to the path when the block has ended without an error.

    The fonts are chosen by `texts`. A character that no font has is an error; with `skip_missing` it is an empty box.
    `crop` fits the picture to what is drawn, which may be more or less than the figure.
    """
    require_matplotlib(purpose)
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    suffix = path.suffix.lower()[1:]
    # Neither dates nor random names: the same picture always gives the same bytes.
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
    """Give a panel of curves or bars a faint grid, and a frame on the left and below only."""
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def blank_panel(axes: Axes) -> None:
    """Give a panel whose axes have no meaning a pale frame and no ticks."""
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color(PALE)


def shortened(text: str, longest: int) -> str:
    """The text, cut to so many characters.

    >>> shortened("incomprehensible", 10)
    'incompreh…'
    """
    return text if len(text) <= longest else text[: longest - 1] + "…"


def add_font(font: str | Path) -> None:
    """Make a font file known to all pictures, and try it before the other fonts."""
    from matplotlib.font_manager import fontManager

    try:
        fontManager.addfont(str(font))
    except (OSError, RuntimeError) as error:
        raise ElmoError(f"font must be a file that ends in .ttf, .otf or .ttc, got {font}: {error}", "font") from error
    _added_fonts.insert(0, fontManager.ttflist[-1].name)
    _characters.cache_clear()


def font_families(texts: Iterable[str]) -> list[str]:
    """The fonts with which texts are drawn; an error where no font has one of their characters."""
    families, missing = _families(texts)
    if missing:
        raise ElmoError(
            f"no font on this machine has the characters {''.join(sorted(missing)[:8])}: install one that does (for "
            "Chinese, fonts-noto-cjk), or give the file of one as font",
            "font",
        )
    return families


def drawable(text: str) -> bool:
    """Whether the fonts of this machine have all characters of a text."""
    return not _families([text])[1]


def _families(texts: Iterable[str]) -> tuple[list[str], set[str]]:
    """The fonts with which texts are drawn, and the characters that no font has."""
    files = _font_files()
    missing = {c for text in texts for c in text if not c.isspace()} - _characters(files[_OWN_FONT])
    families = [_OWN_FONT]

    def rank(name: str) -> tuple[int, str]:
        return next((place for place, good in enumerate(_GOOD_FONTS) if name.startswith(good)), len(_GOOD_FONTS)), name

    for name in [*_added_fonts, *sorted(files.keys() - {_OWN_FONT, *_added_fonts}, key=rank)] if missing else ():
        if found := missing & _characters(files[name]):
            families.append(name)
            missing -= found
        if not missing:
            break
    return families, missing


def _font_files() -> dict[str, str]:
    """The file of each font, the upright and regular one if there are several."""
    from matplotlib.font_manager import fontManager, weight_dict

    def rank(font: Any) -> tuple[bool, int]:  # noqa: ANN401 - matplotlib has no public type for it
        weight = font.weight if isinstance(font.weight, int) else weight_dict.get(font.weight, 400)
        return font.style != "normal", abs(weight - 400)

    files: dict[str, str] = {}
    for font in sorted(fontManager.ttflist, key=rank):
        # The font of last resort has a box for every character instead of its shape.
        if not font.name.startswith("Last Resort"):
            files.setdefault(font.name, font.fname)
    return files


@cache
def _characters(path: str) -> frozenset[str]:
    from matplotlib.ft2font import FT2Font

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return frozenset(map(chr, FT2Font(path).get_charmap()))
    except (OSError, RuntimeError):  # not a font, whatever its name is
        return frozenset()


def require_matplotlib(purpose: str) -> None:
    """Raise an error that says how to install matplotlib if it is missing."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plot", purpose) from error

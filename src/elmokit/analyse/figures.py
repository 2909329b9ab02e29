"""What all pictures share: a figure of a given size, its colours and marks, and its file, whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from elmokit.errors import ElmoError, MissingExtraError
from elmokit.storage.atomic import atomic_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
_DPI = 150


class Look(NamedTuple):
    """How the points of one group look."""

    color: str
    marker: str
    edge: str


# Dark, light, middle and light again, so that groups near each other in the list differ most in print.
LOOKS = (
    Look("#16324f", "o", "white"), Look("#f2a541", "s", "#555555"), Look("#c8475a", "^", "white"),
    Look("#a8dcec", "P", "#555555"), Look("#2f6d3a", "v", "white"), Look("#d8b4e2", "D", "#555555"),
    Look("#6b4226", "X", "white"), Look("#dddddd", "*", "#555555"),
)  # fmt: skip


def check_groups(count: int, kind: str) -> None:
    """Refuse more words or clusters than there are looks."""
    if count > len(LOOKS):
        raise ElmoError(f"a picture tells at most {len(LOOKS)} {kind} apart, got {count}: ask for fewer")


def check_picture(path: Path) -> None:
    """Refuse what could not be written once everything has been computed."""
    if path.suffix.lower() not in SUFFIXES:
        raise ElmoError(f"--output must end in {', '.join(SUFFIXES)}, got {path}")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ElmoError(f"--output must be a file in a folder that exists, got {path}")
    _matplotlib()


@contextmanager
def drawing(path: Path, size: tuple[float, float], families: Iterable[str]) -> Iterator[Figure]:
    """A new figure of a size in inches, written to the path once the block has ended well."""
    _matplotlib()
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    suffix = path.suffix.lower()[1:]
    # The same picture always gives the same bytes: no dates, no random names.
    settings: Any = {"font.family": list(families), "svg.hashsalt": "elmokit", "text.parse_math": False}
    with rc_context(settings):
        figure = Figure(figsize=size, dpi=_DPI)
        FigureCanvasAgg(figure)
        yield figure
        dates = {"png": None, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[suffix]
        with atomic_file(path) as temporary:
            figure.savefig(temporary, format=suffix, metadata=dates)


def _matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plot", "a picture") from error

"""Fonts that have the characters of a picture, and the sentence for when none has."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from elmokit.errors import ElmoError

_OWN = "DejaVu Sans"
"""What matplotlib brings with it."""
_KNOWN = (
    "Noto Sans CJK", "Noto Sans SC", "Noto Sans TC", "Source Han Sans", "WenQuanYi", "PingFang", "Hiragino Sans",
    "Microsoft YaHei", "Microsoft JhengHei", "SimHei", "Heiti", "Droid Sans Fallback", "Arial Unicode", "Noto Sans",
)  # fmt: skip
"""Readable ones, looked at first; all others come after them by name."""


def add_font(path: str | Path) -> None:
    """Make a font file known, so that it is looked at first."""
    from matplotlib.font_manager import fontManager

    try:
        fontManager.addfont(str(path))
    except (OSError, RuntimeError) as error:
        raise ElmoError(f"--font must be a font file (.ttf, .otf, .ttc), got {path}: {error}") from error
    _added.insert(0, fontManager.ttflist[-1].name)
    _glyphs.cache_clear()


_added: list[str] = []


def families_for(texts: Iterable[str]) -> list[str]:
    """The fonts to draw some texts with, the first that has a character is taken; refused where none has one."""
    missing = _characters(texts) - _glyphs(_path(_OWN))
    families = [_OWN]
    for name in _others():
        if not missing:
            break
        found = missing & _glyphs(_path(name))
        if found:
            families.append(name)
            missing -= found
    if missing:
        shown = "".join(sorted(missing)[:8])
        raise ElmoError(
            f"no font on this machine has the characters {shown}: install one that does (for Chinese, fonts-noto-cjk), "
            "or give its file with --font"
        )
    return families


def drawable(text: str) -> bool:
    """Whether the fonts of this machine have all characters of a text."""
    try:
        families_for([text])
    except ElmoError:
        return False
    return True


def _characters(texts: Iterable[str]) -> set[str]:
    return {c for text in texts for c in text if not c.isspace()}


def _others() -> Sequence[str]:
    """The names of the other fonts: those the user gave, then known ones, then all."""
    names = sorted(_files().keys() - {_OWN, *_added})

    def rank(name: str) -> int:
        return next((place for place, known in enumerate(_KNOWN) if name.startswith(known)), len(_KNOWN))

    return [*_added, *sorted(names, key=lambda name: (rank(name), name))]


def _path(name: str) -> str:
    return _files()[name]


def _files() -> dict[str, str]:
    """The file of each font, the upright and regular one where there are several."""
    from matplotlib.font_manager import fontManager

    fonts = sorted(fontManager.ttflist, key=lambda font: (font.style != "normal", abs(_weight(font.weight) - 400)))
    files: dict[str, str] = {}
    for font in fonts:
        # The font of last resort has a box for every character, and no characters.
        if not font.name.startswith("Last Resort"):
            files.setdefault(font.name, font.fname)
    return files


def _weight(weight: int | str) -> int:
    from matplotlib.font_manager import weight_dict

    return weight if isinstance(weight, int) else weight_dict.get(weight, 400)


@cache
def _glyphs(path: str) -> frozenset[str]:
    from matplotlib.ft2font import FT2Font

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return frozenset(map(chr, FT2Font(path).get_charmap()))
    except (OSError, RuntimeError):  # a file that is not the font its name says
        return frozenset()

"""The rules every test runs under, and fixtures that hand out tiny models."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from elmokit import Elmo, ElmoConfig
from support.tiny_models import tiny_checkpoint

if find_spec("hypothesis"):  # machines with a GPU may come without it, and the GPU tests do not need it
    from hypothesis import settings

    # Other work on the machine must not fail a property; the examples are the same on every run.
    settings.register_profile("elmokit", deadline=None, derandomize=True, max_examples=40)
    settings.load_profile("elmokit")

# Tests run in parallel, one process per core; more threads would only fight over them.
torch.set_num_threads(1)


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
def _poison_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that nobody wrote is NaN, so that reading it shows."""
    plain = torch.empty

    def poisoned(*args, **kwargs):
        tensor = plain(*args, **kwargs)
        return tensor.fill_(float("nan")) if tensor.is_floating_point() and not tensor.is_meta else tensor

    monkeypatch.setattr(torch, "empty", poisoned)


@pytest.fixture
def full_float32() -> Iterator[None]:
    """Products in float32 without TF32, for tests on a GPU."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that were drawn, for a look at what is in them."""
    from matplotlib.figure import Figure

    drawn = []
    save = Figure.savefig

    def keep(figure, *arguments, **named):
        drawn.append(figure)
        return save(figure, *arguments, **named)

    monkeypatch.setattr(Figure, "savefig", keep)
    return drawn


@pytest.fixture
def font(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A font with two Chinese characters, and none of this machine's that might have them."""
    from fontTools.fontBuilder import FontBuilder
    from fontTools.pens.ttGlyphPen import TTGlyphPen
    from matplotlib.font_manager import fontManager

    from elmokit.plots import style

    pen = TTGlyphPen(None)
    pen.moveTo((50, 0))
    pen.lineTo((950, 0))
    pen.lineTo((950, 800))
    pen.closePath()
    names = [".notdef", "silver", "row", "a"]
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder(names)
    builder.setupCharacterMap({ord("银"): "silver", ord("行"): "row", ord("a"): "a"})
    builder.setupGlyf(dict.fromkeys(names, pen.glyph()))
    builder.setupHorizontalMetrics(dict.fromkeys(names, (1000, 50)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": "Two Characters", "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(tmp_path / "two.ttf")
    monkeypatch.setattr(fontManager, "ttflist", [font for font in fontManager.ttflist if "DejaVu" in font.name])
    monkeypatch.setattr(style, "_added_fonts", [])
    yield tmp_path / "two.ttf"
    fontManager._findfont_cached.cache_clear()


@pytest.fixture
def give_away(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make files belong to another user: truly where the tests run as root, and by what is said of them otherwise."""
    given: set[tuple[int, int]] = set()

    def foreign(plain: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
        def look(*arguments, **named):
            facts = plain(*arguments, **named)
            is_given = (facts.st_dev, facts.st_ino) in given
            return os.stat_result((*facts[:4], 65534, *facts[5:10])) if is_given else facts

        return look

    def give(*paths: Path) -> None:
        for path in paths:
            facts = path.lstat()
            given.add((facts.st_dev, facts.st_ino))
            if os.geteuid() == 0:
                os.chown(path, 65534, 65534, follow_symlinks=False)
        if os.geteuid() != 0:
            for name in ("stat", "lstat", "fstat"):
                monkeypatch.setattr(os, name, foreign(getattr(os, name)))

    return give


@pytest.fixture
def make_elmo() -> Callable[..., Elmo]:
    """Build a tiny Elmo: make_elmo(config, head=True, state="carry", …)."""

    def make(config: ElmoConfig | None = None, *, head: bool = False, seed: int = 0, scale: float = 2.0, **arguments):
        return Elmo(tiny_checkpoint(config, head=head, seed=seed, scale=scale), **arguments)

    return make


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """A tiny model with a softmax, saved in our own format."""
    Elmo(tiny_checkpoint(head=True)).save(tmp_path / "model")
    return tmp_path / "model"

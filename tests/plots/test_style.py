"""The style of all pictures: fonts for any script, files that are refused, colours that differ in grey, equal bytes."""

from __future__ import annotations

from itertools import pairwise

import pytest

from elmokit import ElmoError
from elmokit.plots import style
from elmokit.plots.style import add_font, check_picture, drawable, drawing, font_families

pytest.importorskip("matplotlib")


def test_a_character_that_no_font_has(tmp_path, font) -> None:
    with pytest.raises(ElmoError, match="for the characters 行银: install one"):
        font_families(["银行 bank"])
    assert not drawable("银")
    add_font(font)
    assert font_families(["银行 bank"]) == ["DejaVu Sans", "Two Characters"]
    assert not drawable("银河")
    with pytest.raises(ElmoError, match="font must be a file"):
        add_font(tmp_path / "none.ttf")


def test_files_that_are_refused(tmp_path, monkeypatch) -> None:
    with pytest.raises(ElmoError, match=r"must end in .png, .svg, .pdf, got .*a.gif"):
        check_picture(tmp_path / "a.gif")
    with pytest.raises(ElmoError, match="in a folder that exists"):
        check_picture(tmp_path / "none" / "a.png")
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(ElmoError, match=r"a picture needs the package matplotlib: pip install 'elmokit\[plot\]'"):
        check_picture(tmp_path / "a.png")


def test_point_styles_differ_in_grey() -> None:
    def lightness(color: str) -> float:
        red, green, blue = (int(color[start : start + 2], 16) for start in (1, 3, 5))
        return (0.299 * red + 0.587 * green + 0.114 * blue) / 255

    lights = [lightness(style_.color) for style_ in style.POINT_STYLES]
    assert all(abs(one - other) > 0.2 for one, other in pairwise(lights))
    assert len({style_.marker for style_ in style.POINT_STYLES}) == len(style.POINT_STYLES)


def test_an_error_names_its_argument(tmp_path) -> None:
    with pytest.raises(ElmoError, match="by_position must end in") as raised:
        check_picture(tmp_path / "a.gif", "by_position")
    assert raised.value.arguments == ("by_position",)


def test_a_title_in_a_script_without_a_font(tmp_path, font, shown) -> None:
    with drawing(tmp_path / "a.png", (2, 2), ["银行 $x$"], layout="constrained", skip_missing=True) as figure:
        figure.subplots().set_title("银行 $x$")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ElmoError, match="行银"), drawing(tmp_path / "b.png", (2, 2), ["银行"]):
        pass
    with pytest.raises(RuntimeError), drawing(tmp_path / "b.png", (2, 2)):
        raise RuntimeError
    assert not (tmp_path / "b.png").exists()

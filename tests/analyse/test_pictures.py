"""Pictures: written whole as .png, .svg and .pdf, in any script for which there is a font, the same every time."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from elmokit import ElmoError
from elmokit.analyse.index import Occurrence, normalised
from elmokit.analyse.index_builder import build_index
from elmokit.analyse.pictures import (
    OccurrenceVectors,
    draw_senses,
    draw_similarity,
    draw_words,
    occurrence_vectors,
    similarities,
    snippet,
)
from elmokit.analyse.senses import find_senses
from elmokit.plots.style import add_font
from support.topic_model import TopicModel, prepared

pytest.importorskip("matplotlib")
STARTS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


def boxes_of(figure) -> list:
    renderer = figure.canvas.get_renderer()
    return [text.get_window_extent(renderer) for axes in figure.axes for text in axes.texts]


@pytest.mark.parametrize("suffix", STARTS)
def test_senses(tmp_path, index, shown, suffix) -> None:
    path = tmp_path / f"bank{suffix}"
    senses = find_senses(index, "bank")
    draw_senses(senses, index, path)
    assert path.read_bytes().startswith(STARTS[suffix])
    figure = shown[0]
    labels = [text.get_text() for text in figure.axes[0].texts]
    assert 2 <= len(labels) <= 6
    assert all("bank" in label for label in labels)
    for one, other in combinations(boxes_of(figure), 2):
        assert not one.overlaps(other)
    legend = [text.get_text() for text in figure.legends[0].texts]
    assert len(legend) == 2
    assert {"river", "money"} <= set(" ".join(legend).replace(",", " ").split())
    frame, below = (part.get_window_extent() for part in (figure.axes[0], figure.legends[0]))
    assert below.y1 < frame.y0, "the legend lies under the panel"
    assert below.y0 >= 0


def test_the_same_picture_has_the_same_bytes(tmp_path, index) -> None:
    senses = find_senses(index, "bank")
    for name in ("one.svg", "two.svg"):
        draw_senses(senses, index, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


@pytest.mark.parametrize("clusters", [1, 8])
def test_few_and_many_clusters(tmp_path, index, clusters) -> None:
    draw_senses(find_senses(index, "bank", clusters), index, tmp_path / "bank.png")
    draw_senses(find_senses(index, "number3"), index, tmp_path / "once.png")
    assert (tmp_path / "once.png").exists()


def test_similarity(tmp_path, make_elmo, shown) -> None:
    elmo = make_elmo()
    first, second = ["the", "bank", "of", "$", "money", "$", "."], ["a", "river", "bank"]
    values = similarities(elmo, first, second)
    assert values.shape == (3, 7, 3)
    assert values[0, 1, 2] == pytest.approx(1, abs=1e-5), "without context the same word is the same"
    one, other = elmo.encode([first, second], layer=2)
    cosine = one[1] @ other[2] / np.linalg.norm(one[1]) / np.linalg.norm(other[2])
    assert values[2, 1, 2] == pytest.approx(cosine, abs=1e-5)
    draw_similarity(values, first, second, tmp_path / "map.png")
    panels = shown[0].axes[:3]
    assert [panel.get_title() for panel in panels] == ["layer 0: words without context", "layer 1", "layer 2"]
    assert [text.get_text() for text in panels[0].get_yticklabels()] == first
    assert [text.get_text() for text in panels[2].get_xticklabels()] == second
    assert len(panels[1].texts) == 21
    assert len({panel.images[0].get_clim() for panel in panels}) == 1


def test_long_sentences(tmp_path, make_elmo, shown) -> None:
    elmo = make_elmo()
    tokens = ["long-winded-expressions-of-nothing"] * 30
    draw_similarity(similarities(elmo, tokens, tokens), tokens, tokens, tmp_path / "map.png")
    assert not shown[0].axes[0].texts, "no room for numbers"
    many = ["a"] * 61
    with pytest.raises(ElmoError, match="1 to 60 tokens, got 61 and 61"):
        draw_similarity(similarities(elmo, many, many), many, many, tmp_path / "map.png")


def test_words(tmp_path, make_elmo, shown) -> None:
    lines = ["the bank of a river", "the bank has money", "money of the bank", "a river of money"]
    tokens = [tuple(line.split()) for line in lines]
    found = [
        (group, Occurrence(number, place, each))
        for number, each in enumerate(tokens)
        for place, token in enumerate(each)
        for group, word in enumerate(["bank", "money"])
        if token == word
    ]
    elmo = make_elmo()
    draw_words(["bank", "money"], occurrence_vectors(elmo, ["bank", "money"], found), tmp_path / "words.png")
    figure = shown[0]
    assert [panel.get_title() for panel in figure.axes] == ["layer 0: words without context", "layer 1", "layer 2"]
    assert sorted(text.get_text() for text in figure.axes[0].texts) == ["bank × 3", "money × 3"]
    for panel in figure.axes[1:]:
        assert len(panel.texts) == 6
    for one, other in combinations(boxes_of(figure), 2):
        assert not one.overlaps(other)
    marks, sentences = ([text.get_text() for text in legend.texts] for legend in figure.legends)
    assert marks == ["bank", "money"]
    assert sentences == lines, "each has a colour"
    colours = {tuple(points.get_facecolor()[0]) for points in figure.axes[1].collections}
    assert len(colours) == 4
    assert len({tuple(points.get_facecolor()[0]) for points in figure.axes[0].collections}) == 1, "of no sentence"
    with pytest.raises(ElmoError, match="at most 80 uses of bank, money, got 120"):
        occurrence_vectors(elmo, ["bank", "money"], found * 20)


def test_a_crowd_of_words_is_not_labelled_with_the_word_alone(tmp_path, shown) -> None:
    random = np.random.default_rng(1)
    tokens = [(f"before{number}", "bank", f"behind{number}") for number in range(70)]
    found = tuple(Occurrence(number, 1, each) for number, each in enumerate(tokens))
    vectors = normalised(random.standard_normal((2, 70, 6)).astype(np.float32) * (9, 9, 1, 1, 1, 1))
    draw_words(["bank"], OccurrenceVectors(found, (0,) * 70, vectors), tmp_path / "crowd.png")
    written = [text.get_text() for text in shown[0].axes[1].texts]
    assert 5 < len(written) < 70
    assert "bank" not in written, "the legend says that already"
    for one, other in combinations(boxes_of(shown[0]), 2):
        assert not one.overlaps(other)


def test_neighbours_in_a_script_without_a_font_are_left_out(tmp_path, font, shown) -> None:
    found = (Occurrence(0, 1, ("a", "bank", "b")), Occurrence(1, 1, ("银行", "bank", "b")))
    vectors = normalised(np.arange(12, dtype=np.float32).reshape(2, 2, 3) ** 2)
    draw_words(["bank"], OccurrenceVectors(found, (0, 0), vectors), tmp_path / "words.png")
    assert sorted(text.get_text() for text in shown[0].axes[1].texts) == ["a bank b", "bank"]


def test_no_more_groups_than_looks(tmp_path, index) -> None:
    found = tuple(Occurrence(number, 0, ("bank",)) for number in range(9))
    placed = OccurrenceVectors(found, tuple(range(9)), np.zeros((2, 9, 3), np.float32))
    with pytest.raises(ElmoError, match="at most 8 words, got 9"):
        draw_words([f"word{number}" for number in range(9)], placed, tmp_path / "words.png")
    with pytest.raises(ElmoError, match="at most 8 clusters, got 9"):
        draw_senses(find_senses(index, "bank", 9), index, tmp_path / "bank.png")


def test_snippets() -> None:
    occurrence = Occurrence(0, 3, ("on", "the", '"', "bank", ",", "of", "the", "incomprehensibilities"))
    assert snippet(occurrence, 2, 40) == 'on the " bank , of the'
    assert snippet(occurrence, 2, 20) == 'the " bank , of'
    assert snippet(occurrence, 1, 10) == "bank"
    assert snippet(Occurrence(0, 0, ("incomprehensibilities",)), 2, 10) == "incompreh…"


def test_chinese_is_drawn(tmp_path, font) -> None:
    """A missing glyph is a warning of matplotlib, and warnings are errors here."""
    rows = [["银", "river" if number % 2 else "money", "行", f"a{number}"] for number in range(40)]
    rows[0].append("河")  # which the font has not: its sentence gets no label
    index = build_index(TopicModel(), prepared(tmp_path / "corpus", rows), tmp_path / "index")
    senses = find_senses(index, "行")
    with pytest.raises(ElmoError, match="characters 行"):
        draw_senses(senses, index, tmp_path / "row.png")
    assert not (tmp_path / "row.png").exists()
    add_font(font)
    draw_senses(senses, index, tmp_path / "row.png")
    draw_similarity(np.ones((2, 2, 1), dtype=np.float32), ["银", "行"], ["行"], tmp_path / "map.pdf")

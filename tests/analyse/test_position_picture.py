"""The picture of perplexity by position: one panel per direction, one line per state, points with enough text."""

import numpy as np
import pytest

from elmokit import ElmoError
from elmokit.analyse.pictures import draw_by_position
from elmokit.pretrain.evaluate import STARTS, ByPosition

pytest.importorskip("matplotlib", reason="needs the extra plot")


@pytest.fixture
def drawn(tmp_path, shown):
    """Draw what was measured, and hand back the figure that became the file."""

    def run(measured, name="my_$model"):
        draw_by_position(tmp_path / "p.png", measured, name)
        assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
        return shown[-1]

    return run


def measured(perplexities, count=500):
    """Perplexities [D][K], each over so many predictions."""
    values = np.log(np.array(perplexities, dtype=np.float64))
    padded = np.zeros((len(values), len(STARTS)))
    padded[:, : values.shape[1]] = values * count
    counts = np.zeros(len(STARTS), np.int64)
    counts[: values.shape[1]] = count
    return ByPosition(padded, counts)


def lines_of(axes):
    """Each line of a legend, and the points of its two pieces."""
    lines, labels = axes.get_legend_handles_labels()
    pieces = [axes.lines[place : place + 2] for place in range(0, len(axes.lines), 2)]
    assert [piece[0] for piece in pieces] == lines
    return {
        label: (np.concatenate([p.get_xdata() for p in piece]), np.concatenate([p.get_ydata() for p in piece]))
        for label, piece in zip(labels, pieces, strict=True)
    }


def test_a_panel_a_direction_and_a_line_a_state(drawn):
    steps = np.linspace(400, 50, len(STARTS))
    figure = drawn({"zero": measured([steps, steps / 2]), "carry": measured([steps * 1.5, steps / 3])})
    assert figure.get_suptitle() == "Perplexity by position in the sentence: my_$model"
    forward, backward = figure.axes
    for axes, word, times in ((forward, "first", (1, 1.5)), (backward, "last", (1 / 2, 1 / 3))):
        assert axes.get_title(loc="left").endswith(f"1 is the {word} word")
        assert axes.get_yscale() == "log"
        lines = lines_of(axes)
        assert [label.split("  ")[1] for label in lines] == ["every sentence from zero", "state carried"]
        for (label, (x, y)), factor in zip(lines.items(), times, strict=True):
            np.testing.assert_allclose(y, steps * factor)
            np.testing.assert_array_equal(x[:30], np.arange(1, 31))
            assert (np.diff(x[29:]) == 3).all()
            assert float(label.split()[0]) == pytest.approx(np.exp(np.log(steps * factor).mean()), abs=0.06)
    shown = [tick.get_text() for tick in backward.get_xticklabels()]
    assert shown == ["1", "5", "10", "15", "20", "25", "30", "31–40", "41–60", "61+"]
    assert len({line.get_linestyle() for line in forward.lines}) == 2, "they differ without colour too"


def test_one_direction_one_state_a_short_text(drawn):
    figure = drawn({"zero": measured([[200, 90, 80]], count=3)})
    [axes] = figure.axes
    [(x, y)] = lines_of(axes).values()
    np.testing.assert_array_equal(x, [1, 2, 3])
    np.testing.assert_allclose(y, [200, 90, 80])


def test_the_first_words_of_few_sentences_are_drawn(drawn):
    found = measured([np.full(len(STARTS), 90.0)], count=60)
    found.counts[30:] = 300
    [axes] = drawn({"zero": found}).axes
    [(x, _)] = lines_of(axes).values()
    assert len(x) == len(STARTS)


def test_points_of_little_text_are_left_out(drawn):
    found = measured([np.full(len(STARTS), 90.0)])
    found.counts[20:] = 99
    [axes] = drawn({"zero": found}).axes
    [(x, _)] = lines_of(axes).values()
    np.testing.assert_array_equal(x, np.arange(1, 21))


def test_a_name_without_a_font_and_no_numbers(drawn, tmp_path):
    assert drawn({"zero": measured([[9, 8]])}, "\U000f0000").get_suptitle().endswith(": a model")
    (tmp_path / "p.png").unlink()
    with pytest.raises(ElmoError, match="infinite"):
        draw_by_position(tmp_path / "p.png", {"zero": measured([[np.inf, np.inf]])}, "m")
    assert not (tmp_path / "p.png").exists()

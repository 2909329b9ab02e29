"""curve.png is drawn from whatever a run has measured so far."""

import struct
import sys

import numpy as np
import pytest

from elmokit.errors import ElmoError, MissingExtraError
from elmokit.pretrain import curve
from elmokit.pretrain.curve import draw_curve
from elmokit.pretrain.metrics import MetricsLog

ALL = ("perplexity", "forward_perplexity", "backward_perplexity")


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """Draw lines of metrics and hand back the figure that became the file."""
    pytest.importorskip("matplotlib", reason="needs the extra plot")
    figures = []
    plain = curve._draw

    def draw(figure, *arguments):
        figures.append(figure)
        plain(figure, *arguments)

    monkeypatch.setattr(curve, "_draw", draw)

    def run(lines, folder="a run"):
        (tmp_path / folder).mkdir(exist_ok=True)
        with MetricsLog(tmp_path / folder / "metrics.jsonl") as log:
            for line in lines:
                log.write(line)
        draw_curve(tmp_path / folder / "metrics.jsonl", tmp_path / "curve.png")
        data = (tmp_path / "curve.png").read_bytes()
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
        assert struct.unpack(">II", data[16:24]) == (1200, 780)
        assert {path.name for path in tmp_path.iterdir()} == {folder, "curve.png"}
        return figures[-1]

    return run


def training(step, value, **more):
    return {"step": step, "tokens": step * 640, **dict.fromkeys(ALL, value), "learning_rate": 1e-3, **more}


def heldout(step, value):
    return {
        "step": step,
        "tokens": step * 640,
        "heldout_perplexity": value,
        "heldout_forward": value,
        "heldout_backward": value,
    }


def names(figure):
    return [text.get_text().split("  ")[1] for text in figure.axes[0].get_legend().get_texts()]


def tick_labels(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def test_a_long_run(drawn):
    noise = np.random.default_rng(0).normal(size=3000)
    lines = []
    for step in range(1, 3001):
        lines.append(training(step, 60 + 9000 * np.exp(-step / 200 + noise[step - 1] / 10)))
        if step % 500 == 0:
            lines.append(heldout(step, 70 + 9000 * np.exp(-step / 200)))
    figure = drawn(lines, "small_$news_银行")
    top, bottom = figure.axes
    assert top.get_title() == "small_$news_银行"
    assert names(figure) == ["training, forward", "training, backward", "held-out, forward", "held-out, backward"]
    assert {"100", "1,000"} <= set(tick_labels(top.yaxis))
    assert not any("^" in label or "e" in label for label in tick_labels(top.yaxis))
    assert "1M" in tick_labels(bottom.xaxis)
    assert (top.get_ylabel(), bottom.get_ylabel(), bottom.get_xlabel()) == (
        "perplexity",
        "learning\nrate",
        "tokens seen",
    )
    raw, forward = top.lines[:2]
    assert raw.get_alpha() < 0.5
    assert np.std(np.diff(np.log(forward.get_ydata()))) < 0.3 * np.std(np.diff(np.log(raw.get_ydata())))
    styles = [line.get_linestyle() for line in top.lines[1:]]
    assert styles == ["-", "--", "-", "--"]


@pytest.mark.parametrize("count", [1, 12])
def test_few_points_have_dots_and_no_smoothing(drawn, count):
    figure = drawn([training(step, 100.0 + step) for step in range(1, count + 1)])
    assert names(figure) == ["training, forward", "training, backward"]
    for line in figure.axes[0].lines:
        assert line.get_marker() == "o"
        np.testing.assert_allclose(line.get_ydata(), 100 + np.arange(1, count + 1))
    assert len(tick_labels(figure.axes[0].yaxis)) >= 4


def test_gaps_stay_gaps(drawn):
    lines = [training(step, None if 40 <= step < 60 else 100.0) for step in range(100)]
    forward = drawn(lines).axes[0].lines[1].get_ydata()
    assert np.isnan(forward).tolist() == [40 <= step < 60 for step in range(100)]
    np.testing.assert_allclose(forward[~np.isnan(forward)], 100)


def test_heldout_lines_alone_and_events(drawn):
    figure = drawn([{"step": 0, "event": "started"}, heldout(10, 90.0), heldout(20, 80.0)])
    assert names(figure) == ["held-out, forward", "held-out, backward"]
    assert len(figure.axes) == 1
    assert figure.axes[0].get_legend().get_texts()[0].get_text().startswith("80.00 ")


def test_one_direction(drawn):
    lines = [{"step": step, "tokens": step, "perplexity": 50.0, "learning_rate": 0.0} for step in range(50)]
    assert names(drawn(lines)) == ["training"]


def test_a_run_that_measured_nothing(tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra plot")
    for lines in ([], [{"step": 1, "tokens": 1, "perplexity": None}], [{"step": 1, "event": "stopped"}]):
        with MetricsLog(tmp_path / "m") as log:
            for line in lines:
                log.write(line)
        with pytest.raises(ElmoError, match="has no perplexity to draw"):
            draw_curve(tmp_path / "m", tmp_path / "curve.png")
        assert not (tmp_path / "curve.png").exists()


def test_pyplot_is_left_alone(drawn):
    drawn([training(1, 5.0)])
    if "matplotlib.pyplot" in sys.modules:
        assert not sys.modules["matplotlib.pyplot"].get_fignums()


@pytest.mark.parametrize(
    ("low", "high"), [(50, 12_000), (99, 101), (1.01, 1.02), (1, 1e9), (80, 92), (950, 1050), (3, 40), (0.9, 1.1)]
)
def test_ticks_are_neither_few_nor_many(low, high):
    pytest.importorskip("matplotlib", reason="needs the extra plot")
    ticks = curve._ticks(low, high)
    assert 3 <= len(ticks) <= 10
    assert all(low <= tick <= high for tick in ticks)
    assert len({f"{tick:,.6g}" for tick in ticks}) == len(ticks)


def test_without_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"needs the package matplotlib: pip install 'elmokit\[plot\]'"):
        draw_curve(tmp_path / "m", tmp_path / "curve.png")

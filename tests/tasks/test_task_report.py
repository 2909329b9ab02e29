"""The report of a task: whole files, readable tables, pictures where they can be drawn."""

import json
import struct
import sys

import numpy as np
import pytest

from elmokit.errors import ElmoError, MissingExtraError
from elmokit.tasks import report as module
from elmokit.tasks.pair import score_numbers
from elmokit.tasks.report import (
    TaskReport,
    comparison_table,
    draw_confusion,
    draw_learning,
    draw_mixes,
    most_frequent,
    write_report,
)
from elmokit.tasks.schemes import Scheme
from elmokit.tasks.scores import score_labels
from elmokit.tasks.tag import score_tags

HISTORY = [{"epoch": n, "loss": 1 / n, "score": 1 - 1 / n, "seconds": 2.5} for n in range(1, 5)]
MIXES = [([0.2, 0.5, 0.3], 1.25)]
SCORES = score_labels(["a|b", "c_d", "c_d"], ["a|b", "a|b", "c_d"], ["a|b", "c_d"])


def report(folder, **changes):
    arguments = {
        "title": "sentiment", "scores": SCORES, "history": HISTORY, "mixes": MIXES, "facts": {"model": "en_small"},
        **changes,
    }  # fmt: skip
    note = write_report(folder, TaskReport(**arguments))
    return note, {path.name for path in folder.iterdir()}


@pytest.fixture
def figures(monkeypatch):
    """The figures that became files."""
    pytest.importorskip("matplotlib", reason="needs the extra plot")
    from matplotlib.figure import Figure

    made = []
    plain = Figure.savefig

    def savefig(figure, *arguments, **options):
        made.append(figure)
        plain(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", savefig)
    return made


def check_png(path):
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", data[16:24])


def test_a_whole_report(tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra plot")
    other = score_labels(["a|b", "c_d", "c_d"], ["c_d", "a|b", "c_d"], ["a|b", "c_d"])
    note, names = report(
        tmp_path / "new" / "report",
        facts={"model": "en_small", "command": "elmo task train x.tsv"},
        comparison=[("ELMo", SCORES), ("layer 0", other)],
    )
    folder = tmp_path / "new" / "report"
    assert note is None
    assert names == {"scores.json", "report.md", "confusion.png", "mix.png", "curve.png"}
    text = (folder / "report.md").read_text(encoding="utf-8")
    for part in (
        "# sentiment",
        "**accuracy 0.6667**",
        "- model: en\\_small",
        "```bash\nelmo task train x.tsv\n```",
        "| a\\|b | 1 | 0.5000 | 1.0000 | 0.6667 | 1 | 2 |",
        "| c\\_d | a\\|b | 1 |",
        "| layer 0 | 0.3333 | 0.2500 | 50.0% |",
        "| the mix | 0.2000 | 0.5000 | 0.3000 | 1.2500 |",
        "| 2 | 0.5000 | 0.5000 | 2.5000 |",
    ):
        assert part in text
    for name in ("confusion.png", "mix.png", "curve.png"):
        assert f"]({name})" in text
        check_png(folder / name)
    stored = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    assert stored["scores"] == json.loads(json.dumps(SCORES.to_dict()))
    assert stored["mixes"] == [{"weights": [0.2, 0.5, 0.3], "gamma": 1.25}]
    assert stored["history"] == HISTORY
    assert stored["comparison"][1]["name"] == "layer 0"
    assert stored["facts"]["model"] == "en_small"


def test_a_second_report_leaves_nothing_of_the_first(tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra plot")
    report(tmp_path)
    (tmp_path / "model.safetensors").touch()
    _, names = report(tmp_path, scores=score_numbers([1, 2, 3], [1, 2, 4]), history=[], mixes=[], facts={})
    assert names == {"scores.json", "report.md", "model.safetensors"}
    text = (tmp_path / "report.md").read_text()
    assert "Pearson" in text
    assert ".png" not in text


def test_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    note, names = report(tmp_path)
    assert names == {"scores.json", "report.md"}
    assert "pip install 'elmokit[plot]'" in note
    text = (tmp_path / "report.md").read_text()
    assert note in text
    assert ".png" not in text
    with pytest.raises(MissingExtraError, match="a confusion picture needs the package matplotlib"):
        draw_confusion(tmp_path / "a.png", ["a"], [[1]])


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ElmoError, match="cannot be written"):
        write_report(tmp_path / "file", TaskReport(title="t", scores=SCORES))


def test_comparison_table():
    better = score_labels(list("aabb"), list("aabb"), list("ab"))
    worse = score_labels(list("aabb"), list("aaba"), list("ab"))
    lines = comparison_table([("ELMo", worse), ("没有", worse), ("all right", better)])
    assert lines[0].split() == ["model", "accuracy", "macro-F1", "errors", "the", "first", "avoids"]
    assert lines[1].split() == ["ELMo", "0.7500", "0.7333"]
    assert lines[2].split() == ["没有", "0.7500", "0.7333", "0.0%"]
    assert lines[3].split() == ["all", "right", "1.0000", "1.0000", "–"]
    assert comparison_table([("ELMo", better), ("none", worse)])[2].endswith("100.0%")
    numbers = score_numbers([1, 2], [1, 2])
    assert "errors" not in comparison_table([("a", numbers), ("b", numbers)])[0]


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_confusion_picture(tmp_path, figures):
    draw_confusion(tmp_path / "a.png", ["a$b", "b", "c"], [[8, 2, 0], [0, 12_345, 0], [0, 0, 0]], "a title")
    check_png(tmp_path / "a.png")
    axes = figures[0].axes[0]
    assert texts(axes) == ["8", "2", "0", "0", "12.3k", "0", "0", "0", "0"]
    assert [text.get_color() for text in axes.texts][:2] == ["white", "black"]
    np.testing.assert_allclose(axes.images[0].get_array(), [[0.8, 0.2, 0], [0, 1, 0], [0, 0, 0]])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a$b", "b", "c"]
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("a title", "predicted", "gold")


def overlapping(boxes):
    return any(one.overlaps(two) for number, one in enumerate(boxes) for two in boxes[:number])


@pytest.mark.parametrize("count", [2, 12, 13, 40])
def test_nothing_overlaps_in_a_confusion_picture(tmp_path, figures, count):
    names = [f"a rather long name of class {n}"[:30] for n in range(count)]
    counts = np.zeros((count, count), dtype=int)
    counts[:2] = 9999  # two rows show it as well as all
    draw_confusion(tmp_path / "a.png", names, counts)
    figure = figures[0]
    axes = figure.axes[0]
    renderer = figure.canvas.get_renderer()
    first_rows = axes.texts[: 2 * count]
    assert not overlapping([text.get_window_extent(renderer) for text in first_rows])
    for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
        boxes = [label.get_window_extent(renderer) for label in labels]
        assert not overlapping(boxes)
        assert all(figure.bbox.contains(box.x0, box.y0) and figure.bbox.contains(box.x1, box.y1) for box in boxes)


def test_many_classes(tmp_path, figures):
    names = [f"c{n}" for n in range(60)]
    counts = np.diag(np.arange(60)) + 1
    shown, matrix = most_frequent(names, counts)
    assert shown == [f"c{n}" for n in range(21, 60)] + [module.OTHERS]
    assert matrix.sum() == counts.sum()
    assert matrix[0, 0] == 22
    assert matrix[-1, -1] == 21 * 21 + sum(range(21))
    draw_confusion(tmp_path / "a.png", names, np.diag(np.arange(60)))
    assert len(figures[0].axes[0].get_yticklabels()) == 40


def test_names_that_no_font_has_are_numbered(tmp_path, figures, monkeypatch):
    monkeypatch.setattr(module, "drawable", str.isascii)
    draw_confusion(tmp_path / "a.png", ["sport", "体育", "財経"], np.eye(3, dtype=int))
    assert [label.get_text() for label in figures[0].axes[0].get_yticklabels()] == ["sport", "class 2", "class 3"]


def test_long_names_stay_different(tmp_path, figures):
    names = ["a very long name of class 1 in this file", "a very long name of class 2 in this file", "b" * 30, "c"]
    draw_confusion(tmp_path / "a.png", names, np.eye(4, dtype=int))
    assert [label.get_text() for label in figures[0].axes[0].get_yticklabels()] == [
        "class 1", "class 2", "b" * 23 + "…", "c",
    ]  # fmt: skip
    names = [f"a very long class name for topic {n}" for n in range(2)]
    draw_confusion(tmp_path / "a.png", names, np.eye(2, dtype=int))
    assert [label.get_text() for label in figures[1].axes[0].get_yticklabels()] == [
        "a very long… for topic 0", "a very long… for topic 1",
    ]  # fmt: skip


def test_mix_picture(tmp_path, figures):
    draw_mixes(tmp_path / "a.png", [([0.2, 0.5, 0.3], 1.25), ([0.1, 0.1, 0.8], 0.5)])
    check_png(tmp_path / "a.png")
    first, second = figures[0].axes
    assert [bar.get_height() for bar in first.patches] == [0.2, 0.5, 0.3]
    assert (first.get_title(), second.get_title()) == ("input: γ = 1.250", "output: γ = 0.500")
    assert [label.get_text() for label in second.get_xticklabels()] == ["layer 0", "layer 1", "layer 2"]
    assert texts(second) == ["0.100", "0.100", "0.800"]
    draw_mixes(tmp_path / "b.png", [([1.0], 1.0)])
    assert figures[1].axes[0].get_title() == "the mix: γ = 1.000"


def test_learning_curve(tmp_path, figures):
    draw_learning(tmp_path / "a.png", [*HISTORY, {"epoch": 5, "loss": 0.1, "score": 0.2}], "accuracy")
    check_png(tmp_path / "a.png")
    score, loss = figures[0].axes
    assert (score.get_ylabel(), loss.get_ylabel(), loss.get_xlabel()) == ("dev accuracy", "training loss", "epoch")
    assert score.get_legend().get_texts()[0].get_text() == "best: 0.7500 in epoch 4"
    assert list(loss.lines[0].get_ydata()) == [1, 1 / 2, 1 / 3, 1 / 4, 0.1]
    assert score.lines[0].get_marker() != loss.lines[0].get_marker()
    nothing_found = [{"epoch": n, "loss": 1 / n, "score": 0.0} for n in (1, 2, 3)]
    draw_learning(tmp_path / "b.png", nothing_found, "entity F1", best_epoch=3)
    assert figures[1].axes[0].get_legend().get_texts()[0].get_text() == "best: 0.0000 in epoch 3"


def test_a_history_of_one_epoch(tmp_path, figures):
    draw_learning(tmp_path / "a.png", [{"epoch": 1, "loss": 0.5, "score": 0.5}], "F1")
    assert [axes.get_ylabel() for axes in figures[0].axes] == ["dev F1", "training loss"]


def test_pyplot_is_left_alone(tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra plot")
    tags = score_tags([["B-X", "O"]], [["B-X", "O"]], Scheme("BIO"))
    report(tmp_path, scores=tags)
    if "matplotlib.pyplot" in sys.modules:
        assert not sys.modules["matplotlib.pyplot"].get_fignums()

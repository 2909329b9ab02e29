"""The picture and the table of several runs, from metrics made here."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from elmokit import BiLM, ElmoError
from elmokit.pretrain.metrics import MetricsLog
from support.tiny_models import tiny_config

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import training_curves  # noqa: E402

sys.path.remove(str(BENCHMARKS))

pytest.importorskip("matplotlib", reason="needs the extra plot")


def write_run(folder: Path, perplexities, *, rows: int = 100, seconds: float = 2.0) -> Path:
    folder.mkdir()
    with MetricsLog(folder / "metrics.jsonl") as log:
        log.write({"step": 0, "event": "started"})
        for number, value in enumerate(perplexities, 1):
            where = {"step": 10 * number, "tokens": 10 * rows * number, "seconds": seconds * number}
            log.write({**where, "perplexity": 9.0, "learning_rate": 0.1})
            log.write({**where, "heldout_perplexity": value, "heldout_forward": value, "heldout_backward": value})
    return folder


def test_lines_and_table(tmp_path, shown, capsys):
    first = write_run(tmp_path / "first", [900.0, 300.0, 120.5])
    (first / "config.json").write_text(json.dumps({"model": tiny_config().to_dict()}))
    second = write_run(tmp_path / "second", [800.0, None, 150.0, 99.123], rows=1000, seconds=0.5)
    output = tmp_path / "c.png"
    training_curves.main([str(first), f"wide | $x=y$={second}/metrics.jsonl", "--output", str(output)])
    assert output.read_bytes().startswith(b"\x89PNG")
    [figure] = shown
    over_tokens, over_seconds = figure.axes
    np.testing.assert_array_equal(over_tokens.lines[0].get_xydata(), [[1000, 900], [2000, 300], [3000, 120.5]])
    np.testing.assert_array_equal(over_tokens.lines[1].get_xydata(), [[10_000, 800], [30_000, 150], [40_000, 99.123]])
    np.testing.assert_array_equal(over_seconds.lines[1].get_xdata(), [0.5, 1.5, 2])
    assert over_tokens.get_yscale() == over_seconds.get_yscale() == "log"
    legend = [text.get_text() for text in over_seconds.get_legend().get_texts()]
    assert legend == ["120.5  first", "99.12  wide | $x=y$"]
    parameters = sum(parameter.numel() for parameter in BiLM(tiny_config()).parameters())
    head, rule, *rows = capsys.readouterr().out.splitlines()
    assert head == "| name | parameters | updates | tokens | seconds | tokens/s | held-out perplexity |"
    assert rule.count("---") == 7
    assert rows == [
        f"| first | {parameters:,} | 30 | 3,000 | 6 | 500 | 120.5 |",
        "| wide \\| $x=y$ |  | 40 | 40,000 | 2 | 20,000 | 99.12 |",
    ]


def test_a_folder_may_have_an_equals_sign(tmp_path):
    run = write_run(tmp_path / "rate=2", [5.0])
    assert training_curves.read_run(str(run)).name == "rate=2"
    assert training_curves.read_run(f"a=b={run}").name == "a=b"


def test_mistakes(tmp_path):
    run, output = write_run(tmp_path / "run", [5.0]), ("--output", str(tmp_path / "c.png"))
    with pytest.raises(ElmoError, match="cannot be read"):
        training_curves.main([str(tmp_path / "none"), *output])
    with pytest.raises(ElmoError, match="must have a held-out perplexity"):
        training_curves.main([str(run), str(write_run(tmp_path / "empty", [])), *output])
    with pytest.raises(ElmoError, match="must have a masked perplexity"):
        training_curves.main([str(run), "--masked", *output])
    with pytest.raises(ElmoError, match="at most 8 runs"):
        training_curves.main([*[str(run)] * 9, *output])
    with pytest.raises(ElmoError, match="must end in"):
        training_curves.main([str(run), "--output", str(tmp_path / "c.txt")])
    (run / "config.json").write_text("{}")
    with pytest.raises(ElmoError, match=r"must be the config\.json of a model"):
        training_curves.main([str(run), *output])
    assert not (tmp_path / "c.png").exists()

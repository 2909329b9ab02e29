"""What `elmo probe` prints and writes."""

import json
from functools import partial

import pytest

from elmokit import ElmoError
from elmokit.analyse.probes.pos import LinearOptions
from elmokit.analyse.probes.wsd import WsdResult, WsdScore
from elmokit.cli.probe import ProbePosCommand, ProbeWicCommand, ProbeWsdCommand, wsd_lines


@pytest.fixture(autouse=True)
def _few_updates(monkeypatch):
    monkeypatch.setattr("elmokit.analyse.probes.pos.LinearOptions", partial(LinearOptions, least_updates=20))


@pytest.fixture
def files(tmp_path):
    """A little of each probe's data."""
    (tmp_path / "train.conll").write_text("the D\nbank N\n\na D\nriver N\n\n" * 5)
    (tmp_path / "dev.conll").write_text("the D\nriver N\n")
    wic = "label\tindices\tsentence1\tsentence2\nT\t0-0\tbank of\tbank of\nF\t0-1\tbank of\tthe bank\n"
    (tmp_path / "wic.tsv").write_text(wic)
    senses = [[0, 1, "bank", "NN", "bank%1:14:00::", "1"]]
    (tmp_path / "semcor.jsonl").write_text(json.dumps({"tokens": ["bank", "money"], "senses": senses}) + "\n")
    instances = [[0, "d0", "bank", "NOUN", ["bank%1:14:00::"]]]
    (tmp_path / "eval.jsonl").write_text(json.dumps({"tokens": ["bank"], "instances": instances}) + "\n")
    return tmp_path


def test_pos(files, model_folder, capsys):
    output = files / "pos.json"
    request = {"train": files / "train.conll", "dev": files / "dev.conll", "output": output, "seeds": 2}
    ProbePosCommand(model=str(model_folder), **request).run()
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "accuracy of 2 tags, 20 tokens to train, 2 to measure"
    assert [line[:7] for line in shown[1:4]] == ["layer 0", "layer 1", "layer 2"]
    assert shown[4].startswith("mean of the layers")
    assert shown[5].startswith("learned mix of the layers")
    assert shown[6].split() == ["most", "frequent", "tag", "of", "the", "word", "100.00%"]
    figures = json.loads(output.read_text())
    assert set(figures["accuracy"]) == {"0", "1", "2", "mean", "mix"}
    assert len(figures["runs"]["0"]) == 2


def test_wsd(files, model_folder, capsys):
    ProbeWsdCommand(model=str(model_folder), train=files / "semcor.jsonl", dev=files / "eval.jsonl").run()
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "F1 over 1 word; the training text lacks the lemma of 0"
    assert shown[2].split() == ["layer", "0", "100.0%", "100.0%", "100.0%"]
    assert shown[-1].split() == ["most", "frequent", "sense", "100.0%", "100.0%"]


def test_words_without_an_answer_are_reported():
    score = WsdScore(0.5, 0.4)
    result = WsdResult({"0": score}, {"0": score}, score, 0.55, words=10, seen=7, answered=9)
    shown = wsd_lines(result)
    assert shown[0].endswith("the training text lacks the lemma of 3, WordNet's first sense answers 2 of these")
    assert shown[-1].split() == ["first", "sense", "of", "WordNet", "55.0%"]
    result = WsdResult({"0": score}, {"0": score}, score, None, words=10, seen=7, answered=7)
    assert wsd_lines(result)[0].endswith("lacks the lemma of 3, no WordNet answers for these")


def test_wic(files, model_folder, capsys):
    ProbeWicCommand(model=str(model_folder), train=files / "wic.tsv", dev=files / "wic.tsv", limit=2).run()
    shown = capsys.readouterr().out.splitlines()
    assert len({len(line) for line in shown[2:6]}) == 1, "the columns are aligned"
    assert shown[4].split() == ["layer", "2", "100.00%", "100.00%", "100.00%"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"limit": 0}, "limit must be at least 1, got 0"),
        ({"output": "nowhere/figures.json"}, "output must be a file in a folder that exists"),
        ({"output": "wic.tsv"}, "must not be a file that is read"),
    ],
)
def test_mistakes_show_before_the_model_is_loaded(files, changes, message):
    if "output" in changes:
        changes = {"output": files / changes["output"]}
    data = {"model": "no-model", "train": files / "wic.tsv", "dev": files / "wic.tsv"}
    with pytest.raises(ElmoError, match=message):
        ProbeWicCommand(**data, **changes).run()

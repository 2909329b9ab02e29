"""The examples run on the data they make themselves; what they print is looked at by people."""

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

from elmokit import Elmo

EXAMPLES = Path(__file__).parent.parent / "examples"
SHARES = re.compile(r"mix of the layers ([\d. ]+), gamma")


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Run an example as a user does, and hand out what it printed."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path))
    threads = torch.get_num_threads()

    def go(name: str, *arguments: str) -> str:
        path = str(EXAMPLES / f"{name}.py")
        monkeypatch.setattr(sys, "argv", [path, *arguments])
        with torch.random.fork_rng():
            runpy.run_path(path, run_name="__main__")
        return capsys.readouterr().out

    yield go
    torch.set_num_threads(threads)
    sys.modules.pop("start", None)


@pytest.fixture
def quick(run, monkeypatch):
    """A tiny model that is hardly trained, where no result is looked at."""
    import start

    monkeypatch.setitem(start.RECIPE, "steps", 5)


def test_the_demo_shows_a_word_in_context(run, make_elmo, monkeypatch):
    monkeypatch.setattr(Elmo, "load", lambda **_: make_elmo(segment="english"))
    out = run("demo")
    assert "every cosine is 1.00" in out
    assert len(re.findall(r"^  [1-6]  [01]\.\d\d  .* bank ", out, re.MULTILINE)) == 6


def test_the_demo_separates_two_senses(run):
    out = run("demo")
    same = re.search(r"^The same sense: ([\d.]+) to", out, re.MULTILINE)[1]
    other = re.search(r"^Different senses: [\d.]+ to ([\d.]+)\.$", out, re.MULTILINE)[1]
    assert float(same) > float(other)
    nearest = re.findall(r"^  [1-6]  0\.\d\d  (.*)$", out, re.MULTILINE)
    money = [bool(re.search(r"million|borrowed|lends|dollars|loan|savings", sentence)) for sentence in nearest]
    assert money == [True] * 3 + [False] * 3


def test_sentiment_trains_the_mix_and_leaves_the_bilm(run, quick):
    out = run("sentiment_lstm", "--epochs", "2")
    assert re.search(r"parameters: [\d,]+ frozen \(biLM\), [\d,]+ trained", out)
    first, second = SHARES.findall(out)
    assert first != second
    assert len(set(second.split())) > 1


def test_entities_are_found_by_their_context(run):
    out = run("ner_conll")
    assert float(re.search(r"^entity F1 +([\d.]+)$", out, re.MULTILINE)[1]) > 0.9
    assert re.search(r"PER  Jordan, tokens 1 to 1", out)
    assert re.search(r"LOC  Jordan, tokens 3 to 3", out)


def test_chinese_headlines_get_their_topic(run):
    out = run("chinese_news", "--epochs", "3")
    assert re.search(r"^tokenised by chars: . \| ", out, re.MULTILINE)
    assert float(re.search(r"^accuracy +([\d.]+)$", out, re.MULTILINE)[1]) > 0.8
    assert re.search(r"^央行突然宣布降息 财经 ", out, re.MULTILINE)


@pytest.mark.slow
def test_chinese_headlines_by_word(run):
    pytest.importorskip("jieba")
    out = run("chinese_news", "--segment", "jieba", "--epochs", "3")
    assert re.search(r"^tokenised by jieba: \w{2,} \| ", out, re.MULTILINE)
    assert float(re.search(r"^accuracy +([\d.]+)$", out, re.MULTILINE)[1]) > 0.8


def test_two_mixes_learn_apart(run, quick):
    out = run("two_mixes", "--epochs", "1")
    assert re.search(r"epoch 1: [01]\.\d{3} of the answers are right", out)
    at_input, at_output = SHARES.findall(out)
    assert at_input != at_output


def test_a_pipeline_is_searched(run):
    pytest.importorskip("sklearn")
    out = run("sklearn_pipeline")
    assert len(re.findall(r"^[01]\.\d{3}  classifier__C .* elmo__layer .* elmo__pool", out, re.MULTILINE)) == 8
    assert float(re.search(r"accuracy +([\d.]+)", out)[1]) > 0.8


def test_files_take_the_place_of_made_up_data(run, tmp_path, model_folder):
    lines = [f"{label}\tThe film was {word} ." for label, word in [("good", "fine"), ("bad", "poor")] * 4]
    (tmp_path / "train.tsv").write_text("\n".join(lines), encoding="utf-8")
    files = [str(tmp_path / "train.tsv")] * 2
    assert "epoch 1: accuracy " in run("sentiment_lstm", str(model_folder), *files, "--limit", "6", "--epochs", "1")
    passage = '{"passage": "Leo lives in New York .", "question": "Where does Leo live ?", "answer": "New York"}\n'
    (tmp_path / "train.jsonl").write_text(3 * passage, encoding="utf-8")
    files = [str(tmp_path / "train.jsonl")] * 2
    assert "Where does Leo live ?" in run("two_mixes", str(model_folder), *files, "--epochs", "1")


def test_one_file_is_refused(run, capsys):
    with pytest.raises(SystemExit):
        run("ner_conll", "model", "train.conll")
    assert "TRAIN and DEV must be given together" in capsys.readouterr().err

"""`elmo similarity` and `elmo tokenize`."""

import json

import pytest

from elmokit import Elmo
from support.command_line import call, elmo

TEXTS = ["the bank of the river", "a bank raised money"]


def test_sentences_and_words(capsys, model_folder):
    model = Elmo.load(model_folder, device="cpu")
    for options, words in (((), None), (("--word", "bank"), "bank"), (("--position", 1, "--position", 4), (0, 3))):
        status, out, err = call(capsys, "similarity", *TEXTS, "--model", model_folder, *options)
        assert (status, err) == (0, "")
        expected = model.similarity(*TEXTS, words=words)
        assert [line.split()[:2] for line in out.splitlines()] == [
            ["1.00", f"{expected:.2f}"],
            [f"{expected:.2f}", "1.00"],
        ]
    assert "[the] bank of the river" in out
    assert "a bank raised [money]" in out


def test_json_and_layers(capsys, model_folder):
    arguments = ("--model", model_folder, "--word", "river", "--word", "bank", "--layer", 0, "--json")
    status, out, _ = call(capsys, "similarity", *TEXTS, *arguments)
    found = json.loads(out)
    assert status == 0
    assert found["tokens"] == [text.split() for text in TEXTS]
    assert found["positions"] == [5, 2]
    expected = Elmo.load(model_folder, device="cpu").similarity(*TEXTS, words=("river", "bank"), layer=0)
    assert found["similarity"][0][1] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (TEXTS[:1], "two sentences or more"),
        ([*TEXTS, "--word", "a", "--position", 1], "not both"),
        ([*TEXTS, "--word", "the"], "as tokens 1 and 4: use --position"),
        ([*TEXTS, "--word", "boat"], "--word must be one of the tokens"),
        ([*TEXTS, "--position", 9], "--position must be a number from 1 to 5"),
        ([*TEXTS, *["--word", "bank"] * 3], "--word must be given once or 2 times, got 3"),
        ([*TEXTS, "--layer", "all"], "--layer must be mix, top or 0 to"),
    ],
)
def test_mistakes(capsys, model_folder, arguments, fact):
    status, out, err = call(capsys, "similarity", *arguments, "--model", model_folder)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert fact in err


def test_tokens_as_the_model_reads_them(capsys, model_folder, tmp_path):
    (tmp_path / "in.txt").write_text("It's wet.\n\n", encoding="utf-8")
    given = ("tokenize", "--model", model_folder, "--segment", "english")
    assert call(capsys, *given, "It's wet.", "a") == (0, "It 's wet .\na\n", "")
    assert call(capsys, *given, "--input", tmp_path / "in.txt") == (0, "It 's wet .\n\n", "")
    assert elmo(*given, "-", stdin=b"It's\n").stdout == b"It 's\n"
    status, out, _ = call(capsys, *given, "It's", "--json")
    tokens = [{"text": "It", "start": 0, "end": 2}, {"text": "'s", "start": 2, "end": 4}]
    assert (status, json.loads(out)) == (0, {"text": "It's", "tokens": tokens})
    assert call(capsys, *given, "x", "--input", "y")[0] == 2

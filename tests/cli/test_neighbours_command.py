"""`elmo neighbours`: the nearest contexts on the screen, from an index that is built once."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from elmokit import Elmo, ElmoError
from elmokit.cli.neighbours import NeighboursCommand, find_word
from support.tiny_models import tiny_checkpoint

LINES = [
    "the bank of the river .",
    "the bank has money .",
    "the bank of the river .",
    "a Bank of money and a bank of a river .",
    "money , money , money .",
]


@pytest.fixture
def asked(tmp_path, monkeypatch, model_folder) -> NeighboursCommand:
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    corpus = (str(tmp_path / "text.txt"),)
    context = "the bank of the river ."
    return NeighboursCommand(word="bank", context=context, model=str(model_folder), corpus=corpus, device="cpu")


def test_lines(asked, capsys) -> None:
    asked.run()
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[0] == "1.000  the [bank] of the river ."
    assert len(lines) == 3, "the sentence that is there twice is shown once"
    assert "a Bank of money and a [bank] of a river ." in shown.out
    assert "built an index of bank: 4 occurrences in 4 sentences" in shown.err
    asked.run()
    again = capsys.readouterr()
    assert again.out == shown.out
    assert "built" not in again.err


def test_an_index_of_another_model_is_refused(asked, tmp_path, capsys) -> None:
    replace(asked, index=tmp_path / "index").run()
    expected = capsys.readouterr().out
    path = tmp_path / "index" / "index.json"
    described = json.loads(path.read_text())
    named = replace(asked, corpus=(), index=tmp_path / "index")
    named.run()
    assert capsys.readouterr().out == expected
    path.write_text(json.dumps({**described, "model": "0" * 32}))
    with pytest.raises(ElmoError, match="another model"):
        named.run()


def test_json(asked, capsys) -> None:
    replace(asked, json=True, k=1).run()
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {
        "similarity": pytest.approx(1, abs=0.005),
        "word": "bank",
        "position": 2,
        "tokens": LINES[0].split(),
    }


def test_json_escapes_what_turns_the_direction_of_writing(asked, capsys, tmp_path) -> None:
    (tmp_path / "text.txt").write_text("the bank \u202e of the naïve\x9b river\n", encoding="utf-8")
    replace(asked, json=True).run()
    shown = capsys.readouterr().out
    assert "\\u202e" in shown
    assert "naïve\\u009b" in shown
    assert json.loads(shown)["tokens"] == ["the", "bank", "\u202e", "of", "the", "naïve\x9b", "river"]


def test_on_a_terminal(asked, capsys, monkeypatch) -> None:
    monkeypatch.setattr("elmokit.cli.neighbours.terminal_width", lambda: 40)
    asked.run()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert all("\033[1mbank\033[0m" in line for line in lines)
    assert all(len(line) - len("\033[1m\033[0m") <= 40 for line in lines)


def test_any_word_and_case(asked, capsys) -> None:
    replace(asked, any_word=True, json=True, k=4).run()
    shown = capsys.readouterr()
    assert "built an index of all words" in shown.err
    assert len({json.loads(line)["word"] for line in shown.out.splitlines()}) > 1
    asked.run()
    assert "built" not in capsys.readouterr().err, "the index of all words serves for one"
    replace(asked, word="BANK", ignore_case=True, json=True).run()
    assert {json.loads(line)["word"] for line in capsys.readouterr().out.splitlines()} <= {"bank", "Bank"}


def test_a_named_index(asked, capsys, tmp_path) -> None:
    replace(asked, index=tmp_path / "my-index").run()
    first = capsys.readouterr()
    assert "built an index of all words" in first.err
    without_text = replace(asked, corpus=(), index=tmp_path / "my-index")
    without_text.run()
    assert capsys.readouterr().out == first.out
    with pytest.raises(ElmoError, match=r"layer must be 2, .* got 1") as refused:
        replace(without_text, layer="1").run()
    assert str(refused.value).count("layer") == 1, "the command line shows --layer in its place"
    Elmo(tiny_checkpoint(seed=1)).save(tmp_path / "other")
    with pytest.raises(ElmoError, match="was built with another model"):
        replace(without_text, model=str(tmp_path / "other")).run()


def test_layers_have_indexes_of_their_own(asked, capsys) -> None:
    outputs = set()
    for layer in ("0", "1", "top", "mix"):
        replace(asked, json=True, layer=layer).run()
        outputs.add(capsys.readouterr().out)
    assert len(outputs) == 4
    replace(asked, layer="2").run()
    assert "built" not in capsys.readouterr().err, "the top layer by its number"
    for wrong in ("3", "all", "x"):
        with pytest.raises(ElmoError, match=f"layer must be mix, top or a number from 0 to 2, got '{wrong}'"):
            replace(asked, layer=wrong).run()


def test_raw_text_is_read_as_asked(asked, capsys, tmp_path) -> None:
    (tmp_path / "raw.txt").write_text("The bank (of the river). Money isn't a bank!\n", encoding="utf-8")
    corpus = (str(tmp_path / "raw.txt"),)
    replace(asked, context="A bank.", corpus=corpus, segment="english", split="line").run()
    out = capsys.readouterr().out
    assert "The [bank] ( of the river ) ." in out
    assert "Money is n't a [bank] !" in out


def test_spellings_that_are_not_searched_are_reported(asked, caplog, tmp_path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(
        "the bank\nThe bank\nBANK of a Bank\na bank , Bank\n" + 9 * "the bank of the banks\n", encoding="utf-8"
    )
    for word, context, found in (("Bank", "a Bank", "bank (12), BANK (1)"), ("bank", "a bank", None)):
        caplog.clear()
        replace(asked, word=word, context=context, corpus=(str(text),)).run()
        said = [record.getMessage() for record in caplog.records]
        assert said == (
            [f"not searched: {found}; to include other spellings, ignore upper and lower case"] if found else []
        )
    replace(asked, word="Bank", context="a Bank", corpus=(str(text),), ignore_case=True).run()
    assert not caplog.records


def test_which_of_several() -> None:
    tokens = ["the", "bank", "of", "a", "bank"]
    assert find_word("bank", tokens, 5) == 4
    assert find_word("The", tokens, None, ignore_case=True) == 0
    for arguments, said in (
        (("river", tokens, None), "must have 'river' among its tokens, which are: 'the' 'bank' 'of' 'a' 'bank'"),
        (("Bank", tokens, None), "give --ignore-case"),
        (("bank", tokens, None), "has 'bank' 2 times, as tokens 2, 5: choose with --position"),
        (("bank", tokens, 3), r"number of 'bank' among the tokens \(2, 5\), got 3"),
        (("bank", [], None), "which are: none"),
    ):
        with pytest.raises(ElmoError, match=said):
            find_word(*arguments)


def test_mistakes(asked) -> None:
    with pytest.raises(ElmoError, match="corpus must name") as refused:
        replace(asked, corpus=()).run()
    assert str(refused.value).count("index") == 1, "the command line shows --index in its place"
    with pytest.raises(ElmoError, match="zebra does not occur"):
        replace(asked, word="zebra", context="a zebra").run()
    with pytest.raises(ElmoError, match=r"none.txt was not found"):
        replace(asked, corpus=("none.txt",)).run()

"""`elmo neighbours`: the nearest contexts on the screen, from an index that is built once."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from elmokit import Elmo, ElmoError
from elmokit.analyse.index_cache import IndexOptions
from elmokit.commands.index_display import terminal_width
from elmokit.commands.neighbours import NeighboursRequest, find_word, run_neighbours
from elmokit.fingerprint import former_fingerprint
from tiny_models import tiny_checkpoint

LINES = [
    "the bank of the river .",
    "the bank has money .",
    "the bank of the river .",
    "a Bank of money and a bank of a river .",
    "money , money , money .",
]


@pytest.fixture
def request_(tmp_path, monkeypatch, model_folder) -> NeighboursRequest:
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    where = IndexOptions(corpus=[str(tmp_path / "text.txt")])
    return NeighboursRequest("bank", "the bank of the river .", model=str(model_folder), where=where, device="cpu")


def test_lines(request_, capsys) -> None:
    run_neighbours(request_)
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[0] == "1.000  the [bank] of the river ."
    assert len(lines) == 3, "the sentence that is there twice is shown once"
    assert "a Bank of money and a [bank] of a river ." in shown.out
    assert "built an index of bank: 4 occurrences in 4 sentences" in shown.err
    run_neighbours(request_)
    again = capsys.readouterr()
    assert again.out == shown.out
    assert "built" not in again.err


def test_an_index_that_an_earlier_release_built_is_used(request_, model_folder, tmp_path, capsys) -> None:
    """It named the model by another digest."""
    run_neighbours(replace(request_, where=replace(request_.where, index=tmp_path / "index")))
    expected = capsys.readouterr().out
    path = tmp_path / "index" / "index.json"
    described = json.loads(path.read_text())
    named = replace(request_, where=IndexOptions(index=tmp_path / "index"))
    described["model"] = former_fingerprint(Elmo.load(model_folder, device="cpu").checkpoint())
    path.write_text(json.dumps(described))
    run_neighbours(named)
    assert capsys.readouterr().out == expected
    path.write_text(json.dumps({**described, "model": "0" * 32}))
    with pytest.raises(ElmoError, match="another model"):
        run_neighbours(named)


def test_json(request_, capsys) -> None:
    run_neighbours(replace(request_, json=True, k=1))
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {
        "similarity": pytest.approx(1, abs=0.005),
        "word": "bank",
        "position": 2,
        "tokens": LINES[0].split(),
    }


def test_on_a_terminal(request_, capsys, monkeypatch) -> None:
    monkeypatch.setattr("elmokit.commands.neighbours.terminal_width", lambda: 40)
    run_neighbours(request_)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert all("\033[1mbank\033[0m" in line for line in lines)
    assert all(len(line) - len("\033[1m\033[0m") <= 40 for line in lines)


def test_without_a_terminal_nothing_is_cut(capsys) -> None:
    assert terminal_width() is None


def test_any_word_and_case(request_, capsys) -> None:
    run_neighbours(replace(request_, any_word=True, json=True, k=4))
    shown = capsys.readouterr()
    assert "built an index of all words" in shown.err
    assert len({json.loads(line)["word"] for line in shown.out.splitlines()}) > 1
    run_neighbours(request_)
    assert "built" not in capsys.readouterr().err, "the index of all words serves for one"
    run_neighbours(replace(request_, word="BANK", ignore_case=True, json=True))
    assert {json.loads(line)["word"] for line in capsys.readouterr().out.splitlines()} <= {"bank", "Bank"}


def test_a_named_index(request_, capsys, tmp_path) -> None:
    where = replace(request_.where, index=tmp_path / "my-index")
    run_neighbours(replace(request_, where=where))
    first = capsys.readouterr()
    assert "built an index of all words" in first.err
    without_text = IndexOptions(index=tmp_path / "my-index")
    run_neighbours(replace(request_, where=without_text))
    assert capsys.readouterr().out == first.out
    with pytest.raises(ElmoError, match=r"layer must be 2, .* got 1"):
        run_neighbours(replace(request_, where=replace(without_text, layer="1")))
    Elmo(tiny_checkpoint(seed=1)).save(tmp_path / "other")
    with pytest.raises(ElmoError, match="was built with another model"):
        run_neighbours(replace(request_, model=str(tmp_path / "other"), where=without_text))


def test_layers_have_indexes_of_their_own(request_, capsys) -> None:
    outputs = set()
    for layer in ("0", "1", "top", "mix"):
        run_neighbours(replace(request_, json=True, where=replace(request_.where, layer=layer)))
        outputs.add(capsys.readouterr().out)
    assert len(outputs) == 4
    run_neighbours(replace(request_, where=replace(request_.where, layer="2")))
    assert "built" not in capsys.readouterr().err, "the top layer by its number"
    for wrong in ("3", "all", "x"):
        with pytest.raises(ElmoError, match=f"layer must be mix, top or a number from 0 to 2, got '{wrong}'"):
            run_neighbours(replace(request_, where=replace(request_.where, layer=wrong)))


def test_raw_text_is_read_as_asked(request_, capsys, tmp_path) -> None:
    (tmp_path / "raw.txt").write_text("The bank (of the river). Money isn't a bank!\n", encoding="utf-8")
    where = IndexOptions(corpus=[str(tmp_path / "raw.txt")], segment="english", split="line")
    run_neighbours(replace(request_, context="A bank.", where=where))
    out = capsys.readouterr().out
    assert "The [bank] ( of the river ) ." in out
    assert "Money is n't a [bank] !" in out


def test_which_of_several() -> None:
    tokens = ["the", "bank", "of", "a", "bank"]
    assert find_word("bank", tokens, 5) == 4
    assert find_word("The", tokens, None, ignore_case=True) == 0
    for arguments, said in (
        (("river", tokens, None), "must have 'river' among its tokens, which are: 'the' 'bank' 'of' 'a' 'bank'"),
        (("bank", tokens, None), "has 'bank' 2 times, as its tokens 2, 5: choose with --position"),
        (("bank", tokens, 3), r"number of 'bank' among the tokens \(2, 5\), got 3"),
        (("bank", [], None), "which are: none"),
    ):
        with pytest.raises(ElmoError, match=said):
            find_word(*arguments)


def test_mistakes(request_) -> None:
    with pytest.raises(ElmoError, match="corpus must name"):
        run_neighbours(replace(request_, where=IndexOptions()))
    with pytest.raises(ElmoError, match="zebra does not occur"):
        run_neighbours(replace(request_, word="zebra", context="a zebra"))
    with pytest.raises(ElmoError, match=r"none.txt was not found"):
        run_neighbours(replace(request_, where=IndexOptions(corpus=["none.txt"])))

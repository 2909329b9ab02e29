"""`elmo senses`: clusters on the screen, and their picture."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from elmokit import ElmoError
from elmokit.cli.senses import SensesCommand


@pytest.fixture
def asked(tmp_path, monkeypatch, model_folder) -> SensesCommand:
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))
    lines = [f"the bank of the river {'.' * (n % 9)}" if n % 2 else f"money {n} bank" for n in range(40)]
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    corpus = (str(tmp_path / "text.txt"),)
    return SensesCommand(word="bank", model=str(model_folder), corpus=corpus, device="cpu")


def test_clusters_with_examples(asked, capsys, tmp_path) -> None:
    replace(asked, clusters=2, examples=3, output=tmp_path / "bank.svg").run()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("bank: 40 occurrences in 2 clusters (silhouette 0.")
    assert sum("occurrences: " in line for line in lines) == 2
    examples = [line for line in lines if line.startswith("   ")]
    assert len(examples) == 6
    assert all("[bank]" in line for line in examples)
    assert len(set(examples)) == 6
    assert lines[-1] == f"wrote {tmp_path / 'bank.svg'}"
    assert (tmp_path / "bank.svg").stat().st_size > 1000


def test_a_cluster_without_typical_words(asked, capsys, tmp_path) -> None:
    (tmp_path / "text.txt").write_text("the bank of the\nof a bank\n" * 10, encoding="utf-8")
    replace(asked, clusters=2).run()
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.endswith("10 occurrences") for line in lines) == 2


def test_the_same_every_time(asked, capsys) -> None:
    outputs = set()
    for _ in range(2):
        asked.run()
        outputs.add(capsys.readouterr().out)
    assert len(outputs) == 1


def test_json(asked, capsys) -> None:
    replace(asked, clusters=2, json=True).run()
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["cluster"] for record in records] == [1, 2]
    assert sum(record["size"] for record in records) == 40
    assert all(example["tokens"][example["position"] - 1] == "bank" for example in records[0]["examples"])


def test_json_escapes_what_turns_the_direction_of_writing(asked, capsys, tmp_path) -> None:
    (tmp_path / "text.txt").write_text("the bank of\u202e money\n", encoding="utf-8")
    replace(asked, json=True).run()
    shown = capsys.readouterr().out
    assert "of\\u202e" in shown
    assert json.loads(shown)["examples"][0]["tokens"] == ["the", "bank", "of\u202e", "money"]


def test_mistakes(asked, tmp_path) -> None:
    for changes, said in (
        ({"output": tmp_path / "bank.gif"}, r"must end in .png, .svg, .pdf"),
        ({"output": tmp_path / "none" / "bank.png"}, "in a folder that exists"),
        ({"font": tmp_path / "a.ttf"}, "--font is for the picture"),
        ({"output": tmp_path / "bank.png", "font": tmp_path / "a.ttf"}, "font must be a file"),
        ({"output": tmp_path / "bank.png", "clusters": 9}, "at most 8 clusters, got 9"),
        ({"clusters": 50}, "from 1 to .*, got 50"),
        ({"word": "BANK"}, "BANK does not occur .*, but bank does: set ignore_case"),
        ({"model": str(tmp_path / "none")}, "none"),
    ):
        with pytest.raises(ElmoError, match=said):
            replace(asked, **changes).run()
    assert not list(tmp_path.glob("*.png"))


def test_an_index_of_words_of_several_characters(asked, make_elmo, capsys, tmp_path) -> None:
    elmo = make_elmo()
    elmo.text = {"segment": "chars"}
    elmo.save(tmp_path / "characters")
    (tmp_path / "text.txt").write_text("我在银行存钱。\n银行不开门。\n他行走。\n", encoding="utf-8")
    asked = replace(asked, word="银行", model=str(tmp_path / "characters"), index=tmp_path / "index")
    with pytest.raises(ElmoError, match="words") as raised:
        asked.run()
    assert "words" in raised.value.arguments  # the command has an option of this name
    replace(asked, index=tmp_path / "other", words=("银行", "行走")).run()
    assert capsys.readouterr().out.startswith("银行: 2 occurrences")

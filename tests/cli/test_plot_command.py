"""`elmo plot`: heat maps of two sentences and words in the plane."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elmokit import ElmoError
from elmokit.cli.plot import PlotSimilarityCommand, PlotWordsCommand


def test_similarity(tmp_path, model_folder, capsys) -> None:
    path = tmp_path / "map.png"
    texts = {"first": "the bank of $ 100", "second": "A river bank."}
    request = PlotSimilarityCommand(**texts, output=path, model=str(model_folder), device="cpu")
    request.run()
    assert path.read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out == f"wrote {path}\n"
    replace(request, segment="english", output=tmp_path / "map.pdf").run()
    assert (tmp_path / "map.pdf").exists()
    for changes, said in (
        ({"first": " "}, "the first sentence has no tokens"),
        ({"output": tmp_path / "map.jpg"}, "must end in"),
        ({"first": "a " * 61}, "1 to 60 tokens, got 61 and 3"),
    ):
        with pytest.raises(ElmoError, match=said):
            replace(request, **changes).run()


def test_words_in_sentences(tmp_path, model_folder) -> None:
    sentences = ("the bank of the river", "a bank has money", "Money is in the bank")
    request = PlotWordsCommand(
        words=("bank", "money"),
        output=tmp_path / "words.svg",
        model=str(model_folder),
        sentence=sentences,
        device="cpu",
    )
    request.run()
    assert (tmp_path / "words.svg").read_bytes().startswith(b"<?xml")
    with pytest.raises(ElmoError, match="'zebra' is not a token of any --sentence"):
        replace(request, words=["bank", "zebra"]).run()
    with pytest.raises(ElmoError, match="at most 8 words, got 9"):
        replace(request, words=list("abcdefghi")).run()
    with pytest.raises(ElmoError, match="not both"):
        replace(request, corpus=("text.txt",)).run()


def test_words_in_a_corpus(tmp_path, model_folder, monkeypatch, capsys) -> None:
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("the bank of a river\na bank has money\n" * 20, encoding="utf-8")
    request = PlotWordsCommand(
        words=("bank", "river"),
        output=tmp_path / "words.png",
        model=str(model_folder),
        corpus=(str(tmp_path / "text.txt"),),
        occurrences=3,
        device="cpu",
    )
    request.run()
    assert (tmp_path / "words.png").exists()
    assert "6 occurrences" in capsys.readouterr().err, "no more are encoded than are drawn"
    with pytest.raises(ElmoError, match="'zebra' does not occur in the corpus"):
        replace(request, words=["bank", "zebra"]).run()
    with pytest.raises(ElmoError, match="occurrences must be at least 1, got 0"):
        replace(request, occurrences=0).run()
    with pytest.raises(ElmoError, match="corpus must name"):
        replace(request, corpus=()).run()

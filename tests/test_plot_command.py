"""`elmo plot`: heat maps of two sentences and words in the plane."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elmokit import ElmoError
from elmokit.analyse.index_cache import IndexOptions
from elmokit.commands.plot import SimilarityRequest, WordsRequest, run_similarity, run_words


def test_similarity(tmp_path, model_folder, capsys) -> None:
    path = tmp_path / "map.png"
    request = SimilarityRequest("the bank of $ 100", "A river bank.", path, model=str(model_folder), device="cpu")
    run_similarity(request)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out == f"wrote {path}\n"
    run_similarity(replace(request, segment="english", output=tmp_path / "map.pdf"))
    assert (tmp_path / "map.pdf").exists()
    for changes, said in (
        ({"first": " "}, "one of those given has no tokens"),
        ({"output": tmp_path / "map.jpg"}, "must end in"),
        ({"first": "a " * 61}, "1 to 60 tokens, got 61 and 3"),
    ):
        with pytest.raises(ElmoError, match=said):
            run_similarity(replace(request, **changes))


def test_words_in_sentences(tmp_path, model_folder) -> None:
    sentences = ["the bank of the river", "a bank has money", "Money is in the bank"]
    request = WordsRequest(
        ["bank", "money"], tmp_path / "words.svg", model=str(model_folder), sentences=sentences, device="cpu"
    )
    run_words(request)
    assert (tmp_path / "words.svg").read_bytes().startswith(b"<?xml")
    with pytest.raises(ElmoError, match="'zebra' is not a token of any --sentence"):
        run_words(replace(request, words=["bank", "zebra"]))
    with pytest.raises(ElmoError, match="at most 8 words, got 9"):
        run_words(replace(request, words=list("abcdefghi")))
    with pytest.raises(ElmoError, match="not both"):
        run_words(replace(request, where=IndexOptions(corpus=["text.txt"])))


def test_words_in_a_corpus(tmp_path, model_folder, monkeypatch, capsys) -> None:
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("the bank of a river\na bank has money\n" * 20, encoding="utf-8")
    where = IndexOptions(corpus=[str(tmp_path / "text.txt")])
    request = WordsRequest(
        ["bank", "river"], tmp_path / "words.png", model=str(model_folder), where=where, occurrences=3, device="cpu"
    )
    run_words(request)
    assert (tmp_path / "words.png").exists()
    assert "6 occurrences" in capsys.readouterr().err, "no more are encoded than are drawn"
    with pytest.raises(ElmoError, match="'zebra' does not occur in the corpus"):
        run_words(replace(request, words=["bank", "zebra"]))
    with pytest.raises(ElmoError, match="--occurrences must be at least 1, got 0"):
        run_words(replace(request, occurrences=0))
    with pytest.raises(ElmoError, match="corpus must name"):
        run_words(replace(request, where=IndexOptions()))

"""Nearest contexts: those of the same kind come first, each sentence once."""

from __future__ import annotations

import pytest

from elmokit import ElmoError
from elmokit.analyse import neighbours
from elmokit.analyse.index_builder import build_index
from support.topic_model import TopicModel, prepared, sentences


def test_contexts_of_the_same_kind(index) -> None:
    found = neighbours(TopicModel(), index, ["a", "river", "bank"], 2, 20)
    assert len(found) == 20
    assert all(each.word == "bank" and "river" in each.tokens for each in found)
    cosines = [each.similarity for each in found]
    assert cosines == sorted(cosines, reverse=True)


def test_a_sentence_of_the_corpus_finds_itself(index) -> None:
    tokens = sentences()[17]
    first = neighbours(TopicModel(), index, tokens, tokens.index("bank"), 1)[0]
    assert list(first.tokens) == tokens
    assert first.similarity == pytest.approx(1, abs=0.002)


def test_any_word(index) -> None:
    found = neighbours(TopicModel(), index, ["a", "river", "bank"], 2, 30, any_word=True)
    assert len({each.word for each in found}) > 1
    assert {each.position for each in found} != {2}


def test_sentences_that_are_there_twice_come_once(tmp_path) -> None:
    rows = [["a", "river", "bank"]] * 50 + sentences(10)
    index = build_index(TopicModel(), prepared(tmp_path / "corpus", rows), tmp_path / "index")
    found = neighbours(TopicModel(), index, ["a", "river", "bank"], 2, 8)
    assert len(found) == 8
    assert len({each.tokens for each in found}) == 8
    assert len(neighbours(TopicModel(), index, ["a", "river", "bank"], 2, 99)) == 11, "all there are"


def test_mistakes(index, make_elmo) -> None:
    for arguments, said in (
        ((["a", "bank"], 2, 5), "position must be .* 2 tokens, got 2"),
        ((["a", "bank"], 1, 0), "k must be at least 1, got 0"),
        ((["a", "zebra"], 1, 5), "'zebra' is not in the index"),
        (("a bank", 0, 5), "must be a list, got the string 'a bank'"),
    ):
        with pytest.raises(ElmoError, match=said):
            neighbours(TopicModel(), index, *arguments)
    with pytest.raises(ElmoError, match="vectors of 16 numbers"):
        neighbours(make_elmo(), index, ["a", "bank"], 1)

"""Senses: the clusters are the topics, with sentences and words that belong to them."""

from __future__ import annotations

import pytest

from elmokit import ElmoError
from elmokit.analyse.index_builder import build_index
from elmokit.analyse.senses import find_senses
from support.topic_model import TopicModel, prepared, sentences


def test_topics_come_apart(index) -> None:
    senses = find_senses(index, "bank")
    assert len(senses.senses) == 2
    assert sum(sense.size for sense in senses.senses) == len(senses.rows) == 60
    assert senses.points.shape == (60, 2)
    topics = set()
    for number, sense in enumerate(senses.senses):
        (topic,) = {"river", "money"} & set(sense.examples[0].tokens)
        assert all(topic in index.occurrence(row).tokens for row in sense.rows)
        assert sense.typical[0] == topic
        assert sense.size == (senses.labels == number).sum()
        assert len(sense.examples) == 5
        topics.add(topic)
    assert topics == {"river", "money"}


def test_the_word_itself_and_marks_are_not_typical(index) -> None:
    for sense in find_senses(index, "bank", clusters=3).senses:
        assert not {"bank", ".", "the"} & set(sense.typical)


def test_one_cluster(tmp_path) -> None:
    rows = [f"deep river bank x{n} y{n} z{n} far off and long after a b c d e f g".split() for n in range(30)]
    index = build_index(TopicModel(), prepared(tmp_path / "corpus", rows), tmp_path / "index")
    senses = find_senses(index, "bank")
    assert len(senses.senses) == 1
    assert senses.silhouette == 0
    assert {"deep", "river"} <= set(senses.senses[0].typical)


def test_examples_are_distinct(tmp_path) -> None:
    rows = sentences(12) * 5
    index = build_index(TopicModel(), prepared(tmp_path / "corpus", rows), tmp_path / "index")
    for sense in find_senses(index, "bank", clusters=2, examples=6).senses:
        assert len({example.tokens for example in sense.examples}) == len(sense.examples) == 6
        assert sense.size == 30


def test_mistakes(index) -> None:
    with pytest.raises(ElmoError, match="'zebra' is not in the index"):
        find_senses(index, "zebra")
    with pytest.raises(ElmoError, match=r"from 1 to 60, .* got 61"):
        find_senses(index, "bank", clusters=61)


@pytest.mark.parametrize("function", [("the", "of", "and"), ("的", "了", "在"), ("der", "und", "mit")])
def test_typical_words_are_no_function_words(tmp_path, function) -> None:
    """They are as typical of a cluster here as the other words."""
    rows = []
    for number in range(60):
        near = ["river", "water", function[0]] if number % 2 else ["money", "war", function[1]]
        rows.append([*near, "bank", f"number{number}", function[2]])
    index = build_index(TopicModel(), prepared(tmp_path / "corpus", rows), tmp_path / "index")
    found = {word for sense in find_senses(index, "bank", 2).senses for word in sense.typical}
    assert not found & set(function)
    assert ("war" in found) == (function[0] != "der"), "a German function word and an English noun"

"""Rows: each indexed occurrence has one of its own, a word's are consecutive, and others are left out evenly."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit import ElmoError
from elmokit.analyse import choice as choice_module
from elmokit.analyse.choice import Choice, corpus_parts
from support.topic_model import prepared


def all_rows(corpus, choice: Choice) -> tuple[np.ndarray, np.ndarray]:
    stored = choice.counts(corpus)
    parts = list(corpus_parts(corpus, stored))
    assert sum(len(part.ends) for part in parts) == corpus.n_sentences
    assert all(part.ends[-1] == len(part.tokens) for part in parts)
    return np.concatenate([part.tokens for part in parts]), np.concatenate([part.rows for part in parts])


@given(
    sentences=st.lists(st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=9), min_size=1, max_size=30),
    most=st.integers(0, 6),
    least=st.integers(1, 4),
    at_once=st.integers(1, 20),
)
def test_rows_are_a_permutation(tmp_path_factory, sentences, most, least, at_once) -> None:
    corpus = prepared(tmp_path_factory.mktemp("corpus") / "corpus", sentences)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice_module, "_TOKENS_AT_ONCE", at_once)
        tokens, rows = all_rows(corpus, Choice(min_count=least, max_occurrences=most))
    assert (tokens == corpus.tokens).all()
    stored = rows[rows >= 0]
    assert sorted(stored.tolist()) == list(range(len(stored)))
    counts = Counter(token for sentence in sentences for token in sentence)
    for number in range(corpus.n_types):
        mine = rows[(tokens == number) & (rows >= 0)]
        count = counts[corpus.type_text(number)]
        wanted = 0 if count < least else min(count, most) if most else count
        assert len(mine) == wanted
        assert (np.diff(mine) == 1).all(), "side by side, in the order of the corpus"


def test_those_that_are_stored_are_spread_evenly(tmp_path) -> None:
    corpus = prepared(tmp_path / "corpus", [["bank"] * 10 for _ in range(100)])
    _, rows = all_rows(corpus, Choice(max_occurrences=10))
    places = np.flatnonzero(rows >= 0)
    assert np.diff(places).tolist() == [100] * 9


def test_words(tmp_path) -> None:
    corpus = prepared(tmp_path / "corpus", [["Bank", "bank", "BANK", "banks"]])
    for choice, wanted in ((Choice(("bank",)), 1), (Choice(("bank",), ignore_case=True), 3), (Choice(), 4)):
        assert choice.counts(corpus).sum() == wanted


def test_mistakes() -> None:
    for wrong in ({"words": ()}, {"words": ("",)}, {"words": "bank"}, {"min_count": 0}, {"max_occurrences": -1}):
        with pytest.raises(ElmoError, match=next(iter(wrong))):
            Choice(**wrong)

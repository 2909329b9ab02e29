"""Similarities of sentences and of words in them, and what a notebook shows."""

import numpy as np
import pytest

from elmokit import ElmoError
from elmokit.encode import SHOWN_SENTENCES, SHOWN_TOKENS, heat_maps

A, B = ["the bank of the river", "a bank"], ["money", "the bank", "a a"]


def cosine(one, other):
    return one @ other / np.linalg.norm(one) / np.linalg.norm(other)


def test_sentences_are_compared_by_their_means(make_elmo):
    elmo = make_elmo()
    found = elmo.similarity(A, B)
    assert (found.shape, found.dtype) == ((2, 3), np.float32)
    for row, a in zip(found, elmo.encode(A, output="sentence"), strict=True):
        assert row == pytest.approx([cosine(a, b) for b in elmo.encode(B, output="sentence")], abs=1e-6)
    assert elmo.similarity(A[0], B[0]) == pytest.approx(found[0, 0])
    assert elmo.similarity(A[0], B).shape == (3,)
    np.testing.assert_array_equal(elmo.similarity(B), elmo.similarity(B, B))
    assert np.abs(elmo.similarity(B)).max() <= 1
    assert elmo.similarity(["", "the"], ["the"])[0, 0] == 0
    assert elmo.similarity([], B).shape == (0, 3)


@pytest.mark.parametrize("boundaries", [False, True])
def test_words_are_compared_in_their_sentences(make_elmo, boundaries):
    elmo, inner = make_elmo(boundaries=boundaries), make_elmo()
    first, second = inner.encode(A[0], layer=1)[0], inner.encode(A[1], layer=1)[0]
    expected = pytest.approx(cosine(first[1], second[1]), abs=1e-6)
    for words in ("bank", 1, ("bank", -1), (np.int64(1), "bank"), (1, [1])):
        assert elmo.similarity(A[0], A[1], words=words, layer=1) == expected
    assert elmo.similarity(A, words="bank", layer=1)[0, 1] == expected
    assert elmo.similarity(A, [A[1].split()], words=([4, 0], 1)).shape == (2, 1)
    assert elmo.similarity(A, words=np.array([1, -1]), layer=1)[0, 1] == expected


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        ({"words": "boat"}, "got 'boat'"),
        ({"words": ("bank", "the")}, "words must name one of the tokens of 'a' 'bank', got 'the'"),
        ({"words": "the"}, "at the positions 0, 3"),
        ({"words": 2}, "words must be positions below 2"),
        ({"words": (1, 2, 3)}, "a pair"),
        ({"words": 1.0}, "got 1.0"),
        ({"words": [None]}, "got None"),
        ({"words": ([0, 1], 0)}, "one word per sentence, got 2 for 1"),
        ({"layer": "all"}, "layer must be"),
    ],
)
def test_what_cannot_be_compared(make_elmo, arguments, fact):
    with pytest.raises(ElmoError, match=fact):
        make_elmo().similarity(A[0], A[1], **arguments)


@pytest.mark.parametrize("boundaries", [False, True])
def test_a_notebook_shows_tokens_and_heat_maps(make_elmo, boundaries):
    elmo = make_elmo(boundaries=boundaries, segment="whitespace")
    html = elmo(["<b>the</b> & bank", "a"])._repr_html_()
    assert "<b>" not in html
    assert "<bdi>&lt;b&gt;the&lt;/b&gt;</bdi>" in html
    assert html.count("<table") == 4
    assert "layer 2" in html
    assert ("<bdi>&lt;S&gt;</bdi>" in html) == boundaries
    assert html.count(">1.00</td>") >= 8


def test_much_is_cut():
    sentences = [["x"] * 100] * 10
    html = heat_maps(sentences, [np.ones((3, 100, 4), np.float32)] * 10)
    assert html.count("<table") == 2 * SHOWN_SENTENCES
    assert html.count("<td") == 2 * SHOWN_SENTENCES * SHOWN_TOKENS**2
    assert "and 7 more" in html
    assert heat_maps([], []).startswith("<p>")

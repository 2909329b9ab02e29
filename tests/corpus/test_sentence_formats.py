"""Sentences whose words are given: tabs and CoNLL columns."""

import pytest

from elmokit.corpus.lines import given_words, sentence_lines
from elmokit.errors import ElmoError

CONLL = [
    "",
    "# text = Sue likes ice cream",
    "1\tSue\tSue",
    "2-3\tlikes-it\t_",
    "2\tlikes\tlike",
    "2.1\tempty\t_",
    "3\tice cream\t_",
    "",
    " ",
    "# a comment alone",
    "",
    "1\t語言\t_",
]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("conll", [["Sue", "likes", "ice cream"], ["語言"]]),
        ("conll_char", [list("Sue" + "likes" + "ice cream"), ["語", "言"]]),
        ("conll_char_vi", [["Sue", "likes", "ice", "cream"], ["語言"]]),
    ],
)
def test_columns(kind, expected):
    assert [given_words(line) for line in sentence_lines(CONLL, kind)] == expected


def test_tabs_and_plain_lines():
    lines = ["a b\tc", "", "d"]
    assert list(sentence_lines(lines, "tab")) == list(sentence_lines(lines, "lines")) == lines
    assert [given_words(line) for line in lines] == [["a b", "c"], [], ["d"]]


def test_a_line_without_columns_is_named():
    with pytest.raises(ElmoError, match=r"line 2.*Sue likes"):
        list(sentence_lines(["1\tSue", "Sue likes"], "conll"))

import doctest
import logging

import numpy as np
import pytest
from hypothesis import given
from tests.text.test_tokens import ANY_TEXT

from elmokit.errors import ElmoError
from elmokit.text import policy
from elmokit.text.policy import CharacterPieces, TextPolicy, rows_of_tokens
from elmokit.text.tokens import segmenter, words


@pytest.mark.parametrize(
    ("segment", "expected"),
    [
        ("english", ["A", "river", "bank", "."]),
        ("chars", ["A", "river", "bank", "."]),
        ("whitespace", ["A", "river", "bank."]),
        ("none", ["A", "river", "bank."]),
    ],
)
def test_a_policy_tokenises_with_and_without_offsets(segment, expected):
    made = TextPolicy(segment)
    text = " A river  bank."
    assert made.split(text) == expected
    assert words(made.tokenize(text)) == expected
    assert all(text[token.start : token.end] == token.text for token in made.tokenize(text))


def test_names():
    assert (TextPolicy("none").name, TextPolicy("none").name_in_files) == ("whitespace", "none")
    assert (TextPolicy("chars").name, TextPolicy("chars").name_in_files) == ("chars", "chars")
    assert TextPolicy().name == "whitespace"
    made = TextPolicy("english")
    assert made.override(None) is made
    assert made.override("chars").name == "chars"
    assert TextPolicy.of(made) is made
    assert TextPolicy.of("jieba").name == "jieba"
    with pytest.raises(ElmoError, match="klingon"):
        TextPolicy("klingon")
    with pytest.raises(ElmoError, match="klingon"):
        made.override("klingon")


@pytest.mark.parametrize(
    "text", ["The bank, they say", "A river bank.", "Really?", "(a bank)", "Wait: no", "今天很好。"]
)
def test_a_model_that_does_not_say_warns_once_where_punctuation_sticks_to_words(text, caplog):
    made = TextPolicy(model="old.hdf5")
    made.split("The bank of the U.S. is Mr. Li 's . ( 3.5 % , etc. )")
    assert not caplog.records
    for _ in range(2):
        made.split(text)
        made.tokenize(text)
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "old.hdf5" in record.message
    assert f'segment="{"jieba" if text == "今天很好。" else "english"}"' in record.message


@pytest.mark.parametrize("segment", ["whitespace", "none", "english"])
def test_a_model_that_says_does_not_warn(segment, caplog):
    TextPolicy(segment).split("A bank.")
    TextPolicy().override(segment).split("A bank.")
    TextPolicy().tokens_of(["A", "bank."])
    assert not caplog.records


class _Frame:
    """A data frame, whose iterator gives the names of its columns."""

    columns = ("text", "label")

    def __iter__(self):
        return iter(self.columns)


@pytest.mark.parametrize("value", [None, 3, {"text": ["A bank."]}, _Frame(), np.array("A bank."), b"A bank."])
def test_what_is_no_list_of_texts_is_refused(value):
    with pytest.raises(ElmoError, match=type(value).__name__):
        TextPolicy("english").sentences_of(value)
    with pytest.raises(ElmoError, match=type(value).__name__):
        TextPolicy("english").sentences_of([value])


def test_padded_rows_are_cut():
    assert rows_of_tokens([["a", "b", ""], ["c", "", ""]], [2, 1]) == [["a", "b"], ["c"]]
    with pytest.raises(ElmoError, match="got 1"):
        rows_of_tokens([["a"], ["b"]], [1])


@pytest.mark.parametrize("lengths", [[1.5, 1], [[1], [1]], "11"])
def test_lengths_are_whole_numbers(lengths):
    with pytest.raises(ElmoError, match="sequence_len"):
        rows_of_tokens([["a", "b"], ["c", ""]], lengths)


@pytest.mark.parametrize("tokens", [["the", "bank"], "the bank", [["a"], "the bank"]])
def test_a_string_is_no_row(tokens):
    with pytest.raises(ElmoError, match="string 't"):
        rows_of_tokens(tokens)


@given(text=ANY_TEXT)
def test_tokens_of_chars_are_one_piece_each(text):
    pieces = CharacterPieces()
    tokens = words(segmenter("chars")(text))
    assert [pieces.of(token) for token in tokens] == [(token,) for token in tokens]
    assert pieces.count(tokens) == len(tokens)


def test_words_are_taken_apart_as_strings_are():
    pieces = CharacterPieces(["<UNK>"])
    assert pieces.of("<UNK>") == ("<UNK>",)
    assert pieces.of("") == ("",)
    assert pieces.of(" ") == (" ",)
    assert pieces.split([["银行", "了", "2020年", "<UNK>"], [], ["don't"]]) == (
        [["银", "行", "了", "2020", "年", "<UNK>"], [], ["don", "'", "t"]],
        [[2, 1, 2, 1], [], [3]],
    )


def test_examples_in_docstrings():
    assert doctest.testmod(policy).failed == 0

import pytest

from elmokit import ElmoError
from elmokit.text.vocab import Vocabulary


def test_reading_leaves_out_the_marker_line_and_keeps_order():
    vocab = Vocabulary.from_text("\ufeff<S>\r\n</S>\r\n<UNK>\r\n!!!MAXTERMID\r\nthe\r\nof")
    assert list(vocab) == ["<S>", "</S>", "<UNK>", "the", "of"]
    assert vocab.index("of") == 4
    assert vocab.index("unseen") == vocab.unknown == 2
    assert "the" in vocab
    assert "unseen" not in vocab


def test_only_line_feeds_end_a_line():
    vocab = Vocabulary.from_text("<S>\n</S>\n<UNK>\na\u2028b\nc\x85d\n")
    assert list(vocab)[3:] == ["a\u2028b", "c\x85d"]


def test_text_and_back():
    vocab = Vocabulary(["<S>", "</S>", "<UNK>", "x", "y"])
    assert Vocabulary.from_text(vocab.to_text()) == vocab


def test_the_last_of_two_equal_words_and_empty_lines_count_as_in_bilm_tf():
    assert Vocabulary(["<S>", "</S>", "<UNK>", "x", "x"]).index("x") == 4
    assert Vocabulary.from_text("<S>\n</S>\n<UNK>\n\u3000\nx\n").index("x") == 4


def test_missing_specials_are_named():
    with pytest.raises(ElmoError, match="needs the entry <UNK>"):
        Vocabulary(["<S>", "</S>", "the"]).require_specials()

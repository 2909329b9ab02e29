import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit import ElmoError
from elmokit.text.chars import ByteIndexer, SymbolIndexer, SymbolTable, WordIndexer, byte_ids
from elmokit.text.vocab import Vocabulary


def test_a_word_is_framed_and_padded():
    assert byte_ids("ab", 6) == [259, 98, 99, 260, 261, 261]
    assert byte_ids("", 4) == [259, 260, 261, 261]
    assert byte_ids("<S>", 5) == [259, 257, 260, 261, 261]
    assert byte_ids("</S>", 5) == [259, 258, 260, 261, 261]


@pytest.mark.parametrize("size", [3, 5, 50])
def test_many_tokens_at_once_have_the_same_ids(size):
    tokens = [
        "a",
        "",
        "<S>",
        "</S>",
        "x" * 49,
        "é" * 30,
        "\ud800" * 60 + "b",
        "\ud800",
        "中文字",
        "<S",
        "a\x00b",
        "x" * 9999,
    ]
    found = ByteIndexer(size)(tokens).characters
    assert found.tolist() == [byte_ids(token, size) for token in tokens]
    assert ByteIndexer(size)([]).characters.shape == (0, size)


def test_a_long_word_is_cut_by_bytes_even_inside_a_character():
    assert byte_ids("abcdef", 5) == [259, 98, 99, 100, 260]
    assert byte_ids("aéé", 5) == [259, 98, 0xC3 + 1, 0xA9 + 1, 260]
    assert byte_ids("éé", 5) == [259, 0xC3 + 1, 0xA9 + 1, 0xC3 + 1, 260]


def test_lone_surrogates_are_left_out_and_what_follows_still_counts():
    assert byte_ids("\ud800a", 5) == byte_ids("a", 5)
    assert byte_ids("\ud800" * 40 + "abc", 6) == byte_ids("abc", 6)
    assert byte_ids("\x00", 4) == [259, 1, 260, 261]


@given(st.text(max_size=80), st.integers(3, 60))
def test_ids_follow_the_definition(token, longest):
    ids = byte_ids(token, longest)
    data = token.encode("utf-8", "ignore")[: longest - 2]
    if token not in ("<S>", "</S>"):
        assert ids == [259, *(byte + 1 for byte in data), 260] + [261] * (longest - 2 - len(data))
    assert len(ids) == longest


def test_indexers_give_arrays_even_for_nothing():
    assert ByteIndexer(50)([]).characters.shape == (0, 50)
    vocab = Vocabulary(["<S>", "</S>", "<UNK>", "a"])
    assert WordIndexer(vocab)(["a", "b", "<S>"]).words.tolist() == [4, 3, 1]


def table() -> SymbolTable:
    names = ["a", "b", "字", "<bos>", "<eos>", "<oov>", "<pad>", "<bow>", "<eow>"]
    return SymbolTable({name: number for number, name in enumerate(names)})


def test_symbol_models_swap_the_word_markers_and_cut_by_code_points():
    words = Vocabulary(["<oov>", "<bos>", "<eos>", "<pad>", "ab"], specials=("<bos>", "<eos>", "<oov>"))
    indexer = SymbolIndexer(table(), words, 5)
    ids = indexer(["ab", "字x", "abba", "<bos>"])
    eow, bow, pad, oov, bos = 8, 7, 6, 5, 3
    expected = [[eow, 0, 1, bow, pad], [eow, 2, oov, bow, pad], [eow, 0, 1, 1, bow], [eow, bos, bow, pad, pad]]
    np.testing.assert_array_equal(ids.characters, np.array(expected) + 1)
    assert ids.words.tolist() == [5, 1, 1, 2]


def test_a_symbol_table_needs_its_markers():
    with pytest.raises(ElmoError, match="needs the entry <bos>"):
        SymbolTable({"a": 0})

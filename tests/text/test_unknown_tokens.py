"""What a model of whole words does not know is counted; one of characters knows every word."""

import pytest

from support.tiny_models import WORDS, word_config


@pytest.fixture
def of_words(make_elmo):
    return make_elmo(word_config())


def test_unknown_tokens_are_counted_and_shown(of_words):
    unknown = of_words.unknown_tokens()
    unknown.add(["the", "bank"])
    assert unknown.message() is None
    unknown.add(["zebra", "the"], times=3)
    assert (unknown.unknown, unknown.tokens) == (3, 8)
    assert unknown.message() == (
        f"3 of 8 tokens (37.5%) are not among the {len(WORDS)} that this model knows and are read as <UNK>: zebra"
    )
    unknown.add(["yak", "zebra", "gnu", "emu", "ox", "ibex", "kudu"])
    assert unknown.message().endswith("read as <UNK>: zebra, yak, gnu, emu, ox, …")


def test_a_model_of_characters_knows_everything(make_elmo):
    unknown = make_elmo().unknown_tokens()
    unknown.add(["zebra"])
    assert unknown.message() is None

"""Names of contents, which must stay the same for what is stored to be found again."""

from elmokit.storage.checksum import key_of, name_of


def test_names_stay_the_same():
    assert name_of({"b": 1, "a": ["x", None]}) == name_of({"a": ["x", None], "b": 1})
    assert name_of(["the", "bank"]) == name_of(("the", "bank")) == "a3768b3d9ab7913313c556a9999f4f9e"
    assert key_of(["the", "bank"]).hex() == name_of(["the", "bank"])


def test_words_are_kept_apart():
    sentences = [["a b"], ["a", "b"], ["a\0b"], ["\ud800"], ['a", "b'], ["a"], [], [""]]
    assert len({key_of(sentence) for sentence in sentences}) == len(sentences)

"""The vocabulary of a corpus: order, limits, and the file both ways."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmokit.corpus.prepared import PreparedCorpus, build_vocabulary, coverage, write_vocabulary
from elmokit.errors import ElmoError
from elmokit.text.vocab import Vocabulary

SPECIALS = ["<S>", "</S>", "<UNK>"]
SENTENCES = [["b", "a", "c", "a"], ["c", "d", "<UNK>", "<S>"], ["e", "d", "a"]]


@pytest.fixture
def corpus(tmp_path):
    """a three times, c and d twice, b and e once, and an <UNK> and an <S> of its own."""
    return PreparedCorpus.from_sentences(SENTENCES, tmp_path / "corpus")


@pytest.mark.parametrize(
    ("max_size", "min_count", "words"),
    [
        (None, 1, ["a", "c", "d", "b", "e"]),
        (8, 1, ["a", "c", "d", "b", "e"]),
        (7, 1, ["a", "c", "d", "b"]),
        (5, 1, ["a", "c"]),
        (None, 2, ["a", "c", "d"]),
        (4, 2, ["a"]),
        (None, 4, []),
    ],
)
def test_order_and_limits(corpus, max_size, min_count, words):
    assert list(build_vocabulary(corpus, max_size=max_size, min_count=min_count)) == SPECIALS + words


def test_limits_that_are_refused(corpus):
    with pytest.raises(ElmoError, match="max_size must be more than 3, the number of special words, got 3"):
        build_vocabulary(corpus, max_size=3, min_count=1)
    with pytest.raises(ElmoError, match="min_count must be at least 1, got 0"):
        build_vocabulary(corpus, max_size=None, min_count=0)


def test_coverage(corpus):
    assert coverage(corpus, build_vocabulary(corpus)) == 10 / 11
    assert coverage(corpus, build_vocabulary(corpus, max_size=4)) == 4 / 11
    assert coverage(PreparedCorpus.from_sentences([], corpus.folder), Vocabulary(SPECIALS)) == 0


words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=3) | st.sampled_from(
    ["!!!MAXTERMID", "\u3000", "\ufeff", "\r", "<S>"]
)


@settings(max_examples=20)
@given(st.lists(st.lists(words, max_size=5)))
def test_the_file_gives_it_back(tmp_path_factory, sentences):
    folder = tmp_path_factory.getbasetemp()
    vocabulary = build_vocabulary(PreparedCorpus.from_sentences(sentences, folder / "vocabulary-corpus"))
    write_vocabulary(vocabulary, folder / "vocab.txt")
    assert Vocabulary.from_text((folder / "vocab.txt").read_bytes().decode()) == vocabulary
    counts = Counter(word for tokens in sentences for word in tokens)
    falling = [counts[word] for word in vocabulary][3:]
    assert falling == sorted(falling, reverse=True)


def test_a_vocabulary_without_unknown_is_not_written(tmp_path):
    with pytest.raises(ElmoError, match="needs the entry <UNK>"):
        write_vocabulary(Vocabulary(["<S>", "</S>", "a"]), tmp_path / "vocab.txt")
    assert list(tmp_path.iterdir()) == []

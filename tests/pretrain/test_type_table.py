import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elmokit.formats.load import read_checkpoint
from elmokit.pretrain.sentences import BEGIN_TYPE, END_TYPE, TypeTable
from elmokit.pretrain.windows import NO_TARGET, Windows, window_batch
from elmokit.text.chars import ByteIndexer, WordIndexer, byte_ids
from elmokit.text.vocab import Vocabulary
from support.model_files import make_manylangs, write_manylangs
from support.training_models import corpus_of, random_sentences, windows_of

VOCAB = Vocabulary(["<S>", "</S>", "<UNK>", "the", "bank", "🙂"])
PADDING_ID = 261
SENTENCES = [["the", "a", "🙂🙂", "x" * 60, "日本語" * 9, "é"], ["bank", "the", "<S>", "</S>", "<UNK>", "zebra"]]

words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)


def byte_table(corpus, max_characters=50, widest=3, vocab=VOCAB, **arguments):
    return TypeTable(corpus, vocab, ByteIndexer(max_characters), widest_filter=widest, **arguments)


def check_bytes(corpus, types, max_characters, widest):
    """Each row is `byte_ids` of its type, but for columns at the end where every row is padding."""
    characters, other = byte_table(corpus, max_characters, widest).ids(types)
    assert other is None
    expected = np.array([byte_ids(corpus.type_text(index), max_characters) for index in types.tolist()])
    width = characters.shape[1]
    np.testing.assert_array_equal(characters, expected[:, :width])
    assert (expected[:, width:] == PADDING_ID).all()
    # A convolution as wide as the widest must find a window that is all padding, as it would in M columns.
    padding = (characters == PADDING_ID).all(axis=0)
    assert width == max_characters or padding[-widest:].all()


@given(st.lists(words, min_size=1, max_size=8, unique=True), st.integers(3, 60), st.integers(1, 7))
def test_ids_of_any_words_are_those_of_the_indexer(texts, max_characters, widest):
    with tempfile.TemporaryDirectory() as folder:
        corpus = corpus_of([texts], Path(folder))
        check_bytes(corpus, np.arange(corpus.n_types), max_characters, min(widest, max_characters))


@pytest.mark.parametrize("max_characters", [3, 4, 5, 6, 50])
@pytest.mark.parametrize("word", ["a", "ab", "abc", "🙂", "x🙂", "x" * 47, "x" * 48, "x" * 49, "x" * 300, "é" * 24])
def test_words_of_every_length_alone_and_next_to_the_boundaries(tmp_path, word, max_characters):
    corpus = corpus_of([[word]], tmp_path)
    for types in ([3], [0], [1], [2], [0, 3], [3, 1, 0]):
        check_bytes(corpus, np.array(types), max_characters, 3)


def test_the_boundaries_are_the_markers_of_the_format(tmp_path):
    characters, _ = byte_table(corpus_of([["a"]], tmp_path)).ids(np.array([BEGIN_TYPE, END_TYPE]))
    assert characters[:, :3].tolist() == [[259, 257, 260], [259, 258, 260]]  # raw 258, 256 or 257, 259; plus one
    assert (characters[:, 3:] == PADDING_ID).all()


@pytest.mark.parametrize("directions", [1, 2])
def test_a_batch_says_what_stands_where(tmp_path, directions):
    corpus = corpus_of(SENTENCES, tmp_path)
    table = byte_table(corpus, directions=directions)
    seen = 0
    for windows in windows_of(corpus, rows=3, window=4, reset=0.5):
        batch = window_batch(table, windows)
        distinct = np.unique(windows.inputs[:directions])
        assert len(batch.characters) == len(distinct)  # each once
        assert batch.inputs.shape == batch.targets.shape == (directions, 4, 3)
        assert batch.words is None
        for place in np.ndindex(*batch.inputs.shape):
            text = corpus.type_text(int(windows.inputs[place]))
            got = batch.characters[batch.inputs[place]].tolist()
            assert got == byte_ids(text, 50)[: len(got)]
            target = int(windows.targets[place])
            expected = NO_TARGET if target == NO_TARGET else VOCAB.index(corpus.type_text(target))
            assert batch.targets[place] == expected
            seen += target != NO_TARGET
        np.testing.assert_array_equal(batch.keep, windows.keep)
        assert batch.to(torch.device("cpu")) is batch
    assert seen == directions * (corpus.n_tokens + corpus.n_sentences)


def test_unknown_words_are_targets_too(tmp_path):
    corpus = corpus_of(SENTENCES, tmp_path)
    index = {corpus.type_text(number): int(row) for number, row in enumerate(byte_table(corpus).vocab_index)}
    assert index["the"] == 3
    assert index["zebra"] == index["🙂🙂"] == index["<UNK>"] == 2
    assert (index["<S>"], index["</S>"]) == (0, 1)


def test_the_unknown_rate_counts_tokens(tmp_path):
    assert byte_table(corpus_of([["the", "the", "bank"], ["zebra"]], tmp_path)).unknown_rate() == 0.25
    everything = Vocabulary(["<S>", "</S>", "<UNK>", "the", "bank", "zebra"])
    assert byte_table(corpus_of([["the", "zebra"]], tmp_path / "b"), vocab=everything).unknown_rate() == 0
    # What the text itself says it does not know is unknown.
    assert byte_table(corpus_of([["the", "<UNK>"]], tmp_path / "c"), vocab=everything).unknown_rate() == 0.5
    assert byte_table(corpus_of([], tmp_path / "d")).unknown_rate() == 0


def test_a_word_model_reads_rows_of_its_table(tmp_path):
    corpus = corpus_of(SENTENCES, tmp_path)
    characters, rows = TypeTable(corpus, VOCAB, WordIndexer(VOCAB), widest_filter=0).ids(np.arange(corpus.n_types))
    assert characters is None
    assert rows.tolist() == [VOCAB.index(text) + 1 for text in corpus.type_texts()]
    assert rows[:3].tolist() == [1, 2, 3]


@pytest.mark.parametrize(("has_words", "has_characters"), [(True, True), (True, False), (False, True)])
def test_a_model_with_symbols_of_its_own_reads_them(tmp_path, has_words, has_characters):
    made = make_manylangs(words=has_words, characters=has_characters)
    model = read_checkpoint(write_manylangs(tmp_path / "model", made))
    corpus = corpus_of([["the", "bank", "xxxxxxxxxxxx", "語"]], tmp_path)
    indexer, vocab = model.indexer(), model.vocab or VOCAB
    table = TypeTable(corpus, vocab, indexer, widest_filter=2)
    characters, rows = table.ids(np.arange(corpus.n_types))
    expected = indexer(["<bos>", "<eos>", *list(corpus.type_texts())[2:]])
    for got, wanted in ((characters, expected.characters), (rows, expected.words)):
        assert (got is None) == (wanted is None)
        if wanted is not None:
            np.testing.assert_array_equal(got, wanted)
    assert table.vocab_index[[BEGIN_TYPE, END_TYPE]].tolist() == [vocab.begin, vocab.end]
    assert len({vocab.begin, vocab.end, vocab.unknown}) == 3


class Slow(np.ndarray):
    """Lets other threads run after each change."""

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        time.sleep(0.001)


def test_two_threads_may_make_batches_at_once(tmp_path):
    """As a run does, whose next windows are made while those of its held-out sentences are."""
    corpus = corpus_of(random_sentences([9] * 60, seed=1), tmp_path)
    table, alone = byte_table(corpus), byte_table(corpus)
    table._scratch = table._scratch.view(Slow)
    many = list(windows_of(corpus, rows=5, window=20))
    expected = [window_batch(alone, windows) for windows in many]

    def right(number):
        got, wanted = window_batch(table, many[number]), expected[number]
        return all(torch.equal(getattr(got, name), getattr(wanted, name)) for name in ("characters", "inputs"))

    with ThreadPoolExecutor(2) as threads:
        assert all(threads.map(right, [*range(len(many))] * 3))


def test_an_ended_row_reads_a_boundary_and_predicts_nothing(tmp_path):
    corpus = corpus_of([["the"]], tmp_path)
    nothing = np.full((1, 2, 1, 1), NO_TARGET)[0]
    windows = Windows(np.full((2, 1, 1), BEGIN_TYPE), nothing, np.ones((1, 1), np.float32), nothing[0], nothing[0])
    batch = window_batch(byte_table(corpus), windows)
    assert batch.targets.unique().tolist() == [NO_TARGET]
    assert batch.characters[0, :3].tolist() == [259, 257, 260]

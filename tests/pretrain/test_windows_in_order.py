"""Rows that each read a stretch of the text in its order, whatever the sizes."""

import numpy as np
import pytest

from elmokit.pretrain.sentences import BEGIN_TYPE, END_TYPE, Sentences
from elmokit.pretrain.windows import NO_TARGET, InOrderReader
from support.training_models import corpus_of, random_sentences

LENGTHS = {
    "short": [3, 1, 7, 2, 5] * 9,
    "longer than a window": [5, 100, 1, 33, 32, 31, 64, 2],
    "of one word": [1] * 70,
    "one": [4],
    "fewer than the rows": [2, 50, 3],
}


def read(corpus, *, rows, window, chosen=None, **arguments):
    """Each row's places, inputs and targets of both directions, and what it keeps, end to end."""
    reader = InOrderReader(Sentences(corpus, chosen), rows=rows, window=window, **arguments)
    found = []
    for plan in reader.plans():
        windows = reader.fill(plan, range(rows))
        assert windows.sentence.shape == (window, rows)
        found.append(windows)
    place, keep = (np.concatenate([getattr(w, name) for w in found]) for name in ("sentence", "keep"))
    inputs, targets = (np.concatenate([getattr(w, name) for w in found], axis=1) for name in ("inputs", "targets"))
    there = [place[:, row] != NO_TARGET for row in range(rows)]
    for row, column in enumerate(there):
        assert (column[:-1] >= column[1:]).all(), "a row has no holes"
        assert (targets[:, ~column, row] == NO_TARGET).all()
    return [
        (place[t, row], inputs[:, t, row], targets[:, t, row], keep[t, row]) for row, t in enumerate(there) if t.any()
    ]


@pytest.mark.parametrize("window", [1, 2, 5, 32])
@pytest.mark.parametrize("rows", [1, 3, 64])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
def test_the_rows_one_after_the_other_are_the_text(tmp_path, lengths, rows, window):
    corpus = corpus_of(random_sentences(lengths), tmp_path)
    read_rows = read(corpus, rows=rows, window=window)
    places, inputs, targets = (np.concatenate([row[n] for row in read_rows], axis=-1) for n in range(3))
    tokens, begin = np.asarray(corpus.tokens), 0
    expected = [[], [], [], []]
    for length in lengths:
        sentence = tokens[begin : begin + length].tolist()
        begin += length
        expected[0] += [BEGIN_TYPE, *sentence]
        expected[1] += [END_TYPE, *sentence[::-1]]
        expected[2] += [*sentence, END_TYPE]
        expected[3] += [*sentence[::-1], BEGIN_TYPE]
    np.testing.assert_array_equal(places, np.repeat(np.arange(len(lengths)), np.array(lengths) + 1))
    np.testing.assert_array_equal(np.concatenate([inputs, targets]), expected)
    assert all((row[3] == 1).all() for row in read_rows)


def test_stretches_are_about_as_long_as_each_other(tmp_path):
    lengths = [60] * 20 + [3] * 300 + [30] * 40
    corpus = corpus_of(random_sentences(lengths), tmp_path)
    sizes = [len(row[0]) for row in read(corpus, rows=8, window=16)]
    assert len(sizes) == 8
    assert max(sizes) - min(sizes) <= 2 * 61


def test_sentences_from_zero(tmp_path):
    corpus = corpus_of(random_sentences(LENGTHS["short"]), tmp_path)
    for places, _, _, keep in read(corpus, rows=3, window=4, reset=1.0):
        first = np.concatenate([[True], places[1:] != places[:-1]])
        np.testing.assert_array_equal(keep, ~first)


def test_chosen_sentences(tmp_path):
    corpus = corpus_of(random_sentences(LENGTHS["short"]), tmp_path)
    rows = read(corpus, rows=3, window=4, chosen=(4, 1))
    tokens, ends = np.asarray(corpus.tokens), np.asarray(corpus.ends)
    expected = [[*tokens[ends[i - 1] : ends[i]], END_TYPE] for i in range(3, len(ends), 4)]
    np.testing.assert_array_equal(np.concatenate([row[2][0] for row in rows]), np.concatenate(expected))

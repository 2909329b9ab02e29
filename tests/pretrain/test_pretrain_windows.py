import tempfile
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit.errors import ElmoError
from elmokit.pretrain.sentences import BEGIN_TYPE, END_TYPE, Sentences, uniform
from elmokit.pretrain.windows import NO_TARGET, WindowPosition, WindowReader
from support.training_models import corpus_of

FIELDS = ("inputs", "targets", "keep", "sentence")


def numbered(lengths):
    """Sentences whose tokens are all different: every token tells its sentence and place."""
    return [[f"{number}.{place}" for place in range(length)] for number, length in enumerate(lengths)]


@pytest.fixture
def corpus(tmp_path):
    return corpus_of(numbered([3, 1, 7, 2, 30, 1, 4, 5, 2, 2, 6, 1, 9]), tmp_path)


def types_of(corpus):
    """The sentences as lists of types."""
    ends = corpus.ends.tolist()
    return [corpus.tokens[begin:end].tolist() for begin, end in zip([0, *ends], ends, strict=False)]


class Generator:
    """One direction of the original: a generator of its own over the sentences, rows filled in order."""

    def __init__(self, sentences, rows, *, backward, epochs):
        self.unread = iter(list(sentences) * epochs)
        self.backward = backward
        self.left = [[] for _ in range(rows)]  # (input, target) pairs that each row still has

    def batch(self, window):
        """Rows of at most `window` pairs."""
        rows = []
        for number in range(len(self.left)):
            while len(self.left[number]) < window:
                sentence = next(self.unread, None)
                if sentence is None:
                    break
                chain = [BEGIN_TYPE, *sentence, END_TYPE]
                chain = chain[::-1] if self.backward else chain
                self.left[number] += list(pairwise(chain))
            rows.append(self.left[number][:window])
            self.left[number] = self.left[number][window:]
        return rows


def as_pairs(windows, direction):
    """The same out of our windows: a list of (input, target) for each row, without padding."""
    inputs, targets = windows.inputs[direction].T.tolist(), windows.targets[direction].T.tolist()
    rows = []
    for row in zip(inputs, targets, strict=True):
        pairs = list(zip(*row, strict=True))
        real = [pair for pair in pairs if pair[1] != NO_TARGET]
        assert pairs[: len(real)] == real, "padding before the end of a row"
        rows.append(real)
    return rows


def all_windows(reader, limit=10_000):
    return [reader.fill(plan, range(reader.rows)) for plan in islice(reader.plans(), limit)]


def assert_equal(ours, theirs):
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), err_msg=name)


AWKWARD = [
    ([1], 1, 1),
    ([5], 1, 1),
    ([100, 1], 3, 4),  # a sentence of many windows, rows without any
    ([3, 3, 3, 3], 2, 4),  # exactly filling
    ([3, 3, 3, 3], 4, 8),
    ([1, 1, 1, 1, 1, 1, 1], 2, 3),
    ([2, 9, 1, 40, 3], 2, 5),
]


@pytest.mark.parametrize(("lengths", "rows", "window"), AWKWARD, ids=str)
@pytest.mark.parametrize("endless", [True, False])
def test_rows_are_filled_as_the_original_fills_them(tmp_path, lengths, rows, window, endless):
    check_against_the_original(tmp_path, lengths, rows, window, endless=endless)


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=12),
    rows=st.integers(1, 5),
    window=st.integers(1, 9),
    endless=st.booleans(),
)
def test_any_corpus_is_read_as_the_original_reads_it(lengths, rows, window, endless):
    with tempfile.TemporaryDirectory() as folder:
        check_against_the_original(Path(folder), lengths, rows, window, endless=endless)


def check_against_the_original(folder, lengths, rows, window, *, endless):
    corpus = corpus_of(numbered(lengths), folder)
    epochs = 1 if not endless else 3 + rows * window  # enough that the original does not end here
    theirs = [Generator(types_of(corpus), rows, backward=back, epochs=epochs) for back in (False, True)]
    reader = WindowReader(Sentences(corpus), rows=rows, window=window, endless=endless)
    read, plans = 0, reader.plans()
    while read < 3 * (sum(lengths) + len(lengths)):
        plan = next(plans, None)
        expected = [direction.batch(window) for direction in theirs]
        if plan is None:
            assert not endless
            assert expected == [[[]] * rows] * 2
            break
        windows = reader.fill(plan, range(rows))
        assert windows.inputs.shape == windows.targets.shape == (2, window, rows)
        assert [as_pairs(windows, direction) for direction in (0, 1)] == expected
        read += rows * window


@pytest.mark.parametrize(("rows", "window"), [(1, 1), (3, 4), (5, 16), (40, 3), (2, 1000)])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_reading_to_the_end_has_every_token_once_in_each_direction(corpus, rows, window, shuffle):
    sentences = Sentences(corpus, shuffle=shuffle, seed=4)
    targets = [[], []]
    n_real = 0
    for windows in all_windows(WindowReader(sentences, rows=rows, window=window, endless=False)):
        ended = windows.targets == NO_TARGET
        np.testing.assert_array_equal(ended[0], ended[1])
        np.testing.assert_array_equal(ended[0], windows.sentence == NO_TARGET)
        n_real += int((~ended[0]).sum())
        for direction in (0, 1):
            targets[direction] += windows.targets[direction][~ended[direction]].tolist()
    for direction, boundary in ((0, END_TYPE), (1, BEGIN_TYPE)):
        assert sorted(targets[direction]) == sorted([*corpus.tokens.tolist(), *[boundary] * corpus.n_sentences])
    assert n_real == sentences.n_predictions


def test_both_directions_stand_in_the_same_sentence(corpus):
    for windows in all_windows(WindowReader(Sentences(corpus), rows=3, window=5, endless=False)):
        for place, forward, backward in zip(*(a.ravel() for a in (windows.sentence, *windows.inputs)), strict=True):
            for token, boundary in ((forward, BEGIN_TYPE), (backward, END_TYPE)):
                if place != NO_TARGET and token != boundary:
                    assert corpus.type_text(int(token)).startswith(f"{place}.")


@pytest.mark.parametrize("endless", [True, False])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_reading_goes_on_from_any_position(corpus, endless, shuffle):
    sentences = Sentences(corpus, shuffle=shuffle, seed=9)

    def reader(position=None):
        return WindowReader(sentences, rows=3, window=4, reset=0.5, seed=2, endless=endless, position=position)

    whole = all_windows(reader(), limit=40)
    positions = [WindowPosition.start(3), *(plan.position for plan in islice(reader().plans(), 40))]
    for step, at in enumerate(positions):
        later = reader(WindowPosition(at.next_index, at.row_index.copy(), at.row_offset.copy()))
        for ours, expected in zip(all_windows(later, limit=4), whole[step : step + 4], strict=False):
            assert_equal(ours, expected)
    if not endless:
        assert len(positions) == len(whole) + 1
        assert all_windows(reader(positions[-1])) == []


@pytest.mark.parametrize("reset", [0.0, 0.3, 1.0])
def test_which_sentences_start_from_zero_depends_on_their_place_and_the_seed(corpus, reset):
    def starts(rows, window, seed):
        """place → the flag at the sentence's first token; all other tokens go on."""
        found = {}
        for windows in all_windows(
            WindowReader(Sentences(corpus), rows=rows, window=window, reset=reset, seed=seed), limit=60
        ):
            first = windows.inputs[0] == BEGIN_TYPE
            assert (windows.keep[~first] == 1).all()
            found |= dict(zip(windows.sentence[first].tolist(), windows.keep[first].tolist(), strict=True))
        return found

    one, other = starts(2, 7, seed=5), starts(4, 3, seed=5)
    common = one.keys() & other.keys()
    assert len(common) > 50
    assert {place: one[place] for place in common} == {place: other[place] for place in common}
    places = np.array(sorted(one))
    np.testing.assert_array_equal([one[p] for p in places.tolist()], (uniform(places, 5) >= reset).astype(float))
    if reset in (0, 1):
        assert set(one.values()) == {1 - reset}
    else:
        assert set(one.values()) == {0, 1}
        assert one != starts(2, 7, seed=6)
        # A sentence has a new coin in the next epoch.
        epoch = corpus.n_sentences
        assert [one[p] for p in range(epoch)] != [one[p + epoch] for p in range(epoch)]


@pytest.mark.parametrize("parts", [[6], [2, 4], [1, 1, 1, 1, 1, 1], [3, 0, 3]], ids=str)
@pytest.mark.parametrize("endless", [True, False])
def test_rows_filled_apart_are_slices_of_all_rows(corpus, parts, endless):
    reader = WindowReader(Sentences(corpus), rows=6, window=4, reset=0.5, endless=endless)
    for plan in islice(reader.plans(), 8):
        whole = reader.fill(plan, range(6))
        start = 0
        for size in parts:
            part = reader.fill(plan, range(start, start + size))
            for name in FIELDS:
                np.testing.assert_array_equal(getattr(part, name), getattr(whole, name)[..., start : start + size])
            start += size


@pytest.mark.parametrize("n", [2, 3, 5, 13, 14])
@pytest.mark.parametrize("total", [1, 2, 12, 13, 14, 27])
def test_the_held_out_sentences_are_one_in_n_and_no_others(tmp_path, n, total):
    corpus = corpus_of(numbered([number % 4 + 1 for number in range(total)]), tmp_path)
    read, held_out = Sentences(corpus, (n, 0)), Sentences(corpus, (n, 1))
    parts = [part.at(np.arange(len(part))).tolist() if len(part) else [] for part in (read, held_out)]
    assert len(held_out) == total // n
    assert sorted(parts[0] + parts[1]) == list(range(total))
    assert parts[0] == sorted(parts[0])
    lengths = [len(sentence) for sentence in types_of(corpus)]
    for part, chosen in zip((read, held_out), parts, strict=True):
        assert part.n_predictions == sum(lengths[number] + 1 for number in chosen)
    assert Sentences(corpus).n_predictions == sum(lengths) + total


@pytest.mark.parametrize("chosen", [None, (3, 0), (3, 1)])
def test_a_shuffled_reading_has_each_sentence_once_an_epoch(corpus, chosen):
    in_order, shuffled = Sentences(corpus, chosen), Sentences(corpus, chosen, shuffle=True, seed=1)
    count = len(shuffled)
    expected = in_order.at(np.arange(count)).tolist()
    epochs = [shuffled.at(np.arange(epoch * count, (epoch + 1) * count)).tolist() for epoch in range(4)]
    for epoch in epochs:
        assert sorted(epoch) == expected
    assert len({tuple(epoch) for epoch in epochs}) > 1
    assert in_order.at(np.arange(count, 2 * count)).tolist() == expected
    assert shuffled.n_predictions == in_order.n_predictions


def test_a_long_reading_looks_ahead_more_than_once(tmp_path):
    corpus = corpus_of(numbered([1, 2] * 2500), tmp_path)
    windows = all_windows(WindowReader(Sentences(corpus), rows=10, window=100, endless=False))
    read = sorted(np.concatenate([w.targets[0].ravel() for w in windows]).tolist())
    assert [t for t in read if t > END_TYPE] == sorted(corpus.tokens.tolist())


def test_a_corpus_without_sentences_is_refused(tmp_path):
    with pytest.raises(ElmoError, match="no sentence to read"):
        WindowReader(Sentences(corpus_of([], tmp_path)), rows=1, window=1)

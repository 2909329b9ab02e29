"""Words in two contexts: thresholds and their files."""

import numpy as np
import pytest
import torch

from elmokit import ElmoError
from elmokit.analyse.probes.wic import WicPair, best_threshold, probe_wic, read_wic

HEADER = "label\tword\tpos\tindices\tsentence1\tsentence2\n"


class Angles:
    """A token is an angle in degrees on layer 0; layer 1 has it halved."""

    names = ("0", "1")
    size = 2
    device = torch.device("cpu")

    def stream(self, sentences):
        for tokens in sentences:
            angles = np.radians([float(token) for token in tokens])
            yield np.stack([[np.cos(a), np.sin(a)] for a in (angles, angles / 2)]).transpose(0, 2, 1).astype(np.float32)


def pair(angle, same):
    return WicPair(("99", "0"), (str(angle),), (1, 0), same)


def test_a_threshold_is_learned_and_measured():
    train = [pair(10, True), pair(20, True), pair(60, False), pair(80, False)]
    dev = [pair(5, True), pair(30, True), pair(70, False), pair(15, False)]
    result = probe_wic(Angles(), train, dev)
    assert result.accuracy == {"0": 0.75, "1": 0.75, "mean": 0.75}
    assert result.train_accuracy["0"] == 1
    assert np.cos(np.radians(60)) < result.thresholds["0"] < np.cos(np.radians(20))
    assert result.logistic == {"0": 0.75, "1": 0.75, "mean": 0.75, "all": 0.75}
    assert result.majority == 0.5


def test_an_elmo_tells_contexts_apart(make_elmo):
    same = WicPair(("the", "river", "bank"), ("the", "river", "bank"), (2, 2), True)
    other = WicPair(("the", "river", "bank"), ("bank", "of", "money"), (2, 0), False)
    result = probe_wic(make_elmo(), [same, other], [same, other, other])
    assert result.accuracy["2"] == 1
    assert result.accuracy["0"] < 1, "layer 0 knows no context"
    assert list(result.accuracy) == ["0", "1", "2", "mean"]


@pytest.mark.parametrize(
    ("likeness", "same", "right"),
    [
        ([0.1, 0.2, 0.8, 0.9], [False, False, True, True], 4),
        ([0.1, 0.2, 0.8, 0.9], [True, True, True, True], 4),
        ([0.1, 0.2, 0.8, 0.9], [False, False, False, False], 4),
        ([0.5, 0.5, 0.5], [True, False, True], 2),
        ([0.9, 0.1, 0.4, 0.6], [True, True, False, True], 3),
        ([0.3], [True], 1),
    ],
)
def test_no_threshold_does_better(likeness, same, right):
    values, truth = np.array(likeness), np.array(same)
    threshold = best_threshold(values, truth)
    assert ((values >= threshold) == truth).sum() == right


def test_pairs_are_read(tmp_path):
    path = tmp_path / "train.tsv"
    path.write_text(HEADER + "F\tcarry\tV\t2-1\tYou must carry it .\tSound carries well .\nT\ta\tN\t0-0\ta\ta\n")
    first, second = read_wic(path)
    assert first == WicPair(("You", "must", "carry", "it", "."), ("Sound", "carries", "well", "."), (2, 1), False)
    assert second.same


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("X\ta\tN\t0-0\ta\ta", "label must be T or F, got 'X' in line 2"),
        ("T\ta\tN\t0-5\ta\ta", "indices must be positions of a token in each sentence, got 0-5 in line 2"),
        ("T\ta\tN\t0\ta\ta", "indices must be two numbers"),
        ("T\ta\tN\t0--1\ta\ta", "indices must be two numbers"),
        ("T\ta\tN\t0-0\ta", "6 columns, got 5 in line 2"),
    ],
)
def test_mistakes_are_named_with_their_line(tmp_path, line, message):
    path = tmp_path / "wic.tsv"
    path.write_text(HEADER + line + "\n")
    with pytest.raises(ElmoError, match=message):
        read_wic(path)


def test_a_file_without_the_columns_is_named(tmp_path):
    path = tmp_path / "wic.tsv"
    path.write_text("label\tsentence1\n")
    with pytest.raises(ElmoError, match="lacks indices"):
        read_wic(path)
    with pytest.raises(ElmoError, match="needs pairs, got 0"):
        probe_wic(Angles(), [], [])

"""Scores against counting by hand, against conlleval's facts and, where it is installed, against scikit-learn."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit.errors import ElmoError
from elmokit.tasks.pair import score_numbers
from elmokit.tasks.schemes import BIOES, Scheme, spans
from elmokit.tasks.scores import ClassScore, display_width, score_labels
from elmokit.tasks.tag import score_tags

BIO, NONE = Scheme("BIO"), Scheme()
LABELS = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("abc")), min_size=1, max_size=40)
TAG_PAIRS = st.tuples(*[st.sampled_from(["O", "B-X", "I-X", "E-X", "S-X", "B-Y", "E-Y"])] * 2)


def test_labels_by_hand():
    scores = score_labels(list("aaabbc"), list("aabbba"), list("abcd"))
    assert scores.confusion == ((2, 1, 0, 0), (0, 2, 0, 0), (1, 0, 0, 0), (0, 0, 0, 0))
    assert scores["accuracy"] == pytest.approx(4 / 6)
    a, b, c, d = scores.classes
    assert (a.precision, a.recall, a.f1) == pytest.approx((2 / 3, 2 / 3, 2 / 3))
    assert (b.precision, b.recall, b.f1) == pytest.approx((2 / 3, 1, 0.8))
    assert (c.precision, c.recall, c.f1) == (0, 0, 0)
    assert d == ClassScore("d", 0, 0, 0)
    assert scores["macro-F1"] == pytest.approx((2 / 3 + 0.8 + 0) / 3)  # d occurs nowhere
    assert scores.main == ("accuracy", scores["accuracy"])


def test_a_gold_class_that_the_model_does_not_know_counts_as_missed():
    scores = score_labels(["a", "new"], ["a", "a"], ["a", "b"])
    assert scores.names == ("a", "b", "new")
    assert scores["accuracy"] == 0.5
    assert scores.classes[2] == ClassScore("new", 0, 0, 1)


@given(LABELS)
def test_labels_by_counting(pairs):
    gold, predicted = zip(*pairs, strict=True)
    scores = score_labels(gold, predicted, ["a", "b", "c"])
    assert scores["accuracy"] == pytest.approx(np.mean([x == y for x, y in pairs]))
    assert sum(map(sum, scores.confusion)) == len(pairs)
    for item in scores.classes:
        assert item.correct == sum(x == y == item.name for x, y in pairs)
        assert item.predicted == predicted.count(item.name)
        assert item.gold == gold.count(item.name)


@given(LABELS)
def test_labels_as_scikit_learn_scores_them(pairs):
    metrics = pytest.importorskip("sklearn.metrics", reason="needs scikit-learn")
    gold, predicted = zip(*pairs, strict=True)
    scores = score_labels(gold, predicted, ["a", "b", "c"])
    assert scores["macro-F1"] == pytest.approx(metrics.f1_score(gold, predicted, average="macro", zero_division=0))
    expected = metrics.confusion_matrix(gold, predicted, labels=list(scores.names))
    np.testing.assert_array_equal(scores.confusion, expected)


def test_spans_by_hand():
    gold = [["B-PER", "I-PER", "O", "B-LOC"], ["B-ORG", "O", "O"]]
    predicted = [["B-PER", "I-PER", "O", "B-ORG"], ["B-ORG", "I-ORG", "O"]]
    scores = score_tags(gold, predicted, BIO)
    assert [(item.name, item.correct, item.predicted, item.gold) for item in scores.classes] == [
        ("LOC", 0, 0, 1),
        ("ORG", 0, 2, 1),
        ("PER", 1, 1, 1),
    ]
    assert (scores.total.precision, scores.total.recall, scores.total.f1) == pytest.approx((1 / 3,) * 3)
    assert scores["token accuracy"] == pytest.approx(5 / 7)
    assert scores.main == ("entity F1", scores.total.f1)
    assert scores.names == ("LOC", "ORG", "PER", "O")
    assert scores.confusion == ((0, 1, 0, 0), (0, 1, 0, 0), (0, 0, 2, 0), (0, 1, 0, 2))


def test_half_a_span_is_no_span():
    scores = score_tags([["B-X", "I-X"]], [["B-X", "O"]], BIO)
    assert scores.total.f1 == 0
    assert scores["token accuracy"] == 0.5


def test_conlleval_reads_broken_predictions_as_spans():
    gold = [["O", "B-X", "I-X", "O"]]
    assert score_tags(gold, [["O", "I-X", "I-X", "O"]], BIO).total.f1 == 1
    assert score_tags(gold, [["O", "I-X", "I-Y", "O"]], BIO).total == ClassScore("all", 0, 2, 1)
    assert score_tags(gold, [["O", "I-X", "B-X", "O"]], BIO).total == ClassScore("all", 0, 2, 1)


@given(st.lists(st.lists(TAG_PAIRS, min_size=1, max_size=8), min_size=1, max_size=6))
def test_spans_by_counting(sentences):
    gold = [[pair[0] for pair in sentence] for sentence in sentences]
    predicted = [[pair[1] for pair in sentence] for sentence in sentences]
    right = {(n, *span) for n, tags in enumerate(gold) for span in spans(tags, BIOES)}
    guess = {(n, *span) for n, tags in enumerate(predicted) for span in spans(tags, BIOES)}
    all_types = score_tags(gold, predicted, BIOES).total
    assert (all_types.correct, all_types.predicted, all_types.gold) == (len(right & guess), len(guess), len(right))


def test_no_spans_at_all():
    scores = score_tags([["O", "O"]], [["O", "O"]], BIO)
    assert scores.main == ("entity F1", 0.0)
    assert scores["token accuracy"] == 1
    assert scores.table()


def test_tags_without_spans():
    scores = score_tags([["NN", "VB"], ["NN"]], [["NN", "NN"], ["NN"]], NONE)
    assert scores.main == ("accuracy", pytest.approx(2 / 3))
    assert scores.names == ("NN", "VB")
    assert scores.confusion == ((2, 0), (1, 0))
    assert scores["macro-F1"] == pytest.approx(0.4)


def test_numbers():
    stats = pytest.importorskip("scipy.stats", reason="needs scipy, which comes with scikit-learn")
    random = np.random.default_rng(0)
    gold = random.integers(1, 6, 200) / 2
    predicted = gold + random.normal(size=200).round(1)
    scores = score_numbers(gold, predicted)
    assert scores["Pearson"] == pytest.approx(stats.pearsonr(gold, predicted).statistic)
    assert scores["Spearman"] == pytest.approx(stats.spearmanr(gold, predicted).statistic)
    assert scores["mean squared error"] == pytest.approx(np.mean((gold - predicted) ** 2))
    assert scores.main == ("Pearson", scores["Pearson"])


def test_numbers_by_hand():
    scores = score_numbers([1, 2, 3, 4], [10, 20, 30, 1000])
    assert scores["Spearman"] == pytest.approx(1)
    assert 0.7 < scores["Pearson"] < 0.9
    assert score_numbers([1, 2, 3], [6, 4, 2])["Pearson"] == pytest.approx(-1)
    assert score_numbers([1, 1, 2], [0, 1, 2])["Spearman"] == pytest.approx(0.75**0.5)


@pytest.mark.parametrize("predicted", [[0.1, 0.1, 0.1], [np.nan, 1, 2], [np.inf, 1, 2]])
def test_a_correlation_that_is_not_there_counts_as_nothing(predicted):
    scores = score_numbers([1, 2, 3], predicted)
    assert scores["Pearson"] == 0
    alone = score_numbers([2], [3])
    assert (alone["Pearson"], alone["Spearman"], alone["mean squared error"]) == (0, 0, 1)


def test_lengths_must_agree():
    for call in (
        lambda: score_labels([], [], ["a"]),
        lambda: score_labels(["a"], [], ["a"]),
        lambda: score_tags([["O"]], [["O", "O"]], BIO),
        lambda: score_tags([[]], [[]], BIO),
        lambda: score_numbers([1], [1, 2]),
    ):
        with pytest.raises(ElmoError, match=r"needs? "):
            call()


def test_tables_line_up():
    scores = score_labels(["体育", "longer name"], ["体育", "体育"], ["体育", "longer name"])
    head, *rows = scores.table()[:3]
    assert head.split() == ["class", "precision", "recall", "F1", "gold"]
    assert {display_width(line) for line in (head, *rows)} == {display_width(head)}
    assert rows[0].split() == ["体育", "0.5000", "1.0000", "0.6667", "1"]
    assert scores.table()[3:] == ["accuracy   0.5000", "macro-F1   0.3333"]
    tagged = score_tags([["B-X", "O"]], [["B-X", "O"]], BIO).table()
    assert tagged[2].split() == ["all", "1.0000", "1.0000", "1.0000", "1"]
    assert tagged[3].split() == ["entity", "F1", "1.0000"]
    assert score_tags([["B", "O"]], [["B", "O"]], BIO).table()[1].startswith("(span)")


def test_dictionaries_are_json():
    for scores in (
        score_labels(["a", "b"], ["a", "a"], ["a", "b"]),
        score_tags([["B-X", "O"]], [["B-X", "O"]], BIO),
        score_tags([["NN", "VB"]], [["NN", "NN"]], NONE),
        score_numbers([1, 2], [1, 2]),
    ):
        stored = json.loads(json.dumps(scores.to_dict()))
        assert stored["main"] == {"name": scores.main.name, "value": scores.main.value}
    labels = score_labels(["a", "b"], ["a", "a"], ["a", "b"]).to_dict()
    assert labels["confusion"] == {"names": ["a", "b"], "counts": [[1, 0], [1, 0]]}
    assert labels["classes"][0] == {
        "name": "a", "precision": 0.5, "recall": 1.0, "f1": pytest.approx(2 / 3),
        "correct": 1, "predicted": 2, "gold": 1,
    }  # fmt: skip
    assert {"accuracy", "macro_f1"} <= set(labels)
    assert {"entity_f1", "token_accuracy", "types"} <= set(score_tags([["B-X"]], [["B-X"]], BIO).to_dict())
    assert {"pearson", "spearman", "mean_squared_error"} <= set(score_numbers([1, 2], [1, 2]).to_dict())

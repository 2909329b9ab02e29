"""The classes of a task, and the sentences that what is wrong with them ends in."""

import pytest

from elmokit.errors import ElmoError
from elmokit.tasks import PairExample, TaggedExample, TextExample
from elmokit.tasks.classify import ClassifyTask, Labels, label_of
from elmokit.tasks.pair import check_scores, scores_of
from elmokit.tasks.schemes import Scheme
from elmokit.tasks.tag import TagTask


def text(label, line):
    return TextExample(("a",), label, line)


def test_order_and_ids():
    assert Labels.of(["10", "9", "2", "9"]) == Labels(("2", "9", "10"), (1, 2, 1))
    assert Labels.of(["b", "a", "B", "3", "-1.5"]).names == ("-1.5", "3", "B", "a", "b")
    assert Labels.of(["I-X", "O", "B-X"]).names == ("O", "B-X", "I-X")
    assert Labels.of(["nan", "inf", "1"]).names == ("1", "inf", "nan")
    labels = Labels.of(["neg", "pos", "neg"])
    assert labels.ids == {"neg": 0, "pos": 1}
    assert Labels.from_dict(labels.to_dict()) == labels


@pytest.mark.parametrize(("names", "counts"), [((), ()), (("a", "a"), (1, 1)), (("a",), (1, 2))])
def test_names_must_be_different(names, counts):
    with pytest.raises(ElmoError, match="labels must be different names"):
        Labels(names, counts)


def test_one_class_is_refused():
    with pytest.raises(ElmoError, match=r"at least two classes to tell apart, got 'x' alone, 1,200 times, in a\.tsv"):
        Labels.of(["x"] * 1200).check_training("a.tsv")


def test_texts_taken_for_labels_are_refused():
    with pytest.raises(ElmoError, match=r"a\.tsv has 20 classes in 21 examples .* and 15 more.*column of the labels"):
        Labels.of([f"text {n}" for n in range(20)] + ["text 0"]).check_training("a.tsv")


def test_slips_in_training_data_are_told():
    assert Labels.of("ababab").check_training() == []
    assert Labels.of("ab" * 10).check_training("a.tsv") == []
    assert Labels.of(["a"] * 9 + ["b"] * 9 + ["lable"]).check_training("a.tsv") == [
        "a.tsv has only one example of 'lable': is that a slip?"
    ]
    assert Labels.of([*"ababababab", "c", "d"]).check_training() == [
        "the training data has only one example each of 'c', 'd': is that a slip?"
    ]


def test_dev_labels():
    task = ClassifyTask(Labels.of("aabbcc"))
    assert task.check([text("a", 2), text("b", 3), text("c", 4)]) == []
    assert task.check([text("a", 2), text("z", 3), text("c", 4), text("z", 5)], "dev.tsv") == [
        "dev.tsv, line 3: training never saw the label 'z'; 2 places with it will count as wrong",
        "there is no example of 'b' to score on, so no score speaks for that",
    ]
    two = task.check([text(label, 2) for label in "abcyz"], "dev.tsv")
    assert two == ["dev.tsv, line 2: training never saw the labels 'y', 'z'; 2 places with them will count as wrong"]


def test_dev_labels_of_another_kind_are_refused():
    with pytest.raises(
        ElmoError, match=r"dev\.tsv, line 2: training saw none of the labels here \('1', '0'\), only 'a'"
    ):
        ClassifyTask(Labels.of("aabb")).check([text("1", 2), text("0", 3)], "dev.tsv")


def test_dev_tags():
    task = TagTask(Labels.of(["O", "B-X", "E-X"]), Scheme("BIO"))
    examples = [TaggedExample(("u", "v"), ("O", "O"), 1), TaggedExample(("u", "v", "w"), ("O", "O", "B-Y"), 4)]
    expected = "dev.conll, line 6: training never saw the label 'B-Y'; 1 place with it will count as wrong"
    assert task.check(examples, "dev.conll") == [expected]


def test_scores():
    pairs = [PairExample(("a",), ("b",), label, line) for line, label in enumerate(["3.5", "-1", "1e2"], start=2)]
    assert scores_of(pairs) == [3.5, -1.0, 100.0]
    check_scores([1.0, 2.0])
    with pytest.raises(ElmoError, match=r"scores must differ .* got 2 3 times in a\.tsv"):
        check_scores([2.0] * 3, "a.tsv")


@pytest.mark.parametrize("label", ["NEUTRAL", "3,5", "nan", "inf", "1e999"])
def test_scores_that_are_no_numbers(label):
    with pytest.raises(ElmoError, match=rf"a\.tsv, line 7: a score must be a number, got '{label}'"):
        scores_of([PairExample(("a",), ("b",), label, 7)], "a.tsv")


def test_an_example_without_its_label():
    assert label_of(text("x", 3)) == "x"
    with pytest.raises(ElmoError, match="line 3: an example must have a label"):
        label_of(text(None, 3), "a.tsv")

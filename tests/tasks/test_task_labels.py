"""The classes of a task, and the sentences that what is wrong with them ends in."""

import pytest

from elmokit.errors import ElmoError
from elmokit.tasks import PairExample, TaggedExample, TaskOptions, TextExample
from elmokit.tasks.classify import ClassifyTask, check_training_labels, label_names, label_of
from elmokit.tasks.pair import PairTask, scores_of
from elmokit.tasks.schemes import Scheme
from elmokit.tasks.tag import TagTask


def text(label, line):
    return TextExample(("a",), label, line)


def test_order_and_ids():
    assert label_names(["10", "9", "2", "9"]) == ("2", "9", "10")
    assert label_names(["b", "a", "B", "3", "-1.5"]) == ("-1.5", "3", "B", "a", "b")
    assert label_names(["I-X", "O", "B-X"]) == ("O", "B-X", "I-X")
    assert label_names(["nan", "inf", "1"]) == ("1", "inf", "nan")
    task = ClassifyTask(label_names(["neg", "pos", "neg"]))
    assert task.ids == {"neg": 0, "pos": 1}
    assert ClassifyTask.from_dict(task.to_dict(), TaskOptions()) == task


def test_one_class_is_refused():
    with pytest.raises(ElmoError, match=r"at least two classes, got only 'x', 1,200 times, in a\.tsv"):
        check_training_labels(["x"] * 1200, "a.tsv")


def test_texts_taken_for_labels_are_refused():
    with pytest.raises(ElmoError, match=r"a\.tsv has 20 classes in 21 examples .* and 15 more.*column of the labels"):
        check_training_labels([f"text {n}" for n in range(20)] + ["text 0"], "a.tsv")


def test_slips_in_training_data_are_reported():
    assert check_training_labels("ababab") == []
    assert check_training_labels("ab" * 10, "a.tsv") == []
    assert check_training_labels(["a"] * 9 + ["b"] * 9 + ["lable"], "a.tsv") == [
        "a.tsv has only one example of 'lable': is that a typing error?"
    ]
    assert check_training_labels([*"ababababab", "c", "d"]) == [
        "the training data has only one example each of 'c', 'd': is that a typing error?"
    ]


def test_a_header_that_was_read_as_an_example_is_reported():
    examples = [text(label, line) for line, label in enumerate(["rating", *"ab" * 6], start=1)]
    for path, asked in (("a.csv", True), ("a.tsv.gz", True), ("a.jsonl", False), (None, False)):
        _, [note] = ClassifyTask.from_examples(examples, TaskOptions(), path)
        assert "'rating'" in note
        assert ("header" in note) == asked
    _, [note] = ClassifyTask.from_examples([text("a", 1), *examples[1:], text("lable", 20)], TaskOptions(), "a.csv")
    assert "header" not in note


def test_dev_labels():
    task = ClassifyTask(label_names("aabbcc"))
    assert task.check([text("a", 2), text("b", 3), text("c", 4)]) == []
    assert task.check([text("a", 2), text("z", 3), text("c", 4), text("z", 5)], "dev.tsv") == [
        "dev.tsv, line 3: the training data does not have the label 'z', so 2 answers will count as wrong",
        "the scores do not cover 'b': no example to score on has that label",
    ]
    two = task.check([text(label, 2) for label in "abcyz"], "dev.tsv")
    assert two == [
        "dev.tsv, line 2: the training data does not have the labels 'y', 'z', so 2 answers will count as wrong"
    ]


def test_dev_labels_of_another_kind_are_refused():
    with pytest.raises(
        ElmoError, match=r"dev\.tsv, line 2: the training data has none of these labels \('1', '0'\), only 'a'"
    ):
        ClassifyTask(label_names("aabb")).check([text("1", 2), text("0", 3)], "dev.tsv")


def test_dev_tags():
    task = TagTask(label_names(["O", "B-X", "E-X"]), Scheme("BIO"))
    examples = [TaggedExample(("u", "v"), ("O", "O"), 1), TaggedExample(("u", "v", "w"), ("O", "O", "B-Y"), 4)]
    expected = "dev.conll, line 6: the training data does not have the label 'B-Y', so 1 answer will count as wrong"
    assert task.check(examples, "dev.conll") == [expected]


def test_scores():
    pairs = [PairExample(("a",), ("b",), label, line) for line, label in enumerate(["3.5", "-1", "1e2"], start=2)]
    assert scores_of(pairs) == [3.5, -1.0, 100.0]
    assert PairTask.from_examples(pairs, TaskOptions(target="score")) == (PairTask(()), [])
    with pytest.raises(ElmoError, match=r"scores must differ .* got 3\.5 3 times in a\.tsv"):
        PairTask.from_examples(pairs[:1] * 3, TaskOptions(target="score"), "a.tsv")


@pytest.mark.parametrize("label", ["NEUTRAL", "3,5", "nan", "inf", "1e999"])
def test_scores_that_are_no_numbers(label):
    with pytest.raises(ElmoError, match=rf"a\.tsv, line 7: a score must be a number, got '{label}'"):
        scores_of([PairExample(("a",), ("b",), label, 7)], "a.tsv")


def test_an_example_without_its_label():
    assert label_of(text("x", 3)) == "x"
    with pytest.raises(ElmoError, match="line 3: an example must have a label"):
        label_of(text(None, 3), "a.tsv")

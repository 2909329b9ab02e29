"""Training: every kind learns, every option counts, and the same seed gives the same model."""

import math
import random
from dataclasses import fields
from typing import ClassVar

import numpy as np
import pytest
import torch

import elmokit.tasks.inputs
from elmokit.errors import ElmoError
from elmokit.tasks import PairExample, TaggedExample, TaskOptions, TextExample, TrainingListener, fit
from elmokit.tasks.classify import ClassifyTask
from elmokit.tasks.pair import PairTask
from elmokit.tasks.tag import TagTask
from elmokit.tasks.trainer import WeightAverages, hold_out
from support.task_samples import BIO, BIOES, IOB1, NONE, pairs, samples, sentences, texts, tiny_options

TOLERANCE = 1e-3
"""Cached vectors are float16."""


@pytest.fixture
def elmo(make_elmo):
    return make_elmo(scale=1.0)


@pytest.fixture
def trained(elmo, tmp_path):
    """trained("tag", examples, **options): the first three quarters train, the others score."""

    def train(kind, examples, *, given=None, watch=None, dev=None, **options):
        cut = len(examples) * 3 // 4
        dev = examples[cut:] if dev is None else dev
        return fit(
            kind,
            examples[:cut],
            dev,
            tiny_options(**options),
            elmo=elmo,
            static=given,
            cache=tmp_path / "cache",
            watch=watch,
        )

    return train


def weights_of(fitted):
    return {name: value.clone() for name, value in fitted.model.network.state_dict().items()}


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("kind", "examples", "options"),
    [
        ("classify", texts(120), {}),
        ("classify", texts(120), {"pooling": "max"}),
        ("classify", texts(120), {"pooling": "mean", "elmo": "0"}),
        ("tag", sentences(80, BIO), {}),
        ("tag", sentences(80, IOB1), {"elmo": "none"}),
        ("tag", sentences(80, BIOES), {"crf": False}),
        ("tag", sentences(80, NONE), {"elmo_output": True}),
        ("pair", pairs(128), {"learning_rate": 0.004, "hidden": 24, "epochs": 16}),
        ("pair", pairs(128), {"learning_rate": 0.01, "words_beside": False}),
        ("pair", pairs(128), {"alignment": False, "learning_rate": 0.004, "hidden": 32, "epochs": 30}),
        ("pair", pairs(128, scores=True), {"target": "score", "learning_rate": 0.003, "hidden": 16, "epochs": 12}),
    ],
)
def test_every_kind_learns(trained, kind, examples, options):
    fitted = trained(kind, examples, **options)
    assert fitted.scores.main.value > 0.8, fitted.history
    assert fitted.history[-1]["loss"] < fitted.history[0]["loss"] * 0.7


# Each option, what it is changed to, and what else must be set for it to count.
CHANGES = {
    "elmo": ("0", "classify", {}),
    "elmo_output": (True, "classify", {}),
    "elmo_dropout": (0.5, "classify", {}),
    "mix_layer_norm": (True, "classify", {}),
    "mix_penalty": (10.0, "classify", {}),
    "fine_tune": (True, "classify", {"elmo_learning_rate": 0.01}),
    "elmo_learning_rate": (0.1, "classify", {"fine_tune": True}),
    "static": ("none", "classify", {}),
    "static_size": (3, "classify", {}),
    "static_frozen": (True, "classify", {}),
    "static_min_count": (9, "classify", {}),
    "hidden": (5, "classify", {}),
    "layers": (2, "classify", {}),
    "dropout": (0.5, "classify", {}),
    "pooling": ("max", "classify", {}),
    "crf": (False, "tag", {}),
    "alignment": (False, "pair", {}),
    "words_beside": (False, "pair", {}),
    "target": ("score", "pair", {}),
    "learning_rate": (0.001, "classify", {}),
    "batch_size": (3, "classify", {}),
    "epochs": (1, "classify", {}),
    "patience": (1, "classify", {"learning_rate": 0.0, "epochs": 4}),
    "clip_norm": (1e-4, "classify", {}),
    "max_tokens": (8, "classify", {}),
    "seed": (2, "classify", {}),
}


def test_no_option_is_forgotten():
    assert set(CHANGES) == {item.name for item in fields(TaskOptions)}


@pytest.mark.parametrize("name", CHANGES)
def test_every_option_counts(trained, name):
    value, kind, others = CHANGES[name]
    examples = pairs(16, scores=True) if kind == "pair" else samples(kind, 16)
    if name == "max_tokens":
        examples = [TextExample(example.tokens * 4, example.label) for example in examples]
    words = sorted({word for example in texts(16) for word in example.tokens})
    given = (words, np.random.default_rng(0).normal(size=(len(words), 4))) if name == "static_frozen" else None
    usual = {"epochs": 2, **others}
    plain = trained(kind, examples, given=given, **usual)
    other = trained(kind, examples, given=given, **{**usual, name: value})
    assert len(plain.history) != len(other.history) or not same(weights_of(plain), weights_of(other))


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("classify", {"crf": False}, "crf is for tag: it has no effect in this task .classify"),
        ("classify", {"target": "score"}, "target is for pair"),
        ("tag", {"pooling": "max"}, "pooling is for classify and pair: it has no effect in this task .tag"),
        ("pair", {"pooling": "max"}, "pooling is for"),
        ("tag", {"alignment": False}, "alignment is for pair"),
    ],
)
def test_options_of_another_kind_are_refused(trained, kind, options, message):
    with pytest.raises(ElmoError, match=message):
        trained(kind, samples(kind, 8), **options)


@pytest.mark.parametrize(
    ("kind", "options"),
    [("tag", {"max_tokens": 9, "words_beside": False}), ("pair", {"elmo": "none", "words_beside": False})],
)
def test_options_that_tasks_and_comparisons_may_share(kind, options):
    fit(kind, samples(kind, 8), samples(kind, 4), tiny_options(epochs=1, **{"elmo": "none", **options}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dropout": 1.0}, r"dropout must be at least 0 and below 1, got 1\.0"),
        ({"dropout": math.nan}, "dropout must be a finite number, got nan"),
        ({"hidden": -1}, "hidden must be at least 0, got -1"),
        ({"hidden": 2.5}, r"hidden must be a whole number, got 2\.5"),
        ({"hidden": True}, "hidden must be a whole number, got True"),
        ({"crf": "no"}, "crf must be true or false, got 'no'"),
        ({"pooling": "first"}, "pooling must be one of attention, max, mean, got 'first'"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"seed": 2**64}, "seed must be at least 0 and below"),
        ({"learning_rate": "fast"}, "learning_rate must be a number, got 'fast'"),
        ({"elmo": "none", "static": "none"}, "leave no input"),
        ({"elmo": "none", "fine_tune": True}, "fine_tune need ELMo"),
    ],
)
def test_option_values_that_cannot_be(options, message):
    with pytest.raises(ElmoError, match=message):
        TaskOptions(**options)


def test_the_same_seed_gives_the_same_model(trained):
    options = {"epochs": 2, "dropout": 0.3, "elmo_dropout": 0.3}
    first = weights_of(trained("tag", sentences(16), **options))
    torch.rand(3)
    random.random()
    assert same(first, weights_of(trained("tag", sentences(16), **options)))
    assert not same(first, weights_of(trained("tag", sentences(16), **options, seed=2)))


def test_the_users_random_numbers_are_left_alone(trained):
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    expected = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    trained("classify", texts(16), epochs=1, dropout=0.5)
    assert torch.equal(torch.get_rng_state(), expected[0])
    assert random.getstate() == expected[1]
    assert np.random.get_state()[1].tolist() == expected[2]


def test_the_best_epoch_is_the_model(trained):
    # So large a rate that the score goes up and down.
    fitted = trained("classify", texts(40), learning_rate=0.3, epochs=8, seed=3)
    values = [line["score"] for line in fitted.history]
    assert values[-1] < max(values), "the last epoch must not be the best for this test to say anything"
    assert fitted.scores.main.value == max(values) == values[fitted.epoch - 1]
    assert fitted.model.score(texts(40)[30:]).to_dict() == fitted.scores.to_dict()


def test_training_stops_early(trained):
    still = {"learning_rate": 0.0, "epochs": 9}
    assert len(trained("classify", texts(16), **still, patience=3).history) == 4
    assert len(trained("classify", texts(16), **still, patience=0).history) == 9


def test_training_goes_on_while_nothing_is_found(trained):
    """A tagger that finds no span yet has not stopped getting better."""
    fitted = trained("tag", sentences(16), learning_rate=0.0, epochs=6, patience=2)
    if fitted.scores.main.value == 0:
        assert len(fitted.history) == 6
    assert fitted.history[-1]["learning_rate"] == 0


def test_what_is_watched(trained):
    seen = {"note": [], "features": [], "batch": [], "epoch": []}

    class Watch(TrainingListener):
        def note(self, text):
            seen["note"].append(text)

        def features(self, done, total):
            seen["features"].append((done, total))

        def batch(self, epoch, done, total):
            seen["batch"].append((epoch, done, total))

        def epoch(self, line, *, best):
            seen["epoch"].append((line["epoch"], line["name"], best))

    examples = [*texts(16), TextExample(("x",) * 401, "pos")]
    fitted = trained("classify", examples, watch=Watch(), dev=texts(2)[:1], epochs=2)
    assert seen["note"] == fitted.notes
    assert any("do not cover 'pos'" in note for note in fitted.notes), fitted.notes
    assert seen["features"][-1][0] == seen["features"][-1][1]
    assert [line[:2] for line in seen["epoch"]] == [(1, "accuracy"), (2, "accuracy")]
    assert seen["epoch"][0][2]
    assert seen["batch"] == [(epoch, done, 2) for epoch in (1, 2) for done in (1, 2)]


def test_texts_that_are_cut_are_reported(trained):
    long = [TextExample(example.tokens + ("x",) * 30, example.label) for example in texts(16)]
    fitted = trained("classify", long, epochs=1, max_tokens=20)
    assert "12 of 12 texts are longer than 20 tokens (max_tokens) and are cut" in fitted.notes


def test_without_dev_data_some_is_held_out(elmo, tmp_path):
    train, dev = hold_out(ClassifyTask, texts(40), TaskOptions())
    assert (len(train), len(dev)) == (36, 4)
    assert {example.line for example in (*train, *dev)} == set(range(1, 41))
    again, other = (hold_out(ClassifyTask, texts(40), TaskOptions(seed=seed))[1] for seed in (1, 2))
    assert again == dev != other
    fitted = fit("classify", texts(40), None, tiny_options(epochs=1), elmo=elmo, cache=tmp_path)
    assert fitted.scores.to_dict() == fitted.model.score(dev).to_dict()


def test_examples_may_come_from_a_generator(elmo, tmp_path):
    examples = texts(6)
    found = fit("classify", iter(examples), iter(examples), tiny_options(epochs=1), elmo=elmo, cache=tmp_path)
    assert len(found.history) == 1


def test_every_label_keeps_an_example_to_train_on(elmo, tmp_path):
    rare = [*texts(20), TextExample(("odd",), "rare", 21)]
    for seed in range(30):
        train, dev = hold_out(ClassifyTask, rare, TaskOptions(seed=seed))
        assert len(dev) == 2
        assert {example.label for example in train} == {"pos", "neg", "rare"}
    assert len(hold_out(PairTask, pairs(20, scores=True), TaskOptions(target="score"))[1]) == 2
    with pytest.raises(ElmoError, match=r"each of the 2 examples is the only one of its label: give dev data"):
        fit("classify", texts(2), None, tiny_options(epochs=1), elmo=elmo, cache=tmp_path)


def test_a_broken_span_among_those_held_out_is_reported_and_not_refused(elmo, tmp_path):
    examples = sentences(30)
    held = hold_out(TagTask, examples, TaskOptions())[1][0]
    examples[held.line - 1] = TaggedExample(("film", "Ann"), ("O", "I-PER"), held.line)
    options = tiny_options(epochs=1)
    fitted = fit("tag", examples, None, options, elmo=elmo, cache=tmp_path, paths=("a.conll", None))
    (note,) = fitted.notes
    assert note.startswith(f"a.conll, line {held.line + 1}: in BIO I-PER after O should be B-PER")


def test_tags_that_training_never_saw_are_reported_as_the_file_spells_them(trained):
    dev = [TaggedExample(("film", "Ann"), ("O", "B-PERSON"), 1), TaggedExample(("Rome",), ("B-LOC",), 4)]
    notes = trained("tag", sentences(16), dev=dev, epochs=1).notes
    assert notes == [
        "line 1, token 2 ('Ann'): the training data does not have the label 'B-PERSON', so 1 answer will count as wrong"
    ]


def test_dev_data_without_spans_is_reported(trained):
    dev = [TaggedExample(("film",), ("O",), 1)]
    assert "every tag to score on is O, so the entity F1 is 0 for any answers" in (
        trained("tag", sentences(16), dev=dev, epochs=1).notes
    )


@pytest.mark.parametrize(
    ("kind", "train", "dev", "message"),
    [
        ("classify", [], None, "there must be examples to train on"),
        ("classify", texts(1), None, "at least two classes"),
        ("classify", [], texts(4), "there must be examples to train on"),
        ("classify", texts(4), [], "there must be dev examples"),
        ("classify", texts(4), [TextExample(("a",))], "must have a label"),
        (
            "tag",
            sentences(4),
            [TaggedExample(("a",), line=7)],
            "line 7: every token must have a tag to train or score, got none",
        ),
        ("tag", texts(4), texts(4), "the task tag takes TaggedExample, got TextExample"),
        ("classify", [TextExample("a film", "x"), TextExample("a plot", "y")] * 2, None, "got the string 'a film'"),
        ("tag", [TaggedExample("a film", ("X", "Y"))] * 4, None, "got the string 'a film'"),
        ("classify", [TextExample(("a",), 1), TextExample(("b",), 0)] * 2, None, "a label must be a string, got 1"),
        ("tag", [TaggedExample(("a", "b"), (1, 0))] * 4, None, "a tag must be a string, got 1"),
        ("parse", texts(4), texts(4), "a task is one of classify, tag, pair, got 'parse'"),
        ("pair", pairs(4), [PairExample(("a",), ("b",))], "must have a label"),
    ],
)
def test_examples_that_cannot_be_learned_from(elmo, tmp_path, kind, train, dev, message):
    with pytest.raises(ElmoError, match=message):
        fit(kind, train, dev, tiny_options(epochs=1), elmo=elmo, cache=tmp_path)


def test_a_model_is_asked_for():
    with pytest.raises(ElmoError, match="give elmo=, or the option elmo='none'"):
        fit("classify", texts(8), None, tiny_options())


def test_the_name_of_a_model_is_no_model():
    with pytest.raises(ElmoError, match="must be an Elmo, got 'en'"):
        fit("classify", texts(4), None, elmo="en")


def test_gradients_that_are_no_numbers_are_reported(trained, elmo):
    torch.nn.init.constant_(elmo.bilm.get_parameter(next(iter(elmo.bilm.state_dict()))), math.nan)
    with pytest.raises(ElmoError, match="no update of epoch 1 had finite gradients"):
        trained("classify", texts(16), epochs=2)


def test_updates_that_are_left_out_are_reported(trained):
    class Noting(TrainingListener):
        notes: ClassVar[list[str]] = []

        def note(self, text):
            self.notes.append(text)

    fitted = trained("classify", texts(32), epochs=1, learning_rate=1e30, watch=Noting())
    assert Noting.notes[-1].startswith("2 of the 3 updates of epoch 1 had gradients")
    assert 0.5 < fitted.history[0]["loss"] < 1  # of the one that counted


def bilm_of(elmo):
    return {name: value.clone() for name, value in elmo.bilm.state_dict().items()}


def test_fine_tuning_trains_a_copy(trained, elmo):
    before, options = bilm_of(elmo), {"epochs": 2, "elmo_learning_rate": 0.01}
    frozen = trained("classify", texts(16), epochs=2)
    assert frozen.model.elmo is elmo
    tuned = trained("classify", texts(16), **options, fine_tune=True)
    assert same(before, bilm_of(elmo))
    assert not any(parameter.requires_grad for parameter in elmo.bilm.parameters())
    after = bilm_of(tuned.model.elmo)
    moved = {name for name in after if not torch.equal(after[name], before[name])}
    assert any("embedding" in name for name in moved)
    assert any("lstm" in name or "forward" in name for name in moved), moved
    assert not any(parameter.requires_grad for parameter in tuned.model.elmo.bilm.parameters())
    assert tuned.model.score(texts(16)[12:]).to_dict() == tuned.scores.to_dict()
    again = trained("classify", texts(16), **options, fine_tune=True)
    assert same(after, bilm_of(again.model.elmo))


def test_vectors_are_computed_once(trained, monkeypatch, tmp_path, elmo):
    computed = []
    block = elmokit.tasks.inputs._compute_block
    monkeypatch.setattr(
        elmokit.tasks.inputs,
        "_compute_block",
        lambda *arguments: computed.append(len(arguments[4])) or block(*arguments),
    )
    first = trained("classify", texts(24), epochs=2)
    assert sum(computed) == len({example.tokens for example in texts(24)})
    computed.clear()
    again = trained("classify", texts(24), epochs=2)
    assert not computed
    assert same(weights_of(first), weights_of(again))
    fresh = fit("classify", texts(24)[:18], texts(24)[18:], tiny_options(epochs=2), elmo=elmo, cache=tmp_path / "new")
    assert computed
    assert same(weights_of(first), weights_of(fresh))


def test_cached_vectors_give_what_computed_ones_give(trained):
    """Fine-tuning at a rate of 0 trains on live vectors."""
    stored = trained("classify", texts(24), epochs=2)
    live = trained("classify", texts(24), epochs=2, fine_tune=True, elmo_learning_rate=0.0)
    for line, other in zip(stored.history, live.history, strict=True):
        assert line["loss"] == pytest.approx(other["loss"], abs=TOLERANCE)
    sentence = "it was a good film"
    assert stored.model.predict(sentence).probability == pytest.approx(
        live.model.predict(sentence).probability, abs=TOLERANCE
    )


WORDS = ["good", "Fine", "great", "bad", "poor", "awful", "the", "film"]
VECTORS = np.random.default_rng(1).normal(size=(len(WORDS), 5)).astype(np.float32)


@pytest.mark.parametrize("header", [True, False], ids=["word2vec", "GloVe"])
def test_static_vectors_from_a_file(trained, tmp_path, header):
    path = tmp_path / "vectors.txt"
    lines = [f"{word} {' '.join(map(str, row))}" for word, row in zip(WORDS, VECTORS.tolist(), strict=True)]
    path.write_text("\n".join([f"{len(WORDS)} 5", *lines] if header else lines) + "\n")
    fitted = trained("classify", texts(120), static=str(path), elmo="none")
    assert fitted.scores.main.value > 0.8
    assert any("words of the training text have a vector in" in note for note in fitted.notes)
    table = fitted.model.network.encoder.static
    assert table.size == 5
    assert not torch.allclose(table.trained.weight[table.row("good")], torch.from_numpy(VECTORS[0]))


def test_static_vectors_that_are_given_and_frozen(trained):
    fitted = trained("classify", texts(120), given=(WORDS, VECTORS), elmo="none", static_frozen=True)
    table = fitted.model.network.encoder.static
    torch.testing.assert_close(table.trained.weight[table.row("good")], torch.from_numpy(VECTORS[0]))
    assert fitted.scores.main.value > 0.8


def test_what_is_compared():
    options = TaskOptions(static="none", elmo_output=True, fine_tune=True, hidden=9)
    assert options.with_layer_0() == TaskOptions(static="none", elmo_output=True, fine_tune=True, hidden=9, elmo="0")
    assert options.without_elmo() == TaskOptions(elmo="none", hidden=9)
    assert TaskOptions(static="glove.txt").without_elmo().static == "glove.txt"


def test_the_average_follows_the_weights_and_forgets_the_start():
    weight = torch.nn.Parameter(torch.zeros(3))
    averages = WeightAverages([weight])
    means = []
    for _ in range(3000):
        with torch.no_grad():
            weight.fill_(1.0)
        averages.update()
        means.append(float(averages.copies()[0][0]))
    assert means == sorted(means)
    assert means[0] == pytest.approx(0.9)  # while there were few updates, the last ones count most
    assert means[-1] > 0.99


def test_a_network_has_its_own_weights_again():
    weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    averages = WeightAverages([weight])
    with torch.no_grad():
        weight += 10
    averages.update()

    def fail():
        with averages.applied():
            assert weight.tolist() == pytest.approx([10.0, 11.0])
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert weight.tolist() == [11.0, 12.0]
    assert averages.copies()[0].tolist() == pytest.approx([10.0, 11.0])


def test_a_missing_tag_is_named_with_its_file():
    with pytest.raises(ElmoError, match=r"^x\.conll, line 7: "):
        TagTask.from_examples([TaggedExample(("a",), line=7)], TaskOptions(), "x.conll")

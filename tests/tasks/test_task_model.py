"""A trained model: texts of every shape in, answers with probabilities out, the same whatever the batch."""

from functools import cache

import pytest
import torch

from elmokit import Elmo
from elmokit.errors import ElmoError
from elmokit.tasks import PairExample, TaggedExample, TextExample, fit, save
from elmokit.tasks.classify import LabelAnswer
from elmokit.tasks.pair import ScoreAnswer
from elmokit.tasks.schemes import Scheme
from elmokit.tasks.tag import Entity, TagAnswer, TagTask
from elmokit.text.policy import TextPolicy
from support.task_samples import BIO, BIOES, IOB1, NONE, pairs, samples, sentences, texts, tiny_options
from support.tiny_models import tiny_checkpoint

ODD = ["good film", "", "good", "😀 👩‍👩‍👧 ﷽ é", "the " * 150 + "bad", "x" * 5000, "the bank\u2028of\x00it"]


@pytest.fixture(scope="module")
def model_of(tmp_path_factory):
    """model_of("tag", examples, **options): a model that was trained for a moment, the same for all tests."""
    elmo, folder = Elmo(tiny_checkpoint(scale=1.0)), tmp_path_factory.mktemp("cache")

    @cache
    def train(kind, examples, segment, options):
        return fit(kind, examples, examples[:4], options, elmo=elmo, segment=segment, cache=folder).model

    def model(kind, examples=None, *, segment="none", **options):
        examples = tuple(samples(kind, 24) if examples is None else examples)
        return train(kind, examples, segment, tiny_options(**{"epochs": 1, **options}))

    return model


def test_what_a_classifier_takes_and_gives(model_of):
    model = model_of("classify")
    assert (model.kind, model.labels) == ("classify", ("neg", "pos"))
    one = model.predict("a good film")
    assert isinstance(one, LabelAnswer)
    assert one.label == max(one.probabilities, key=one.probabilities.get)
    assert one.probability == max(one.probabilities.values())
    assert one.to_dict() == {"label": one.label, "probability": one.probability, "probabilities": one.probabilities}
    assert model.predict(("a", "good", "film")) == one
    assert model.predict(["a good film"]) == model.predict([["a", "good", "film"]]) == [one]
    assert model.predict(iter(["a good film"])) == [one]
    assert model.predict([]) == []
    for answer in model.predict(ODD):
        assert set(answer.probabilities) == {"neg", "pos"}
        assert sum(answer.probabilities.values()) == pytest.approx(1, abs=1e-5)


def test_what_a_tagger_takes_and_gives(model_of):
    model = model_of("tag")
    one = model.predict("film Ann Smith was Paris")
    assert isinstance(one, TagAnswer)
    assert one.tokens == ("film", "Ann", "Smith", "was", "Paris")
    assert model.predict(one.tokens).tags == one.tags
    assert model.predict([list(one.tokens), "Rome"])[0].tags == one.tags
    assert len(one.tags) == len(one.probabilities) == 5
    for text, answer in zip(ODD, model.predict(ODD), strict=True):
        assert answer.tokens == tuple(text.split())
        assert set(answer.tags) <= set(model.labels)
        assert all(0 <= value <= 1 for value in answer.probabilities)
    assert model.predict("") == TagAnswer((), (), (), ())
    assert model.predict("").to_dict() == {"tokens": (), "tags": (), "probabilities": (), "entities": ()}


def test_what_a_pair_model_takes_and_gives(model_of):
    model = model_of("pair")
    one = model.predict(("it was good", "a good film"))
    assert isinstance(one, LabelAnswer)
    assert model.labels == ("other", "same")
    assert model.predict([("it was good", "a good film"), (["a"], ["b", "c"])])[0] == one
    assert model.predict((("it", "was", "good"), ["a", "good", "film"])) == one
    for answer in model.predict([(text, "good") for text in ODD] + [("good", text) for text in ODD] + [("", "")]):
        assert sum(answer.probabilities.values()) == pytest.approx(1, abs=1e-5)
    scored = model_of("pair", pairs(24, scores=True), target="score")
    answer = scored.predict(("good", "bad film"))
    assert isinstance(answer, ScoreAnswer)
    assert 1 <= answer.score <= 5, "never beyond the training scores"
    assert scored.labels == ()


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        ("classify", 5, "predict takes a text or a list of texts, got int"),
        ("classify", [5], "a text is a string or a list of tokens"),
        ("classify", [[1, 2]], "a text is a string or a list of tokens"),
        ("tag", None, "predict takes a text"),
        ("classify", {"text": ["a good film"]}, "got dict"),
        ("classify", [{"text": "a good film"}], "got dict"),
        ("pair", "one text", "takes a tuple of 2 texts, got 'o'"),
        ("pair", ["one text", "another"], "takes a tuple of 2 texts, got 'one text'"),
        ("pair", ("a", "b", "c"), "takes a tuple of 2 texts"),
    ],
)
def test_what_is_no_text(model_of, kind, given, message):
    with pytest.raises(ElmoError, match=message):
        model_of(kind).predict(given)


def test_what_is_no_model_is_not_saved(tmp_path):
    with pytest.raises(ElmoError, match="got str"):
        save("a model", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_examples_of_another_kind(model_of):
    with pytest.raises(ElmoError, match="the task classify takes TextExample, got TaggedExample"):
        model_of("classify").score(sentences(4))
    with pytest.raises(ElmoError, match="must have a label"):
        model_of("classify").score([TextExample(("a",))])
    with pytest.raises(ElmoError, match="every token must have a tag"):
        model_of("tag").score([TaggedExample(("a",))])


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("classify", {"elmo_output": True, "mix_layer_norm": True}),
        ("tag", {}),
        ("tag", {"crf": False}),
        ("pair", {}),
        ("pair", {"alignment": False}),
    ],
)
def test_an_answer_depends_on_its_text_alone(model_of, kind, options):
    model = model_of(kind, **options)
    given = [(text, "a good film") for text in ODD] if kind == "pair" else ODD
    together = model.predict(given)
    backwards = model.predict(given[::-1])[::-1]
    for text, answer, other in zip(given, together, backwards, strict=True):
        alone = model.predict(text)
        if kind == "tag":
            assert alone.tags == answer.tags == other.tags
            assert alone.probabilities == pytest.approx(answer.probabilities, abs=1e-5)
        else:
            assert alone.probabilities == pytest.approx(answer.probabilities, abs=1e-5)
            assert alone.probabilities == pytest.approx(other.probabilities, abs=1e-5)


def test_any_number_of_texts_streams(model_of, monkeypatch):
    monkeypatch.setattr("elmokit.tasks.model._READ_AHEAD", 4)
    model, taken = model_of("classify"), []

    def read():
        for example in texts(12):
            taken.append(example)
            yield example

    answers = model.stream(read())
    first = next(answers)
    assert len(taken) == 4
    assert [first, *answers] == model.predict([example.tokens for example in texts(12)])


BMES = Scheme("BIOES", "BMES", "_")


@pytest.mark.parametrize(
    ("scheme", "labels"),
    [
        (BIO, {"O", "B-PER", "I-PER", "B-LOC"}),
        (IOB1, {"O", "I-PER", "B-PER", "I-LOC", "B-LOC"}),
        (BIOES, {"O", "S-PER", "B-PER", "E-PER", "S-LOC"}),
        (BMES, {"O", "S_PER", "B_PER", "E_PER", "S_LOC"}),
        (NONE, {"NOUN", "X"}),
    ],
    ids=["BIO", "IOB1", "BIOES", "BMES", "none"],
)
def test_tags_are_spelled_as_in_the_file(model_of, scheme, labels):
    examples = sentences(60, scheme)
    model = model_of("tag", examples, epochs=5)
    assert set(model.labels) == labels
    answers = list(model.stream(examples))
    right = sum(answer.tags == example.tags for answer, example in zip(answers, examples, strict=True))
    assert right > 50
    assert {tag for answer in answers for tag in answer.tags} <= labels
    answer = model.predict("film Ann Smith was Paris Rome")
    if scheme.has_spans:
        assert model.predict(answer.tokens).entities == (
            Entity(1, 3, "PER", "Ann Smith"),
            Entity(4, 5, "LOC", "Paris"),
            Entity(5, 6, "LOC", "Rome"),
        )
        assert answer.to_dict()["entities"][0] == {
            "start": 1, "end": 3, "type": "PER", "text": "Ann Smith", "start_char": 5, "end_char": 14,
        }  # fmt: skip
    else:
        assert answer.entities == ()
    assert model.score(examples).main.value > 0.9


def test_a_tags_probability_is_that_of_its_spelling(model_of):
    """In BIO a B may begin a span or be all of it: B-PER is as probable as both together."""
    bio, bioes = model_of("tag", sentences(24, BIO)), model_of("tag", sentences(24, BIOES))
    for name, value in bio.network.state_dict().items():
        assert value.equal(bioes.network.state_dict()[name]), "the two differ in spelling alone"
    one, other = bio.predict("Ann was Paris"), bioes.predict("Ann was Paris")
    for value, parts in zip(one.probabilities, other.probabilities, strict=True):
        assert value >= parts - 1e-6
    assert sum(one.probabilities) > sum(other.probabilities) + 1e-4


def test_texts_are_split_as_in_training(model_of):
    model = model_of("classify", segment="english")
    assert model.tokens("It wasn't good.") == ("It", "was", "n't", "good", ".")
    assert model.predict("It wasn't good.") == model.predict(("It", "was", "n't", "good", "."))
    assert model_of("classify").tokens("It wasn't good.") == ("It", "wasn't", "good.")


def test_long_texts_are_cut_and_long_sentences_are_not(model_of):
    model = model_of("classify", max_tokens=8)
    assert model.predict("good " + "the " * 7) == model.predict("good " + "the " * 7 + "bad " * 50)
    assert len(model_of("tag").predict("the " * 3000).tags) == 3000


def test_scores_of_labelled_examples(model_of):
    model = model_of("pair", epochs=2)
    examples = [*pairs(6), PairExample(("a",), ("b",), "never seen")]
    scores = model.score(examples)
    assert "never seen" in scores.names
    assert scores.classes[-1].gold == 1


def test_the_text_of_a_span_is_written_as_its_language_is(model_of):
    tokens = ("北", "京", "大", "学", "Ann", "Smith", "ヤ", "マ", "서울", "시")
    example = TaggedExample(tokens, ("B-ORG", *["I-ORG"] * (len(tokens) - 1)))
    model = model_of("tag", [example, TaggedExample(("a",), ("O",))] * 12, epochs=8)
    assert [entity.text for entity in model.predict(tokens).entities] == ["北京大学 Ann Smith ヤマ 서울 시"]


@pytest.mark.parametrize(
    ("segment", "text", "letters", "entities"),
    [
        ("whitespace", "film  Ann \t Smith\u3000was Paris ", "OBEOS", ["Ann \t Smith", "Paris"]),
        ("english", "(Ann Smith's film: Paris, Paris.)", "OBEOOOSOSOO", ["Ann Smith", "Paris", "Paris"]),
        ("english", "U.S.-based D'Angelo didn't.", "SSOOO", ["U.S.-based", "D'Angelo"]),
        ("chars", "\u3000在北京大学 Ann看👩‍👩‍👧。", "OBIIESOSO", ["北京大学", "Ann", "👩‍👩‍👧"]),
        ("whitespace", "", "", []),
    ],
)
def test_entities_have_their_places_in_the_raw_text(segment, text, letters, entities):
    names = ("O", "B-X", "E-X", "I-X", "S-X")
    task, tokens = TagTask(names, BIO), tuple(TextPolicy(segment).split(text))
    ids = torch.tensor([[name[0] for name in names].index(letter) for letter in letters], dtype=torch.long)
    assert len(ids) == len(tokens), tokens
    probabilities = torch.eye(len(names))[ids]
    found = task.answer(TaggedExample(tokens, raw=(text,)), (ids, probabilities)).entities
    assert [entity.text for entity in found] == entities
    assert [text[entity.start_char : entity.end_char] for entity in found] == entities
    without_text = task.answer(TaggedExample(tokens), (ids, probabilities)).entities
    assert [(entity.start, entity.end) for entity in without_text] == [(e.start, e.end) for e in found]
    assert all(entity.start_char is entity.end_char is None for entity in without_text)

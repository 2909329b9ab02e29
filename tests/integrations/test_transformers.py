"""ElmokitModel and ElmokitTokenizer in transformers: the vectors of encode, files, Auto classes, pipelines."""

import json
import pickle
import sys
from importlib import import_module

import numpy as np
import pytest
import torch
from huggingface_hub.errors import StrictDataclassFieldValidationError
from transformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    pipeline,
)

from elmokit import Elmo, ElmoError
from elmokit.errors import MissingExtraError
from elmokit.integrations.transformers import ElmokitConfig, ElmokitModel, ElmokitTokenizer
from support.doc_pages import run_page
from support.model_files import make_manylangs, write_manylangs
from support.tiny_models import transformer_config, word_config

TEXTS = ["the river bank", "money of the bank .", "", "a"]
KINDS = ("lstm", "transformer", "words", "symbols and words", "symbols")


@pytest.fixture(params=KINDS)
def elmo(request, make_elmo, tmp_path):
    """A tiny model of each kind of ids."""
    if request.param.startswith("symbols"):
        write_manylangs(tmp_path / "manylangs", make_manylangs(words="words" in request.param))
        return Elmo.load(tmp_path / "manylangs", segment="whitespace")
    return make_elmo({"lstm": None, "transformer": transformer_config(), "words": word_config()}[request.param])


def both(elmo):
    return ElmokitModel.from_elmokit(elmo), ElmokitTokenizer.from_elmokit(elmo)


@torch.no_grad()
def vectors(model, tokenizer, texts, **named):
    """The arrays of the texts without padding, from `last_hidden_state` and from `hidden_states`."""
    inputs = tokenizer(texts, padding=True, return_tensors="pt", **named)
    found = model(**inputs, output_hidden_states=True)
    lengths = inputs["attention_mask"].sum(dim=1).long().tolist()
    layers = torch.stack(found.hidden_states)
    assert not found.last_hidden_state[inputs["attention_mask"] == 0].any()
    last = [found.last_hidden_state[row, :length].numpy() for row, length in enumerate(lengths)]
    return last, [layers[:, row, :length].numpy() for row, length in enumerate(lengths)]


def assert_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_vectors_are_those_of_encode(elmo):
    last, layers = vectors(*both(elmo), TEXTS)
    assert_equal(last, elmo.encode(TEXTS))
    assert_equal(layers, elmo.encode(TEXTS, output="layers"))


@pytest.mark.parametrize("name", ["en", "en-lstm", "zh"])
def test_bundled_models(name):
    texts = ["The bank raised interest rates, didn't it?", "他去银行。", ""]
    last, layers = vectors(ElmokitModel.from_elmokit(name), ElmokitTokenizer.from_elmokit(name), texts)
    elmo = Elmo.load(name, dtype="float32")  # an int8 model is read in floats
    assert_equal(last, elmo.encode(texts))
    assert_equal(layers, elmo.encode(texts, output="layers"))


@pytest.mark.parametrize("layer", ["mix", "top", 0, 1])
@pytest.mark.parametrize("norm", [False, True, "sentence"])
def test_the_layer_that_is_returned(make_elmo, layer, norm):
    elmo = make_elmo(layer_norm=norm)
    model, tokenizer = both(elmo)
    model.config.layer = layer
    assert_equal(vectors(model, tokenizer, TEXTS)[0], elmo.encode(TEXTS, layer=layer))


def test_files_and_auto_classes(elmo, tmp_path):
    model, tokenizer = both(elmo)
    with torch.no_grad():
        model.mix.weights.copy_(torch.arange(len(model.mix.weights)))
    expected = vectors(model, tokenizer, TEXTS)[0]
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    config = AutoConfig.from_pretrained(tmp_path / "model")
    assert (config.hidden_size, config.num_hidden_layers) == (elmo.config.vector_size, elmo.config.context.n_layers)
    again = AutoModel.from_pretrained(tmp_path / "model"), AutoTokenizer.from_pretrained(tmp_path / "model")
    assert [type(each) for each in again] == [ElmokitModel, ElmokitTokenizer]
    assert_equal(vectors(*again, TEXTS)[0], expected)
    back = again[0].to_elmokit(again[1])
    assert back.fingerprint() == elmo.fingerprint()
    back.save(tmp_path / "elmokit")
    assert_equal(Elmo.load(tmp_path / "elmokit").encode(TEXTS), expected)


def test_words_that_are_given(elmo):
    rows = [["the", "river"], ["money", "of", "the", "bank"]]
    last, _ = vectors(*both(elmo), rows, is_split_into_words=True)
    assert_equal(last, elmo.encode(rows))
    tokenizer = ElmokitTokenizer.from_elmokit(elmo)
    one = tokenizer(rows[0], is_split_into_words=True, return_offsets_mapping=True)
    assert one["offset_mapping"] == [(0, 3), (0, 5)]
    assert one.word_ids() == [0, 1]
    assert one["input_ids"] == tokenizer("the river")["input_ids"]


def test_a_chinese_word_has_a_token_for_each_character():
    elmo, (model, tokenizer) = Elmo.load("zh", dtype="float32"), both("zh")
    words = ["他", "去", "银行", "2020年"]
    inputs = tokenizer(words, is_split_into_words=True, return_tensors="pt", return_offsets_mapping=True)
    assert inputs.tokens() == ["他", "去", "银", "行", "2020", "年"]
    assert inputs.word_ids() == [0, 1, 2, 2, 3, 3]
    assert inputs.pop("offset_mapping")[0].tolist() == [[0, 1], [0, 1], [0, 1], [1, 2], [0, 4], [4, 5]]
    with torch.no_grad():
        found = model(**inputs).last_hidden_state[0]
    place = torch.tensor(inputs.word_ids())
    means = [found[place == word].mean(dim=0).numpy() for word in range(len(words))]
    np.testing.assert_allclose(means, elmo.encode([words])[0], rtol=1e-5, atol=1e-6)


def test_strings_follow_the_text_policy():
    text = "He didn't bank on it."
    inputs = ElmokitTokenizer.from_elmokit("en")(text, return_offsets_mapping=True)
    expected = Elmo.load("en").tokenize(text)
    assert inputs.tokens() == [token.text for token in expected]
    assert inputs["offset_mapping"] == [(token.start, token.end) for token in expected]
    assert ElmokitTokenizer.from_elmokit("en").tokenize(text) == inputs.tokens()


def test_a_segment_that_was_chosen(make_elmo, tmp_path):
    tokenizer = ElmokitTokenizer.from_elmokit(make_elmo(segment="english"))
    tokenizer.save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path).tokenize("a bank.") == ["a", "bank", "."]
    assert ElmokitTokenizer.from_elmokit(Elmo.load("en", segment="whitespace")).tokenize("a bank.") == ["a", "bank."]


def test_padding_and_truncation(make_elmo):
    tokenizer = ElmokitTokenizer.from_elmokit(make_elmo())
    plain = tokenizer(TEXTS)
    assert [len(row) for row in plain["input_ids"]] == [3, 5, 0, 1]
    assert plain["attention_mask"] == [[1] * 3, [1] * 5, [], [1]]
    fixed = tokenizer(TEXTS, padding="max_length", max_length=8, return_tensors="pt", return_offsets_mapping=True)
    assert fixed["input_ids"].shape == (4, 8, 50)
    assert fixed["offset_mapping"].shape == (4, 8, 2)
    assert fixed["attention_mask"].sum(dim=1).tolist() == [3, 5, 0, 1]
    assert fixed.word_ids(0) == [0, 1, 2, *[None] * 5]
    assert fixed.tokens(3) == ["a", *["<pad>"] * 7]
    assert tokenizer(TEXTS, padding=True, pad_to_multiple_of=4, return_tensors="np")["input_ids"].shape == (4, 8, 50)
    cut = tokenizer(TEXTS, truncation=True, max_length=2)
    assert [cut.tokens(row) for row in range(4)] == [["the", "river"], ["money", "of"], [], ["a"]]
    tokenizer.truncation_side = "left"
    assert tokenizer(TEXTS[0], truncation=True, max_length=2).tokens() == ["river", "bank"]


def test_texts_without_tokens(make_elmo):
    model, tokenizer = both(make_elmo())
    for texts, shape in (("", (1, 0, 12)), (["", " "], (2, 0, 12))):
        inputs = tokenizer(texts, return_tensors="pt")
        assert model(**inputs).last_hidden_state.shape == shape


def test_collators_of_the_library(make_elmo):
    elmo = make_elmo()
    model, tokenizer = both(elmo)
    items = [dict(tokenizer(text)) for text in ("the river bank", "a")]
    batch = DataCollatorWithPadding(tokenizer)(items)
    with torch.no_grad():  # with gradients other kernels compute it
        assert_equal([model(**batch).last_hidden_state[1, :1].numpy()], elmo.encode(["a"]))
    found = model(**batch).last_hidden_state[1, :1].detach().numpy()
    np.testing.assert_allclose(found, elmo.encode(["a"])[0], rtol=1e-5, atol=1e-5)
    labelled = [{**item, "labels": [1] * len(item["input_ids"])} for item in items]
    batch = DataCollatorForTokenClassification(tokenizer)(labelled)
    assert batch["labels"].tolist() == [[1, 1, 1], [1, -100, -100]]
    assert batch["input_ids"].shape == (2, 3, 50)


def test_pipeline(make_elmo, tmp_path):
    elmo = make_elmo()
    for part in both(elmo):
        part.save_pretrained(tmp_path)
    extract = pipeline("feature-extraction", model=str(tmp_path), device="cpu")
    texts = [text for text in TEXTS if text]
    assert_equal([np.array(found[0], np.float32) for found in extract(texts)], elmo.encode(texts))
    assert extract("", return_tensors=True).shape == (1, 0, 12)


@pytest.mark.parametrize("layer", ["mix", "top"])
def test_gradients(make_elmo, layer):
    model, tokenizer = both(make_elmo())
    model.config.layer = layer
    model.train()(**tokenizer(TEXTS, padding=True, return_tensors="pt")).last_hidden_state.sum().backward()
    without = {name for name, value in model.named_parameters() if value.grad is None}
    assert without == (set() if layer == "mix" else {"mix.weights", "mix.gamma"})


def test_the_mask_may_be_left_out(make_elmo):
    model, tokenizer = both(make_elmo())
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        found = model(**inputs).last_hidden_state
        assert torch.equal(model(inputs["input_ids"]).last_hidden_state, found)
        assert torch.equal(model(**inputs, return_dict=False)[0], found)


def test_a_new_model_is_drawn_by_elmokits_rules():
    torch.manual_seed(0)
    model = AutoModel.from_config(ElmokitConfig())
    first = model.bilm.context.forward_lstm.layers[0]
    bound = (6 / (2 * 16 + 4 * 64)) ** 0.5
    assert 0.9 * bound < first.input_weight.abs().max() <= bound
    assert not first.bias.any()


def test_pickles(make_elmo):
    model, tokenizer = both(make_elmo())
    again = pickle.loads(pickle.dumps(model)), pickle.loads(pickle.dumps(tokenizer))
    assert_equal(vectors(*again, TEXTS)[0], vectors(model, tokenizer, TEXTS)[0])


def test_mistakes(make_elmo):
    model, tokenizer = both(make_elmo())
    with pytest.raises(ElmoError, match="pair"):
        tokenizer("a", "b")
    with pytest.raises(ElmoError, match=r"\[B, T, C\].*\(1, 2\)"):
        model(torch.ones(1, 2, dtype=torch.long))
    with pytest.raises(ElmoError, match=r"\[B, T, C\].*None"):
        model()
    with pytest.raises(ElmoError, match="right"):
        tokenizer(TEXTS, padding=True, padding_side="left")
    with pytest.raises(ElmoError, match="after the last token"):
        model(tokenizer("a a", return_tensors="pt")["input_ids"], torch.tensor([[0, 1]]))
    with pytest.raises(ElmoError, match="tokens"):
        tokenizer.decode([1])
    for layer in ("all", "bottom", 9):
        with pytest.raises(ElmoError, match=str(layer)):
            ElmokitConfig(layer=layer)
    with pytest.raises(ElmoError, match="boundary_ids"):
        ElmokitConfig(network=json.loads(json.dumps(word_config().to_dict())))
    with pytest.raises(StrictDataclassFieldValidationError, match="network"):
        ElmokitConfig(network=7)
    with pytest.raises(StrictDataclassFieldValidationError, match="layer_norm"):
        ElmokitConfig(layer_norm=1.5)
    with pytest.raises(StrictDataclassFieldValidationError, match="layer"):
        model.config.layer = 1.5


@pytest.mark.parametrize("older", [False, True])
def test_without_the_library(monkeypatch, older):
    if older:
        monkeypatch.setattr(sys.modules["transformers"], "PreTrainedConfig", object)
    else:
        monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "elmokit.integrations.transformers")
    with pytest.raises(MissingExtraError, match=r"elmokit\[transformers\]"):
        import_module("elmokit.integrations.transformers")


def test_the_examples_of_the_page_print_what_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page("transformers.md")

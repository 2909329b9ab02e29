"""ElmoModule in Sentence Transformers: the vectors of encode, save and load, training, MaxSim, MTEB's own check."""

import pickle
import sys
from importlib import import_module

import mteb
import numpy as np
import pytest
import torch
from sentence_transformers import MultiVectorEncoder, SentenceTransformer
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.sentence_transformer.modules import Pooling

from elmokit import Elmo, ElmoError
from elmokit.errors import MissingExtraError
from elmokit.integrations.sentence_transformers import ElmoModule, load, sentence_transformer
from support.doc_pages import run_page
from support.tiny_models import transformer_config, word_config

TEXTS = ["the river bank", "money of the bank .", "", "a", "the river of money . " * 30]
CONFIGS = {"lstm": None, "transformer": transformer_config(), "words": word_config()}
POOLS = ("mean", "max", "first", "last")


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("layer", [None, "mix", "top", 0, 1])
def test_vectors_are_those_of_encode(make_elmo, name, layer):
    elmo = make_elmo(CONFIGS[name])
    for pool in POOLS:
        model = sentence_transformer(elmo, layer=layer, pool=pool)
        expected = elmo.encode(TEXTS, output="sentence", layer=layer, pool=pool)
        np.testing.assert_array_equal(model.encode(TEXTS, batch_size=3), expected)
    assert model.get_embedding_dimension() == elmo.config.vector_size
    tokens = model.encode(TEXTS, output_value="token_embeddings")
    for found, expected in zip(tokens, elmo.encode(TEXTS, layer=layer), strict=True):
        np.testing.assert_array_equal(found[: len(expected)], expected)
        assert len(found) == max(1, len(expected)), "Sentence Transformers gives one vector, 0, to an empty text"


@pytest.mark.parametrize("options", [{"boundaries": True}, {"layer_norm": True}, {"layer_norm": "sentence"}])
def test_options_of_the_model_count(make_elmo, options):
    elmo = make_elmo(**options)
    found = sentence_transformer(elmo, layer="mix").encode(TEXTS)
    np.testing.assert_array_equal(found, elmo.encode(TEXTS, output="sentence", layer="mix"))


@pytest.mark.parametrize("name", ["en", "en-lstm", "zh"])
def test_bundled_models(name):
    texts = ["The bank raised interest rates.", "他去银行。", ""]
    expected = Elmo.load(name).encode(texts, output="sentence")
    np.testing.assert_array_equal(sentence_transformer(name).encode(texts), expected)


def test_the_librarys_own_pooling_works_on_top(make_elmo):
    elmo = make_elmo()
    model = SentenceTransformer(modules=[ElmoModule(elmo), Pooling(elmo.config.vector_size, "mean")], device="cpu")
    expected = elmo.encode(TEXTS, output="sentence")
    np.testing.assert_allclose(model.encode(TEXTS), expected, rtol=1e-5, atol=1e-6)


def test_no_text_and_texts_without_tokens(make_elmo):
    model = sentence_transformer(make_elmo())
    for pool in POOLS:
        assert not sentence_transformer(make_elmo(), pool=pool).encode(["", " "]).any()
    assert len(model.encode([])) == 0


def test_prompts_and_a_longest_text(make_elmo):
    elmo = make_elmo()
    model = sentence_transformer(elmo, max_seq_length=4)
    assert model.max_seq_length == 4
    expected = elmo.encode([["the", "money", "of", "the"]], output="sentence")
    np.testing.assert_array_equal(model.encode(["money of the bank"], prompt="the "), expected)


def test_save_and_load(make_elmo, tmp_path):
    model = sentence_transformer(make_elmo(head=True), layer=1, pool="max", max_seq_length=50)
    expected = model.encode(TEXTS)
    model.save(str(tmp_path / "model"))
    with pytest.raises(ValueError, match="trust_remote_code"):
        SentenceTransformer(str(tmp_path / "model"))
    again = load(tmp_path / "model", device="cpu")
    np.testing.assert_array_equal(again.encode(TEXTS), expected)
    assert again.max_seq_length == 50
    assert again[0].get_config_dict() == {"layer": 1, "pool": "max", "max_seq_length": 50}
    elmo = Elmo.load(tmp_path / "model")
    assert elmo.head is not None
    np.testing.assert_array_equal(elmo.encode(TEXTS[:3], output="sentence", layer=1, pool="max"), expected[:3])
    again.save(str(tmp_path / "model"))
    np.testing.assert_array_equal(load(tmp_path / "model", device="cpu").encode(TEXTS), expected)
    assert all(weight.requires_grad for weight in load(tmp_path / "model", trainable=True)[0].elmo.bilm.parameters())


def test_a_pickle_gives_the_same_vectors(make_elmo):
    model = sentence_transformer(make_elmo())
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).encode(TEXTS), model.encode(TEXTS))


def test_several_processes(make_elmo):
    model = sentence_transformer(make_elmo())
    np.testing.assert_array_equal(model.encode(TEXTS * 2, device=["cpu", "cpu"], chunk_size=4), model.encode(TEXTS * 2))


@pytest.mark.parametrize("trainable", [False, True])
@pytest.mark.parametrize("loss", [losses.MultipleNegativesRankingLoss, losses.CachedMultipleNegativesRankingLoss])
def test_a_short_fit(make_elmo, trainable, loss):
    model = sentence_transformer(make_elmo(trainable=trainable))
    objective = loss(model)
    pairs = ["the river", "money", "a bank ."], ["river of the bank", "the money", "the bank"]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    values = []
    for _ in range(20):
        value = objective([model.preprocess(texts) for texts in pairs], None)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        values.append(value.item())
    assert values[-1] < values[0]
    changed = {name for name, value in model.named_parameters() if not torch.equal(value, before[name])}
    assert "0.elmo.mixes.0.weights" in changed
    assert any(".bilm." in name for name in changed) == trainable


def test_dropout_is_for_training_alone(make_elmo):
    model = sentence_transformer(make_elmo(dropout=0.5))
    features = model.preprocess(TEXTS)
    plain = model.eval()(dict(features))["sentence_embedding"]
    assert torch.equal(model.eval()(dict(features))["sentence_embedding"], plain)
    assert not torch.equal(model.train()(dict(features))["sentence_embedding"], plain)


def test_late_interaction():
    normal = Normalize(module_input_name="token_embeddings")
    model = MultiVectorEncoder(modules=[ElmoModule("en"), normal], device="cpu")
    texts = ["They sat on the river bank and fished.", "The bank raised its interest rates."]
    query, documents = model.encode_query(["a bank by the river"]), model.encode_document(texts)
    found = Elmo.load("en").encode(["a bank by the river", *texts])
    vectors = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in found]
    expected = [(vectors[0] @ each.T).max(axis=1).sum() for each in vectors[1:]]
    np.testing.assert_allclose(model.similarity(query, documents)[0], expected, rtol=1e-5)
    assert expected[0] > expected[1]


def test_mtebs_own_check_of_a_model(make_elmo):
    results = mteb.mock_run(mteb.models.SentenceTransformerEncoderWrapper(sentence_transformer(make_elmo())))
    ran = {name: result for name, result in results.task_results.items() if result is not None}
    assert len(ran) >= 28
    for name, result in ran.items():
        assert isinstance(result, mteb.TaskResult), f"{name}: {result}"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layer": "all"}, "all"),
        ({"layer": 9}, "9"),
        ({"pool": "median"}, "median"),
        ({"device": "cpu"}, "device"),
        ({"max_seq_length": -1}, "max_seq_length"),
    ],
)
def test_mistakes(make_elmo, options, words):
    with pytest.raises(ElmoError, match=words):
        sentence_transformer(make_elmo(), **options)


def test_vectors_must_not_depend_on_earlier_texts(make_elmo):
    with pytest.raises(ElmoError, match="state='zero'"):
        ElmoModule(make_elmo(state="carry"))


def test_only_strings(make_elmo):
    with pytest.raises(ElmoError, match="7"):
        ElmoModule(make_elmo()).preprocess([7])


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    monkeypatch.delitem(sys.modules, "elmokit.integrations.sentence_transformers")
    with pytest.raises(MissingExtraError, match=r"elmokit\[sentence-transformers\]"):
        import_module("elmokit.integrations.sentence_transformers")


def test_the_examples_of_the_page_print_what_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page("sentence-transformers.md")

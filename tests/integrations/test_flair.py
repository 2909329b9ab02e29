"""ElmoTokenEmbeddings in Flair: vectors of tokens, a tagger that is trained and saved, and Flair's own class."""

import pickle
import sys

import flair
import numpy as np
import pytest
import torch
from flair.data import Corpus, Sentence
from flair.datasets import FlairDatapointDataset
from flair.embeddings import StackedEmbeddings
from flair.embeddings.base import load_embeddings
from flair.embeddings.legacy import ELMoEmbeddings
from flair.models import SequenceTagger
from flair.trainers import ModelTrainer

from elmokit import Elmo, ElmoError
from elmokit.compat import install_allennlp
from elmokit.integrations.flair import ElmoTokenEmbeddings
from elmokit.integrations.models import forget_models
from support.doc_pages import run_page

ROWS = [["the", "river", "bank"], ["a", " ", "🤟", "\u2028", "\uf8f9"], ["money"]]


def vectors(embeddings, rows):
    sentences = [Sentence(row) for row in rows]
    embeddings.embed(sentences)
    return [np.stack([token.get_embedding([embeddings.name]).numpy() for token in each]) for each in sentences]


@pytest.fixture
def tagged():
    """Sentences with places, fresh for each test: Flair stores vectors in them."""
    flair.set_seed(1)
    found = []
    for place in ("Rome", "Paris", "Vienna", "London"):
        sentence = Sentence(f"Anna lives in {place} .")
        sentence[3:4].add_label("ner", "PLACE")
        found.append(sentence)
    return found


def train(embeddings, sentences, folder):
    corpus = Corpus(FlairDatapointDataset(sentences), FlairDatapointDataset(sentences[:1]), sample_missing_splits=False)
    tags = corpus.make_label_dictionary("ner", add_unk=False)
    tagger = SequenceTagger(embeddings, tags, "ner", hidden_size=8)
    before = {name: value.clone() for name, value in tagger.state_dict().items()}
    ModelTrainer(tagger, corpus).train(folder, max_epochs=1, mini_batch_size=2, learning_rate=0.1)
    assert any(not torch.equal(before[name], value) for name, value in tagger.state_dict().items())
    return tagger


def scores(tagger, texts):
    sentences = [Sentence(text) for text in texts]
    tagger.predict(sentences, return_probabilities_for_all_classes=True)
    return [[label.score for token in each for label in token.get_tags_proba_dist("ner")] for each in sentences]


def test_vectors_are_those_of_encode(model_folder):
    elmo = Elmo.load(model_folder, device="cpu")
    for layer in (None, "mix", "top", 0):
        embeddings = ElmoTokenEmbeddings(model_folder, layer)
        for found, expected in zip(vectors(embeddings, ROWS), elmo.encode(ROWS, layer=layer), strict=True):
            np.testing.assert_array_equal(found, expected)
    every = ElmoTokenEmbeddings(elmo, "all")
    assert every.embedding_length == 3 * elmo.config.vector_size
    for found, expected in zip(vectors(every, ROWS), elmo.encode(ROWS, output="layers"), strict=True):
        np.testing.assert_array_equal(found, np.concatenate(list(expected), axis=-1))


def test_boundaries_are_left_out(make_elmo):
    plain = vectors(ElmoTokenEmbeddings(make_elmo(), "all"), ROWS)
    for found, expected in zip(
        vectors(ElmoTokenEmbeddings(make_elmo(boundaries=True), "all"), ROWS), plain, strict=True
    ):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("save_model", [False, True])
def test_a_tagger_is_trained_saved_and_loaded(model_folder, tagged, tmp_path, save_model):
    embeddings = ElmoTokenEmbeddings(model_folder, save_model=save_model)
    tagger = train(embeddings, tagged, tmp_path / "tagger")
    assert not [name for name in tagger.state_dict() if "elmo" in name or "bilm" in name]
    texts = ["Anna lives in Rome .", "Paul was in Berlin ."]
    expected = scores(tagger, texts)
    assert all(expected)
    file = tmp_path / "tagger" / "final-model.pt"
    assert (b"token_encoder" in file.read_bytes()) == save_model
    if save_model:
        model_folder.rename(tmp_path / "elsewhere")
    forget_models()
    assert scores(SequenceTagger.load(file), texts) == expected


def test_it_is_saved_by_name(model_folder):
    embeddings = StackedEmbeddings([ElmoTokenEmbeddings(model_folder, 0), ElmoTokenEmbeddings(model_folder, "top")])
    again = load_embeddings(embeddings.save_embeddings())
    assert again.get_names() == embeddings.get_names()
    assert len(set(again.get_names())) == 2
    assert not again.training
    assert len(pickle.dumps(embeddings)) < 10_000


def test_mistakes(model_folder, make_elmo):
    with pytest.raises(ElmoError, match="no-such-model"):
        ElmoTokenEmbeddings("no-such-model")
    with pytest.raises(ElmoError, match="7"):
        ElmoTokenEmbeddings(model_folder, 7)
    with pytest.raises(ElmoError, match="state"):
        ElmoTokenEmbeddings(make_elmo(state="carry"))
    with pytest.raises(ElmoError, match="save_model"):
        ElmoTokenEmbeddings(make_elmo()).save_embeddings()


@pytest.fixture
def _without_allennlp():
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "allennlp"]:
        del sys.modules[name]


@pytest.mark.usefixtures("_without_allennlp")
def test_flairs_own_class_works_again(make_elmo, tmp_path):
    elmo = make_elmo()
    elmo.save(tmp_path, format="bilm")
    install_allennlp()
    files = {"options_file": str(tmp_path / "options.json"), "weight_file": str(tmp_path / "weights.hdf5")}
    embeddings = ELMoEmbeddings(**files)
    embeddings.ee.reset_states()  # Flair has embedded a word to learn the size
    (found,) = vectors(embeddings, ROWS[:1])
    np.testing.assert_allclose(found, np.concatenate(list(elmo.encode(ROWS[:1], output="layers")[0]), -1), atol=1e-5)
    assert embeddings.embedding_length == 3 * elmo.config.vector_size


@pytest.mark.usefixtures("_without_allennlp")
def test_the_page_runs_as_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page("flair.md")

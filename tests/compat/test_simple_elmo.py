"""simple_elmo's model over elmokit: shapes, padding, layers, state and substitutes."""

import gzip
import shutil
import zipfile

import numpy as np
import pytest

from elmokit import Elmo
from elmokit.compat.simple_elmo import (
    BidirectionalLanguageModel,
    ElmoModel,
    divide_chunks,
    get_elmo_vectors,
    load_elmo_embeddings,
    tokenize,
    weight_layers,
)
from elmokit.errors import ElmoError
from support.model_files import make_bilm, write_bilm, write_tensorflow

SENTENCES = [["the", "river", "bank", "."], ["a"], ["naïve", "bank"]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_bilm(tmp_path_factory.mktemp("simple"), make_bilm())


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A training folder, which has the softmax."""
    return write_tensorflow(tmp_path_factory.mktemp("full"), make_bilm(softmax=True))


@pytest.fixture
def model(folder):
    model = ElmoModel()
    assert model.load(folder, max_batch_size=2, stateful=False) == "The model is now loaded."
    return model


def test_vectors_have_the_shapes_and_the_padding_of_the_original(model, folder):
    layers = Elmo.load(folder).encode(SENTENCES, output="layers")
    choices = {"average": lambda x: x.mean(axis=0), "top": lambda x: x[-1], "all": lambda x: x}
    for choice, expected in choices.items():
        vectors = model.get_elmo_vectors(SENTENCES, layers=choice)
        assert vectors.dtype == np.float64
        assert vectors.shape == ((3, 3, 4, 10) if choice == "all" else (3, 4, 10))
        for row, sentence, values in zip(vectors, SENTENCES, layers, strict=True):
            np.testing.assert_allclose(row[..., : len(sentence), :], expected(values), rtol=0, atol=1e-6)
            assert not row[..., len(sentence) :, :].any()
    assert (model.n_layers, model.vector_size, model.max_chars, model.batch_size) == (3, 10, 50, 2)


def test_averages_have_length_one_and_leave_padding_out(model):
    alone = model.get_elmo_vector_average(SENTENCES[1:2])
    averages = model.get_elmo_vector_average([*SENTENCES, []])
    assert averages.shape == (4, 10)
    np.testing.assert_allclose(np.linalg.norm(averages[:3], axis=1), 1)
    np.testing.assert_allclose(averages[1], alone[0])
    assert not averages[3].any()
    every = model.get_elmo_vector_average(SENTENCES, layers="all")
    assert every.shape == (3, 3, 10)
    np.testing.assert_allclose(np.linalg.norm(every.reshape(3, -1), axis=1), 1)
    mean = model.get_elmo_vectors(SENTENCES, layers="all")[0].mean(axis=1)
    np.testing.assert_allclose(every[0], mean / np.linalg.norm(mean))


def test_batches_carry_state_as_in_one_session(folder):
    """Batches of two sentences: a new session starts from zero, the first batch is run twice, the state continues."""
    elmo = Elmo.load(folder, state="carry")
    elmo.encode(SENTENCES[:2])
    expected = [*elmo.encode(SENTENCES[:2], layer="top"), *elmo.encode(SENTENCES[2:], layer="top")]
    later = elmo.encode(SENTENCES[:1], layer="top")[0]
    model = ElmoModel()
    model.load(folder, max_batch_size=2)
    for _ in range(2):
        vectors = model.get_elmo_vectors(SENTENCES, layers="top")
        for row, values in zip(vectors, expected, strict=True):
            np.testing.assert_allclose(row[: len(values)], values, rtol=0, atol=1e-6)
    same = model.get_elmo_vectors(SENTENCES[:1], warmup=False, layers="top", session=object())
    np.testing.assert_allclose(same[0], later, rtol=0, atol=1e-6)
    cold = model.get_elmo_vectors(SENTENCES[:1], warmup=False, layers="top")
    np.testing.assert_allclose(cold[0], Elmo.load(folder).encode(SENTENCES[:1], layer="top")[0], rtol=0, atol=1e-6)


def test_a_zip_of_the_vector_repository(folder, tmp_path):
    with zipfile.ZipFile(tmp_path / "217.zip", "w") as archive:
        archive.write(folder / "weights.hdf5", "model.hdf5")
        archive.write(folder / "options.json", "options.json")
    model = ElmoModel()
    model.load(str(tmp_path / "217.zip"))
    assert model.get_elmo_vectors(SENTENCES).shape == (3, 4, 10)


def test_bundled_models_by_name():
    model = ElmoModel()
    for name in ("en", "en-lstm"):
        model.load(name)
        assert model.get_elmo_vectors([["A", "river", "bank"]]).shape == (1, 3, model.vector_size)


def test_substitutes_of_each_word_in_both_directions(checkpoint):
    model = ElmoModel()
    model.load(checkpoint, full=True)
    sentences = ["the river bank .", "money"]
    found = model.get_elmo_substitutes(sentences, topn=2)
    assert [[entry["word"] for entry in sentence] for sentence in found] == [["the", "river", "bank", "."], ["<UNK>"]]
    elmo = Elmo.load(checkpoint)
    (log_probs,) = elmo.log_probs([sentences[0].split()])
    every = model.get_elmo_substitutes(sentences, topn=len(elmo.vocab), nodelimiters=False)[0]
    for place, entry in enumerate(every):
        for side, expected in (("forward", log_probs.forward[place]), ("backward", log_probs.backward[place + 1])):
            got = entry[side]
            assert [elmo.vocab[number] for number in got["candidates"]] == got["candidate_words"]
            assert got["logp"] == sorted(got["logp"], reverse=True)
            assert got["logp"][got["candidate_words"].index(entry["word"])] == pytest.approx(expected, abs=1e-4)
    for place, entry in enumerate(found[0]):
        for side in ("forward", "backward"):
            stored = [word for word in every[place][side]["candidate_words"] if word not in ("<S>", "</S>")]
            assert entry[side]["candidate_words"] == stored[:2]


def test_a_packed_vocabulary_next_to_the_checkpoint(checkpoint, tmp_path):
    shutil.copytree(checkpoint, tmp_path / "full")
    words = (tmp_path / "full" / "vocab.txt").read_bytes()
    (tmp_path / "full" / "vocab.txt").unlink()
    with pytest.raises(ElmoError, match=r"vocab\.txt"):
        ElmoModel().load(tmp_path / "full", full=True)
    for text in (words, words + b"more\n"):
        (tmp_path / "full" / "vocab.txt.gz").write_bytes(gzip.compress(text))
        model = ElmoModel()
        if text == words:
            model.load(tmp_path / "full", full=True)
            assert model.get_elmo_substitutes(["the bank"])[0][1]["word"] == "bank"
        else:
            with pytest.raises(ElmoError, match="belong together"):
                model.load(tmp_path / "full", full=True)


def test_the_functions_of_the_scripts_before_the_package(folder):
    for top in (False, True):
        loaded = load_elmo_embeddings(folder, top=top)
        vectors = get_elmo_vectors(None, SENTENCES, *loaded)
        model = ElmoModel()
        model.load(folder)
        expected = model.get_elmo_vectors(SENTENCES, warmup=False, layers="top" if top else "average")
        np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-6)


def test_what_substitutes_need(model, folder, checkpoint):
    with pytest.raises(ElmoError, match="softmax"):
        model.get_elmo_substitutes(["the bank"])
    with pytest.raises(ElmoError, match="full=True"):
        ElmoModel().load(folder, full=True)
    full = ElmoModel()
    full.load(checkpoint, full=True)
    with pytest.raises(ElmoError, match="topn"):
        full.get_elmo_substitutes(["the bank"], topn=0)
    everything = full.get_elmo_substitutes(["the bank"], topn=full.vocab.size)[0][0]["forward"]
    assert len(everything["candidates"]) == full.vocab.size - 2
    with pytest.raises(ElmoError, match="the bank"):
        full.get_elmo_substitutes("the bank")
    full.load("en")
    with pytest.raises(ElmoError, match=r"Elmo\.substitutes"):
        full.get_elmo_substitutes(["the bank"])


def test_mistakes_end_in_a_sentence(model):
    with pytest.raises(ElmoError, match="load"):
        ElmoModel().get_elmo_vectors([["a"]])
    with pytest.raises(ElmoError, match="the bank"):
        model.get_elmo_vectors(["the bank"])
    for method in (model.get_elmo_vectors, model.get_elmo_vector_average):
        with pytest.raises(ElmoError, match="mix"):
            method([["a"]], layers="mix")
    with pytest.raises(ElmoError, match="max_batch_size"):
        ElmoModel().load("en", max_batch_size=0)


def test_no_sentences(model):
    assert model.get_elmo_vectors([]).shape == (0, 0, 10)
    assert model.get_elmo_vector_average([], layers="all").shape == (0, 3, 10)


def test_helpers(folder, model):
    assert tokenize("It's a river-bank.", limit=3) == ["It", "s", "a"]
    assert [list(chunk) for chunk in divide_chunks(range(5), 2)] == [[0, 1], [2, 3], [4]]
    ops = BidirectionalLanguageModel(None, folder)(model.batcher.batch_sentences(SENTENCES))
    assert weight_layers("input", ops, use_layers="all")["weighted_op"].shape == (3, 3, 4, 10)
    assert weight_layers("input", ops, use_layers="top")["weighted_op"].shape == (3, 4, 10)

"""ElmoEmbedder: sentences, batches and files."""

from __future__ import annotations

import io
import json

import h5py
import numpy as np
import pytest

import elmokit
from elmokit.compat.allennlp import (
    ConfigurationError,
    ElmoEmbedder,
)
from elmokit.errors import ElmoError
from support.allennlp_samples import BATCHES, close


@pytest.fixture
def embedder(files) -> ElmoEmbedder:
    return ElmoEmbedder(*files)


def test_embedder_carries_state_over_batches_in_order(files, embedder):
    core = elmokit.Elmo.load(files[1], state="carry", device="cpu")
    sentences = [tokens for batch in BATCHES for tokens in batch]
    got = list(embedder.embed_sentences(iter(sentences), batch_size=4))
    want = [
        v for start in range(0, len(sentences), 4) for v in core.encode(sentences[start : start + 4], output="layers")
    ]
    assert [v.shape for v in got] == [(3, len(tokens), 12) for tokens in sentences]
    assert all(v.dtype == np.float32 for v in got)
    for one, two in zip(got, want, strict=True):
        close(one, two)


def test_embedder_types(embedder):
    layers, mask = embedder.batch_to_embeddings([["a", "b"], ["c"]])
    assert layers.shape == (2, 3, 2, 12)
    assert mask.tolist() == [[True, True], [True, False]]
    embedder.reset_states()
    one, two = embedder.embed_batch([["a", "b"], ["c"]])
    close(one, layers[0])
    close(two, layers[1, :, :1])
    assert embedder.embed_sentence("ab").shape == (3, 2, 12)  # a string is a list of characters
    assert embedder.embed_batch([]) == []
    with pytest.raises(ConfigurationError, match="batch_size"):
        embedder.embed_sentences([["a"]], batch_size=0)


def test_an_empty_sentence_alone_leaves_the_state(embedder):
    assert embedder.embed_sentence([]).shape == (3, 0, 12)
    assert embedder.elmo_bilm._elmo_lstm._states is None
    assert [v.shape for v in embedder.embed_batch([["a"], []])] == [(3, 1, 12), (3, 0, 12)]
    assert embedder.elmo_bilm._elmo_lstm._states[0][:, 1].abs().max() > 0


LINES = "the river  bank \n\ta / b\nthe river  bank\nyes\n"


@pytest.mark.parametrize("output_format", ["all", "top", "average"])
def test_embed_file(files, embedder, tmp_path, output_format):
    target, source = tmp_path / "out.hdf5", io.StringIO(LINES)
    embedder.embed_file(source, str(target), output_format, batch_size=3)
    assert source.closed
    choose = {"all": lambda v: v, "top": lambda v: v[-1], "average": lambda v: v.mean(0)}[output_format]
    layers = list(ElmoEmbedder(*files).embed_sentences((line.split() for line in LINES.splitlines()), 3))
    with h5py.File(target) as file:
        assert set(file) == {"0", "1", "2", "3", "sentence_to_index"}
        for key, value in enumerate(layers):
            assert file[str(key)].dtype == np.float32
            close(file[str(key)][()], choose(value))
        assert file["sentence_to_index"].shape == (1,)
        assert json.loads(file["sentence_to_index"].asstr()[0]) == {"the river  bank": "2", "a / b": "1", "yes": "3"}
    assert list(tmp_path.iterdir()) == [target]


def test_embed_file_without_sentences_or_with_them_as_keys(embedder, tmp_path):
    embedder.embed_file(io.StringIO("a b\nc\n"), tmp_path / "one.h5", forget_sentences=True)
    embedder.embed_file(io.StringIO("a b\nc / d\n"), tmp_path / "two.h5", use_sentence_keys=True)
    embedder.embed_file(io.StringIO(""), tmp_path / "three.h5")
    with h5py.File(tmp_path / "one.h5") as file:
        assert set(file) == {"0", "1"}
    with h5py.File(tmp_path / "two.h5") as file:
        assert file["a b"].shape == (3, 2, 12)
        assert file["c / d"].shape == (3, 3, 12)
        assert "sentence_to_index" not in file
    with h5py.File(tmp_path / "three.h5") as file:
        assert json.loads(file["sentence_to_index"].asstr()[0]) == {}


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("a\n\nb\n", {}, "got the blank line 2"),
        ("a\nb\na\n", {"use_sentence_keys": True}, "line 3 repeats line 1"),
        ("a\na/b\n", {"use_sentence_keys": True}, "HDF5 cannot have the key 'a/b'"),
        ("a\n.\n", {"use_sentence_keys": True}, "HDF5 cannot have the key"),
        ("a\n/\n", {"use_sentence_keys": True}, "HDF5 cannot have the key"),
        ("a\nb\0c\n", {"use_sentence_keys": True}, "HDF5 cannot have the key"),
        ("a\n", {"output_format": "middle"}, "all, top or average"),
        ("a\n", {"batch_size": 0}, "batch_size"),
    ],
)
def test_embed_file_writes_nothing_on_a_mistake(embedder, tmp_path, text, arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        embedder.embed_file(io.StringIO(text), tmp_path / "out.h5", **arguments)
    assert list(tmp_path.iterdir()) == []


def test_embed_file_into_a_folder_that_is_not_there(embedder, tmp_path):
    with pytest.raises(ElmoError, match="cannot be written"):
        embedder.embed_file(io.StringIO("a\n"), tmp_path / "no" / "out.h5")


@pytest.mark.parametrize("name", ["en", "en-lstm"])
def test_a_bundled_model_by_its_name(name):
    """A Transformer has no AllenNLP counterpart, and is used in the same way."""
    sentences = [["a", "river", "bank"], ["yes"]]
    core = elmokit.Elmo.load(name, device="cpu", dtype="float32")
    got = ElmoEmbedder(weight_file=name).embed_batch(sentences)
    for one, two in zip(got, core.encode(sentences, output="layers"), strict=True):
        np.testing.assert_allclose(one, two, rtol=0, atol=1e-4)  # numbers up to 10

"""A model for the compat modules: by path, name or address, with or without state."""

import pytest

from elmokit import Elmo
from elmokit.compat import load
from elmokit.compat.manylangs import Embedder
from elmokit.compat.simple_elmo import ElmoModel
from elmokit.errors import ElmoError
from support.tiny_models import tiny_checkpoint, transformer_config

WORDS = [["the", "bank"]]


def test_a_model_on_the_hub(monkeypatch, model_folder):
    monkeypatch.setattr("elmokit.formats.bundled.download", lambda repository: model_folder)
    expected = Elmo.load(model_folder).encode(WORDS, layer=1)[0]
    assert (Embedder("someone/elmo-is").sents2elmo(WORDS, 1)[0] == expected).all()
    model = ElmoModel()
    model.load("hf://someone/elmo-is")
    assert model.get_elmo_vectors(WORDS).shape == (1, 2, expected.shape[1])


def test_files_at_addresses(monkeypatch, tmp_path):
    Elmo(tiny_checkpoint()).save(tmp_path, format="bilm")
    monkeypatch.setattr(load, "local_path", lambda url: tmp_path / url.rpartition("/")[2])
    elmo = load.load_elmo("https://host/a/weights.hdf5", "https://host/b/options.json")
    assert (elmo.encode(WORDS)[0] == Elmo.load(tmp_path).encode(WORDS)[0]).all()


def test_state_where_a_model_has_some(model_folder, tmp_path):
    assert load.load_elmo(model_folder).state == "zero"
    assert load.load_elmo(model_folder, stateful=True).state == "carry"
    Elmo(tiny_checkpoint(transformer_config())).save(tmp_path / "t")
    assert load.load_elmo(tmp_path / "t", stateful=True).state == "zero"


@pytest.mark.parametrize("sentences", ["the bank", ["the bank"], [["the", 3]], [["the"], [None]]])
def test_sentences_that_are_not_lists_of_words(sentences):
    with pytest.raises(ElmoError, match="texts must be"):
        load.token_lists(sentences, "texts")

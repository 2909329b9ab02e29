"""ELMoForManyLangs' Embedder over elmokit."""

import numpy as np
import pytest

from elmokit.compat.manylangs import Embedder
from elmokit.errors import ElmoError
from support.model_files import make_manylangs, write_manylangs
from support.numpy_forward import manylangs_layers

SENTENCES = [["the", "語", "bank"], [], ["x" * 60], ["a", "river"]]


@pytest.fixture(scope="module")
def source():
    return make_manylangs()


@pytest.fixture(scope="module")
def embedder(tmp_path_factory, source):
    return Embedder(str(write_manylangs(tmp_path_factory.mktemp("many"), source)), batch_size=2)


@pytest.mark.parametrize("layer", [-2, -1, 0, 1, 2])
def test_every_output_layer(embedder, source, layer):
    choose = {-2: lambda x: x, -1: lambda x: x.mean(axis=0)}.get(layer, lambda x: x[layer])
    found = embedder.sents2elmo(SENTENCES, output_layer=layer)
    assert len(found) == len(SENTENCES)
    for array, sentence in zip(found, SENTENCES, strict=True):
        assert array.dtype == np.float32
        assert array.shape[-2] == len(sentence)
        np.testing.assert_allclose(array, choose(manylangs_layers(source, sentence)), rtol=0, atol=1e-5)


def test_the_average_is_the_default_and_calls_do_not_depend_on_each_other(embedder):
    first, second = embedder.sents2elmo(SENTENCES), embedder.sents2elmo(SENTENCES, -1)
    assert all((a == b).all() for a, b in zip(first, second, strict=True))
    assert (embedder.sents2elmo(SENTENCES[3:])[0] == first[3]).all()


@pytest.mark.parametrize("layer", [-3, 3, "top"])
def test_a_layer_that_does_not_exist(embedder, layer):
    with pytest.raises(ElmoError, match="output_layer"):
        embedder.sents2elmo(SENTENCES, layer)


def test_strings_in_place_of_words_are_refused(embedder):
    with pytest.raises(ElmoError, match="今天"):
        embedder.sents2elmo(["今天天氣"])


def test_a_bundled_model_by_its_name():
    assert Embedder("zh").sents2elmo([["今", "天"]], -2)[0].shape[1] == 2

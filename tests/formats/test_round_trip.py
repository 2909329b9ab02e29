"""Save, then load: what comes back is the same, bit for bit."""

import json
from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from elmokit import Elmo, ElmoConfig
from elmokit.errors import ElmoError
from elmokit.formats.load import read_checkpoint
from support.model_files import (
    SENTENCES,
    WORDS,
    make_bilm,
    make_manylangs,
    named,
    write_bilm,
    write_hdf5,
    write_manylangs,
    write_tensorflow,
)
from support.numpy_forward import bilm_layers

BILM = {
    "plain": {},
    "one layer": {"layers": 1},
    "no cell projection": {"cell": 5},
    "one layer, no cell projection": {"cell": 5, "layers": 1},
    "no token projection": {"output": 9},
    "no projection at all": {"output": 9, "cell": 9},
    "square projections": {"output": 9, "cell": 9, "projection": True, "token_projection": True},
    "no clips, no skip, tanh": {
        "lstm": {"cell_clip": None, "proj_clip": None, "use_skip_connections": False},
        "activation": "tanh",
    },
    "own clips": {"lstm": {"cell_clip": 0.5, "proj_clip": 1.25}},
    "forward only": {"directions": 1},
    "forward only, one layer": {"directions": 1, "layers": 1},
    "forward only, no cell projection": {"directions": 1, "cell": 5},
    "no highway, short words": {"highways": 0, "longest": 20},
    "words": {"words": True},
}
MANYLANGS = {"both": {}, "words": {"characters": False}, "characters": {"words": False}}


def without_idle_clip(config: ElmoConfig) -> ElmoConfig:
    """Without a projection there is nothing to clip, and the bilm writer says so (AllenNLP would clip its identity)."""
    return config if config.lstm.projection else replace(config, context=replace(config.lstm, projection_clip=None))


def same(one, two) -> None:
    """Both checkpoints hold the same model."""
    assert without_idle_clip(one.config) == without_idle_clip(two.config)
    for part in ("weights", "head"):
        first, second = getattr(one, part), getattr(two, part)
        assert sorted(first) == sorted(second)
        assert all(torch.equal(first[name], second[name]) for name in first)
        assert all(first[name].dtype == second[name].dtype for name in first)
    assert one.vocab == two.vocab
    assert (one.symbols and dict(one.symbols.ids)) == (two.symbols and dict(two.symbols.ids))


@pytest.mark.parametrize("variant", BILM)
def test_bilm_to_elmokit(tmp_path, variant):
    elmo = Elmo.load(write_bilm(tmp_path / "from", make_bilm(**BILM[variant])))
    elmo.save(tmp_path / "to")
    again = Elmo.load(tmp_path / "to")
    assert again.kind == "elmokit"
    same(elmo.checkpoint(), again.checkpoint())


@pytest.mark.parametrize("variant", MANYLANGS)
def test_manylangs_to_elmokit(tmp_path, variant):
    elmo = Elmo.load(write_manylangs(tmp_path / "from", make_manylangs(**MANYLANGS[variant])))
    elmo.save(tmp_path / "to")
    again = Elmo.load(tmp_path / "to")
    same(elmo.checkpoint(), again.checkpoint())
    if variant != "characters":
        assert again.vocab.specials == ("<bos>", "<eos>", "<oov>")
    sentence = [["the", "語", "\u3000", "unknown"]]
    for got, expected in zip(again.encode(sentence), elmo.encode(sentence), strict=True):
        assert np.array_equal(got, expected)


@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize("format", ["elmokit", "bilm"])
def test_a_checkpoint_with_softmax(tmp_path, words, format):
    model = make_bilm(softmax=True, words=words)
    elmo = Elmo.load(write_tensorflow(tmp_path / "from", model))
    elmo.save(tmp_path / "to", format=format)
    again = Elmo.load(tmp_path / "to")
    assert again.kind == format
    same(elmo.checkpoint(), again.checkpoint())
    assert list(again.vocab) == WORDS
    assert torch.equal(again.head.weight, torch.from_numpy(model.weights["softmax/W"]))
    for got, expected in zip(again.log_probs(SENTENCES), elmo.log_probs(SENTENCES), strict=True):
        assert np.array_equal(got.forward, expected.forward)


def test_the_shared_softmax(tmp_path):
    model = make_bilm(softmax=True, words=True)
    del model.weights["softmax/W"]
    model.options["share_embedding_softmax"] = True
    elmo = Elmo.load(write_tensorflow(tmp_path / "from", model))
    for format in ("elmokit", "bilm"):
        elmo.save(tmp_path / format, format=format)
        same(elmo.checkpoint(), Elmo.load(tmp_path / format).checkpoint())


def test_token_embeddings(tmp_path):
    model = make_bilm()
    write_bilm(tmp_path, model)
    write_hdf5(tmp_path / "tokens.h5", {"embedding": np.float32(np.random.default_rng(1).normal(size=(len(WORDS), 5)))})
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS))
    elmo = Elmo.load(tmp_path / "weights.hdf5", token_embeddings=tmp_path / "tokens.h5")
    for format in ("elmokit", "bilm"):
        elmo.save(tmp_path / format, format=format)
        same(elmo.checkpoint(), Elmo.load(tmp_path / format).checkpoint())


@pytest.mark.parametrize("layer_norm", [False, True, "batch", "sentence"])
def test_mixes(tmp_path, layer_norm):
    elmo = Elmo.load(write_bilm(tmp_path / "from", make_bilm()), mixes=2, layer_norm=layer_norm)
    with torch.no_grad():
        elmo.mixes[0].weights.copy_(torch.tensor([0.5, -1.25, 3.0]))
        elmo.mixes[1].weights.copy_(torch.tensor([1e-20, 7.5, -0.1]))
        elmo.mixes[1].gamma.fill_(0.7)
    elmo.save(tmp_path / "to")
    again = Elmo.load(tmp_path / "to")
    assert len(again.mixes) == 2
    for one, two in zip(elmo.mixes, again.mixes, strict=True):
        assert torch.equal(one.weights, two.weights)
        assert torch.equal(one.gamma, two.gamma)
        assert one.layer_norm == two.layer_norm == layer_norm
    assert np.array_equal(again.encode(["the bank"])[0], elmo.encode(["the bank"])[0])


def test_saving_twice_writes_the_same_bytes(tmp_path):
    elmo = Elmo.load(write_tensorflow(tmp_path / "from", make_bilm(softmax=True)))
    elmo.save(tmp_path / "one")
    Elmo.load(tmp_path / "one").save(tmp_path / "two")
    names = sorted(file.name for file in (tmp_path / "one").iterdir())
    assert names == ["README.md", "config.json", "lm_head.safetensors", "model.safetensors", "vocab.txt"]
    for name in set(names) - {"README.md"}:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_words_that_look_like_white_space(tmp_path):
    model = make_bilm(words=True)
    elmo = Elmo.load(write_bilm(tmp_path / "from", model))
    words = list(elmo.vocab)
    words[4:7] = ["\u3000", "\x85", "a\u2028b"]
    elmo.vocab = type(elmo.vocab)(words)
    elmo.save(tmp_path / "to")
    assert list(Elmo.load(tmp_path / "to").vocab) == words


@pytest.mark.parametrize("variant", BILM)
def test_bilm_to_bilm(tmp_path, variant):
    model = make_bilm(**BILM[variant])
    elmo = Elmo.load(write_bilm(tmp_path / "from", model))
    elmo.save(tmp_path / "to", format="bilm")
    again = Elmo.load(tmp_path / "to")
    assert again.kind == "bilm"
    same(elmo.checkpoint(), again.checkpoint())
    with h5py.File(tmp_path / "to" / "weights.hdf5") as file:
        for name, value in named(model, "hdf5").items():
            assert np.array_equal(file[name][()], value)
            assert file[name].dtype == np.float32
            assert file[name].chunks is None
            assert not file[name].attrs


@pytest.mark.parametrize("layers", [1, 2])
def test_what_allennlp_insists_on(tmp_path, layers):
    """It wants both projections, even where they change no size, and one layer under the name of a stack."""
    model = make_bilm(output=9, cell=9, layers=layers)
    Elmo.load(write_bilm(tmp_path / "from", model)).save(tmp_path / "to", format="bilm")
    options = json.loads((tmp_path / "to" / "options.json").read_text())
    assert options["char_cnn"]["n_characters"] == 262
    assert {"cell_clip", "proj_clip", "use_skip_connections", "n_layers"} <= options["lstm"].keys()
    with h5py.File(tmp_path / "to" / "weights.hdf5") as file:
        assert np.array_equal(file["CNN_proj/W_proj"][()], np.eye(9))
        assert np.array_equal(file["CNN_proj/b_proj"][()], np.zeros(9))
        for direction in range(2):
            for layer in range(layers):
                cell = file[f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"]
                assert np.array_equal(cell["W_0"][()], model.weights[f"cell/{direction}/{layer}/kernel"])
                assert np.array_equal(cell["B"][()], model.weights[f"cell/{direction}/{layer}/bias"])
                assert np.array_equal(cell["W_P_0"][()], np.eye(9))


def test_an_identity_with_a_bias_stays(tmp_path):
    model = make_bilm(output=9, token_projection=True)
    model.weights["CNN_proj/W_proj"] = np.eye(9, dtype=np.float32)
    got = Elmo.load(write_bilm(tmp_path, model)).encode([SENTENCES[0]], output="layers")[0]
    np.testing.assert_allclose(got, bilm_layers(model, SENTENCES[0]), rtol=0, atol=1e-5)


def test_an_identity_in_one_layer_stays(tmp_path):
    model = make_bilm(cell=5, projection=True)
    model.weights["cell/0/0/projection"] = np.eye(5, dtype=np.float32)
    got = Elmo.load(write_bilm(tmp_path, model)).encode([SENTENCES[0]], output="layers")[0]
    np.testing.assert_allclose(got, bilm_layers(model, SENTENCES[0]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("variant", MANYLANGS)
def test_manylangs_to_bilm_is_refused(tmp_path, variant):
    elmo = Elmo.load(write_manylangs(tmp_path / "from", make_manylangs(**MANYLANGS[variant])))
    with pytest.raises(ElmoError, match=r"encoder\.pkl\) has its own kind of words or characters[^\n]*elmokit$"):
        elmo.save(tmp_path / "to", format="bilm")
    assert not (tmp_path / "to").exists()


def test_lower_precision_is_saved_as_it_is_and_loads(tmp_path):
    elmo = Elmo.load(write_bilm(tmp_path / "from", make_bilm()), dtype="bfloat16")
    elmo.save(tmp_path / "to")
    assert {value.dtype for value in load_file(tmp_path / "to" / "model.safetensors").values()} == {torch.bfloat16}
    again = read_checkpoint(tmp_path / "to")
    for name, value in elmo.checkpoint().weights.items():
        assert torch.equal(again.weights[name], value)

"""weights.hdf5 with options.json, NLPL zips and TensorFlow checkpoints: every variant against plain numpy."""

import json
import shutil
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from elmokit import Elmo
from elmokit.formats.load import detect
from support.model_files import (
    LONG,
    SENTENCES,
    WORDS,
    Bilm,
    make_bilm,
    named,
    write_bilm,
    write_hdf5,
    write_tensorflow,
    write_zip,
)
from support.numpy_forward import bilm_layers, bilm_log_probs, bilm_token

TOLERANCE = 1e-5  # float32 against float64, numbers of about 1

VARIANTS = {
    "plain": {},
    "one layer": {"layers": 1},
    "three layers": {"layers": 3},
    "no n_layers key": {"layers": 1, "without": ("lstm.n_layers",)},
    "no cell projection": {"cell": 5, "output": 5},
    "square cell projection": {"cell": 5, "output": 5, "projection": True},
    "one layer, no cell projection": {"cell": 5, "output": 5, "layers": 1},
    "output above cell": {"cell": 4, "output": 6},
    "no token projection": {"output": 9},
    "square token projection": {"output": 9, "token_projection": True},
    "no highway": {"highways": 0},
    "no highway key": {"highways": 0, "without": ("char_cnn.n_highway",)},
    "two highways": {"highways": 2},
    "tanh": {"activation": "tanh"},
    "no clip keys": {"without": ("lstm.cell_clip", "lstm.proj_clip"), "scale": 2.0},
    "null clips": {"lstm": {"cell_clip": None, "proj_clip": None}, "scale": 2.0},
    "tight clips": {"lstm": {"cell_clip": 0.3, "proj_clip": 0.2}, "scale": 2.0},
    "tight cell clip, no projection": {"cell": 5, "lstm": {"cell_clip": 0.3, "proj_clip": 0.01}, "scale": 2.0},
    "no skip": {"lstm": {"use_skip_connections": False}, "layers": 3},
    "forward only": {"directions": 1},
    "forward only, one layer": {"directions": 1, "layers": 1},
    "forward only, no projection": {"directions": 1, "cell": 5},
    "token input": {"words": True},
    "token input, one layer": {"words": True, "layers": 1},
    "token input, forward only": {"words": True, "directions": 1},
    "short words": {"longest": 20},
    "filter as wide as a word": {"longest": 5, "filters": ((5, 3), (1, 2))},
}
WRITERS = {"bilm": write_bilm, "tensorflow": write_tensorflow}


def check_layers(elmo: Elmo, model: Bilm) -> None:
    got = elmo.encode(SENTENCES, output="layers")
    for layers, tokens in zip(got, SENTENCES, strict=True):
        expected = bilm_layers(model, tokens)
        assert layers.shape == expected.shape
        np.testing.assert_allclose(layers, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants(tmp_path, variant, kind):
    model = make_bilm(**VARIANTS[variant])
    WRITERS[kind](tmp_path, model)
    assert detect(tmp_path).format.name == kind
    elmo = Elmo.load(tmp_path)
    assert elmo.kind == kind
    check_layers(elmo, model)


@pytest.mark.parametrize("key", ["cell_clip", "proj_clip"])
def test_the_tight_clips_of_the_variants_do_clip(key):
    model = make_bilm(**VARIANTS["tight clips"])
    loose = replace(model, options={**model.options, "lstm": {**model.options["lstm"], key: None}})
    assert np.abs(bilm_layers(model, SENTENCES[0]) - bilm_layers(loose, SENTENCES[0])).max() > 0.1


def test_numpy_knows_the_word_that_is_cut():
    token = bilm_token(make_bilm(), "x" * (LONG - 2))
    assert np.array_equal(token, bilm_token(make_bilm(), "x" * 70))
    assert not np.array_equal(token, bilm_token(make_bilm(), "x" * (LONG - 3)))


@pytest.mark.parametrize("n_characters", [261, 262, None])
@pytest.mark.parametrize("rows", [261, 262])
def test_261_and_262_characters(tmp_path, n_characters, rows):
    model = make_bilm()
    model.options["char_cnn"]["n_characters"] = n_characters
    if n_characters is None:
        del model.options["char_cnn"]["n_characters"]
    if rows == 262:  # the padded token's row, first and never used
        model.weights["char_embed"] = np.concatenate([np.full((1, 4), 9, np.float32), model.weights["char_embed"]])
    check_layers(Elmo.load(write_bilm(tmp_path, model)), model)


def test_one_layer_under_the_name_of_a_stack(tmp_path):
    model = make_bilm(layers=1)
    write_bilm(tmp_path, model, stacked=True)
    check_layers(Elmo.load(tmp_path), model)


@pytest.mark.parametrize("dtype", ["<f2", "<f8", ">f4", ">f8", "g"])
def test_other_number_types(tmp_path, dtype):
    model = make_bilm()
    model.weights = {name: value.astype(np.float16).astype(np.float32) for name, value in model.weights.items()}
    write_bilm(tmp_path, model)
    arrays = {name: value.astype(dtype) for name, value in named(model, "hdf5").items()}
    write_hdf5(tmp_path / "weights.hdf5", arrays)
    check_layers(Elmo.load(tmp_path), model)


def test_released_file_names(tmp_path):
    small, large = make_bilm(seed=1), make_bilm(seed=2, cell=9)
    for model, size in ((small, "2x1024_128_2048cnn_1xhighway"), (large, "2x4096_512_2048cnn_2xhighway")):
        write_bilm(tmp_path, model, weights=f"elmo_{size}_weights.hdf5", options=f"elmo_{size}_options.json")
    path = tmp_path / "elmo_2x4096_512_2048cnn_2xhighway_weights.hdf5"
    assert detect(path).format.name == "bilm"
    check_layers(Elmo.load(path), large)


def test_options_lie_apart(tmp_path):
    model = make_bilm()
    write_bilm(tmp_path / "weights", model)
    (tmp_path / "elsewhere").mkdir()
    options = shutil.move(tmp_path / "weights" / "options.json", tmp_path / "elsewhere" / "any name")
    check_layers(Elmo.load(tmp_path / "weights" / "weights.hdf5", options=options), model)


def test_given_options_win_over_those_next_to_the_weights(tmp_path):
    model = make_bilm()
    write_bilm(tmp_path, model)
    model.options["lstm"]["use_skip_connections"] = False
    other = tmp_path / "other.json"
    other.write_text(json.dumps(model.options))
    check_layers(Elmo.load(tmp_path, options=other), model)
    check_layers(Elmo.load(other), model)  # naming the options file names the model


@pytest.mark.parametrize("top", ["", "136/", "deep/er/"])
@pytest.mark.parametrize("kind", WRITERS)
def test_zip(tmp_path, top, kind):
    model = make_bilm(softmax=kind == "tensorflow")
    WRITERS[kind](tmp_path / "folder", model)
    path = write_zip(tmp_path / "model.zip", tmp_path / "folder", top=top, rename={"weights.hdf5": "model.hdf5"})
    assert detect(path).format.name == kind
    check_layers(Elmo.load(path), model)


def test_zip_made_on_a_mac(tmp_path):
    model = make_bilm()
    path = write_zip(tmp_path / "model.zip", write_bilm(tmp_path / "folder", model), top="136/")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("__MACOSX/136/._weights.hdf5", b"\0\5\x16\7")
    check_layers(Elmo.load(path), model)


def test_vocabulary_of_a_token_model(tmp_path):
    model = make_bilm(words=True)
    write_bilm(tmp_path / "model", model)
    text = "\ufeff" + "".join(f"{word}\r\n" for word in [*WORDS[:3], "!!!MAXTERMID", *WORDS[3:]])
    (tmp_path / "words").write_bytes(text.encode())
    (tmp_path / "model" / "vocab.txt").unlink()
    elmo = Elmo.load(tmp_path / "model", vocab=tmp_path / "words")
    assert list(elmo.vocab) == WORDS
    check_layers(elmo, model)


@pytest.mark.parametrize(
    "variant",
    [{}, {"directions": 1}, {"words": True}, {"words": True, "layers": 1}],
    ids=["both", "forward only", "words", "words, one layer"],
)
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
def test_log_probs_of_a_checkpoint(tmp_path, variant, shared):
    model = make_bilm(softmax=True, **variant)
    if shared:
        model.options["share_embedding_softmax"] = True
    if shared and "embedding" in model.weights:
        del model.weights["softmax/W"]
    elmo = Elmo.load(write_tensorflow(tmp_path, model))
    for got, tokens in zip(elmo.log_probs(SENTENCES), SENTENCES, strict=True):
        expected = bilm_log_probs(model, tokens)
        np.testing.assert_allclose(got.forward, expected[0], rtol=0, atol=TOLERANCE)
        if model.n_directions == 2:
            np.testing.assert_allclose(got.backward, expected[1], rtol=0, atol=TOLERANCE)
        else:
            assert got.backward is None


def test_token_embeddings_in_place_of_characters(tmp_path):
    model = make_bilm()
    write_bilm(tmp_path, model)
    rows = np.stack([bilm_token(model, word) for word in WORDS]).astype(np.float32)
    write_hdf5(tmp_path / "tokens.hdf5", {"embedding": rows})
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS))
    assert detect(tmp_path / "tokens.hdf5").format.name == "tokens"
    assert detect(tmp_path).format.name == "bilm"
    elmo = Elmo.load(tmp_path / "weights.hdf5", token_embeddings=tmp_path / "tokens.hdf5", vocab=tmp_path / "vocab.txt")
    known = [["the", "river", "bank", "."]]
    np.testing.assert_allclose(
        elmo.encode(known, output="layers")[0], bilm_layers(model, known[0]), rtol=0, atol=TOLERANCE
    )
    unknown = elmo.encode([["zebra"]], layer=0)[0]
    np.testing.assert_allclose(unknown[0, :5], rows[WORDS.index("<UNK>")], rtol=0, atol=TOLERANCE)

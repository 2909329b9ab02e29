"""Matrices in int8 in files: read from every format, written, read again, and refused where they are damaged."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from elmokit import Elmo
from elmokit.errors import ElmoError
from elmokit.formats.load import read_checkpoint
from elmokit.formats.save import convert_model, write_checkpoint
from elmokit.model.int8 import quantised
from support.model_files import (
    SENTENCES,
    make_bilm,
    make_manylangs,
    refusal,
    run,
    write_bilm,
    write_manylangs,
    write_tensorflow,
)
from support.tiny_models import tiny_checkpoint, transformer_config

PART = "forward_lstm.layers.0.input_weight"
SOURCES = {
    "bilm": lambda folder: write_bilm(folder, make_bilm()),
    "bilm of words": lambda folder: write_bilm(folder, make_bilm(words=True)),
    "no projections": lambda folder: write_bilm(folder, make_bilm(output=9, cell=9)),
    "forward only": lambda folder: write_bilm(folder, make_bilm(directions=1)),
    "tensorflow": lambda folder: write_tensorflow(folder, make_bilm(softmax=True)),
    "manylangs": lambda folder: write_manylangs(folder, make_manylangs()),
    "elmokit": lambda folder: convert_model(
        write_tensorflow(folder / "from", make_bilm(softmax=True)), folder / "to", to="elmokit"
    ),
}


@pytest.fixture
def small(tmp_path):
    convert_model(write_bilm(tmp_path / "from", make_bilm()), tmp_path / "model", to="elmokit", dtype="int8")
    return tmp_path / "model"


@pytest.mark.parametrize("source", SOURCES)
def test_every_format_is_read_in_8_bits_and_written_so(tmp_path, source):
    path = SOURCES[source](tmp_path / "model")
    expected = read_checkpoint(path).in_int8()
    found = read_checkpoint(path, int8=True)
    assert found.int8
    assert not found.optimizer
    write_checkpoint(found, tmp_path / "small")
    again = read_checkpoint(tmp_path / "small")
    for checkpoint in (found, again):
        assert sorted(checkpoint.weights) == sorted(expected.weights)
        assert all(torch.equal(value, expected.weights[name]) for name, value in checkpoint.weights.items())
        assert checkpoint.weights[f"{PART}.values"].dtype == torch.int8
        assert sorted(checkpoint.head) == sorted(expected.head)
        assert checkpoint.vocab == expected.vocab
    assert again.int8
    assert json.loads((tmp_path / "small" / "config.json").read_text())["dtype"] == "int8"


def test_a_transformer_has_factors_of_columns_and_older_files_have_none(tmp_path):
    write_checkpoint(tiny_checkpoint(transformer_config()), tmp_path / "plain")
    convert_model(tmp_path / "plain", tmp_path / "new", to="elmokit", dtype="int8")
    tensors = load_file(tmp_path / "new" / "model.safetensors")
    expected = read_checkpoint(tmp_path / "plain").in_int8().weights
    assert sorted(expected) == sorted(tensors)
    assert all(torch.equal(value, expected[name].to(value.dtype)) for name, value in tensors.items())
    factors = {name.rpartition(".")[0].rpartition(".")[2] for name in tensors if name.endswith(".columns")}
    assert factors == {"out", "up", "down", "weight"}
    older = read_checkpoint(tmp_path / "plain").weights
    names = {name.removesuffix(".values") for name in tensors if name.endswith(".values")}
    shutil.copytree(tmp_path / "new", tmp_path / "old")
    save_file(quantised(older, names), tmp_path / "old" / "model.safetensors")
    elmos = [Elmo.load(tmp_path / name, device="cpu") for name in ("plain", "new", "old")]
    plain, *found = (np.concatenate(elmo.encode(SENTENCES)) for elmo in elmos)
    assert [elmo.dtype for elmo in elmos] == ["float32", "int8", "int8"]
    for name, vectors in zip(("new", "old"), found, strict=True):
        np.testing.assert_allclose(vectors, plain, atol=0.1)
        floats = np.concatenate(Elmo.load(tmp_path / name, dtype="float32").encode(SENTENCES))
        np.testing.assert_allclose(vectors, floats, atol=0.1)
    write_checkpoint(read_checkpoint(tmp_path / "old"), tmp_path / "again")
    assert not any(name.endswith(".columns") for name in load_file(tmp_path / "again" / "model.safetensors"))
    del tensors[next(name for name in tensors if name.endswith(".columns"))]
    save_file(tensors, tmp_path / "new" / "model.safetensors")
    refusal(tmp_path / "new", "lacks the weights")


def test_a_zip_is_read_in_8_bits(tmp_path, small):
    archive = shutil.make_archive(str(tmp_path / "zipped"), "zip", write_bilm(tmp_path / "plain", make_bilm()))
    expected = read_checkpoint(small).weights
    found = read_checkpoint(archive, int8=True).weights
    assert all(torch.equal(value.to(expected[name].dtype), expected[name]) for name, value in found.items())
    archive = shutil.make_archive(str(tmp_path / "small"), "zip", small)
    assert all(torch.equal(v, expected[name]) for name, v in read_checkpoint(archive).weights.items())


def test_it_is_a_quarter_of_the_size(tmp_path):
    model = make_bilm(cell=64, output=32)
    path = write_bilm(tmp_path / "from", model)
    for dtype in ("float32", "int8"):
        convert_model(path, tmp_path / dtype, to="elmokit", dtype=dtype)
    sizes = [(tmp_path / dtype / "model.safetensors").stat().st_size for dtype in ("float32", "int8")]
    assert sizes[1] < 0.4 * sizes[0]


def test_what_is_not_a_matrix_is_in_float16(tmp_path):
    path = write_bilm(tmp_path / "from", make_bilm(words=True))
    plain = read_checkpoint(path)
    table = "token_encoder.words.weight"
    convert_model(path, tmp_path / "small", to="elmokit", dtype="int8")
    tensors = load_file(tmp_path / "small" / "model.safetensors")
    kinds = {name: value.dtype for name, value in tensors.items() if not name.endswith((".values", ".scales"))}
    assert table in kinds
    assert set(kinds.values()) == {torch.float16}
    assert {value.dtype for name, value in tensors.items() if name.endswith(".scales")} == {torch.float32}
    torch.testing.assert_close(tensors[table].float(), plain.weights[table], rtol=1e-3, atol=1e-6)
    plain.weights[table][0, 0] = 1e6  # more than float16 can be
    write_checkpoint(plain, tmp_path / "large", dtype="int8")
    assert load_file(tmp_path / "large" / "model.safetensors")[table].dtype == torch.float32


def test_saving_twice_writes_the_same_bytes(tmp_path, small):
    Elmo.load(small).save(tmp_path / "one")
    Elmo.load(tmp_path / "one").save(tmp_path / "two")
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two
    assert Elmo.load(tmp_path / "two").dtype == "int8"


def test_back_to_floats(tmp_path, small):
    small_weights = read_checkpoint(small)
    assert small_weights.in_int8() is small_weights
    convert_model(small, tmp_path / "plain", to="elmokit", dtype="float32")
    plain = read_checkpoint(tmp_path / "plain")
    assert not plain.int8
    assert plain.in_floats() is plain
    values, scales = (small_weights.weights[f"{PART}.{part}"] for part in ("values", "scales"))
    assert torch.equal(plain.weights[PART], values.float() * scales.unsqueeze(1))


def test_the_bilm_format_gets_floats(tmp_path, small):
    Elmo.load(small).save(tmp_path / "bilm", format="bilm")
    again = read_checkpoint(tmp_path / "bilm")
    expected = read_checkpoint(small).in_floats()
    assert all(torch.equal(value, expected.weights[name]) for name, value in again.weights.items())


def test_the_commands(tmp_path, capsys):
    path = write_bilm(tmp_path / "from", make_bilm())
    assert run("convert", path, tmp_path / "small", "--dtype", "int8") == 0
    assert run("info", tmp_path / "small") == 0
    assert "int8 matrices" in capsys.readouterr().out
    assert run("info", path) == 0
    assert "int8" not in capsys.readouterr().out
    counts = [sum(v.numel() for v in read_checkpoint(path).weights.values())]
    assert f"{counts[0]:,}, int8 matrices" in (tmp_path / "small" / "README.md").read_text()
    assert run("convert", path, tmp_path / "other", "--to", "bilm", "--dtype", "int8") == 2
    assert "the format bilm stores float32" in capsys.readouterr().err


def test_token_embeddings_replace_the_characters(tmp_path):
    path = write_tensorflow(tmp_path / "model", make_bilm(softmax=True))
    assert run("convert", path, tmp_path / "tokens.hdf5", "--to", "tokens") == 0
    elmo = Elmo.load(path, token_embeddings=tmp_path / "tokens.hdf5", dtype="int8")
    assert elmo.dtype == "int8"
    assert len(elmo.encode(SENTENCES)) == len(SENTENCES)


DAMAGE = {
    "no scales": (lambda t: t.pop(f"{PART}.scales"), "lacks the weights"),
    "floats": (lambda t: t.update({f"{PART}.values": t[f"{PART}.values"].float()}), "must be int8 values"),
    "too small": (lambda t: t[f"{PART}.values"].__setitem__((0, 0), -128), "must be int8 values"),
    "whole scales": (
        lambda t: t.update({f"{PART}.scales": t[f"{PART}.scales"].to(torch.int8)}),
        "must be a plain tensor of floats",
    ),
    "no number": (lambda t: t[f"{PART}.scales"].__setitem__(0, float("nan")), "not finite"),
    "another shape": (lambda t: t.update({f"{PART}.scales": t[f"{PART}.scales"][1:].clone()}), "in the shape"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files(small, damage):
    tensors = load_file(small / "model.safetensors")
    change, fact = DAMAGE[damage]
    change(tensors)
    save_file(tensors, small / "model.safetensors")
    refusal(small, str(small / "model.safetensors"), fact)


@pytest.mark.parametrize(
    ("dtype", "fact"),
    [("int4", "dtype must be int8 or absent, got 'int4'"), (None, "must be a plain tensor of floats")],
)
def test_a_configuration_that_says_something_else(small, dtype, fact):
    values = json.loads((small / "config.json").read_text())
    (small / "config.json").write_text(json.dumps({**values, "dtype": dtype}))
    refusal(small, str(small), fact)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize("kind", ["bilm", "elmokit"])
def test_numbers_that_are_not_finite_are_found_on_the_way(tmp_path, kind, number):
    path = write_bilm(tmp_path / "from", make_bilm())
    if kind == "bilm":
        model = make_bilm()
        model.weights["cell/0/0/kernel"][1, 1] = number
        path = write_bilm(tmp_path / "bad", model)
    else:
        convert_model(path, tmp_path / "to", to="elmokit")
        tensors = load_file(tmp_path / "to" / "model.safetensors")
        tensors[PART][1, 1] = number
        save_file(tensors, tmp_path / "to" / "model.safetensors")
        path = tmp_path / "to"
    refusal(path, "not finite", dtype="int8")


def test_a_cut_file_is_named(tmp_path):
    convert_model(write_bilm(tmp_path / "from", make_bilm()), tmp_path / "to", to="elmokit")
    file = tmp_path / "to" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    refusal(tmp_path / "to", str(file), "is not a complete safetensors file", dtype="int8")


def test_training_starts_from_int8_read_as_floats(tmp_path, small, capsys):
    (tmp_path / "text.txt").write_text("the bank of the river\n" * 20)
    assert run("train", tmp_path / "text.txt", "--output", tmp_path / "run", "--init", small, "--steps", "1") == 0
    assert "int8" in capsys.readouterr().err
    assert Elmo.load(tmp_path / "run").dtype == "float32"
    with pytest.raises(ElmoError, match="cannot be trained"):
        Elmo.load(small, trainable=True)


def test_elsewhere_8_bits_are_read_as_floats(tmp_path, small, capsys):
    from elmokit.compat.allennlp import Elmo as AllenNlpElmo
    from elmokit.compat.allennlp import batch_to_ids

    old = AllenNlpElmo(None, small, 1, dropout=0, stateful=False).eval()
    found = old(batch_to_ids([["the", "bank"]]))["elmo_representations"][0][0]
    plain = Elmo.load(small, dtype="float32").encode([["the", "bank"]])[0]
    np.testing.assert_allclose(found.detach().numpy(), plain, rtol=0, atol=5e-5)
    path = write_tensorflow(tmp_path / "tf", make_bilm(softmax=True))
    convert_model(path, tmp_path / "with softmax", to="elmokit", dtype="int8")
    (tmp_path / "text.txt").write_text("the bank\n")
    assert run("eval", tmp_path / "with softmax", tmp_path / "text.txt") == 0
    assert "mean perplexity" in capsys.readouterr().out

"""A softmax in int8 in our folder: left alone until it is used, good everywhere, the same after a round trip."""

import json
import shutil

import h5py
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from elmokit import Elmo
from elmokit.formats.load import read_checkpoint
from elmokit.formats.save import convert_model
from elmokit.model.language_model import Int8LmHead, LmHead
from elmokit.pretrain.recipe import Recipe
from elmokit.pretrain.setup import start_from
from elmokit.text.vocab import Vocabulary
from support.model_files import make_bilm, refusal, run, write_tensorflow
from support.tiny_models import WORDS, tiny_checkpoint

SENTENCES = [["the", "bank", "of", "money"], ["river"], [], ["a", "bank", "the", "the", ".", "unseen"]]
HEAD = "lm_head.safetensors"


@pytest.fixture
def small(tmp_path):
    """A folder with a softmax in int8."""
    Elmo(tiny_checkpoint(head=True)).save(tmp_path / "small", softmax="int8")
    return tmp_path / "small"


@pytest.fixture
def plain(small, tmp_path):
    """The same numbers in floats."""
    convert_model(small, tmp_path / "plain", to="elmokit", softmax="float32")
    return tmp_path / "plain"


def test_the_file(small, plain):
    head, floats = load_file(small / HEAD), load_file(plain / HEAD)
    shapes = {name: (value.dtype, tuple(value.shape)) for name, value in head.items()}
    assert shapes == {
        "weight.values": (torch.int8, (10, 6)),
        "weight.scales": (torch.float32, (10,)),
        "bias": (torch.float32, (10,)),
    }
    assert torch.equal(floats["weight"], head["weight.values"].float() * head["weight.scales"].unsqueeze(1))
    exact = tiny_checkpoint(head=True).head["weight"]
    assert ((floats["weight"] - exact).abs() <= 0.5001 * head["weight.scales"].unsqueeze(1)).all()
    assert not torch.equal(floats["weight"], exact)


def test_saving_keeps_every_byte(small, tmp_path):
    elmo = Elmo.load(small, device="cpu")
    elmo.save(tmp_path / "unused")
    elmo.perplexity(SENTENCES)
    elmo.save(tmp_path / "used")
    elmo.save(small)
    convert_model(small, tmp_path / "converted", to="elmokit")
    Elmo.load(small, dtype="int8").save(tmp_path / "all in int8")
    Elmo.load(tmp_path / "all in int8", dtype="float32").save(tmp_path / "back")
    for name in ("unused", "used", "converted", "all in int8", "back"):
        assert (tmp_path / name / HEAD).read_bytes() == (small / HEAD).read_bytes(), name


def test_a_number_that_int8_products_do_not_support(small):
    tensors = load_file(small / HEAD)
    tensors["weight.values"] = tensors["weight.values"].clone()
    tensors["weight.values"][2, 3] = -128
    save_file(tensors, small / HEAD)
    refusal(small, "weight.values must be int8 values from -127 to 127")


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8"])
def test_probabilities_are_those_of_the_floats(small, plain, dtype):
    one, other = Elmo.load(small, device="cpu", dtype=dtype), Elmo.load(plain, device="cpu", dtype=dtype)
    assert isinstance(one.head, Int8LmHead)
    assert isinstance(other.head, LmHead)
    for found, expected in zip(one.log_probs(SENTENCES), other.log_probs(SENTENCES), strict=True):
        np.testing.assert_allclose(found.forward, expected.forward, rtol=0, atol=1e-3)
        np.testing.assert_allclose(found.backward, expected.backward, rtol=0, atol=1e-3)
    assert one.perplexity(SENTENCES) == pytest.approx(other.perplexity(SENTENCES), rel=1e-3)
    words, others = (elmo.substitutes(SENTENCES[0], 1, k=7) for elmo in (one, other))
    assert [word for word, _ in words] == [word for word, _ in others]
    np.testing.assert_allclose([p for _, p in words], [p for _, p in others], rtol=0, atol=1e-3)


def test_alone_and_in_a_batch(small):
    elmo = Elmo.load(small, device="cpu")
    together = elmo.log_probs(SENTENCES)
    for sentence, expected in zip(SENTENCES, together, strict=True):
        assert np.array_equal(elmo.log_probs([sentence])[0].forward, expected.forward)


def test_half_precision_computes(small):
    elmo = Elmo.load(small, device="cpu", dtype="bfloat16")
    full = Elmo.load(small, device="cpu")
    assert elmo.perplexity(SENTENCES) == pytest.approx(full.perplexity(SENTENCES), rel=0.2)
    assert elmo.head.weight.scales.dtype == torch.float32


def test_a_network_over_it_trains(small):
    elmo = Elmo.load(small, device="cpu", trainable=True).train()
    elmo(["the bank"])["elmo"].sum().backward()
    assert elmo.bilm.context.forward_lstm.layers[0].input_weight.grad is not None
    assert elmo.perplexity(SENTENCES) > 1


def test_from_a_zip(small, tmp_path):
    archive = shutil.make_archive(str(tmp_path / "zipped"), "zip", small)
    one, other = (Elmo.load(path, device="cpu") for path in (archive, small))
    assert one.perplexity(SENTENCES) == other.perplexity(SENTENCES)


def test_half_precision_scales_and_bias(small):
    tensors = load_file(small / HEAD)
    save_file({name: v.half() if v.is_floating_point() else v for name, v in tensors.items()}, small / HEAD)
    elmo = Elmo.load(small, device="cpu")
    assert elmo.head.weight.scales.dtype == torch.float32
    assert elmo.perplexity(SENTENCES) > 1
    floats = read_checkpoint(small).in_floats().head["weight"]
    expected = tensors["weight.values"].float() * tensors["weight.scales"].half().float().unsqueeze(1)
    assert torch.equal(floats, expected)


def test_the_bilm_format_gets_floats(small, plain, tmp_path):
    Elmo.load(small, device="cpu").save(tmp_path / "bilm", format="bilm")
    expected = load_file(plain / HEAD)
    with h5py.File(tmp_path / "bilm" / "weights.hdf5") as file:
        assert np.array_equal(file["softmax/W"][()], expected["weight"].numpy())
        assert np.array_equal(file["softmax/b"][()], expected["bias"].numpy())


def test_training_goes_on_from_it(small, plain):
    recipe = Recipe()
    head = load_file(plain / HEAD)
    same = start_from(read_checkpoint(small), recipe, None)
    assert torch.equal(same.network.head.weight, head["weight"])
    assert not same.new_softmax
    other = start_from(read_checkpoint(small), recipe, Vocabulary([*WORDS[:3], "new", *WORDS[:2:-1]]))
    assert torch.equal(other.network.head.weight[4:], head["weight"].flip(0)[:7])
    assert torch.equal(other.network.head.bias[4:], head["bias"].flip(0)[:7])


def test_the_commands(small, plain, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("the bank of the river\nmoney .\n" * 20)
    results = []
    for folder in (small, plain):
        assert run("eval", folder, tmp_path / "text.txt") == 0
        results.append(capsys.readouterr().out)
    assert "mean perplexity" in results[0]
    assert results[0] == results[1]
    assert run("info", small) == 0
    assert "softmax                10 words, int8\n" in capsys.readouterr().out
    assert run("info", plain) == 0
    assert "10 words\n" in capsys.readouterr().out
    train = ("--output", tmp_path / "run", "--init", small, "--steps", 1, "--batch-size", 2, "--window", 4)
    assert run("train", tmp_path / "text.txt", *train) == 0
    assert "softmax: that of" in capsys.readouterr().err
    assert isinstance(Elmo.load(tmp_path / "run", device="cpu").head, LmHead)


DAMAGE = {
    "no scales": (lambda t: t.pop("weight.scales"), "for int8 weight.values, weight.scales and bias, got"),
    "both": (lambda t: t.update(weight=torch.ones(10, 6)), "must contain weight [V, 6]"),
    "another size": (
        lambda t: t.update({"weight.values": t["weight.values"][:, 1:].clone()}),
        "must contain weight [V, 6]",
    ),
    "too few": (lambda t: t.update({"weight.scales": t["weight.scales"][1:].clone()}), "must contain weight [V, 6]"),
    "floats": (lambda t: t.update({"weight.values": t["weight.values"].float()}), "weight.values must be int8"),
    "int16": (lambda t: t.update({"weight.values": t["weight.values"].short()}), "must be a plain tensor of floats"),
    "whole scales": (
        lambda t: t.update({"weight.scales": t["bias"].to(torch.int8)}),
        "must be a plain tensor of floats",
    ),
    "no number": (lambda t: t["weight.scales"].__setitem__(0, float("nan")), "not finite"),
    "infinite": (lambda t: t["bias"].__setitem__(0, float("-inf")), "not finite"),
    "another vocabulary": (lambda t: t.update({name: v[1:].clone() for name, v in t.items()}), "a softmax of 9 words"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files(small, damage):
    tensors = load_file(small / HEAD)
    change, fact = DAMAGE[damage]
    change(tensors)
    save_file(tensors, small / HEAD)
    refusal(small, str(small), fact)


def test_optimiser_state_stays_with_it(tmp_path):
    path = write_tensorflow(tmp_path / "from", make_bilm(softmax=True))
    convert_model(path, tmp_path / "small", to="elmokit", softmax="int8")
    stored = read_checkpoint(tmp_path / "small")
    assert {"head.weight", "head.bias"} <= stored.optimizer.keys()
    assert stored.softmax_int8
    convert_model(path, tmp_path / "without", to="elmokit", softmax="none")
    stored = read_checkpoint(tmp_path / "without")
    assert stored.optimizer
    assert not {"head.weight", "head.bias"} & stored.optimizer.keys()
    assert not stored.head
    assert not (tmp_path / "without" / HEAD).exists()


def test_what_is_said_about_a_model_stays_with_it(small, tmp_path, capsys):
    elmo = Elmo.load(small, device="cpu")
    assert elmo.about == {}
    assert "about" not in json.loads((small / "config.json").read_text())
    elmo.about = {"language": "Icelandic", "description": "sagas, cased"}
    elmo.save(tmp_path / "reported")
    convert_model(tmp_path / "reported", tmp_path / "again", to="elmokit", softmax="none")
    assert Elmo.load(tmp_path / "again", device="cpu").about == elmo.about
    assert run("info", tmp_path / "again") == 0
    assert "Icelandic\n" in capsys.readouterr().out
    values = json.loads((small / "config.json").read_text())
    (small / "config.json").write_text(json.dumps({**values, "about": {"language": 3}}))
    refusal(small, "about must be an object with strings as values, got {'language': 3}")

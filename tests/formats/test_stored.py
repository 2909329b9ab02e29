"""In which numbers a model is stored: by `save` and by `elmo convert`."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from elmokit import Elmo
from elmokit.errors import ElmoError
from elmokit.formats.save import stored_in
from support.model_files import run
from support.tiny_models import tiny_checkpoint

F32, F16, I8 = torch.float32, torch.float16, torch.int8
PART = "forward_lstm.layers.0.input_weight"
# dtype, softmax → what the network's and the softmax's matrices are stored as, from floats and from int8
TABLE = {
    (None, None): ((F32, F32), (I8, I8)),
    ("float32", None): ((F32, F32), (F32, I8)),
    ("float16", None): ((F16, F16), (F16, I8)),
    ("int8", None): ((I8, F32), (I8, I8)),
    (None, "int8"): ((F32, I8), (I8, I8)),
    (None, "float16"): ((F32, F16), (I8, F16)),
    ("float16", "int8"): ((F16, I8), (F16, I8)),
    ("float16", "float32"): ((F16, F32), (F16, F32)),
    ("int8", "int8"): ((I8, I8), (I8, I8)),
    ("float16", "none"): ((F16, None), (F16, None)),
    (None, "none"): ((F32, None), (I8, None)),
}


def stored(folder):
    """The number types of the network's and of the softmax's matrices in a folder."""
    found = []
    for file, name in (("model", PART), ("lm_head", "weight")):
        path = folder / f"{file}.safetensors"
        tensors = load_file(path) if path.exists() else {}
        found.append(next((tensors[key].dtype for key in (name, f"{name}.values") if key in tensors), None))
    return tuple(found)


@pytest.mark.parametrize(("dtype", "softmax"), TABLE)
def test_every_combination(tmp_path, dtype, softmax):
    floats = tiny_checkpoint(head=True)
    eights = stored_in(floats, "int8", "int8")
    for checkpoint, expected in zip((floats, eights), TABLE[dtype, softmax], strict=True):
        elmo = Elmo(checkpoint)
        elmo.save(tmp_path / "saved", dtype=dtype, softmax=softmax)
        assert stored(tmp_path / "saved") == expected
        elmo.save(tmp_path / "model")
        options = [*(["--dtype", dtype] if dtype else []), *(["--softmax", softmax] if softmax else [])]
        assert run("convert", tmp_path / "model", tmp_path / "converted", "--overwrite", *options) == 0
        assert stored(tmp_path / "converted") == expected
        again = Elmo.load(tmp_path / "converted", device="cpu")
        assert (again.head is None) == (softmax == "none")
        assert again.vocab == elmo.vocab
        if softmax != "none":
            assert again.perplexity(["the bank"]) == pytest.approx(elmo.perplexity(["the bank"]), rel=0.05)


def test_half_precision_is_half_precision(tmp_path, make_elmo):
    elmo = make_elmo(head=True)
    elmo.save(tmp_path / "half", dtype="float16")
    again = Elmo.load(tmp_path / "half", device="cpu")
    assert again.dtype == "float32"
    for name, value in elmo.bilm.state_dict().items():
        assert torch.equal(again.bilm.state_dict()[name], value.half().float())
    np.testing.assert_allclose(again.encode("the bank")[0], elmo.encode("the bank")[0], rtol=0, atol=0.02)
    again.save(tmp_path / "once more", dtype="float16")
    for name in ("model", "lm_head"):
        one, other = (load_file(tmp_path / folder / f"{name}.safetensors") for folder in ("half", "once more"))
        assert all(torch.equal(one[key], other[key]) and one[key].dtype == other[key].dtype for key in one)


def test_numbers_too_large_for_half_precision(tmp_path):
    checkpoint = tiny_checkpoint(head=True)
    checkpoint.weights[PART][1, 2] = -70000.0
    with pytest.raises(ElmoError, match=rf"has values up to 7e\+04 in {PART}, too large for float16"):
        Elmo(checkpoint).save(tmp_path / "to", dtype="float16")
    assert not (tmp_path / "to").exists()
    checkpoint.weights[PART][1, 2] = 1.0
    checkpoint.head["bias"][0] = 1e30
    Elmo(checkpoint).save(tmp_path / "to", dtype="float16", softmax="int8")
    assert Elmo.load(tmp_path / "to", device="cpu").head.bias[0] == torch.tensor(1e30)


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        ({"dtype": "float64"}, "dtype must be float32 or float16 or int8, got 'float64'"),
        ({"softmax": "small"}, "softmax must be float32 or float16 or int8 or none, got 'small'"),
        ({"format": "bilm", "dtype": "float16"}, "the format bilm stores float32, got dtype float16"),
        ({"format": "bilm", "softmax": "int8"}, "the format bilm stores float32, got softmax int8"),
    ],
)
def test_what_cannot_be_stored(tmp_path, make_elmo, arguments, fact):
    with pytest.raises(ElmoError, match=fact):
        make_elmo(head=True).save(tmp_path / "to", **arguments)
    assert not (tmp_path / "to").exists()


def test_a_softmax_that_is_not_there(tmp_path, make_elmo, capsys):
    make_elmo().save(tmp_path / "model")
    assert run("convert", tmp_path / "model", tmp_path / "to", "--softmax", "int8") == 2
    assert "--softmax must be left out" in capsys.readouterr().err
    assert run("convert", tmp_path / "model", tmp_path / "to", "--softmax", "none") == 0
    assert run("convert", tmp_path / "model", tmp_path / "half", "--dtype", "float16") == 0


def test_other_formats_hold_floats(model_folder, tmp_path, capsys):
    for option in ("--dtype", "--softmax"):
        for to, name in (("bilm", "to"), ("tokens", "to.hdf5")):
            assert run("convert", model_folder, tmp_path / name, "--to", to, option, "int8") == 2
            assert f"the format {to} stores float32" in capsys.readouterr().err
    assert run("convert", model_folder, tmp_path / "to", "--to", "bilm", "--softmax", "none") == 0
    assert Elmo.load(tmp_path / "to", device="cpu").head is None

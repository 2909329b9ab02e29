"""`elmo convert`: what it writes, what it refuses, and what it leaves behind when it fails."""

import os
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from elmokit import Elmo
from elmokit.cli import main
from elmokit.errors import ElmoError
from elmokit.formats.load import read_checkpoint
from elmokit.formats.save import convert_model
from support.bundle_writer import write_bundle
from support.model_files import (
    WORDS,
    make_bilm,
    make_manylangs,
    named,
    slot_of,
    write_bilm,
    write_manylangs,
    write_tensorflow,
)
from support.numpy_forward import bilm_token
from support.refusals import files_of_at_most


def files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def test_a_training_run_keeps_its_optimiser(tmp_path):
    model = make_bilm(softmax=True)
    convert_model(write_tensorflow(tmp_path / "from", model, step=1234), tmp_path / "to", to="elmokit")
    slots = load_file(tmp_path / "to" / "optimizer.safetensors")
    weights = load_file(tmp_path / "to" / "model.safetensors")
    assert slots.pop("step").tolist() == [1234]
    assert sorted(slots) == sorted([*weights, "head.weight", "head.bias"])
    for name, value in slots.items():
        expected = (
            model.weights[f"softmax/{'W' if name.endswith('weight') else 'b'}"] if "head" in name else weights[name]
        )
        assert torch.equal(value, torch.from_numpy(slot_of(np.asarray(expected))))
    assert read_checkpoint(tmp_path / "to").optimizer["step"].tolist() == [1234]


@pytest.mark.parametrize("step", [np.array([1, 2]), np.zeros((0,), np.int64), np.array(2.5, np.float32)])
def test_a_strange_global_step(tmp_path, step):
    model = make_bilm()
    write_tensorflow(tmp_path, model)
    tensors = named(model, "tensorflow")
    slots = {f"{name}/Adagrad": slot_of(value) for name, value in tensors.items()}
    write_bundle(tmp_path / "model.ckpt-7", {**tensors, **slots, "global_step": step})
    assert ("step" in read_checkpoint(tmp_path).optimizer) == (step.shape == ())


def test_a_checkpoint_without_slots_has_no_optimiser(tmp_path):
    convert_model(write_tensorflow(tmp_path / "from", make_bilm(), slots=False), tmp_path / "to", to="elmokit")
    assert not (tmp_path / "to" / "optimizer.safetensors").exists()


def test_there_and_back(tmp_path):
    source = write_bilm(tmp_path / "from", make_bilm())
    convert_model(source, tmp_path / "ours", to="elmokit")
    convert_model(tmp_path / "ours", tmp_path / "theirs", to="bilm")
    one, two = read_checkpoint(source), read_checkpoint(tmp_path / "theirs")
    assert one.config == two.config
    assert all(torch.equal(one.weights[name], two.weights[name]) for name in one.weights)


def test_tokens_are_layer_0(tmp_path, capsys):
    model = make_bilm()
    write_bilm(tmp_path / "from", model)
    (tmp_path / "words.txt").write_text("".join(f"{word}\n" for word in [*WORDS, "日本語"]))
    target = tmp_path / "tokens.hdf5"
    arguments = ["convert", str(tmp_path / "from"), str(target), "--to", "tokens"]
    with pytest.raises(SystemExit, match="0"):
        main([*arguments, "--vocab", str(tmp_path / "words.txt")])
    assert capsys.readouterr().out == f"wrote {target}\n"
    with h5py.File(target) as file:
        assert list(file) == ["embedding"]
        rows = file["embedding"][()]
    assert rows.dtype == np.float32
    np.testing.assert_allclose(rows, [bilm_token(model, word) for word in [*WORDS, "日本語"]], rtol=0, atol=1e-5)
    inner = Elmo.load(tmp_path / "from").encode([["the", "日本語"]], layer=0)[0]
    assert np.array_equal(inner[:, :5], rows[[3, len(WORDS)]])


def test_tokens_give_the_same_vectors(tmp_path):
    source = write_tensorflow(tmp_path / "from", make_bilm(softmax=True))
    convert_model(source, tmp_path / "tokens.h5", to="tokens")
    fast = Elmo.load(source, token_embeddings=tmp_path / "tokens.h5")
    sentences = [WORDS[3:], ["the"], []]
    for got, expected in zip(fast.encode(sentences), Elmo.load(source).encode(sentences), strict=True):
        assert np.array_equal(got, expected)


def test_tokens_need_words(tmp_path):
    source = write_bilm(tmp_path / "from", make_bilm())
    with pytest.raises(ElmoError, match=r"from/weights\.hdf5 has none.*vocab$"):
        convert_model(source, tmp_path / "tokens.h5", to="tokens")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["from"]


@pytest.mark.parametrize("to", ["elmokit", "bilm"])
def test_a_folder_that_is_not_empty_is_left_alone(tmp_path, to):
    source = write_bilm(tmp_path / "from", make_bilm())
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "thesis.txt").write_text("years of work")
    with pytest.raises(ElmoError, match=r"to is not empty: choose another or use overwrite$"):
        convert_model(source, tmp_path / "to", to=to)
    assert files(tmp_path / "to") == {"thesis.txt": b"years of work"}
    convert_model(source, tmp_path / "to", to=to, overwrite=True)
    assert files(tmp_path / "to")["thesis.txt"] == b"years of work"
    assert Elmo.load(tmp_path / "to").kind == to


def test_overwriting_takes_away_what_the_new_model_has_not(tmp_path):
    large = write_tensorflow(tmp_path / "large", make_bilm(softmax=True))
    small = write_bilm(tmp_path / "small", make_bilm(seed=1))
    for to in ("elmokit", "bilm"):
        convert_model(large, tmp_path / to, to=to)
        convert_model(small, tmp_path / to, to=to, overwrite=True)
        again = read_checkpoint(tmp_path / to)
        assert (again.vocab, again.head, again.optimizer) == (None, {}, {})
        assert torch.equal(again.weights["forward_lstm.layers.0.bias"], _first_bias(small))


def _first_bias(path: Path) -> torch.Tensor:
    return read_checkpoint(path).weights["forward_lstm.layers.0.bias"]


@pytest.mark.parametrize("other", ["elmokit", "tensorflow", "manylangs"])
def test_bilm_is_not_written_where_another_model_would_be_found_first(tmp_path, other):
    model = write_bilm(tmp_path / "from", make_bilm())
    main = {"elmokit": "config.json", "tensorflow": "model.ckpt-7", "manylangs": "encoder.pkl"}[other]
    if other == "elmokit":
        convert_model(model, tmp_path / "to", to="elmokit")
    elif other == "tensorflow":
        write_tensorflow(tmp_path / "to", make_bilm(seed=1))
    else:
        write_manylangs(tmp_path / "to", make_manylangs())
    before = files(tmp_path / "to")
    with pytest.raises(ElmoError, match=rf"to contains another model \({main}\)"):
        convert_model(model, tmp_path / "to", to="bilm", overwrite=True)
    assert files(tmp_path / "to") == before


@pytest.mark.parametrize("to", ["elmokit", "bilm"])
def test_a_file_in_the_way(tmp_path, to):
    elmo = Elmo.load(write_bilm(tmp_path / "from", make_bilm()))
    (tmp_path / "file").write_text("mine")
    for target in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / ("x" * 5000)):
        with pytest.raises(ElmoError, match=r"(file|file/below|xxx) cannot be written: \w"):
            elmo.save(target, format=to)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("to", ["elmokit", "bilm", "tokens"])
@pytest.mark.parametrize("overwrite", [False, True], ids=["new", "over an old one"])
def test_a_full_disk_leaves_nothing_new(tmp_path, to, overwrite):
    """A limit on the size of a file stands for the full disk: small files still fit, the weights do not."""
    source = write_tensorflow(tmp_path / "from", make_bilm(softmax=True))
    target = tmp_path / "deep" / "to" if to != "tokens" else tmp_path / "to.hdf5"
    if overwrite:
        other = write_tensorflow(tmp_path / "other", make_bilm(softmax=True, seed=1))
        convert_model(other, target, to=to)
    before = files(tmp_path)
    with (
        files_of_at_most(1000 if to == "tokens" else 3000),
        pytest.raises(ElmoError, match="cannot be written: ") as caught,
    ):
        convert_model(source, target, to=to, overwrite=True)
    assert "\n" not in str(caught.value)
    assert files(tmp_path) == before
    assert (tmp_path / "deep").exists() == (overwrite and to != "tokens")


@pytest.mark.parametrize("fail_at", ["lm_head.safetensors", "vocab.txt", "config.json"])
def test_a_failure_in_the_middle_keeps_the_old_model(tmp_path, fail_at, monkeypatch):
    old, new = (Elmo.load(write_tensorflow(tmp_path / f"{n}", make_bilm(softmax=True, seed=n))) for n in range(2))
    old.save(tmp_path / "model")
    before = files(tmp_path / "model")
    plain = Path.replace

    def failing(self, target):
        if Path(target).name == fail_at:
            raise OSError(28, "No space left on device")
        return plain(self, target)

    monkeypatch.setattr(Path, "replace", failing)
    with pytest.raises(ElmoError, match=rf"{fail_at} cannot be written: No space left on device$"):
        new.save(tmp_path / "model")
    assert files(tmp_path / "model") == before


def test_the_files_can_be_read_by_others(tmp_path):
    old = os.umask(0o022)
    try:
        Elmo.load(write_bilm(tmp_path / "from", make_bilm())).save(tmp_path / "to")
    finally:
        os.umask(old)
    assert {oct(file.stat().st_mode & 0o777) for file in (tmp_path / "to").iterdir()} == {"0o644"}


def test_a_readme_of_the_users_own_stays(tmp_path):
    elmo = Elmo.load(write_bilm(tmp_path / "from", make_bilm()))
    elmo.save(tmp_path / "to")
    assert "elmokit" in (tmp_path / "to" / "README.md").read_text()
    (tmp_path / "to" / "README.md").write_text("mine")
    elmo.save(tmp_path / "to")
    assert (tmp_path / "to" / "README.md").read_text() == "mine"

"""Which format a path has: a folder, a zip, or any one of a model's files."""

import shutil

import h5py
import pytest

from elmokit import Elmo
from elmokit.errors import ElmoError
from elmokit.formats.load import detect, read_checkpoint
from support.model_files import (
    make_bilm,
    make_manylangs,
    named,
    write_bilm,
    write_hdf5,
    write_manylangs,
    write_tensorflow,
)


@pytest.fixture
def bilm(tmp_path):
    return write_bilm(tmp_path / "bilm", make_bilm())


@pytest.fixture
def checkpoint(tmp_path):
    return write_tensorflow(tmp_path / "tensorflow", make_bilm(softmax=True))


@pytest.fixture
def native(bilm, tmp_path):
    Elmo.load(bilm).save(tmp_path / "native")
    return tmp_path / "native"


@pytest.mark.parametrize("name", ["", "weights.hdf5", "options.json"])
def test_bilm_by_any_of_its_files(bilm, name):
    found = detect(bilm / name)
    assert (found.format.name, found.main) == ("bilm", "weights.hdf5")


@pytest.mark.parametrize("name", ["", "config.json", "model.safetensors"])
def test_native_by_any_of_its_files(native, name):
    assert detect(native / name).format.name == "elmokit"


@pytest.mark.parametrize("name", ["", "config.json", "encoder.pkl", "token_embedder.pkl"])
def test_manylangs_by_any_of_its_files(tmp_path, name):
    write_manylangs(tmp_path, make_manylangs())
    assert detect(tmp_path / name).format.name == "manylangs"


@pytest.mark.parametrize(
    "name",
    ["", "checkpoint", "model.ckpt-7", "model.ckpt-7.index", "model.ckpt-7.data-00000-of-00001", "options.json"],
)
def test_tensorflow_by_any_of_its_files(checkpoint, name):
    found = detect(checkpoint / name)
    assert (found.format.name, found.main) == ("tensorflow", "model.ckpt-7")


def test_names_mean_little(bilm, tmp_path):
    weights = shutil.move(bilm / "weights.hdf5", bilm / "anything.bin")
    assert detect(weights).format.name == "bilm"


def test_upper_case_suffix(bilm):
    weights = shutil.move(bilm / "weights.hdf5", bilm / "WEIGHTS.HDF5")
    assert detect(weights).format.name == "bilm"
    assert detect(bilm).format.name == "bilm"


def test_the_checkpoint_file_chooses_among_checkpoints(checkpoint):
    write_tensorflow(checkpoint, make_bilm(softmax=True, seed=1), step=100)
    write_tensorflow(checkpoint, make_bilm(softmax=True, seed=2), step=30)
    assert detect(checkpoint).main == "model.ckpt-30"


def test_the_last_checkpoint_where_the_checkpoint_file_is_gone(checkpoint):
    write_tensorflow(checkpoint, make_bilm(softmax=True), step=100)
    (checkpoint / "checkpoint").unlink()
    assert detect(checkpoint).main == "model.ckpt-100"


def test_a_checkpoint_file_without_its_checkpoint_does_not_hide_the_weights(bilm):
    (bilm / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-1"\n')
    assert detect(bilm).format.name == "bilm"


def test_a_checkpoint_file_without_its_checkpoint_alone(tmp_path):
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "/x/model.ckpt-1"\n')
    with pytest.raises(ElmoError, match=r"model\.ckpt-1\.index is missing"):
        detect(tmp_path)


def test_other_hdf5_files_next_to_a_model_are_no_matter(bilm):
    write_hdf5(bilm / "aaa.hdf5", {str(number): make_bilm().weights["char_embed"] for number in range(3)})
    write_hdf5(bilm / "embeddings.hdf5", {"embedding": make_bilm().weights["char_embed"]})
    (bilm / "notes.h5").write_text("not what it says")
    (bilm / "other.index").write_text("not a checkpoint")
    assert detect(bilm).main == "weights.hdf5"


def test_many_sentences_next_to_a_model_are_not_walked(bilm, monkeypatch):
    """A file of vectors has a dataset a line; finding the model must not open them all."""
    write_hdf5(bilm / "vectors.hdf5", {str(number): make_bilm().weights["char_embed"][:1] for number in range(200)})
    opened = []
    plain = h5py.Group.__getitem__
    monkeypatch.setattr(h5py.Group, "__getitem__", lambda group, name: opened.append(name) or plain(group, name))
    detect(bilm)
    assert set(opened) <= {"RNN_0"}


def test_two_models_in_a_folder(bilm):
    write_hdf5(bilm / "second.hdf5", named(make_bilm(seed=1), "hdf5"))
    with pytest.raises(ElmoError, match=r"several models \(second\.hdf5, weights\.hdf5\): give one"):
        detect(bilm)
    assert detect(bilm / "second.hdf5").main == "second.hdf5"


def test_a_path_as_text_and_with_a_slash(bilm, monkeypatch):
    assert detect(f"{bilm}/").format.name == "bilm"
    monkeypatch.chdir(bilm)
    assert detect(".").format.name == "bilm"
    assert detect("weights.hdf5").format.name == "bilm"


@pytest.mark.parametrize("path", [None, 3, b"model"])
def test_what_is_no_path_is_refused(path):
    with pytest.raises(ElmoError, match=repr(path)):
        read_checkpoint(path)


@pytest.mark.parametrize(("kind", "fact"), [("elmokit", "to_elmokit"), ("bert", "bert model")])
def test_a_folder_of_transformers(tmp_path, kind, fact):
    (tmp_path / "config.json").write_text(f'{{"model_type": "{kind}"}}')
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ElmoError, match=fact):
        read_checkpoint(tmp_path)

"""TensorFlow checkpoints and vocabularies that do not fit, are cut, or lack a file; and paths that hold no model."""

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from elmokit import Elmo
from elmokit.errors import ElmoError
from elmokit.formats.load import detect
from support.bundle_writer import write_bundle
from support.model_files import WORDS, make_bilm, named, refusal, write_bilm, write_tensorflow

INDEX, DATA = "model.ckpt-7.index", "model.ckpt-7.data-00000-of-00001"


@pytest.fixture
def checkpoint(tmp_path):
    return write_tensorflow(tmp_path / "run", make_bilm(softmax=True))


@pytest.mark.parametrize("name", [INDEX, DATA])
@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.999])
def test_a_file_cut_short(checkpoint, name, share):
    data = (checkpoint / name).read_bytes()
    (checkpoint / name).write_bytes(data[: int(len(data) * share)])
    refusal(checkpoint, str(checkpoint / name), "got")


@pytest.mark.parametrize("name", [INDEX, DATA])
def test_a_flipped_bit(checkpoint, name):
    data = bytearray((checkpoint / name).read_bytes())
    data[len(data) // 3] ^= 4
    (checkpoint / name).write_bytes(data)
    refusal(checkpoint, str(checkpoint / name), "checksum")


def test_a_missing_file(checkpoint):
    for name, fact in ((DATA, "cannot be read"), ("options.json", "needs its options.json"), (INDEX, "is missing")):
        moved = shutil.move(checkpoint / name, checkpoint.parent / name)
        refusal(checkpoint, str(checkpoint), fact)
        shutil.move(moved, checkpoint / name)
    Elmo.load(checkpoint)


@pytest.mark.parametrize("name", sorted(named(make_bilm(), "tensorflow")))
def test_a_missing_tensor(checkpoint, name):
    tensors = named(make_bilm(), "tensorflow")
    del tensors[name]
    write_bundle(checkpoint / "model.ckpt-7", tensors)
    refusal(checkpoint, f"{checkpoint / INDEX} lacks {name}")


def test_tensors_that_do_not_fit(checkpoint):
    tensors = named(make_bilm(softmax=True), "tensorflow")
    for name, value, fact in (
        ("lm/char_embed", np.zeros((261, 5), np.float32), "lm/char_embed must have the shape (261, 4)"),
        ("lm/CNN_high_1/W_carry", np.zeros((9, 9), np.float32), "contains lm/CNN_high_1/W_carry"),
        ("lm/softmax/W", np.zeros((3, 5), np.float32), "lm/softmax/W must have the shape (9, 5)"),
        ("lm/CNN/b_cnn_0", np.array([1, np.nan, 2], np.float32), "not finite"),
        ("lm/softmax/b", np.full(9, np.inf, np.float32), "9 values in softmax bias"),
        ("lm/char_embed/Adagrad", np.full((261, 4), np.nan, np.float32), "optimiser"),
        ("lm/char_embed/Adagrad", np.ones((2, 4), np.float32), "lm/char_embed/Adagrad must have the shape"),
    ):
        write_bundle(checkpoint / "model.ckpt-7", {**tensors, name: value})
        refusal(checkpoint, str(checkpoint / INDEX), fact)


def test_a_shared_softmax_of_another_size(tmp_path):
    model = make_bilm(words=True, softmax=True)
    del model.weights["softmax/W"]
    model.weights["softmax/b"] = np.zeros(4, np.float32)
    model.options["share_embedding_softmax"] = True
    write_tensorflow(tmp_path, model)
    refusal(tmp_path, str(tmp_path / INDEX), "embedding (shared by the softmax) must have the shape (4, 5)")


VOCABULARIES = {
    "too short": ("\n".join(WORDS[:-1]), "9 words, and its vocabulary has 8"),
    "too long": ("\n".join([*WORDS, "more"]), "9 words, and its vocabulary has 10"),
    "empty": ("", "needs the entry <S>"),
    "no <UNK>": ("\n".join(word.replace("<UNK>", "unk") for word in WORDS), "needs the entry <UNK>"),
    "no </S>": ("\n".join(word.replace("</S>", "end") for word in WORDS), "needs the entry </S>"),
}


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("part", ["words", "softmax"])
@pytest.mark.parametrize("apart", [False, True])
def test_a_vocabulary_that_does_not_fit(tmp_path, vocabulary, part, apart):
    text, fact = VOCABULARIES[vocabulary]
    folder = write_tensorflow(tmp_path / "run", make_bilm(words=part == "words", softmax=part == "softmax"))
    path = tmp_path / "words" if apart else folder / "vocab.txt"
    path.write_text(text)
    refusal(folder, str(tmp_path), fact, **({"vocab": path} if apart else {}))


def test_a_vocabulary_that_is_no_text(tmp_path):
    folder = write_bilm(tmp_path, make_bilm(words=True))
    (folder / "vocab.txt").write_bytes(b"<S>\n\xff\n")
    assert refusal(folder, "byte 4").startswith(f"{folder / 'vocab.txt'} must be UTF-8")
    (folder / "vocab.txt").unlink()
    refusal(folder, f"{folder / 'weights.hdf5'} reads words and has no vocabulary", "vocab")
    refusal(folder, str(folder), "not a file", vocab=folder)


def test_a_vocabulary_that_nothing_needs_may_be_broken(tmp_path):
    folder = write_bilm(tmp_path, make_bilm())
    (folder / "vocab.txt").write_bytes(b"\xff")
    assert Elmo.load(folder).vocab is None
    refusal(folder, str(folder / "vocab.txt"), vocab=folder / "vocab.txt")


def test_paths_without_a_model(tmp_path):
    refusal(tmp_path, str(tmp_path), "no model", "files: none")
    refusal(tmp_path / "gone", f"{tmp_path / 'gone'} does not exist")
    refusal(tmp_path / "gone" / "further.hdf5", "does not exist")
    (tmp_path / "notes.txt").write_text("hello")
    refusal(tmp_path, str(tmp_path), "files: notes.txt")
    refusal(tmp_path / "notes.txt", f"{tmp_path / 'notes.txt'} is not part of a model")
    refusal(tmp_path / "notes.txt" / "below", "notes.txt/below")
    refusal(tmp_path / ("x" * 5000), "xxx", "File name too long")
    refusal(f"{tmp_path}/a\0b", "does not exist")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    refusal(tmp_path / "loop", "loop")
    (tmp_path / "broken.json").symlink_to(tmp_path / "nowhere")
    refusal(tmp_path / "broken.json", "broken.json does not exist")
    os.mkfifo(tmp_path / "pipe.hdf5")
    refusal(tmp_path / "pipe.hdf5", "pipe.hdf5")
    refusal(tmp_path, str(tmp_path), "no model")


def test_a_folder_that_cannot_be_listed(tmp_path, monkeypatch):
    def refuse(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    refusal(tmp_path, f"{tmp_path} cannot be read: Permission denied")


def test_a_file_that_cannot_be_opened(tmp_path, monkeypatch):
    folder = write_bilm(tmp_path, make_bilm())
    plain = Path.open

    def refuse(self, *args, **kwargs):
        if self.name == "options.json":
            raise PermissionError(13, "Permission denied")
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refuse)
    refusal(folder, f"{folder / 'options.json'} cannot be read: Permission denied")


@pytest.mark.skipif(sys.platform != "linux", reason="a file that opens and cannot be read is Linux's own")
def test_a_file_that_opens_and_cannot_be_read():
    with pytest.raises(ElmoError, match=r"^/proc/self/mem cannot be read: Input/output error$"):
        detect("/proc/self/mem")

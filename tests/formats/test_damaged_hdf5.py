"""weights.hdf5 that lacks something, has too much, is cut, or points elsewhere."""

import os
import zlib

import h5py
import numpy as np
import pytest

from elmokit import Elmo
from elmokit.errors import ElmoError
from elmokit.formats.hdf5 import Hdf5Tensors
from elmokit.formats.source import FolderSource
from support.model_files import WORDS, make_bilm, named, refusal, write_bilm, write_hdf5

NAMES = sorted(named(make_bilm(), "hdf5"))


@pytest.fixture
def bilm(tmp_path):
    return write_bilm(tmp_path, make_bilm())


@pytest.fixture
def weights(bilm):
    return bilm / "weights.hdf5"


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_dataset(bilm, weights, name):
    with h5py.File(weights, "a") as file:
        del file[name]
    refusal(bilm, f"{weights} lacks {name}", str(bilm / "options.json"))


@pytest.mark.parametrize("name", NAMES)
def test_a_shape_that_does_not_fit(bilm, weights, name):
    with h5py.File(weights, "a") as file:
        value = file[name][()]
        del file[name]
        file[name] = np.concatenate([value, value[..., :1]], axis=-1)
        wrong = file[name].shape
    refusal(bilm, f"{weights}: {name} must have the shape {value.shape}", f"got {wrong}")


@pytest.mark.parametrize(("name", "value"), [(name, [np.nan, np.inf, -np.inf][n % 3]) for n, name in enumerate(NAMES)])
def test_numbers_that_are_none(bilm, weights, name, value):
    with h5py.File(weights, "a") as file:
        file[name][(0,) * file[name].ndim] = value
    refusal(bilm, str(weights), "1 values", "not finite")


def test_a_number_too_large_for_float32(bilm, weights):
    with h5py.File(weights, "a") as file:
        value = file["char_embed"][()].astype(np.float64)
        del file["char_embed"]
        value[0, 0] = 1e300
        file["char_embed"] = value
    refusal(bilm, str(weights), "not finite")


@pytest.mark.parametrize(
    "extra",
    [
        "RNN_0/RNN/MultiRNNCell/Cell2/LSTMCell/W_0",
        "RNN_1/RNN/MultiRNNCell/Cell7/LSTMCell/B",
        "RNN_2/RNN/MultiRNNCell/Cell0/LSTMCell/B",
        "CNN_high_1/W_carry",
        "CNN/W_cnn_3",
    ],
)
def test_more_than_the_options_ask_for(bilm, weights, extra):
    with h5py.File(weights, "a") as file:
        file[extra] = np.zeros((3, 3), np.float32)
    refusal(bilm, f"{weights} contains {extra},", f"{bilm / 'options.json'} does not ask for")


def test_two_layers_and_options_for_one(tmp_path):
    model = make_bilm()
    del model.options["lstm"]["n_layers"]
    write_bilm(tmp_path, model)
    refusal(tmp_path, "weights.hdf5 contains RNN_0/RNN/MultiRNNCell/Cell1/LSTMCell/")


def test_a_projection_of_the_wrong_shape_is_not_taken_for_none(tmp_path):
    model = make_bilm(output=9, token_projection=True)
    model.weights["CNN_proj/W_proj"] = np.zeros((9, 4), np.float32)
    write_bilm(tmp_path, model)
    refusal(tmp_path, "CNN_proj/W_proj must have the shape (9, 9)", "got (9, 4)")


@pytest.mark.parametrize("dtype", ["S3", "V4", [("a", "f4")], "c8", "?"], ids=str)
def test_a_dataset_of_something_else(bilm, weights, dtype):
    with h5py.File(weights, "a") as file:
        shape = file["char_embed"].shape
        del file["char_embed"]
        file["char_embed"] = np.zeros(shape, dtype)
    refusal(bilm, f"{weights}: char_embed must contain numbers")


def test_a_group_in_place_of_a_dataset(bilm, weights):
    with h5py.File(weights, "a") as file:
        del file["char_embed"]
        file.create_group("char_embed")
    refusal(bilm, f"{weights} lacks char_embed")


def test_a_dataset_without_numbers(bilm, weights):
    with h5py.File(weights, "a") as file:
        del file["char_embed"]
        file["char_embed"] = h5py.Empty("f4")
    refusal(bilm, f"{weights}: char_embed must have the shape", "got ()")


@pytest.mark.parametrize("packed", [False, True])
def test_a_dataset_that_was_never_written(bilm, weights, packed):
    """The library would give zeros, and as many as the file claims."""
    with h5py.File(weights, "a") as file:
        shape = file["char_embed"].shape
        del file["char_embed"]
        file.create_dataset("char_embed", shape, "f4", **({"chunks": True, "compression": "gzip"} if packed else {}))
    refusal(bilm, f"{weights}: char_embed is cut short: 0 of its")


def test_a_huge_square_projection_asks_for_no_memory(bilm, weights):
    with h5py.File(weights, "a") as file:
        for name in ("CNN_proj/W_proj", "RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_P_0"):
            del file[name]
            file.create_dataset(name, (1 << 20, 1 << 20), "f4", chunks=(64, 64))
        del file["CNN_proj/b_proj"]
    refusal(bilm, str(weights), "cut short")


def test_packed_datasets_are_read(tmp_path):
    model = make_bilm(highways=0)
    write_bilm(tmp_path, model)
    plain = Elmo.load(tmp_path).encode(["the bank"])[0]
    with h5py.File(tmp_path / "weights.hdf5", "w") as file:
        for name, value in named(model, "hdf5").items():
            file.create_dataset(name, data=value, chunks=True, compression="gzip", shuffle=True)
    assert np.array_equal(Elmo.load(tmp_path).encode(["the bank"])[0], plain)


@pytest.mark.parametrize("share", [0, 0.001, 0.01, 0.3, 0.7, 0.999])
@pytest.mark.parametrize("inside", ["folder", "file"])
def test_a_file_cut_short(bilm, weights, share, inside):
    data = weights.read_bytes()
    weights.write_bytes(data[: int(len(data) * share)])
    refusal(bilm if inside == "folder" else weights, str(weights), "HDF5 file")


@pytest.mark.parametrize(
    "text", [b"hello\n", b"", b"<html>404</html>", b"version https://git-lfs.github.com/spec/v1\n"]
)
@pytest.mark.parametrize("inside", ["folder", "file"])
def test_a_text_file_called_hdf5(bilm, weights, text, inside):
    weights.write_bytes(text)
    refusal(bilm if inside == "folder" else weights, str(weights), "HDF5 file", "fetch it again")


def test_links_are_not_followed(bilm, weights, tmp_path):
    other = write_hdf5(tmp_path / "other.bin", {"char_embed": make_bilm().weights["char_embed"]})
    for link in (h5py.SoftLink("/CNN/b_cnn_0"), h5py.ExternalLink(str(other), "char_embed"), h5py.SoftLink("/gone")):
        with h5py.File(weights, "a") as file:
            del file["char_embed"]
            file["char_embed"] = link
        refusal(bilm, str(weights), "char_embed points outside the file")


def test_numbers_in_another_file_are_not_read(bilm, weights, tmp_path):
    value = make_bilm().weights["char_embed"]
    raw, other = tmp_path / "raw.bin", write_hdf5(tmp_path / "other.bin", {"x": value})
    raw.write_bytes(value.tobytes())
    with h5py.File(weights, "a") as file:
        del file["char_embed"]
        file.create_dataset("char_embed", value.shape, "f4", external=[(str(raw), 0, h5py.h5f.UNLIMITED)])
    refusal(bilm, f"{weights}: char_embed must be in the file itself")
    layout = h5py.VirtualLayout(value.shape, "f4")
    layout[:] = h5py.VirtualSource(other, "x", value.shape)
    with h5py.File(weights, "a") as file:
        del file["char_embed"]
        file.create_virtual_dataset("char_embed", layout)
    refusal(bilm, f"{weights}: char_embed must be in the file itself")


@pytest.mark.parametrize("name", ["embedding", "RNN_0", "rnn"])
def test_a_link_to_a_pipe_is_not_waited_for(bilm, weights, tmp_path, name):
    """What the file is shows in its first names, and looking for them must not open what they point to."""
    os.mkfifo(tmp_path / "pipe")
    with h5py.File(weights, "a") as file:
        if name in file:
            del file[name]
        file[name] = h5py.ExternalLink(str(tmp_path / "pipe"), "/x")
    refusal(bilm, str(weights), f"{name} points outside the file")


def test_a_chunk_that_unpacks_to_more_than_it_should(bilm, weights):
    with h5py.File(weights, "a") as file:
        shape = file["char_embed"].shape
        del file["char_embed"]
        dataset = file.create_dataset("char_embed", shape, "f4", chunks=shape, compression="gzip")
        dataset.id.write_direct_chunk((0, 0), zlib.compress(bytes(64 << 20), 9))
    refusal(bilm, f"{weights}: char_embed has a chunk that unpacks to more than its", "do not trust it")


def test_chunks_that_are_missing(bilm, weights):
    with h5py.File(weights, "a") as file:
        value = file["char_embed"][()]
        del file["char_embed"]
        file.create_dataset("char_embed", value.shape, "f4", chunks=(1, 1), compression="gzip")[0] = value[0]
    refusal(bilm, f"{weights}: char_embed is cut short")


def test_packed_numbers_beyond_what_a_file_of_its_size_has(tmp_path):
    rows = 1 << 13
    with h5py.File(tmp_path / "weights.hdf5", "w") as file:
        dataset = file.create_dataset("big", (rows, rows), "f4", chunks=(rows, rows), compression="gzip")
        dataset.id.write_direct_chunk((0, 0), zlib.compress(bytes(4 * rows * rows), 9))
    with (
        Hdf5Tensors(FolderSource(tmp_path), "weights.hdf5") as tensors,
        pytest.raises(ElmoError, match=f"unpack to {4 * rows * rows}, .* do not trust it"),
    ):
        tensors.read("big")


def test_one_dataset_under_very_many_names(tmp_path):
    """Each could be a matrix of the model; together they are far more than the file."""
    with h5py.File(tmp_path / "weights.hdf5", "w") as file:
        file["0"] = np.zeros((600, 600), np.float32)
        for number in range(1, 100):
            file[str(number)] = file["0"]
    with (
        Hdf5Tensors(FolderSource(tmp_path), "weights.hdf5") as tensors,
        pytest.raises(ElmoError, match="do not trust it"),
    ):
        [tensors.read(name) for name in tensors.names()]


@pytest.mark.parametrize("filters", [{"compression": "lzf"}, {"scaleoffset": 3}])
def test_other_filters_are_refused(bilm, weights, filters):
    with h5py.File(weights, "a") as file:
        value = file["char_embed"][()]
        del file["char_embed"]
        file.create_dataset("char_embed", data=value, **filters)
    refusal(bilm, f"{weights}: char_embed must be plain or packed with gzip")


def test_groups_that_hold_themselves(bilm, weights):
    with h5py.File(weights, "a") as file:
        for number in range(8):  # eight ways at each of many levels: walking them all would never end
            file[f"RNN_0/again{number}"] = file["RNN_0"]
    refusal(bilm, str(weights), "more groups than a model has")


def test_weights_are_a_folder(bilm, weights):
    weights.unlink()
    weights.mkdir()
    refusal(bilm, str(bilm), "no model that elmokit knows")
    refusal(weights, str(weights), "no model that elmokit knows")


def test_token_embeddings_alone(tmp_path):
    rows = np.zeros((len(WORDS), 5), np.float32)
    write_hdf5(tmp_path / "tokens.hdf5", {"embedding": rows})
    refusal(tmp_path / "tokens.hdf5", "tokens.hdf5", "token embeddings", "token_embeddings")


@pytest.mark.parametrize("rows", [len(WORDS) - 1, len(WORDS) + 1])
def test_token_embeddings_of_another_vocabulary(bilm, tmp_path, rows):
    table = write_hdf5(tmp_path / "tokens.bin", {"embedding": np.zeros((rows, 5), np.float32)})
    words, weights = tmp_path / "words", bilm / "weights.hdf5"
    words.write_text("".join(f"{word}\n" for word in WORDS))
    refusal(bilm, f"{table}: embedding must have the shape ({len(WORDS)}, 5)", token_embeddings=table, vocab=words)
    refusal(bilm, str(table), "vocab", token_embeddings=table)
    refusal(bilm, str(weights), "dataset embedding", token_embeddings=weights, vocab=words)

"""ELMoForManyLangs folders that are incomplete or cut, and pickles that hold more than tensors."""

import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from support.model_files import make_manylangs, refusal, write_manylangs

MODEL = make_manylangs()
PICKLES = ("token_embedder.pkl", "encoder.pkl")


@pytest.fixture
def folder(tmp_path):
    return write_manylangs(tmp_path / "model", MODEL)


def tensors_of(name: str) -> dict[str, torch.Tensor]:
    arrays = MODEL.embedder if name == "token_embedder.pkl" else MODEL.encoder
    return {key: torch.from_numpy(value.copy()) for key, value in arrays.items()}


class Hostile:
    """Unpickled by a careless reader, it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.write_text, (self.path, "gotcha")


@pytest.mark.parametrize("name", PICKLES)
@pytest.mark.parametrize("way", ["old", "new", "bare", "bare, newest protocol"])
def test_a_pickle_with_code_is_not_run(folder, tmp_path, name, way):
    proof = tmp_path / "proof"
    value = {**tensors_of(name), "more": Hostile(proof)}
    if way.startswith("bare"):
        protocol = pickle.HIGHEST_PROTOCOL if "newest" in way else 2
        (folder / name).write_bytes(pickle.dumps(value["more"], protocol))
    else:
        torch.save(value, folder / name, _use_new_zipfile_serialization=way == "new")
    refusal(folder, f"{folder / name}", "tensors only", "not loaded")
    assert not proof.exists()
    if way == "bare":  # the trap does work
        pickle.loads((folder / name).read_bytes())
        assert proof.exists()


@pytest.mark.parametrize(
    ("value", "fact"),
    [
        ([torch.zeros(2)], "named tensors, got list"),
        (torch.zeros(2), "named tensors, got Tensor"),
        ({"a": 5}, "named tensors, got int as 'a'"),
        ({"a": {"b": torch.zeros(2)}}, "named tensors, got dict as 'a'"),
        ({}, "lacks "),
        ({"a": np.zeros(2)}, "tensors only"),
    ],
    ids=["list", "tensor", "number", "nested", "empty", "numpy"],
)
@pytest.mark.parametrize("name", PICKLES)
def test_a_pickle_of_something_else(folder, name, value, fact):
    torch.save(value, folder / name)
    refusal(folder, str(folder / name), fact)


@pytest.mark.parametrize("zipped", [False, True], ids=["old", "new"])
@pytest.mark.parametrize("name", PICKLES)
@pytest.mark.parametrize("share", [0, 0.01, 0.2, 0.5, 0.9, 0.999])
def test_a_pickle_cut_short(folder, name, share, zipped):
    torch.save(tensors_of(name), folder / name, _use_new_zipfile_serialization=zipped)
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: int(len(data) * share)])
    message = refusal(folder, str(folder / name), "fetch it again")
    assert len(message) < 400


@pytest.mark.parametrize("text", [b"hello\n", b"<html>404</html>", b"version https://git-lfs.github.com/spec/v1\n"])
def test_a_text_file_called_pkl(folder, text):
    (folder / "encoder.pkl").write_bytes(text)
    refusal(folder, str(folder / "encoder.pkl"))


@pytest.mark.parametrize("name", [*MODEL.embedder, *MODEL.encoder])
def test_tensors_that_are_missing_misshapen_or_not_finite(folder, name):
    file = "token_embedder.pkl" if name in MODEL.embedder else "encoder.pkl"
    tensors = tensors_of(file)
    value = tensors.pop(name)
    torch.save(tensors, folder / file)
    refusal(folder, f"{folder / file} lacks {name}", "small.json")
    torch.save({**tensors, name: torch.cat([value, value[:1]])}, folder / file)
    refusal(folder, f"{folder / file}: {name} must have the shape {tuple(value.shape)}")
    value.view(-1)[0] = torch.nan
    torch.save({**tensors, name: value}, folder / file)
    refusal(folder, f"{folder / file} has 1 values in {name} that are not finite")


@pytest.mark.parametrize("kind", ["sparse", "complex", "int", "meta", "stretched"])
def test_tensors_of_another_kind(folder, kind):
    tensors = tensors_of("encoder.pkl")
    name = next(iter(tensors))
    value = tensors[name]
    tensors[name] = {
        "sparse": lambda: value.to_sparse(),
        "complex": lambda: value.to(torch.complex64),
        "int": lambda: value.int(),
        "meta": lambda: value.to("meta"),
        "stretched": lambda: torch.zeros(()).expand(value.shape),  # many numbers that take no room in the file
    }[kind]()
    torch.save(tensors, folder / "encoder.pkl")
    refusal(folder, str(folder / "encoder.pkl"))


STRUCTURES = [
    ("encoder", None, "needs the keys encoder and token_embedder"),
    ("token_embedder", [], "needs the keys encoder and token_embedder"),
    ("encoder.name", "lstm", "encoder.name must be elmo"),
    ("token_embedder.name", "lstm", "token_embedder.name must be cnn"),
    ("encoder.dim", None, "cell_size must be a whole number"),
    ("encoder.dim", "8", "cell_size"),
    ("encoder.dim", 2**31 - 1, "must have the shape"),
    ("encoder.projection_dim", 2**31 - 1, "must have the shape"),
    ("encoder.n_layers", 2**31 - 1, "n_layers must be from 1 to 1,000"),
    ("encoder.n_layers", 1.5, "n_layers"),
    ("encoder.proj_clip", {}, "projection_clip"),
    ("token_embedder.activation", "gelu", "activation must be one of relu, tanh, got 'gelu'"),
    ("token_embedder.filters", "x", "filters must be pairs"),
    ("token_embedder.filters", [1, 2], "filters must be pairs"),
    ("token_embedder.n_highway", 2**31 - 1, "n_highway must be from 0 to 1,000"),
    ("token_embedder.n_highway", "2", "n_highway"),
    ("token_embedder.max_characters_per_token", 2, "max_characters must be from 3 to"),
    ("token_embedder.max_characters_per_token", None, "max_characters"),
    ("token_embedder.max_characters_per_token", 2**31 - 1, "max_characters must be from"),
    ("token_embedder.word_dim", "6", "embedding_size"),
    ("token_embedder.word_dim", 0, "must have the shape"),
]


@pytest.mark.parametrize(("key", "value", "fact"), STRUCTURES, ids=[f"{key}={value}" for key, value, _ in STRUCTURES])
def test_a_structure_that_cannot_be(folder, key, value, fact):
    structure = json.loads((folder / "small.json").read_text())
    section, _, leaf = key.rpartition(".")
    (structure[section] if section else structure)[leaf] = value
    (folder / "small.json").write_text(json.dumps(structure))
    refusal(folder, str(folder), fact)


@pytest.mark.parametrize("name", ["config.json", "small.json"])
@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_json_that_is_none(folder, name, text):
    (folder / name).write_bytes(text)
    refusal(folder, str(folder / name))


DICTIONARIES = [
    pytest.param(b"", "has no entries", id="empty"),
    pytest.param(b"<oov>\t0\nthe\tbank\n", "line 2 must be a symbol, a tab and a number", id="no number"),
    pytest.param(b"<oov>\t-1\n", "line 1 must be", id="a negative number"),
    pytest.param(b"<oov>\t99999999999999\n", "line 1 must be", id="a huge number"),
    pytest.param(b"a\t0\n", "needs the entry", id="no markers"),
    pytest.param(b"<oov>\t0\n\xff\t1\n", "must be UTF-8", id="no UTF-8"),
    pytest.param(b"<oov> 0\n", "line 1 must be", id="one field"),
    pytest.param("<oov>\t²\n".encode(), "line 1 must be", id="an odd digit"),
]


@pytest.mark.parametrize("name", ["word.dic", "char.dic"])
@pytest.mark.parametrize(("data", "fact"), DICTIONARIES)
def test_a_dictionary_that_is_none(folder, name, data, fact):
    (folder / name).write_bytes(data)
    refusal(folder, str(folder / name), fact)


@pytest.mark.parametrize("name", ["word.dic", "char.dic"])
def test_a_dictionary_of_another_model(folder, name):
    with (folder / name).open("a") as file:
        file.write("more\t40\n")
    table = f"{name.removesuffix('.dic')}_emb_layer.embedding.weight"
    refusal(folder, f"{folder / 'token_embedder.pkl'}: {table} must have the shape")


def test_one_high_number_does_not_make_a_table_of_a_billion(folder):
    with (folder / "word.dic").open("a") as file:
        file.write("far\t999999999\n")
    refusal(folder, f"{folder / 'word.dic'} has 9 words and the id 999999999")
    with (folder / "char.dic").open("a") as file:
        file.write("far\t999999999\n")
    (folder / "word.dic").write_text("<oov>\t0\n<bos>\t1\n<eos>\t2\n")
    refusal(folder, str(folder / "token_embedder.pkl"))


@pytest.mark.parametrize(("name", "fact"), [("word.dic", "needs word.dic"), ("char.dic", "needs char.dic")])
def test_a_missing_dictionary(folder, name, fact):
    (folder / name).unlink()
    refusal(folder, str(folder / "small.json"), fact)


def test_a_missing_pickle(folder):
    (folder / "encoder.pkl").unlink()
    refusal(folder, str(folder), "no model that elmokit knows")
    refusal(folder / "token_embedder.pkl", f"{folder / 'encoder.pkl'} is missing")


def test_warnings_of_torch_do_not_reach_the_user(folder, recwarn):
    (folder / "encoder.pkl").write_bytes(pickle.dumps([1], protocol=4))
    refusal(folder, str(folder / "encoder.pkl"))
    assert not recwarn.list


@pytest.mark.parametrize("name", PICKLES)
def test_a_file_that_was_packed_to_explode(folder, tmp_path, name):
    """PyTorch packs nothing, and would unpack anything."""
    plain = tmp_path / "plain.pkl"
    torch.save({**tensors_of(name), "more": torch.zeros(16 << 20)}, plain)
    with zipfile.ZipFile(plain) as archive, zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as packed:
        for member in archive.namelist():
            packed.writestr(member, archive.read(member))
    assert (folder / name).stat().st_size < 1 << 20
    refusal(folder, f"{folder / name}!", "says that its", "do not trust it")

"""A vector format from outside the package: registered, written by `elmo embed`, read back, removed."""

import json

import numpy as np
import pytest

from elmokit import Elmo, ElmoError
from elmokit.cli import main
from elmokit.output import read_vectors, register_writer, unregister_writer, writer_for
from support.output_samples import embed

SENTENCES = ["the bank", "a river of money"]


def write_toy(stored, target):
    with target.open("w", encoding="ascii") as file:
        for text, tokens, rows in stored.items():
            vectors = stored.shape.from_rows(rows)
            file.write(json.dumps([text, tokens, vectors.tolist()]) + "\n")


def read_toy(path):
    for line in path.read_text(encoding="ascii").splitlines():
        _, tokens, vectors = json.loads(line)
        yield tokens, np.array(vectors, dtype=np.float32)


@pytest.fixture
def _toy():
    register_writer(".toy", write=write_toy, read=read_toy)
    yield
    unregister_writer(".toy")


@pytest.mark.usefixtures("_toy")
def test_elmo_embed_writes_it(tmp_path, model_folder):
    with pytest.raises(SystemExit) as ended:
        main(
            ["embed", "the bank", "a river of money", "--model", str(model_folder), "--output", str(tmp_path / "x.toy")]
        )
    assert not ended.value.code
    back = list(read_vectors(tmp_path / "x.toy"))
    assert [tokens for tokens, _ in back] == [sentence.split() for sentence in SENTENCES]
    for (_, vectors), wanted in zip(
        back, Elmo.load(model_folder).encode(["the bank", "a river of money"]), strict=True
    ):
        np.testing.assert_allclose(vectors, wanted, atol=1e-6)


@pytest.mark.usefixtures("_toy")
def test_it_is_checked_like_the_others(tmp_path):
    with pytest.raises(ElmoError, match=r"a writer of \.toy is registered"):
        register_writer(".toy", write=write_toy)
    with pytest.raises(ElmoError, match=r"a writer of \.npz is registered"):
        register_writer(".npz", write=write_toy)
    with pytest.raises(ElmoError, match="endings must begin with a period"):
        register_writer("toy", write=write_toy)
    with pytest.raises(ElmoError, match=r"\.h5, \.hdf5 for the layout bilm, got .*x\.toy"):
        writer_for(tmp_path / "x.toy", "bilm")
    (tmp_path / "x.toy").write_text("[")
    with pytest.raises(ElmoError, match=r"x\.toy is damaged"):
        list(read_vectors(tmp_path / "x.toy"))


def test_what_is_removed_is_unknown(tmp_path):
    register_writer(".toy", write=write_toy, magic=b"[")
    embed(["a b"], tmp_path / "x.toy")
    with pytest.raises(ElmoError, match="must have one of the formats"):
        read_vectors(tmp_path / "x.toy")  # it has no reader
    unregister_writer(".toy")
    with pytest.raises(ElmoError, match="output must end in one of"):
        writer_for(tmp_path / "x.toy")


def test_a_missing_package_is_reported_before_any_work(tmp_path):
    def check():
        raise ElmoError("install toy")

    register_writer(".toy", write=write_toy, check=check)
    try:
        with pytest.raises(ElmoError, match="install toy"):
            embed(iter(lambda: pytest.fail("read"), None), tmp_path / "x.toy")
    finally:
        unregister_writer(".toy")

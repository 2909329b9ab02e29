"""gensim reads what `elmo export word2vec` writes."""

from pathlib import Path

import numpy as np
import pytest
from gensim.models import KeyedVectors

from elmokit import Elmo
from support.command_line import call
from support.doc_pages import run_page

WORDS = ["river", "bank", "Zürich", "銀行", "x/y", "😀", "1"]


@pytest.mark.parametrize("ending", [".txt", ".vec", ".bin"])
def test_gensim_reads_the_exact_vectors(capsys, tmp_path, model_folder, ending):
    (tmp_path / "words").write_text("\n".join(WORDS), encoding="utf-8")
    output = tmp_path / f"vectors{ending}"
    status, _, _ = call(capsys, "export", "word2vec", model_folder, "--words", tmp_path / "words", "--output", output)
    assert status == 0
    vectors = KeyedVectors.load_word2vec_format(output, binary=ending == ".bin")
    elmo = Elmo.load(model_folder)
    assert vectors.index_to_key == WORDS
    assert vectors.vector_size == elmo.config.token_size
    expected = elmo.encode([WORDS], layer=0)[0]
    np.testing.assert_array_equal(vectors.vectors, expected[:, : elmo.config.token_size])


def test_the_page_prints_what_it_shows(tmp_path, monkeypatch):
    (tmp_path / "examples").symlink_to(Path(__file__).parent.parent.parent / "examples")
    monkeypatch.chdir(tmp_path)
    run_page("gensim.md")

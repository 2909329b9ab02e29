"""`elmo export word2vec`: which words, which vectors, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from elmokit import Elmo
from elmokit.text.word_vectors import VectorFile
from support.command_line import call
from support.tiny_models import WORDS, transformer_config, word_config


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def export(capsys, tmp_path):
    """Run the command, and give the vectors that it wrote and what it said."""

    def run(model: object, *options: object, name: str = "vectors.bin") -> tuple[dict[str, np.ndarray], str]:
        status, out, err = call(capsys, "export", "word2vec", model, *options, "--output", tmp_path / name)
        assert (status, out) == (0, ""), err
        with VectorFile(tmp_path / name) as file:
            return dict(file.rows(lambda _: True)), err

    return run


@pytest.fixture
def refused(capsys, tmp_path):
    def run(model: object, *options: object, name: str = "vectors.bin") -> str:
        status, _, err = call(capsys, "export", "word2vec", model, *options, "--output", tmp_path / name)
        assert status == 2
        assert not (tmp_path / name).is_file()
        return err

    return run


@pytest.fixture
def text(tmp_path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("the bank of the river .\na bank , a river , a Fluss\n", encoding="utf-8")
    return path


def test_the_words_of_the_model(export, model_folder):
    found, err = export(model_folder)
    assert list(found) == WORDS[3:]
    elmo = Elmo.load(model_folder)
    layer = elmo.encode([WORDS[3:]], layer=0)[0]
    size = elmo.config.token_size
    assert elmo.config.vector_size == 2 * size, "layer 0 of an LSTM is the token vector twice"
    np.testing.assert_array_equal(np.stack([*found.values()]), layer[:, :size])
    assert f"{len(found)} words of {size} numbers" in err


def test_a_list_of_words(export, tmp_path, make_elmo):
    make_elmo(transformer_config()).save(tmp_path / "model")  # it has no vocabulary
    (tmp_path / "words").write_text("Fluss\n\n bank \nNew York\nbank\n", encoding="utf-8")
    found, err = export(tmp_path / "model", "--words", tmp_path / "words", name="vectors.txt")
    elmo = Elmo.load(tmp_path / "model")
    np.testing.assert_array_equal(
        np.stack([found["Fluss"], found["bank"]]), elmo.encode([["Fluss", "bank"]], layer=0)[0]
    )
    assert len(found) == 2
    assert "1 word left out" in err


@pytest.mark.parametrize("layer", [None, "top", "1", "mix"])
def test_the_mean_over_the_uses_of_a_word(export, model_folder, text, layer):
    chosen = [] if layer is None else ["--layer", layer]
    found, _ = export(model_folder, "--corpus", text, "--min-count", 2, *chosen)
    sentences = [line.split() for line in text.read_text(encoding="utf-8").splitlines()]
    vectors = Elmo.load(model_folder).encode(sentences, layer=int(layer) if layer == "1" else layer)
    uses: dict[str, list[np.ndarray]] = {}
    for tokens, rows in zip(sentences, vectors, strict=True):
        for token, row in zip(tokens, rows, strict=True):
            uses.setdefault(token, []).append(row)
    expected = {word: np.mean(rows, axis=0) for word, rows in uses.items() if len(rows) >= 2}
    assert list(found) == ["a", "the", "bank", "river", ","], "by falling counts"
    assert found.keys() == expected.keys()
    for word, row in found.items():
        np.testing.assert_allclose(row, expected[word], rtol=1e-5, atol=1e-6)


def test_words_and_a_corpus(export, model_folder, text, tmp_path):
    (tmp_path / "words").write_text("river\nFluss\nsea\n", encoding="utf-8")
    options = ["--words", tmp_path / "words", "--corpus", text, "--min-count", 1]
    assert list(export(model_folder, *options)[0]) == ["river", "Fluss"]
    static, _ = export(model_folder, *options, "--layer", 0)
    np.testing.assert_array_equal(static["river"], export(model_folder)[0]["river"])


def test_words_that_a_word_table_does_not_have_are_left_out(export, make_elmo, tmp_path):
    make_elmo(word_config()).save(tmp_path / "model")
    (tmp_path / "words").write_text("bank\nFluss\n", encoding="utf-8")
    found, err = export(tmp_path / "model", "--words", tmp_path / "words")
    assert list(found) == ["bank"]
    assert "1 word left out" in err


def test_what_is_refused(refused, model_folder, text, tmp_path, make_elmo):
    assert "--output must end in .txt, .vec, .bin" in refused(model_folder, name="vectors.npz")
    assert "add --corpus" in refused(model_folder, "--layer", "top")
    assert "--layer must be mix, top or 0 to" in refused(model_folder, "--layer", "all", "--corpus", text)
    assert "0 to 2, got 7" in refused(model_folder, "--layer", "7", "--corpus", text)
    assert "no words to export" in refused(model_folder, "--corpus", text, "--min-count", 9)
    assert "must be a file in a folder that exists" in refused(model_folder, name="nowhere/vectors.bin")
    make_elmo().save(tmp_path / "bare")
    assert "has no vocabulary: give --words" in refused(tmp_path / "bare")


def test_the_file_of_words_is_not_overwritten(capsys, model_folder, tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("bank\n", encoding="utf-8")
    status, _, err = call(capsys, "export", "word2vec", model_folder, "--words", words, "--output", words)
    assert status == 2
    assert "would be overwritten" in err
    assert words.read_text(encoding="utf-8") == "bank\n"

"""`elmo embed` in place of ELMoForManyLangs' command: CoNLL and tab input, its two outputs."""

import h5py
import numpy as np
import pytest

from elmokit import Elmo
from support.command_line import call, elmo
from support.model_files import make_manylangs, write_manylangs

CONLL = "# text = Sue likes tea.\n1\tSue\tSue\n2\tlikes\tlike\n3\ttea.\ttea\n\n1\tice cream\t_\n"


@pytest.fixture
def model(tmp_path):
    return write_manylangs(tmp_path / "model", make_manylangs())


@pytest.fixture
def conll(tmp_path):
    (tmp_path / "text.conllu").write_text(CONLL, encoding="utf-8")
    return tmp_path / "text.conllu"


def test_columns_to_hdf5_with_sentence_keys(capsys, tmp_path, model, conll):
    output = tmp_path / "out.ly-1.hdf5"
    status, _, said = call(
        capsys, "embed", "--model", model, "--input", conll, "--input-format", "conll", "--format", "manylangs",
        "--output", output,
    )  # fmt: skip
    assert status in (0, None), said
    assert "2 sentences, 4 tokens" in said
    expected = Elmo.load(model).encode([["Sue", "likes", "tea."], ["ice cream"]])  # the mean of all layers
    with h5py.File(output) as file:
        assert set(file) == {"Sue\tlikes\ttea$period$", "ice cream"}
        np.testing.assert_allclose(file["Sue\tlikes\ttea$period$"], expected[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("layer", ["0", "1", "mix"])
def test_columns_to_text(capsys, tmp_path, model, conll, layer):
    output = tmp_path / "out.txt"
    status, _, said = call(
        capsys, "embed", "--model", model, "--input", conll, "--input-format", "conll", "--layer", layer,
        "--output", output,
    )  # fmt: skip
    assert status in (0, None), said
    lines = output.read_text(encoding="utf-8").split("\n")
    assert [line.split("\t")[0] for line in lines] == ["Sue", "likes", "tea.", "", "ice cream", "", ""]
    expected = Elmo.load(model).encode([["ice cream"]], layer=layer if layer == "mix" else int(layer))[0]
    np.testing.assert_allclose([float(number) for number in lines[4].split("\t")[1:]], expected[0], rtol=0, atol=1e-6)


def test_words_with_tabs_between_them(capsys, tmp_path, model):
    (tmp_path / "words.tsv").write_text("ice cream\tis\tcold\n\nyes\n", encoding="utf-8")
    status, shown, _ = call(
        capsys, "embed", "--model", model, "--input", tmp_path / "words.tsv", "--input-format", "tab"
    )
    assert status in (0, None)
    assert [line.split("]")[0] for line in shown.splitlines()] == ["[3 x 10", "[0 x 10", "[1 x 10"]


def test_columns_from_standard_input(model):
    done = elmo("embed", "-", "--model", model, "--input-format", "conll", stdin=CONLL.encode())
    assert done.returncode == 0, done.stderr
    assert [line.split(b"]")[0] for line in done.stdout.splitlines()] == [b"[3 x 10", b"[1 x 10"]


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (["--input-format", "conll", "--input", "text.txt"], "line 1"),
        (["--input-format", "conll", "--input", "text.txt", "--segment", "chars"], "--segment"),
        (["--input-format", "tab", "a sentence"], "--input"),
        (["--input-format", "xml", "--input", "text.txt"], "xml"),
        (["--format", "manylangs", "--input", "text.txt", "--output", "x.npz"], ".txt"),
    ],
)
def test_mistakes(capsys, tmp_path, model, monkeypatch, arguments, fact):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("a river bank\n", encoding="utf-8")
    status, _, said = call(capsys, "embed", "--model", model, *arguments)
    assert status == 2
    assert fact in said

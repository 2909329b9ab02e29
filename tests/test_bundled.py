"""The model in the package: found by name, good enough to tell the senses of a word apart."""

import subprocess
import sys

import numpy as np
import pytest

from elmokit import Elmo
from elmokit.cli import main
from elmokit.errors import ElmoError
from elmokit.formats.bundled import DEFAULT, FOLDER, bundled_models

# Two senses of a word, two sentences each.
SENSES = {
    "play": [
        ("The children play in the garden .", "They play football on Sunday ."),
        ("Shakespeare wrote the play in 1601 .", "She acted in a play at the theatre ."),
    ],
    "apple": [
        ("He ate an apple and a pear .", "The apple fell from the tree ."),
        ("the company apple sells computers .", "shares of apple and microsoft rose ."),
    ],
    "spring": [
        ("In the spring of 1912 he returned to Paris .", "The flowers bloom every spring ."),
        ("The water of the spring is clear and cold .", "A spring rises at the foot of the hill ."),
    ],
    "match": [
        ("The team won the match by two goals .", "He scored in the last match of the season ."),
        ("He struck a match and lit the candle .", "She lit her pipe with a match ."),
    ],
    "right": [
        ("Turn right at the next corner .", "The door on the right was open ."),
        ("Women gained the right to vote .", "Every citizen has the right to a fair trial ."),
    ],
}


@pytest.fixture(scope="module")
def english() -> Elmo:
    return Elmo.load(device="cpu")


def test_the_default_is_english_and_small(english):
    assert DEFAULT in bundled_models()
    assert english.config.n_outputs == 3
    assert sum(file.stat().st_size for file in (FOLDER / DEFAULT).iterdir()) < 45_000_000
    np.testing.assert_array_equal(Elmo.load("en", device="cpu").encode("a bank")[0], english.encode("a bank")[0])


def test_a_path_goes_before_a_name(make_elmo, tmp_path, monkeypatch):
    make_elmo().save(tmp_path / "en")
    monkeypatch.chdir(tmp_path)
    assert Elmo.load("en", device="cpu").config.vector_size == 12


@pytest.mark.parametrize("word", SENSES)
def test_senses_come_apart_in_context_and_not_before(english, word):
    sentences = [sentence for sense in SENSES[word] for sentence in sense]
    places = [sentence.split().index(word) for sentence in sentences]

    def cosines(layer):
        vectors = np.stack([v[at] for v, at in zip(english.encode(sentences, layer=layer), places, strict=True)])
        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors @ vectors.T

    np.testing.assert_allclose(cosines(0), 1, atol=1e-5)
    similar = cosines("top")
    same, other = (similar[0, 1] + similar[2, 3]) / 2, similar[:2, 2:].mean()
    assert same > other + 0.05


def run(*arguments) -> int:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    return stop.value.code or 0


def test_the_command_line_uses_it(capsys, english):
    assert run("embed", "The bank raised rates.") == 0
    assert f"[5 x {english.config.vector_size}]" in capsys.readouterr().out
    assert run("info", "en") == 0
    assert f"3 layers x {english.config.vector_size}" in capsys.readouterr().out


@pytest.mark.parametrize("name", bundled_models())
def test_every_bundled_model_opens_by_its_name(name):
    elmo = Elmo.load(name, device="cpu")
    assert np.isfinite(elmo.encode("bank 银行")[0]).all()
    assert elmo.text.get("segment") in ("english", "jieba", "chars", "none")
    if elmo.head is not None:
        assert 1 < elmo.perplexity("a bank .") < len(elmo.vocab)


def test_the_table_of_models(capsys):
    assert run("models") == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["name", "language", "vectors", "size", "softmax", "what", "it", "is"]
    assert [row.split()[0] for row in rows] == bundled_models()
    for row in rows:
        folder = FOLDER / row.split()[0]
        assert row[head.index("size") :].startswith(f"{sum(f.stat().st_size for f in folder.iterdir()) / 1e6:.1f} MB")
        has_softmax = (folder / "lm_head.safetensors").exists()
        assert row[head.index("softmax") :].startswith("none") != has_softmax


def test_a_table_of_several(make_elmo, tmp_path, monkeypatch, capsys):
    for name, softmax in (("is", "int8"), ("a-long-name", "float16"), ("zh", "none")):
        elmo = make_elmo(head=True)
        elmo.about = {"language": "Icelandic", "description": "sagas; cased"} if name == "is" else {}
        elmo.save(tmp_path / name, softmax=softmax)
    for module in ("formats.bundled", "commands.models"):
        monkeypatch.setattr(f"elmokit.{module}.FOLDER", tmp_path)
    assert Elmo.load("zh", device="cpu").config.vector_size == 12
    assert run("models") == 0
    rows = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    found = [[cell.strip() for cell in row if cell.strip()] for row in rows[1:]]
    assert [row[:3] + row[4:] for row in found] == [
        ["a-long-name", "-", "3 layers x 12", "10 words", "-"],
        ["is", "Icelandic", "3 layers x 12", "10 words, 8 bits", "sagas; cased"],
        ["zh", "-", "3 layers x 12", "none", "-"],
    ]
    with pytest.raises(
        ElmoError, match=r"^xx does not exist; a model is one that comes with elmokit \(a-long-name, is, zh\)"
    ):
        Elmo.load("xx")


def test_listing_does_not_wait_for_torch():
    code = """
import sys
from elmokit.cli import main
from elmokit.errors import ElmoError
try:
    main(["models"])
except SystemExit as stop:
    assert not stop.code
print("torch" in sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "False"

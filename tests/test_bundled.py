"""The model in the package: found by name, good enough to tell the senses of a word apart."""

import numpy as np
import pytest

from elmokit import Elmo
from elmokit.cli import main
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
    assert english.config.vector_size == 512
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


def test_the_command_line_lists_and_uses_it(capsys):
    for arguments in (["models"], ["embed", "The bank raised rates."], ["info", "en"]):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert not stop.value.code
    out = capsys.readouterr().out
    assert out.startswith("en ")
    assert "[5 x 512]" in out

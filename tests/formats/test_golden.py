"""The published fixture models, next to the checkout or at ELMOKIT_GOLDEN: the numbers that the originals gave."""

import json
import os
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from elmokit import Elmo
from elmokit.formats.save import convert_model

GOLDEN = Path(os.environ.get("ELMOKIT_GOLDEN") or Path(__file__).resolve().parents[3] / "shared" / "golden")
TOLERANCE = 1e-5  # the project's promise: float32 within 1e-5 of the published fixtures

pytestmark = [
    pytest.mark.golden,
    pytest.mark.skipif(
        not GOLDEN.is_dir(), reason=f"no fixture models at {GOLDEN}; set ELMOKIT_GOLDEN to their folder"
    ),
]

KINDS = {
    "allennlp": "bilm",
    "bilm": "bilm",
    "one-layer": "bilm",
    "tf-checkpoint": "tensorflow",
    "manylangs": "manylangs",
}


def close(got: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE)


def check_expected(elmo: Elmo, name: str) -> None:
    expected = np.load(GOLDEN / name / "expected.npz")
    sentences = json.loads(str(expected["sentences"]))
    for number, layers in enumerate(elmo.encode(sentences, output="layers")):
        close(layers, expected[f"layers_{number}"])


def test_every_fixture_is_known():
    assert {file.parent.name for file in GOLDEN.glob("*/expected.npz")} == set(KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_layers(name):
    elmo = Elmo.load(GOLDEN / name)
    assert elmo.kind == KINDS[name]
    check_expected(elmo, name)


@pytest.mark.parametrize("name", KINDS)
def test_layers_after_a_round_trip(name, tmp_path):
    for format in ("elmokit", "bilm"):
        if (name, format) != ("manylangs", "bilm"):  # a format that cannot hold it
            convert_model(GOLDEN / name, tmp_path / format, to=format)
            check_expected(Elmo.load(tmp_path / format), name)


def test_the_checkpoint_and_the_weights_dumped_from_it(tmp_path):
    for file in ("weights.hdf5", "options.json"):
        shutil.copy(GOLDEN / "tf-checkpoint" / file, tmp_path / file)
    elmo = Elmo.load(tmp_path)
    assert elmo.kind == "bilm"
    check_expected(elmo, "tf-checkpoint")


@pytest.mark.parametrize("name", ["allennlp", "bilm"])
def test_the_top_layer_with_carried_state(name):
    """Ten batches of three sentences; each slot's LSTMs go on from batch to batch, as in the original systems."""
    elmo = Elmo.load(GOLDEN / name, state="carry")
    slots = json.loads((GOLDEN / name / "sentences.json").read_text(encoding="utf-8"))
    files = [h5py.File(GOLDEN / name / f"lm_embeddings_{slot}.hdf5") for slot in range(len(slots))]
    try:
        for batch, sentences in enumerate(zip(*slots, strict=True)):
            tokens = [sentence.split() for sentence in sentences]
            for slot, layers in enumerate(elmo.encode(tokens, output="layers")):
                close(layers[-1], np.concatenate(list(files[slot][str(batch)][()]), axis=-1))
    finally:
        for file in files:
            file.close()


def test_token_embeddings(tmp_path):
    path = convert_model(
        GOLDEN / "allennlp", tmp_path / "tokens.hdf5", to="tokens", vocab=GOLDEN / "allennlp" / "vocab.txt"
    )
    with h5py.File(path) as ours, h5py.File(GOLDEN / "allennlp" / "elmo_token_embeddings.hdf5") as theirs:
        assert ours["embedding"].shape == theirs["embedding"].shape
        close(ours["embedding"][()], theirs["embedding"][()])


def test_their_token_embeddings_in_place_of_characters():
    folder = GOLDEN / "allennlp"
    elmo = Elmo.load(folder, token_embeddings=folder / "elmo_token_embeddings.hdf5", vocab=folder / "vocab.txt")
    known = [word for word in elmo.vocab if not word.startswith("<")][:12]
    close(elmo.encode([known], output="layers")[0], Elmo.load(folder).encode([known], output="layers")[0])

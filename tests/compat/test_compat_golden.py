"""The compat modules on the published fixture models: the numbers that the originals gave."""

import json
import os
from pathlib import Path

import h5py
import numpy as np
import pytest

from elmokit.compat.bilm import (
    Batcher,
    BidirectionalLanguageModel,
    TokenBatcher,
    dump_bilm_embeddings,
    dump_token_embeddings,
)
from elmokit.compat.manylangs import Embedder
from elmokit.compat.simple_elmo import ElmoModel

GOLDEN = Path(os.environ.get("ELMOKIT_GOLDEN") or Path(__file__).resolve().parents[3] / "shared" / "golden")
TOLERANCE = 1e-5

pytestmark = [
    pytest.mark.golden,
    pytest.mark.skipif(
        not GOLDEN.is_dir(), reason=f"no fixture models at {GOLDEN}; set ELMOKIT_GOLDEN to their folder"
    ),
]


def close(got, expected) -> None:
    np.testing.assert_allclose(np.asarray(got), expected, rtol=0, atol=TOLERANCE)


def published(folder: Path) -> list[tuple[list[list[str]], list[np.ndarray]]]:
    """Ten batches of three sentences, and the top layer that bilm-tf gave for each."""
    slots = json.loads((folder / "sentences.json").read_text(encoding="utf-8"))
    batches = []
    for number, sentences in enumerate(zip(*slots, strict=True)):
        vectors = []
        for slot in range(len(slots)):
            with h5py.File(folder / f"lm_embeddings_{slot}.hdf5") as file:
                vectors.append(np.concatenate(list(file[str(number)][()]), axis=-1))
        batches.append(([sentence.split() for sentence in sentences], vectors))
    return batches


@pytest.mark.parametrize("name", ["bilm", "allennlp"])
def test_bilm_over_characters_with_carried_state(name):
    folder = GOLDEN / name
    bilm = BidirectionalLanguageModel(folder / "options.json", folder / "weights.hdf5", max_batch_size=4)
    batcher = Batcher(folder / "vocab.txt", 50)
    for sentences, vectors in published(folder):
        ops = bilm(batcher.batch_sentences(sentences))
        assert ops["lengths"].tolist() == [len(sentence) for sentence in sentences]
        for row, expected in zip(ops["lm_embeddings"], vectors, strict=True):
            close(row[-1, : len(expected)], expected)


def test_bilm_over_tokens_with_carried_state(tmp_path):
    """A vocabulary of the words of the text, in any order and without <UNK>, as bilm-tf's own example makes it."""
    folder, batches = GOLDEN / "bilm", published(GOLDEN / "bilm")
    words = {word for sentences, _ in batches for sentence in sentences for word in sentence}
    (tmp_path / "vocab.txt").write_text("\n".join(sorted({"<S>", "</S>", *words})), encoding="utf-8")
    model = folder / "options.json", folder / "weights.hdf5"
    dump_token_embeddings(tmp_path / "vocab.txt", *model, tmp_path / "tokens.hdf5")
    bilm = BidirectionalLanguageModel(*model, False, tmp_path / "tokens.hdf5")
    batcher = TokenBatcher(tmp_path / "vocab.txt")
    for sentences, vectors in batches:
        for row, expected in zip(bilm(batcher.batch_sentences(sentences))["lm_embeddings"], vectors, strict=True):
            close(row[-1, : len(expected)], expected)


def test_token_embeddings_that_bilm_tf_wrote(tmp_path):
    folder = GOLDEN / "allennlp"
    dump_token_embeddings(
        folder / "vocab.txt", folder / "options.json", folder / "weights.hdf5", tmp_path / "tokens.hdf5"
    )
    with h5py.File(tmp_path / "tokens.hdf5") as ours, h5py.File(folder / "elmo_token_embeddings.hdf5") as theirs:
        close(ours["embedding"], theirs["embedding"][()])


def test_dumped_layers_start_with_those_of_a_sentence_alone(tmp_path):
    folder = GOLDEN / "bilm"
    expected = np.load(folder / "expected.npz")
    sentences = json.loads(str(expected["sentences"]))
    (tmp_path / "text.txt").write_text("\n".join(map(" ".join, sentences)) + "\n", encoding="utf-8")
    model = folder / "options.json", folder / "weights.hdf5"
    dump_bilm_embeddings(folder / "vocab.txt", tmp_path / "text.txt", *model, tmp_path / "carried.hdf5")
    dump_bilm_embeddings(folder / "vocab.txt", tmp_path / "text.txt", *model, tmp_path / "zero.hdf5", state="zero")
    with h5py.File(tmp_path / "carried.hdf5") as carried, h5py.File(tmp_path / "zero.hdf5") as zero:
        close(carried["0"], expected["layers_0"])
        for number, sentence in enumerate(sentences):
            assert carried[str(number)].shape[1] == len(sentence)
            close(zero[str(number)], expected[f"layers_{number}"])


def test_simple_elmo_without_a_warm_up():
    expected = np.load(GOLDEN / "bilm" / "expected.npz")
    sentences = json.loads(str(expected["sentences"]))
    model = ElmoModel()
    model.load(GOLDEN / "bilm")  # all sentences are one batch
    for row, number in zip(model.get_elmo_vectors(sentences, warmup=False, layers="all"), range(99), strict=False):
        close(row[:, : len(sentences[number])], expected[f"layers_{number}"])


def test_manylangs_embedder():
    expected = np.load(GOLDEN / "manylangs" / "expected.npz")
    sentences = json.loads(str(expected["sentences"]))
    embedder = Embedder(GOLDEN / "manylangs")
    for number, layers in enumerate(embedder.sents2elmo(sentences, -2)):
        close(layers, expected[f"layers_{number}"])
    for number, mean in enumerate(embedder.sents2elmo(sentences)):
        close(mean, expected[f"layers_{number}"].mean(axis=0))

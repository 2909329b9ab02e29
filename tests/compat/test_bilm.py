"""bilm-tf's batchers, model and dumps over torch: ids, boundaries, state and files as in the original."""

import copy

import h5py
import numpy as np
import pytest
import torch

from elmokit import Elmo
from elmokit.compat.bilm import (
    Batcher,
    BidirectionalLanguageModel,
    TokenBatcher,
    UnicodeCharsVocabulary,
    Vocabulary,
    dump_bilm_embeddings,
    dump_token_embeddings,
    weight_layers,
)
from elmokit.errors import ElmoError
from support.model_files import make_bilm, make_manylangs, write_bilm, write_manylangs
from support.numpy_forward import bilm_layers, bilm_token

SENTENCES = [["the", "river", "bank", "."], ["naïve"], ["日本語", "x" * 70]]
VOCABULARY = ["</S>", "bank", "<S>", "river", "the", ".", "naïve"]


@pytest.fixture(scope="module")
def source():
    return make_bilm()


@pytest.fixture(scope="module")
def folder(tmp_path_factory, source):
    folder = write_bilm(tmp_path_factory.mktemp("bilm"), source)
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY), encoding="utf-8")
    (folder / "text.txt").write_text("\n".join(map(" ".join, SENTENCES)) + "\n\n", encoding="utf-8")
    return folder


@pytest.fixture
def names(folder):
    return folder / "options.json", folder / "weights.hdf5"


@pytest.fixture
def ids(folder):
    return Batcher(folder / "vocab.txt", 50).batch_sentences(SENTENCES)


def close(got, expected, atol=1e-5):
    np.testing.assert_allclose(np.asarray(got), expected, rtol=0, atol=atol)


def test_character_ids_with_boundaries(ids):
    assert ids.shape == (3, 6, 50)
    assert ids.dtype == np.int64
    padding = [261] * 47
    assert ids[0, 0].tolist() == [259, 257, 260, *padding]
    assert ids[1, 2].tolist() == [259, 258, 260, *padding]
    assert ids[0, 2, :7].tolist() == [259, *(byte + 1 for byte in b"river"), 260][:7]
    assert ids[2, 2].tolist() == [259, *[ord("x") + 1] * 48, 260]
    assert not ids[1, 3:].any()


def test_a_boundary_among_the_words_has_its_own_ids():
    ids = Batcher(None, 50).batch_sentences([["<S>", "</S>"]])
    assert (ids[0, 0] == ids[0, 1]).all()
    assert (ids[0, 2] == ids[0, 3]).all()


def test_token_ids_are_places_in_the_vocabulary(folder):
    ids = TokenBatcher(folder / "vocab.txt").batch_sentences([["the", "bank"], []])
    assert ids.tolist() == [[3, 5, 2, 1], [3, 1, 0, 0]]


def test_a_token_that_is_not_in_the_vocabulary(tmp_path):
    (tmp_path / "v.txt").write_text("<S>\n</S>\nthe\n")
    with pytest.raises(ElmoError, match="money"):
        TokenBatcher(tmp_path / "v.txt").batch_sentences([["money"]])
    (tmp_path / "v.txt").write_text("<S>\n</S>\n<UNK>\nthe\n")
    assert TokenBatcher(tmp_path / "v.txt").batch_sentences([["money"]]).tolist() == [[1, 3, 2]]


def test_vocabularies(folder, ids):
    words = Vocabulary(folder / "vocab.txt")
    assert (words.bos, words.eos, words.unk, words.size) == (2, 0, -1, 7)
    assert words.encode("the bank").tolist() == [2, 4, 1, 0]
    assert words.encode(["bank", "the"], reverse=True, split=False).tolist() == [0, 1, 4, 2]
    assert words.decode([4, 1]) == "the bank"
    with pytest.raises(ElmoError, match="<UNK>"):
        Vocabulary(folder / "vocab.txt", validate_file=True)
    characters = UnicodeCharsVocabulary(folder / "vocab.txt", 50)
    assert (characters.encode_chars("the river bank .") == ids[0] - 1).all()
    assert (characters.encode_chars(". bank", reverse=True)[[0, -1]] == ids[0, [-1, 0]] - 1).all()
    assert (characters.word_to_char_ids("river") == ids[0, 2] - 1).all()


@pytest.mark.parametrize("text", ["the\n", "<S>\nthe\n"])
def test_a_vocabulary_without_boundaries_is_refused(tmp_path, text):
    (tmp_path / "v.txt").write_text(text)
    with pytest.raises(ElmoError, match="</S>"):
        TokenBatcher(tmp_path / "v.txt")


def test_strings_in_place_of_words_are_refused():
    with pytest.raises(ElmoError, match="the bank"):
        Batcher(None, 50).batch_sentences(["the bank"])
    with pytest.raises(ElmoError, match="the bank"):
        Batcher(None, 50).batch_sentences("the bank")


def test_layers_lengths_and_mask(names, ids, source):
    ops = BidirectionalLanguageModel(*names)(ids)
    assert ops["lm_embeddings"].shape == (3, 3, 4, 10)
    assert ops["lengths"].tolist() == [4, 1, 2]
    assert ops["mask"].tolist() == [[True] * 4, [True] + [False] * 3, [True] * 2 + [False] * 2]
    for row, sentence in zip(ops["lm_embeddings"], SENTENCES, strict=True):
        close(row[:, : len(sentence)], bilm_layers(source, sentence))
        assert not row[:, len(sentence) :].any()
    close(ops["token_embeddings"][0, 0], bilm_token(source, "<S>"))
    assert ops["token_embeddings"].shape == (3, 6, 5)
    assert not ops["token_embeddings"][1, 3:].any()


def test_state_is_carried_from_batch_to_batch(names, ids):
    bilm = BidirectionalLanguageModel(*names)
    carried = Elmo.load(names[1], state="carry")
    first, second, smaller = bilm(ids), bilm(ids), bilm(ids[:1])
    again = bilm(ids)  # rows 1 and 2 were not in the smaller batch
    assert not torch.equal(first["lm_embeddings"], second["lm_embeddings"])
    for ops, sentences in ((first, SENTENCES), (second, SENTENCES), (smaller, SENTENCES[:1]), (again, SENTENCES)):
        for row, layers in zip(ops["lm_embeddings"], carried.encode(sentences, output="layers"), strict=True):
            close(row[:, : layers.shape[1]], layers, atol=1e-6)
    bilm.reset_state()
    assert torch.equal(bilm(ids)["lm_embeddings"], first["lm_embeddings"])


def test_state_zero_and_a_second_state(names, ids):
    bilm = BidirectionalLanguageModel(*names)
    other = copy.copy(bilm)
    first = bilm(ids)["lm_embeddings"]
    assert torch.equal(other(ids)["lm_embeddings"], first)
    assert not torch.equal(bilm(ids)["lm_embeddings"], first)
    assert other.mixes is bilm.mixes
    still = BidirectionalLanguageModel(*names, state="zero")
    assert torch.equal(still(ids)["lm_embeddings"], still(ids)["lm_embeddings"])


def test_token_inputs_give_the_same_layers(names, folder, tmp_path):
    dump_token_embeddings(folder / "vocab.txt", *names, tmp_path / "tokens.hdf5")
    with h5py.File(tmp_path / "tokens.hdf5") as file:
        assert file["embedding"].shape == (len(VOCABULARY), 5)
    by_token = BidirectionalLanguageModel(
        *names, use_character_inputs=False, embedding_weight_file=tmp_path / "tokens.hdf5"
    )
    sentences = SENTENCES[:2]
    expected = BidirectionalLanguageModel(*names)(Batcher(None, 50).batch_sentences(sentences))
    got = by_token(TokenBatcher(folder / "vocab.txt").batch_sentences(sentences))
    close(got["lm_embeddings"], expected["lm_embeddings"])
    assert torch.equal(got["mask"], expected["mask"])
    with pytest.raises(ElmoError, match="7"):
        by_token(np.array([[1, 8, 2]]))


def test_a_model_that_was_trained_on_tokens(tmp_path):
    """Its table is in the file of the weights."""
    folder = write_bilm(tmp_path, make_bilm(words=True))
    weights = folder / "weights.hdf5"
    bilm = BidirectionalLanguageModel(folder / "options.json", weights, False, weights)
    ids = TokenBatcher(folder / "vocab.txt").batch_sentences([["the", "bank"]])
    expected = Elmo.load(folder).encode([["the", "bank"]], output="layers")[0]
    close(bilm(ids)["lm_embeddings"][0], expected, atol=1e-6)


def test_a_model_that_does_not_read_bytes(tmp_path):
    folder = write_manylangs(tmp_path / "m", make_manylangs())
    ops = BidirectionalLanguageModel(None, folder)(Batcher(None, 50).batch_sentences([["the", "語"], ["a"]]))
    expected = Elmo.load(folder).encode([["the", "語"], ["a"]], output="layers")
    close(ops["lm_embeddings"][0], expected[0], atol=1e-6)
    close(ops["lm_embeddings"][1, :, :1], expected[1], atol=1e-6)


def test_a_bundled_model_by_its_name():
    bilm = BidirectionalLanguageModel(None, "en")  # a Transformer, which has no state
    ids = Batcher(None, 50).batch_sentences([["A", "river", "bank"]])
    assert torch.equal(bilm(ids)["lm_embeddings"], bilm(ids)["lm_embeddings"])


def test_weight_layers_is_the_mean_at_first_and_can_be_trained(names, ids):
    bilm = BidirectionalLanguageModel(*names, state="zero")
    ops = bilm(ids)
    out = weight_layers("input", ops, l2_coef=0.5)
    close(out["weighted_op"].detach(), ops["lm_embeddings"].mean(dim=1), atol=1e-6)
    optimiser = torch.optim.SGD(bilm.mixes.parameters(), lr=0.001)
    loss = out["weighted_op"].square().sum() + out["regularization_op"]
    loss.backward()
    optimiser.step()
    again = weight_layers("input", bilm(ids), l2_coef=0.5)
    assert again["weighted_op"].square().sum() < out["weighted_op"].square().sum()
    assert again["regularization_op"] > 0
    assert set(dict(bilm.mixes)) == {"input_ELMo"}
    other = weight_layers("output", ops)
    close(other["weighted_op"].detach(), ops["lm_embeddings"].mean(dim=1), atol=1e-6)


def test_weight_layers_with_the_top_layer_or_a_layer_norm(names, ids):
    ops = BidirectionalLanguageModel(*names)(ids)
    top = weight_layers("a", ops, use_top_only=True)
    close(top["weighted_op"].detach(), ops["lm_embeddings"][:, -1])
    assert top["regularization_op"].item() == 0
    layers, mask = ops["lm_embeddings"].double(), ops["mask"]
    inside = [layers[:, number][mask] for number in range(3)]
    expected = sum((rows - rows.mean()) / torch.sqrt(rows.var(unbiased=False) + 1e-12) for rows in inside) / 3
    got = weight_layers("b", {"lm_embeddings": ops["lm_embeddings"], "mask": mask}, do_layer_norm=True)["weighted_op"]
    close(got[mask].detach(), expected)
    assert not got[~mask].any()


def test_dumped_layers_of_a_text(names, folder, tmp_path):
    for state in ("carry", "zero"):
        dump_bilm_embeddings(folder / "vocab.txt", folder / "text.txt", *names, tmp_path / f"{state}.hdf5", state=state)
    elmo = Elmo.load(names[1], state="carry")
    with h5py.File(tmp_path / "carry.hdf5") as carried, h5py.File(tmp_path / "zero.hdf5") as zero:
        assert sorted(carried) == sorted(zero) == ["0", "1", "2", "3"]
        assert carried["3"].shape == (3, 0, 10)
        for number, sentence in enumerate([*SENTENCES, []]):
            close(carried[str(number)], elmo.encode([sentence], output="layers")[0], atol=1e-6)
            close(zero[str(number)], Elmo.load(names[1]).encode([sentence], output="layers")[0], atol=1e-6)


@pytest.mark.parametrize(
    ("ids", "fact"),
    [
        (np.zeros((1, 3, 50)), "float64"),
        (np.ones((1, 3), np.int64), r"\[1, 3\]"),
        (np.ones((1, 3, 40), np.int64), "50"),
        (np.full((1, 3, 50), 262), "262"),
        (np.zeros((1, 3, 50), np.int64), "boundaries"),
    ],
)
def test_ids_that_cannot_be_read(names, ids, fact):
    with pytest.raises(ElmoError, match=fact):
        BidirectionalLanguageModel(*names)(ids)


def test_arguments_that_cannot_be_used(names, folder, tmp_path):
    with pytest.raises(ElmoError, match="embedding_weight_file"):
        BidirectionalLanguageModel(*names, use_character_inputs=False)
    with pytest.raises(ElmoError, match="embedding"):
        BidirectionalLanguageModel(*names, False, names[1])
    with pytest.raises(ElmoError, match="state"):
        BidirectionalLanguageModel(*names, state="keep")
    with pytest.raises(ElmoError, match="nowhere"):
        Batcher(tmp_path / "nowhere.txt", 50)

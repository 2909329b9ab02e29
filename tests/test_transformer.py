"""ELMo's contract with a Transformer in place of the LSTM: outputs, files, language model, refusals."""

import numpy as np
import pytest
import torch

from elmokit import Elmo, ElmoConfig, ElmoError
from elmokit.cli import main
from elmokit.config import TransformerConfig, WordConfig
from elmokit.model.language_model import to_mask
from elmokit.ops.reference import transformer_reference
from support.tiny_models import WORDS, transformer_config

SENTENCES = ["the bank of the river .", ["a", "bank", "."], "", "money"]


@pytest.fixture
def elmo(make_elmo) -> Elmo:
    return make_elmo(transformer_config(), head=True)


def test_shapes_and_keys(elmo):
    layers = elmo.encode(SENTENCES, output="layers")
    assert [array.shape for array in layers] == [(3, 6, 12), (3, 3, 12), (3, 0, 12), (3, 1, 12)]
    for array in layers:  # every layer ends with a layer norm, the token layer too
        np.testing.assert_allclose(array.mean(-1), 0, atol=1e-5)
        np.testing.assert_allclose(array.std(-1), 1, atol=0.05)
    out = elmo(SENTENCES[:2])
    assert out["word_emb"].shape == out["lstm_outputs2"].shape == out["elmo"].shape == (2, 6, 12)
    np.testing.assert_allclose(out["layers"][:, 0].detach(), layers[0], rtol=1e-5, atol=1e-5)


def test_the_layers_are_those_of_the_equations(elmo):
    tokens, _ = elmo._token_vectors([["the", "bank", "of", "the", "river", "."]])
    blocks, shape = elmo.bilm.context.block_weights(), elmo.config.context
    want = transformer_reference(tokens[0], blocks, window=shape.window, outputs=[0, 2, 4])
    np.testing.assert_allclose(elmo.encode([SENTENCES[0]], output="layers")[0], want[:, 1:-1].detach(), atol=2e-4)


def test_a_long_text_is_exact(elmo):
    """Far from its ends, a word has the vectors that it has in what its layers can see."""
    words = [WORDS[3 + n * n % 7] for n in range(3000)]
    reach = elmo.config.context.window * elmo.config.context.n_blocks
    long = elmo.encode([words], output="layers")[0]
    piece = elmo.encode([words[1500 - reach - 1 : 1500 + reach + 2]], output="layers")[0]
    np.testing.assert_allclose(long[:, 1500], piece[:, reach + 1], atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_saved_and_loaded(elmo, tmp_path, dtype):
    elmo.save(tmp_path / "model", dtype=dtype)
    again = Elmo.load(tmp_path / "model", dtype="int8" if dtype == "int8" else "float32")
    assert again.config == elmo.config
    for one, other in zip(elmo.encode(SENTENCES), again.encode(SENTENCES), strict=True):
        if dtype == "float32":
            assert np.array_equal(one, other)
        else:
            np.testing.assert_allclose(one, other, atol=0.02 if dtype == "float16" else 0.5)


def test_gradients_reach_every_weight_that_the_vectors_use(make_elmo):
    elmo = make_elmo(transformer_config(), trainable=True)
    elmo(["the bank of the river"])["layers"].square().cumsum(-1).sum().backward()
    without = {name for name, value in elmo.bilm.named_parameters() if value.grad is None or not value.grad.any()}
    assert without == {
        "context.masked",
        *(f"context.heads.{w}.{p}" for w in ("this", "next", "previous") for p in ("weight", "bias")),
    }


# The prediction as a layer


@pytest.mark.parametrize("softmax_size", [6, 12])
def test_the_last_layer_may_be_what_the_softmax_reads(make_elmo, tmp_path, softmax_size):
    shape = TransformerConfig(
        12, n_blocks=4, n_heads=3, inner_size=10, window=4, softmax_size=softmax_size, prediction_layer=True
    )
    elmo = make_elmo(transformer_config(context=shape), head=True)
    assert elmo.config.n_outputs == 4
    layers = elmo.encode(SENTENCES, output="layers")
    assert [array.shape for array in layers] == [(4, 6, 12), (4, 3, 12), (4, 0, 12), (4, 1, 12)]
    for found, top, block in zip(layers, elmo.encode(SENTENCES, layer="top"), elmo.encode(SENTENCES), strict=True):
        assert np.array_equal(found[3], top)
        assert np.array_equal(found[2], block)
        read = elmo.bilm.context.softmax_input(torch.from_numpy(found[2]), "this").detach().numpy()
        np.testing.assert_allclose(top[:, :softmax_size], read * (12 / softmax_size) ** 0.5, rtol=1e-5, atol=1e-6)
        assert not top[:, softmax_size:].any()
        np.testing.assert_allclose(np.linalg.norm(top, axis=1), np.sqrt(12), rtol=0.01)  # as long as the others
    out = elmo(SENTENCES[:2])
    np.testing.assert_allclose(out["layers"][3, 0].detach(), layers[0][3], rtol=1e-5, atol=1e-5)
    elmo.save(tmp_path / "model")
    again = Elmo.load(tmp_path / "model")
    assert again.config == elmo.config
    assert np.array_equal(again.encode(["a river bank"])[0], elmo.encode(["a river bank"])[0])
    pair = elmo.encode(["the bank", "a river bank"], layer="top")
    similar = pair[0][1] @ pair[1][2] / np.linalg.norm(pair[0][1]) / np.linalg.norm(pair[1][2])
    np.testing.assert_allclose(elmo.similarity("the bank", "a river bank", words="bank"), similar, rtol=1e-4)


def test_older_files_have_no_prediction_layer():
    values = transformer_config().to_dict()
    del values["transformer"]["prediction_layer"]
    assert ElmoConfig.from_dict(values) == transformer_config()


# The language model


def test_each_direction_sees_its_own_side_only(elmo):
    one, other = elmo.log_probs([["the", "bank", "of", "money", "."], ["the", "bank", "of", "river", "."]])
    assert np.array_equal(one.forward[:3], other.forward[:3])
    assert np.array_equal(one.backward[5:], other.backward[5:])
    assert (one.forward[3:] != other.forward[3:]).all()
    assert (one.backward[:4] != other.backward[:4]).all()
    probabilities = [np.exp(row) for row in (one.forward, one.backward)]
    assert all(((row > 0) & (row < 1)).all() for row in probabilities)


def test_probabilities_of_all_words_sum_to_one(elmo):
    """Over all words that may follow, forward probabilities of the next word sum to one."""
    inner = [word for word in WORDS if word not in ("<S>", "</S>", "<UNK>")]
    rows = elmo.log_probs([["the", "bank", word] for word in [*inner, "unseen"]])
    end = elmo.log_probs([["the", "bank"]])[0].forward[2]
    begins = 1 - (np.exp([row.forward[2] for row in rows]).sum() + np.exp(end))  # what is left is <S>, never right
    assert 0 <= begins + 1e-5 < 1


def test_substitutes_do_not_see_the_word_itself(elmo):
    found = [elmo.substitutes(["the", word, "of", "money"], 1, k=7) for word in ("bank", "river", "unheard")]
    assert found[0] == found[1] == found[2]
    assert {word for word, _ in found[0]} == set(WORDS[3:])
    assert sum(p for _, p in found[0]) == pytest.approx(1)
    other = elmo.substitutes(["the", "bank", "of", "a"], 1, k=7)
    assert other != found[0]


def test_masked_words_depend_on_the_sentence_alone():
    rows = torch.from_numpy(np.random.default_rng(0).integers(3, 1000, (400, 22)))
    lengths = torch.full((400,), 22)
    masked = to_mask(rows, lengths)
    assert not masked[:, [0, -1]].any()
    assert 0.13 < masked[:, 1:-1].double().mean() < 0.17
    wider = torch.cat([rows, torch.zeros(400, 5, dtype=torch.long)], dim=1)
    assert torch.equal(to_mask(wider, lengths)[:, :22], masked)
    order = torch.randperm(400)
    assert torch.equal(to_mask(rows[order], lengths), masked[order])
    assert not to_mask(wider, lengths)[:, 22:].any()


def test_eval_prints_the_masked_perplexity(elmo, tmp_path, capsys):
    elmo.save(tmp_path / "model")
    (tmp_path / "text.txt").write_text("the bank of the river .\n" + "a river of money the bank .\n" * 20)
    with pytest.raises(SystemExit) as ended:
        main(["eval", str(tmp_path / "model"), str(tmp_path / "text.txt"), "--split", "line"])
    assert not ended.value.code
    printed = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    assert float(printed["masked perplexity"].split()[0]) > 1
    assert float(printed["forward perplexity"]) > 1


# What it is not


def test_what_needs_an_lstm_is_refused(elmo, make_elmo, tmp_path):
    with pytest.raises(ElmoError, match=r"carry.*LSTM.*transformer"):
        make_elmo(transformer_config(), state="carry")
    for name, target in (("bilm", "model"), ("tokens", "tokens.hdf5")):
        with pytest.raises(ElmoError, match=f"{name} stores .* lstm, and this one has transformer: .* elmokit"):
            elmo.save(tmp_path / target, format=name)
        assert not (tmp_path / target).exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": 10, "n_heads": 3}, "size .* n_heads \\(6\\), got 10: take 12"),
        ({"n_blocks": 5}, "n_blocks must be a multiple of every"),
        ({"window": 0}, "window must be from 1 to .*, got 0"),
        ({"inner_size": 2.5}, "inner_size must be a whole number"),
        ({"every": True}, "every must be a whole number"),
    ],
)
def test_impossible_shapes_are_refused(changes, message):
    with pytest.raises(ElmoError, match=message):
        TransformerConfig(**{"size": 12, "n_heads": 3, **changes})


def test_one_direction_is_refused():
    with pytest.raises(ElmoError, match="both sides"):
        transformer_config(bidirectional=False)


def test_the_configuration_survives_json():
    config = transformer_config()
    assert set(config.to_dict()) >= {"transformer", "characters"}
    assert ElmoConfig.from_dict(config.to_dict()) == config


def test_words_in_place_of_characters(make_elmo):
    shape = TransformerConfig(12, n_blocks=2, n_heads=2, inner_size=8, softmax_size=6)
    elmo = make_elmo(ElmoConfig(shape, words=WordConfig(len(WORDS), 5)), head=True)
    assert elmo.encode(["the bank"])[0].shape == (2, 12)
    assert elmo.perplexity(["the bank"]) > 1

import inspect

import numpy as np
import pytest
import torch

from elmokit import Elmo, ElmoError
from elmokit.config import LstmConfig
from support.exactness import assert_same
from support.tiny_models import WORDS, tiny_config, word_config

SENTENCES = ["the bank of the river .", ["a", "bank", "."], "", "money"]


def test_encode_gives_an_array_a_sentence(make_elmo):
    vectors = make_elmo().encode(SENTENCES)
    assert [array.shape for array in vectors] == [(6, 12), (3, 12), (0, 12), (1, 12)]
    assert all(array.dtype == np.float32 for array in vectors)


def test_outputs_and_layers_agree(make_elmo):
    elmo = make_elmo()
    layers = elmo.encode(SENTENCES, output="layers")
    assert [array.shape for array in layers] == [(3, 6, 12), (3, 3, 12), (3, 0, 12), (3, 1, 12)]
    for number in range(3):
        for one, of_all in zip(elmo.encode(SENTENCES, layer=number), layers, strict=True):
            assert np.array_equal(one, of_all[number])
    for top, of_all in zip(elmo.encode(SENTENCES, layer="top"), layers, strict=True):
        assert np.array_equal(top, of_all[-1])
    for mixed, of_all in zip(elmo.encode(SENTENCES), layers, strict=True):
        np.testing.assert_allclose(mixed, of_all.mean(axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(layers[0][0, :, :6], layers[0][0, :, 6:])


@pytest.mark.parametrize("pool", ["mean", "max", "first", "last"])
def test_pooling_never_counts_padding(make_elmo, pool):
    elmo = make_elmo()
    pooled = elmo.encode(SENTENCES, output="sentence", pool=pool)
    assert pooled.shape == (4, 12)
    take = {"mean": lambda a: a.mean(0), "max": lambda a: a.max(0), "first": lambda a: a[0], "last": lambda a: a[-1]}[
        pool
    ]
    for row, tokens in zip(pooled, elmo.encode(SENTENCES), strict=True):
        np.testing.assert_allclose(row, take(tokens) if len(tokens) else np.zeros(12), rtol=1e-6, atol=1e-6)
    assert elmo.encode([], output="sentence").shape == (0, 12)
    assert elmo.encode(SENTENCES, output="sentence", layer="all").shape == (4, 3, 12)


def test_call_has_every_key_of_tf_hub(make_elmo):
    elmo = make_elmo(mixes=2)
    out = elmo(["the bank of the river .", "money"])
    assert {
        name: tuple(out[name].shape) for name in ("word_emb", "lstm_outputs1", "lstm_outputs2", "elmo", "default")
    } == {
        "word_emb": (2, 6, 6),
        "lstm_outputs1": (2, 6, 12),
        "lstm_outputs2": (2, 6, 12),
        "elmo": (2, 6, 12),
        "default": (2, 12),
    }
    assert out["sequence_len"].tolist() == [6, 1]
    assert out["mask"].tolist() == [[True] * 6, [True] + [False] * 5]
    assert out["layers"].shape == (3, 2, 6, 12)
    assert len(out["mixes"]) == 2
    assert out["layers"][:, 1, 1:].abs().max() == 0
    torch.testing.assert_close(out["default"][1], out["elmo"][1, 0])
    for row, vectors in enumerate(elmo.encode(["the bank of the river .", "money"])):
        np.testing.assert_allclose(out["elmo"][row, : len(vectors)].detach(), vectors, rtol=1e-5, atol=1e-6)


def test_the_outputs_are_a_dict(make_elmo):
    out = make_elmo(mixes=2)(["the bank"])
    names = {"word_emb", "lstm_outputs1", "lstm_outputs2", "elmo", "default", "sequence_len", "layers", "mask", "mixes"}
    assert isinstance(out, dict)
    assert set(out) == set(out.keys()) == names
    assert out["mixes"] is dict(out)["mixes"]
    assert out.get("nothing") is None
    with pytest.raises(KeyError):
        out["nothing"]
    again = type(out)((name, value) for name, value in out.items())  # as torch puts the outputs of replicas together
    assert again == out


def test_a_short_repr(make_elmo):
    assert repr(make_elmo()) == "Elmo('memory', 3 layers x 12, float32, cpu, segment='whitespace')"
    assert repr(make_elmo(segment="chars").half()) == "Elmo('memory', 3 layers x 12, float16, cpu, segment='chars')"
    assert repr(torch.nn.Sequential(make_elmo())).count("\n") == 2
    assert repr(Elmo.load(device="cpu")) == "Elmo('en', 10 layers x 384, float32, cpu, segment='english')"


def test_load_has_the_arguments_of_the_constructor():
    arguments = inspect.signature(Elmo.load).parameters
    files = {"path", "options", "vocab", "token_embeddings", "device", "dtype"}
    own = {name: value.default for name, value in inspect.signature(Elmo).parameters.items() if name != "checkpoint"}
    assert {name: value.default for name, value in arguments.items() if name not in files} == own
    assert all(f"`{name}`" in Elmo.load.__doc__ for name in arguments)


def test_tokens_with_their_lengths(make_elmo):
    elmo = make_elmo()
    out = elmo(tokens=[["dogs", "are", "in", "the", "fog", ""], ["a", "", "", "", "", ""]], sequence_len=[5, 1])
    assert out["sequence_len"].tolist() == [5, 1]
    assert out["elmo"].shape == (2, 6, 12), "as wide as the rows came"
    assert out["elmo"][:, 5].abs().max() == 0
    torch.testing.assert_close(out["elmo"][:, :5], elmo(["dogs are in the fog", "a"])["elmo"])
    with pytest.raises(ElmoError, match="sequence_len must be between 0 and the 1 tokens of its row, got 2"):
        elmo(tokens=[["a"]], sequence_len=[2])
    with pytest.raises(ElmoError, match="got both"):
        elmo(["a"], tokens=[["a"]])
    with pytest.raises(ElmoError, match="segment"):
        elmo(tokens=[["a"]], segment="whitespace")


def test_boundaries_stay_or_are_dropped(make_elmo):
    inner, full = make_elmo(), make_elmo(boundaries=True)
    short, whole = inner.encode(SENTENCES, output="layers"), full.encode(SENTENCES, output="layers")
    for inner, outer in zip(short, whole, strict=True):
        assert outer.shape[1] == inner.shape[1] + 2
        assert np.array_equal(outer[:, 1:-1], inner)


def test_frozen_by_default_and_trainable_on_request(make_elmo):
    frozen, trained = make_elmo(), make_elmo(trainable=True)
    assert {name for name, p in frozen.named_parameters() if p.requires_grad} == {"mixes.0.weights", "mixes.0.gamma"}
    trained(["the bank"])["elmo"].square().sum().backward()
    for name, parameter in trained.named_parameters():
        assert parameter.grad is not None, name
        if "embedding" not in name:
            assert parameter.grad.abs().sum() > 0, name


def test_dropout_acts_on_the_mix_in_training_only(make_elmo):
    elmo = make_elmo(dropout=0.5)
    quiet = elmo(["the bank"])["elmo"]
    assert torch.equal(quiet, elmo(["the bank"])["elmo"])
    elmo.train()
    noisy = elmo(["the bank"])["elmo"]
    assert (noisy == 0).any()
    assert np.array_equal(elmo.encode(["the bank"])[0], elmo.eval().encode(["the bank"])[0])


def test_a_layer_in_a_users_module_learns(make_elmo):
    torch.manual_seed(0)
    elmo = make_elmo(trainable=True, scale=1.0)
    head = torch.nn.Linear(12, 2)
    sentences, labels = ["the bank of money", "the bank of the river"] * 2, torch.tensor([0, 1, 0, 1])
    optimizer = torch.optim.Adam([*elmo.parameters(), *head.parameters()], lr=0.01)
    losses = []
    for _ in range(30):
        loss = torch.nn.functional.cross_entropy(head(elmo(sentences)["default"]), labels)
        loss = loss + 1e-3 * elmo.mixes[0].penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]


def test_one_direction(make_elmo):
    elmo = make_elmo(tiny_config(bidirectional=False), head=True)
    assert elmo.encode(["the bank"])[0].shape == (2, 6)
    assert elmo.log_probs(["the bank"])[0].backward is None
    assert elmo.perplexity(["the bank"]).backward is None
    prefix, longer = elmo.encode(["the bank of"])[0], elmo.encode(["the bank of money"])[0]
    np.testing.assert_array_equal(prefix, longer[:3])


def test_words_outside_the_table_are_unknown(make_elmo):
    elmo = make_elmo(word_config())
    known, unknown = elmo.encode(["the zebra", "the <UNK>"], layer=0)
    assert np.array_equal(known, unknown)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"state": "keep"}, "state must be one of zero, carry, got 'keep'"),
        ({"dropout": 1.5}, "dropout must be"),
        ({"mixes": 0}, "mixes must be at least 1, got 0"),
        ({"layer_norm": "yes"}, "layer_norm must be"),
    ],
)
def test_mistakes_in_the_constructor(make_elmo, arguments, message):
    with pytest.raises(ElmoError, match=message):
        make_elmo(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layer": 3}, "layer must be mix, top, all or 0 to 2, got 3"),
        ({"layer": -1}, "layer must be"),
        ({"output": "vectors"}, "output must be one of tokens, layers, sentence"),
        ({"output": "sentence", "pool": "sum"}, "pool must be one of"),
        ({"pool": "max"}, "pool needs output='sentence'"),
        ({"output": "layers", "layer": 99}, "layer must be"),
        ({"output": "layers", "layer": 2}, "layer=2"),
        ({"output": "layers", "layer": "mix"}, "layer='mix'"),
        ({"batch_tokens": 0}, "batch_tokens must be at least 1"),
    ],
)
def test_mistakes_in_encode(make_elmo, arguments, message):
    with pytest.raises(ElmoError, match=message):
        make_elmo().encode(["a"], **arguments)


def test_whole_numbers_of_numpy_are_whole_numbers(make_elmo):
    elmo = make_elmo(head=True)
    assert elmo.encode(["a"], layer=np.int64(1), batch_tokens=np.int64(5))[0].shape == (1, 12)
    assert len(elmo.substitutes(["the", "bank"], np.int64(1), k=np.int64(2))) == 2


def test_double_precision_is_saved_and_loaded_exactly(model_folder, tmp_path):
    elmo = Elmo.load(model_folder, dtype="float64")
    with torch.no_grad():
        elmo.bilm.context.forward_lstm.layers[0].bias[0] = 1 / 3
    elmo.save(tmp_path / "double")
    again = Elmo.load(tmp_path / "double", dtype="float64")
    assert again.bilm.context.forward_lstm.layers[0].bias[0].item() == 1 / 3


def test_a_trained_mix_that_bilm_cannot_hold_is_mentioned(make_elmo, tmp_path, caplog):
    elmo = make_elmo()
    elmo.save(tmp_path / "fresh", format="bilm")
    assert caplog.text == ""
    with torch.no_grad():
        elmo.mixes[0].gamma.fill_(2)
    elmo.save(tmp_path / "trained", format="bilm")
    assert "no mixes" in caplog.text


def test_layer_norm_in_half_precision_and_at_padding(make_elmo):
    elmo = make_elmo(layer_norm=True, scale=1.0).half()
    out = elmo([["the", "bank"] * 40, ["a"]] * 40)["elmo"]
    assert torch.isfinite(out).all()
    assert out[1, 1:].abs().max() == 0


def test_asking_does_not_move_the_carried_state(make_elmo):
    elmo = make_elmo(head=True, state="carry")
    elmo.encode(["the bank"])
    carried = elmo.substitutes("the bank", 1)
    assert elmo.substitutes("the bank", 1) == carried
    elmo.reset_state()
    assert elmo.substitutes("the bank", 1) != carried, "it starts from the state, and leaves it as it is"
    elmo.half().encode(["the bank"])


def test_wrong_sentences_are_named(make_elmo):
    elmo = make_elmo()
    with pytest.raises(ElmoError, match="stream takes an iterable of sentences, got str"):
        elmo.stream("one sentence")
    with pytest.raises(ElmoError, match="sequence_len must be a list"):
        elmo(tokens=[["a"]], sequence_len=5)
    with pytest.raises(ElmoError, match="a token must be a string, got 3"):
        elmo.encode([["a", 3]])
    with pytest.raises(ElmoError, match="a sentence must be a string or a list of tokens, got int"):
        elmo.encode([3])
    with pytest.raises(ElmoError, match="sentences must be a list"):
        elmo.encode(3)


def test_load_wants_a_real_device(model_folder):
    with pytest.raises(ElmoError, match="device 'tpu9' cannot be used"):
        Elmo.load(model_folder, device="tpu9")
    with pytest.raises(ElmoError, match="dtype must be one of"):
        Elmo.load(model_folder, dtype="int3")


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-5), ("bfloat16", 0.2), ("float16", 0.05)])
def test_other_number_types(model_folder, dtype, tolerance):
    # Half the digits, about half the exactness; the recurrence over six tokens keeps it there for a calm model.
    exact = Elmo.load(model_folder).encode(["the bank of money"], layer=0)[0]
    other = Elmo.load(model_folder, dtype=dtype).encode(["the bank of money"], layer=0)[0]
    assert other.dtype == np.float32
    np.testing.assert_allclose(other, exact, rtol=tolerance, atol=tolerance)


def test_log_probs_are_a_distribution(make_elmo):
    elmo = make_elmo(head=True)
    total = np.zeros(2)
    for word in WORDS:
        found = elmo.log_probs([["the", word]])[0]
        assert found.forward.shape == (3,)
        assert found.backward.shape == (3,)
        total += np.exp([found.forward[1], elmo.log_probs([[word, "the"]])[0].backward[1]])
    # `<UNK>`, `<S>` and `</S>` are words of the softmax like any other.
    np.testing.assert_allclose(total, 1, rtol=1e-4)


def test_perplexity_is_exp_of_the_mean_loss(make_elmo):
    elmo = make_elmo(head=True)
    sentences = ["the bank of money", "a river ."]
    found = elmo.log_probs(sentences)
    forward = -np.concatenate([s.forward for s in found]).mean()
    backward = -np.concatenate([s.backward for s in found]).mean()
    perplexity = elmo.perplexity(sentences)
    assert perplexity == pytest.approx(np.exp((forward + backward) / 2), rel=1e-5)
    assert perplexity.forward == pytest.approx(np.exp(forward), rel=1e-5)
    assert perplexity.backward == pytest.approx(np.exp(backward), rel=1e-5)
    assert perplexity.tokens == 5 + 4
    with pytest.raises(ElmoError, match="at least one sentence"):
        elmo.perplexity([])


def test_substitutes_multiply_both_directions_and_count_frequency_once(make_elmo):
    elmo = make_elmo(head=True)
    fill_bias(elmo, np.linspace(2, -2, len(WORDS)))
    best = elmo.substitutes("the bank of money", 1, k=3)
    assert len(best) == 3
    scores = {}
    for number, word in enumerate(WORDS[3:], start=3):
        found = elmo.log_probs([["the", word, "of", "money"]])[0]
        frequency = np.log((number + 2) / (number + 1))  # by rank
        scores[word] = found.forward[1] + found.backward[2] - np.log(frequency)
    assert [word for word, _ in best] == sorted(scores, key=scores.get, reverse=True)[:3]
    everything = elmo.substitutes("the bank of money", 1, k=99)
    assert sum(p for _, p in everything) == pytest.approx(1)
    total = np.logaddexp.reduce(list(scores.values()))
    assert dict(everything) == pytest.approx({word: np.exp(score - total) for word, score in scores.items()}, rel=1e-4)
    with pytest.raises(ElmoError, match="index must name one of the 2 tokens, got 2"):
        elmo.substitutes("the bank", 2)


def fill_bias(elmo, values):
    with torch.no_grad():
        elmo.head.bias.copy_(torch.as_tensor(values))


def test_substitutes_do_not_depend_on_the_order_of_a_vocabulary_that_is_not_by_counts(make_elmo):
    elmo = make_elmo(head=True)
    bias = np.linspace(-2, 2, len(WORDS))  # the last word is the most frequent one
    fill_bias(elmo, bias)
    scores = {}
    for number, word in enumerate(WORDS[3:], start=3):
        found = elmo.log_probs([["the", word, "of", "money"]])[0]
        scores[word] = found.forward[1] + found.backward[2] - bias[number]
    total = np.logaddexp.reduce(list(scores.values()))
    expected = {word: np.exp(score - total) for word, score in scores.items()}
    assert dict(elmo.substitutes("the bank of money", 1, k=99)) == pytest.approx(expected, rel=1e-4)


def test_substitutes_of_one_direction_are_its_own_probabilities(make_elmo):
    elmo = make_elmo(tiny_config(bidirectional=False), head=True)
    everything = dict(elmo.substitutes("the bank of money", 1, k=99))
    scores = {word: elmo.log_probs([["the", word]])[0].forward[1] for word in WORDS[3:]}
    total = np.logaddexp.reduce(list(scores.values()))
    assert everything == pytest.approx({word: np.exp(score - total) for word, score in scores.items()}, rel=1e-4)


def test_models_without_a_softmax_say_so(make_elmo):
    with pytest.raises(ElmoError, match="has no softmax"):
        make_elmo().perplexity(["the bank"])


def test_layer_norm_in_encode_is_by_sentence(make_elmo):
    elmo = make_elmo(layer_norm=True)
    alone = elmo.encode(["the bank"])[0]
    np.testing.assert_array_equal(elmo.encode(["the bank", "a river of money ."])[0], alone)
    np.testing.assert_allclose(elmo(["the bank"])["elmo"][0].detach(), alone, rtol=1e-5, atol=1e-6)


def test_saved_mixes_come_back(make_elmo, tmp_path):
    elmo = make_elmo(mixes=2, layer_norm="sentence")
    with torch.no_grad():
        elmo.mixes[1].weights.copy_(torch.tensor([1.0, -2.0, 0.5]))
        elmo.mixes[1].gamma.fill_(0.3)
    elmo.save(tmp_path / "model")
    again = Elmo.load(tmp_path / "model")
    assert len(again.mixes) == 2
    assert again.mixes[0].layer_norm == "sentence"
    assert torch.equal(again.mixes[1].weights, elmo.mixes[1].weights)
    assert again.mixes[1].gamma.item() == pytest.approx(0.3)
    with pytest.raises(ElmoError, match="must be elmokit, bilm or tokens, got 'onnx'"):
        elmo.save(tmp_path / "other", format="onnx")


def test_no_projection_and_many_layers_encode(make_elmo):
    config = tiny_config(context=LstmConfig(6, 6, n_layers=3, projection=False))
    assert make_elmo(config).encode(["a b"], output="layers")[0].shape == (4, 2, 12)


def test_words_seen_before_are_not_encoded_again(make_elmo):
    elmo, plain = make_elmo(), make_elmo(type_cache_mb=0)
    sentences = ["the bank of money", "money of the river bank the", "", "a"]
    asked = []
    encode_types = elmo.encode_types
    elmo.encode_types = lambda words: asked.append(list(words)) or encode_types(words)
    for sentence in sentences:
        assert_same(elmo.encode([sentence])[0], plain.encode([sentence])[0])
    assert asked == [["<S>", "</S>", "the", "bank", "of", "money"], ["river"], ["a"]]
    assert (len(elmo.type_cache), elmo.type_cache.misses, elmo.type_cache.hits) == (8, 8, 11)
    assert len(plain.type_cache) == 0


def test_a_cache_smaller_than_a_batch_changes_nothing(make_elmo):
    sentences = ["the bank of money", "money of the river bank the", "a bank"]
    expected = make_elmo(type_cache_mb=0).encode(sentences)
    elmo = make_elmo(type_cache_mb=4 * 6 * 4 / 1e6)
    for one, other in zip([elmo.encode([s])[0] for s in sentences], expected, strict=True):
        assert_same(one, other)
    for one, other in zip(elmo.encode(sentences), expected, strict=True):
        assert_same(one, other)
    assert len(elmo.type_cache) <= 4


def test_weights_changed_in_between_are_seen(make_elmo):
    elmo = make_elmo()
    before = elmo.encode(["the bank"], layer=0)[0]
    with torch.no_grad():
        elmo.bilm.token_encoder.projection.bias.add_(1)
    np.testing.assert_allclose(elmo.encode(["the bank"], layer=0)[0], before + 1, rtol=0, atol=1e-5)


def test_a_model_that_learns_gets_gradients_through_words_seen_before(make_elmo):
    elmo = make_elmo(trainable=True)
    for _ in range(2):
        elmo.encode(["the bank"])
        elmo.zero_grad()
        elmo(["the bank"])["elmo"].sum().backward()
        assert elmo.bilm.token_encoder.projection.weight.grad.abs().sum() > 0

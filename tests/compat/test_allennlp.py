"""AllenNLP's call signatures against elmokit's own results and against what AllenNLP is known to do."""

from __future__ import annotations

import copy
import io
import json
import logging
import pickle
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import elmokit
from elmokit.compat.allennlp import (
    ConfigurationError,
    Elmo,
    ELMoCharacterMapper,
    ElmoEmbedder,
    ElmoTokenEmbedder,
    ScalarMix,
    _ElmoBiLm,
    _ElmoCharacterEncoder,
    add_sentence_boundary_token_ids,
    batch_to_ids,
    remove_sentence_boundaries,
)
from elmokit.config import CharacterConfig, ElmoConfig, LstmConfig, WordConfig
from elmokit.errors import ElmoError
from elmokit.fetch import cached_as
from elmokit.formats.bilm_write import write_bilm
from elmokit.formats.checkpoint import Checkpoint
from elmokit.model.bilm import BiLM
from elmokit.text.vocab import Vocabulary

VOCAB = ["<S>", "</S>", "<UNK>", "the", "river", "bank"]
CHARACTERS = CharacterConfig(filters=((1, 4), (3, 9)), embedding_size=5, n_highway=2)
CONFIG = ElmoConfig(LstmConfig(cell_size=11, output_size=6), CHARACTERS)
# Models that AllenNLP could not load, or not without an edit.
CONFIGS = {
    "plain": CONFIG,
    "one layer": replace(CONFIG, lstm=replace(CONFIG.lstm, n_layers=1)),
    "no skip connections, no clips": replace(
        CONFIG, lstm=replace(CONFIG.lstm, skip_connections=False, cell_clip=None, projection_clip=None)
    ),
    "no projections": ElmoConfig(LstmConfig(13, 13, projection=False), CHARACTERS, token_projection=False),
    "no highway, short words": replace(CONFIG, characters=replace(CHARACTERS, n_highway=0, max_characters=9)),
    "long words": replace(CONFIG, characters=replace(CHARACTERS, max_characters=60)),
    "forward only": replace(CONFIG, bidirectional=False),
    "word ids": ElmoConfig(LstmConfig(11, 6), words=WordConfig(len(VOCAB), 6), token_projection=False),
}
BATCHES = [
    [["the", "river", "bank"], ["a"], ["of", "money"]],
    [["one"], ["two", "banks"], ["x" * 70, "é", "中国"], [], ["the", "the"]],
    [["a", "b"], ["c"]],
    [["d"], ["the", "river", "bank", "."], ["e", "f"], ["g"], ["h"], ["i"]],
]


def checkpoint(config: ElmoConfig = CONFIG, seed: int = 0) -> Checkpoint:
    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: torch.randn(value.shape, generator=generator) * 1.5 / value.shape[-1] ** 0.5
        for name, value in BiLM(config).state_dict().items()
    }
    for name in weights:
        if name.endswith(("embedding.weight", "words.weight")):
            weights[name][0] = 0
    vocab = Vocabulary(VOCAB) if config.words else None
    return Checkpoint(config, weights, kind="test", where="test", vocab=vocab)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """A folder with options.json and weights.hdf5 for each configuration, and one in elmokit's own format."""
    root = tmp_path_factory.mktemp("models")
    for number, config in enumerate(CONFIGS.values()):
        write_bilm(checkpoint(config, seed=number), root / str(number))
    made = {name: root / str(number) for number, name in enumerate(CONFIGS)}
    elmokit.Elmo(checkpoint()).save(root / "native")
    return made | {"native": root / "native"}


@pytest.fixture(scope="module")
def files(folders) -> tuple[str, str]:
    return str(folders["plain"] / "options.json"), str(folders["plain"] / "weights.hdf5")


@pytest.fixture
def bilm(files) -> _ElmoBiLm:
    return _ElmoBiLm(*files)


def vectors_of(layers: torch.Tensor, batch: list[list[str]]) -> list[np.ndarray]:
    """[L+1, B, T+2, D] → [L+1, T, D] a sentence."""
    return [layers[:, row, 1 : len(tokens) + 1].detach().numpy() for row, tokens in enumerate(batch)]


def close(one, two, atol=1e-6):
    torch.testing.assert_close(torch.as_tensor(one), torch.as_tensor(two), atol=atol, rtol=1e-5)


# Words to ids


def test_batch_to_ids():
    ids = batch_to_ids([["ab", "x" * 60, "x" * 47 + "é"], ["a\ud800", ""], []])
    assert ids.shape == (3, 3, 50)
    assert ids.dtype == torch.int64
    assert ids[0, 0].tolist() == [259, 98, 99, 260] + [261] * 46
    assert ids[0, 1].tolist() == [259] + [121] * 48 + [260]
    assert ids[0, 2, -3:].tolist() == [121, 0xC3 + 1, 260]
    assert ids[1, 0, :4].tolist() == [259, 98, 260, 261]
    assert ids[1, 1, :3].tolist() == [259, 260, 261]
    assert not ids[1, 2].any()
    assert not ids[2].any()
    assert batch_to_ids([["<S>", "</S>"]])[0, :, 1].tolist() == [257, 258]
    assert torch.equal(batch_to_ids(["ab"]), batch_to_ids([["a", "b"]]))
    assert torch.equal(batch_to_ids(iter([("a", "b")])), batch_to_ids([["a", "b"]]))


def test_batch_to_ids_of_nothing_keeps_its_axes():
    assert batch_to_ids([]).shape == (0, 0, 50)
    assert batch_to_ids([[], []]).shape == (2, 0, 50)


@pytest.mark.parametrize("word", [3, None, ["a"]])
def test_batch_to_ids_refuses_what_is_no_word(word):
    with pytest.raises(ConfigurationError, match="a list of strings"):
        batch_to_ids([["a", word]])


def test_character_mapper():
    mapper = ELMoCharacterMapper({"<first>": 1})
    assert mapper.convert_word_to_char_ids("<first>") == [259, 2, 260] + [261] * 47
    assert mapper.convert_word_to_char_ids("ab") == batch_to_ids([["ab"]])[0, 0].tolist()


# Boundaries


def test_boundaries_on_and_off():
    values = torch.tensor([[[-1.0, -2.0], [0.0, 3.0]], [[-4.0, -5.0], [0.0, 0.0]]])
    mask = torch.tensor([[1, 1], [1, 0]])
    longer, longer_mask = add_sentence_boundary_token_ids(
        values, mask, torch.tensor([9.0, 9.0]), torch.tensor([8.0, 8.0])
    )
    assert longer[:, :, 0].tolist() == [[9, -1, 0, 8], [9, -4, 8, 0]]
    assert longer_mask.tolist() == [[True] * 4, [True, True, True, False]]  # negative values count
    back, back_mask = remove_sentence_boundaries(longer, longer_mask)
    assert torch.equal(back, values)
    assert torch.equal(back_mask, mask.bool())
    ids, ids_mask = add_sentence_boundary_token_ids(torch.tensor([[5, 6], [7, 0]]), mask, 1, 2)
    assert ids.tolist() == [[1, 5, 6, 2], [1, 7, 2, 0]]
    assert ids_mask.tolist() == [[True] * 4, [True, True, True, False]]


def test_boundaries_need_a_shape():
    with pytest.raises(ValueError, match="shape"):
        add_sentence_boundary_token_ids(torch.ones(1, 2, 3, 4), torch.ones(1, 2), 1, 2)
    with pytest.raises(ConfigurationError, match="at least 2"):
        remove_sentence_boundaries(torch.ones(1, 1, 3), torch.ones(1, 1))


# The same numbers as elmokit's own


@pytest.mark.parametrize("name", [*CONFIGS, "native"])
def test_stateless_is_elmokit(folders, name):
    folder = folders[name]
    core = elmokit.Elmo.load(folder, device="cpu")
    ours = Elmo(None, folder, 1, stateful=False).eval()
    embedder = ElmoEmbedder(None, folder, stateful=False)
    assert ours.get_output_dim() == core.config.vector_size
    for batch in BATCHES:
        ids = batch_to_ids(batch, max_characters=60 if name == "long words" else 50)
        got = ours(ids)["elmo_representations"][0]
        for row, want in enumerate(core.encode(batch)):
            close(got[row, : len(want)].detach(), want)
            assert got[row, len(want) :].abs().sum() == 0
        for one, two in zip(embedder.embed_batch(batch), core.encode(batch, output="layers"), strict=True):
            close(one, two)


WORD = st.text(alphabet="abcé中 ", max_size=5)
SENTENCES = st.lists(st.lists(WORD, max_size=6), min_size=1, max_size=5)


@given(SENTENCES, SENTENCES)
def test_stateless_is_elmokit_for_any_sentences(files, before, sentences):
    core, ours = elmokit.Elmo.load(files[1], device="cpu"), Elmo(*files, 1, stateful=False).eval()
    for batch in (before, sentences):
        got = ours(batch_to_ids(batch))["elmo_representations"][0]
    for row, want in enumerate(core.encode(sentences)):
        close(got[row, : len(want)].detach(), want)


def test_width_is_fifty_for_every_model(folders):
    core = elmokit.Elmo.load(folders["long words"], device="cpu")
    ids = batch_to_ids([["x" * 70, "short"]])
    got = Elmo(None, folders["long words"], 1).eval()(ids)["elmo_representations"][0]
    close(got[0].detach(), core.encode([["x" * 48, "short"]])[0])


@pytest.mark.parametrize("name", ["plain", "one layer", "no projections", "forward only"])
def test_state_is_carried_as_in_elmokit(folders, name):
    core, ours = elmokit.Elmo.load(folders[name], state="carry", device="cpu"), _ElmoBiLm(None, folders[name])
    slots = []
    for batch in BATCHES:
        out = ours(batch_to_ids(batch))
        layers = torch.stack(out["activations"])
        want = core.run(batch)
        close(layers.detach(), want.values.detach())
        assert torch.equal(out["mask"], want.mask)
        hidden, memory = ours._elmo_lstm._states
        config = core.config
        assert hidden.shape == (config.lstm.n_layers, hidden.shape[1], config.vector_size)
        assert memory.shape == (*hidden.shape[:2], config.n_directions * config.lstm.cell_size)
        assert not hidden.requires_grad
        slots.append(hidden.shape[1])
    assert slots == [3, 5, 5, 6]


def test_each_slot_has_its_own_history(files, bilm):
    """A sentence goes on from the last one in its row, however long ago and however large the batches between."""
    alone = [_ElmoBiLm(*files) for _ in range(6)]
    for batch in BATCHES:
        layers = torch.stack(bilm(batch_to_ids(batch))["activations"])
        for row, tokens in enumerate(batch):
            want = torch.stack(alone[row](batch_to_ids([tokens]))["activations"])
            close(layers[:, row, : len(tokens) + 2].detach(), want[:, 0].detach(), atol=2e-6)


# State


def run(model, batch=BATCHES[0]):
    return torch.stack(model(batch_to_ids(batch))["activations"]).detach()


def test_reset_states(bilm):
    first, second = run(bilm), run(bilm)
    assert (first[1:] - second[1:]).abs().max() > 1e-3
    assert torch.equal(first[0], second[0])
    for forget in (bilm._elmo_lstm.reset_states, bilm.reset_states, lambda: setattr(bilm._elmo_lstm, "_states", None)):
        forget()
        assert torch.equal(run(bilm), first)
    bilm._elmo_lstm.stateful = False
    assert torch.equal(run(bilm), first)
    assert torch.equal(run(bilm), first)


def test_reset_some_slots(bilm):
    bilm._elmo_lstm.reset_states(torch.tensor([True]))  # nothing to forget yet
    first = run(bilm)
    other = copy.deepcopy(bilm)
    bilm._elmo_lstm.reset_states(torch.tensor([1, 0, 1]))
    mixed, carried = run(bilm), run(other)
    assert torch.equal(mixed[:, [0, 2]], first[:, [0, 2]])
    assert torch.equal(mixed[:, 1], carried[:, 1])
    with pytest.raises(ConfigurationError, match="3 slots"):
        bilm._elmo_lstm.reset_states(torch.tensor([True, False]))


def test_reset_is_reachable_everywhere(files):
    ids = batch_to_ids(BATCHES[0])
    elmo, embedder = Elmo(*files, 1).eval(), ElmoTokenEmbedder(*files).eval()
    for model, reset in (
        (elmo, elmo.reset_states),
        (elmo, elmo._elmo_lstm._elmo_lstm.reset_states),
        (embedder, embedder.reset_states),
        (embedder, embedder._elmo._elmo_lstm._elmo_lstm.reset_states),
    ):
        reset()
        one, two = (out if torch.is_tensor(out) else out["elmo_representations"][0] for out in (model(ids), model(ids)))
        assert (one - two).abs().max() > 1e-3
        reset()
        again = model(ids)
        close(again if torch.is_tensor(again) else again["elmo_representations"][0], one)


def test_state_follows_dtype_and_leaves_inference_mode(files):
    elmo, ids = Elmo(*files, 1, requires_grad=True, dropout=0.0), batch_to_ids(BATCHES[0])
    with torch.inference_mode():
        elmo(ids)
    out = elmo(ids[:2])["elmo_representations"][0]
    out.sum().backward()
    assert elmo.double()(ids)["elmo_representations"][0].dtype == torch.float64


def test_training_carries_state_and_cuts_the_graph(files):
    elmo, ids = Elmo(*files, 1, requires_grad=True, dropout=0.0), batch_to_ids(BATCHES[0])
    for _ in range(3):
        elmo(ids)["elmo_representations"][0].sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in elmo.parameters())


# Elmo


def test_outputs(files):
    elmo = Elmo(*files, 2).eval()
    out = elmo(batch_to_ids(BATCHES[0]))
    assert set(out) == {"elmo_representations", "mask"}
    assert [tuple(r.shape) for r in out["elmo_representations"]] == [(3, 3, 12)] * 2
    assert out["mask"].tolist() == [[True] * 3, [True, False, False], [True, True, False]]
    assert (out["elmo_representations"][0][1, 1:] == 0).all()
    close(*out["elmo_representations"])


def test_keep_sentence_boundaries(files, bilm):
    ids = batch_to_ids(BATCHES[0])
    out = Elmo(*files, 1, keep_sentence_boundaries=True).eval()(ids)
    layers = bilm(ids)
    close(out["elmo_representations"][0], torch.stack(layers["activations"]).mean(0))
    assert torch.equal(out["mask"], layers["mask"])


@pytest.mark.parametrize("keep", [False, True])
def test_layer_norm_takes_its_statistics_over_the_batch_and_its_boundaries(files, bilm, keep):
    ids = batch_to_ids(BATCHES[1])
    out = Elmo(*files, 1, do_layer_norm=True, keep_sentence_boundaries=keep).eval()(ids)
    layers, mask = bilm(ids)["activations"], bilm(ids)["mask"]
    normal = [(layer - layer[mask].mean()) / layer[mask].std(correction=0) for layer in layers]
    want = torch.stack(normal).mean(0) * mask.unsqueeze(-1)
    if not keep:
        want, mask = remove_sentence_boundaries(want, mask)
    close(out["elmo_representations"][0], want, atol=1e-5)
    assert torch.equal(out["mask"], mask)


@pytest.mark.parametrize("keep", [False, True])
def test_four_dimensions(files, keep):
    ids = batch_to_ids([["a", "b"], ["c"], ["d"], ["e", "f"], [], ["g"]])
    elmo = Elmo(*files, 2, keep_sentence_boundaries=keep).eval()
    flat = elmo(ids)
    elmo.reset_states()
    out = elmo(ids.reshape(2, 3, 2, 50).transpose(0, 1).contiguous().transpose(0, 1))
    assert out["mask"].shape == (2, 3, 4 if keep else 2)
    for one, two in zip(out["elmo_representations"], flat["elmo_representations"], strict=True):
        assert torch.equal(one.flatten(0, 1), two)


def test_empty_batches(files):
    elmo = Elmo(*files, 1).eval()
    for ids in (torch.zeros(2, 3, 50, dtype=torch.long), batch_to_ids([[], []]), batch_to_ids([])):
        out = elmo(ids)
        assert out["elmo_representations"][0].shape == (*ids.shape[:2], 12)
        assert not out["elmo_representations"][0].any()
        assert out["mask"].shape == ids.shape[:2]
        assert not out["mask"].any()


def test_dropout_and_what_is_trained_by_default(files):
    elmo = Elmo(*files, 1)
    torch.manual_seed(0)
    ids = batch_to_ids([["a"] * 60])
    zeros = (elmo(ids)["elmo_representations"][0] == 0).float().mean()
    assert 0.4 < zeros < 0.6
    assert (elmo.eval()(ids)["elmo_representations"][0] != 0).all()
    trained = {name for name, parameter in elmo.named_parameters() if parameter.requires_grad}
    assert trained == {"scalar_mix_0.gamma", *(f"scalar_mix_0.scalar_parameters.{k}" for k in range(3))}
    assert not any(p.requires_grad for p in Elmo(*files, 1, scalar_mix_parameters=[0, 0, 0]).parameters())
    assert all(p.requires_grad for p in Elmo(*files, 1, requires_grad=True).parameters())


def test_scalar_mix_parameters_pick_a_layer(files, bilm):
    ids = batch_to_ids(BATCHES[0])
    out = Elmo(*files, 1, scalar_mix_parameters=[-9e10, 1, -9e10]).eval()(ids)
    layers = bilm(ids)
    close(out["elmo_representations"][0], remove_sentence_boundaries(layers["activations"][1], layers["mask"])[0])
    with pytest.raises(ConfigurationError, match="3 weights"):
        Elmo(*files, 1, scalar_mix_parameters=[1, 2])


def test_module(files, bilm):
    ids = batch_to_ids(BATCHES[0])
    out = Elmo(None, None, 1, dropout=0.0, module=bilm)(ids)
    close(out["elmo_representations"][0], Elmo(*files, 1, dropout=0.0)(ids)["elmo_representations"][0])
    with pytest.raises(ConfigurationError, match="both"):
        Elmo(*files, 1, module=bilm)


def test_character_encoder(files, bilm):
    ids = batch_to_ids(BATCHES[0])
    encoder = _ElmoCharacterEncoder(*files)
    out = encoder(ids)
    assert encoder.get_output_dim() == 6
    close(out["token_embedding"], bilm(ids)["activations"][0][..., :6])
    assert out["mask"].sum(1).tolist() == [5, 3, 4]


# The word cache

CACHED = ["@@PADDING@@", "@@UNKNOWN@@", "the", "river", "bank"]


def test_cached_words(files):
    batches = [([["the", "river"], ["bank"]], [[2, 3], [4, 0]]), ([["bank"]], [[4]])]
    cached, plain = Elmo(*files, 1, vocab_to_cache=CACHED).eval(), Elmo(*files, 1).eval()
    for sentences, words in batches:
        ids = batch_to_ids(sentences)
        want = plain(ids)
        got = cached(torch.full_like(ids, 7), torch.tensor(words))  # the characters are not looked at
        close(got["elmo_representations"][0], want["elmo_representations"][0])
        assert torch.equal(got["mask"], want["mask"])
    four = cached(batch_to_ids([["the"], ["bank"]])[None], torch.tensor([[[2], [4]]]))
    assert four["elmo_representations"][0].shape == (1, 2, 1, 12)


def test_a_word_outside_the_cache_is_read_from_its_characters(files, caplog):
    ids = batch_to_ids([["the", "sea"]])
    for word in (5, -1):
        got = _ElmoBiLm(*files, vocab_to_cache=CACHED)(ids, torch.tensor([[2, word]]))
        close(torch.stack(got["activations"]), run(_ElmoBiLm(*files), [["the", "sea"]]))
    assert "outside vocab_to_cache" in caplog.text


def test_word_ids_alone(files):
    bilm = _ElmoBiLm(*files, vocab_to_cache=CACHED)
    close(torch.stack(bilm(None, torch.tensor([[2]]))["activations"]), run(_ElmoBiLm(*files), [["the"]]))
    with pytest.raises(ConfigurationError, match="vocab_to_cache"):
        bilm(None, torch.tensor([[9]]))
    with pytest.raises(ConfigurationError, match=r"\[B, T\]"):
        bilm(None, torch.tensor([2]))


def test_a_cached_word_without_a_positive_entry_stays(files):
    elmo = Elmo(*files, 1, vocab_to_cache=CACHED).eval()
    elmo._elmo_lstm._word_embedding.weight.data[2] = -1.0
    assert elmo(batch_to_ids([["the", "bank"]]), torch.tensor([[2, 4]]))["mask"].all()


def test_word_ids_without_a_cache_are_ignored_aloud(files, caplog):
    ids = batch_to_ids([["the"]])
    want = Elmo(*files, 1).eval()(ids)["elmo_representations"][0]
    for arguments in ({}, {"vocab_to_cache": []}):
        got = Elmo(*files, 1, **arguments).eval()(ids, torch.tensor([[4]]))
        close(got["elmo_representations"][0], want)
    assert caplog.text.count("word_inputs are ignored") == 2


def test_a_cache_that_trains_says_so(files, caplog):
    with caplog.at_level(logging.WARNING):
        elmo = Elmo(*files, 1, requires_grad=True, vocab_to_cache=CACHED)
    assert "apart from the character network" in caplog.text
    assert elmo._elmo_lstm._word_embedding.weight.requires_grad


# ScalarMix


def test_scalar_mix():
    mix = ScalarMix(2, initial_scalar_parameters=[0.0, 1.0], trainable=False)
    mix.gamma.data[0] = 0.5
    tensors = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    weights = np.exp([0.0, 1.0]) / np.exp([0.0, 1.0]).sum()
    want = 0.5 * (weights[0] * tensors[0] + weights[1] * tensors[1])
    close(mix(tensors), want.float())
    close(mix(list(tensors)), want.float())
    assert not any(p.requires_grad for p in mix.parameters())
    with pytest.raises(ConfigurationError, match="2 tensors"):
        mix(tensors[:1])


def test_scalar_mix_layer_norm_of_a_wholly_masked_batch_is_finite():
    mix = ScalarMix(1, do_layer_norm=True)
    assert mix([torch.ones(1, 2, 3)], torch.zeros(1, 2, dtype=torch.bool)).isfinite().all()
    values = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    close(mix([values]), (values - values.mean()) / values.std(correction=0))
    assert mix.bfloat16()([values.bfloat16()]).dtype == torch.bfloat16


# Saved task models


def allennlp_state(config: ElmoConfig, weights: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """The parameters under AllenNLP's names and in its layout, written down apart from the code under test."""
    cnn, encoder = "token_encoder.char_cnn.", f"{prefix}_token_embedder."
    state = {f"{encoder}_char_embedding_weights": weights[f"{cnn}embedding.weight"]}
    for part in ("weight", "bias"):
        for k in range(len(config.characters.filters)):
            state[f"{encoder}char_conv_{k}.{part}"] = weights[f"{cnn}convolutions.{k}.{part}"]
        for k in range(config.characters.n_highway):
            transform, gate = (weights[f"{cnn}highways.{k}.{name}.{part}"] for name in ("transform", "gate"))
            state[f"{encoder}_highways._layers.{k}.{part}"] = torch.cat([transform, -gate])
        state[f"{encoder}_projection.{part}"] = weights[f"token_encoder.projection.{part}"]
    size = config.lstm.cell_size
    for direction in ("forward", "backward"):
        for k in range(config.lstm.n_layers):
            theirs, ours = f"{prefix}_elmo_lstm.{direction}_layer_{k}.", f"{direction}_lstm.layers.{k}."
            bias = weights[f"{ours}bias"].clone()
            bias[size : 2 * size] += 1
            state[f"{theirs}input_linearity.weight"] = weights[f"{ours}input_weight"]
            state[f"{theirs}state_linearity.weight"] = weights[f"{ours}recurrent_weight"]
            state[f"{theirs}state_linearity.bias"] = bias
            state[f"{theirs}state_projection.weight"] = weights[f"{ours}projection_weight"]
    return state


class Tagger(torch.nn.Module):
    def __init__(self, files, **arguments):
        super().__init__()
        self.embedder = ElmoTokenEmbedder(*files, projection_dim=4, **arguments)
        self.out = torch.nn.Linear(4, 2)

    def forward(self, ids):
        return self.out(self.embedder(ids))


def test_a_saved_tagger_of_allennlp_loads(files, tmp_path):
    """Other weights than those in the file, as after training with requires_grad."""
    other = checkpoint(seed=99)
    write_bilm(other, tmp_path / "other")
    target = Tagger((None, tmp_path / "other")).eval()
    state = allennlp_state(CONFIG, other.weights, "embedder._elmo._elmo_lstm.")
    state |= {name: value for name, value in target.state_dict().items() if "_elmo_lstm" not in name}
    tagger = Tagger(files, requires_grad=True).eval()
    assert set(tagger.state_dict()) == set(state)
    tagger.load_state_dict(state)
    ids = batch_to_ids(BATCHES[1])
    close(tagger(ids), target(ids))
    for name, value in tagger.state_dict().items():
        assert torch.equal(value, state[name]), name
    with pytest.raises(RuntimeError, match="Missing key"):
        tagger.load_state_dict({name: value for name, value in state.items() if "forward_layer_0" not in name})


def test_a_cache_is_saved_under_its_name(files):
    elmo = Elmo(*files, 1, vocab_to_cache=CACHED)
    assert "_elmo_lstm._word_embedding.weight" in elmo.state_dict()
    Elmo(*files, 1, vocab_to_cache=CACHED).load_state_dict(elmo.state_dict())


@pytest.mark.parametrize("name", CONFIGS)
def test_every_model_saves_and_loads(folders, name):
    elmo = Elmo(None, folders[name], 2)
    names = set(elmo.state_dict())
    elmo(batch_to_ids(BATCHES[0]))
    assert set(elmo.state_dict()) == names  # state is not saved
    fresh = Elmo(None, folders[name], 2)
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.fill_(0.5)
    fresh.load_state_dict(elmo.state_dict())
    fresh.eval()
    elmo.eval().reset_states()
    ids = batch_to_ids(BATCHES[1])
    assert torch.equal(fresh(ids)["elmo_representations"][1], elmo(ids)["elmo_representations"][1])


def test_copies_take_the_state_along(files):
    elmo, ids = Elmo(*files, 1).eval(), batch_to_ids(BATCHES[0])
    elmo(ids)
    copied, pickled = copy.deepcopy(elmo), pickle.loads(pickle.dumps(elmo))
    want = elmo(ids)["elmo_representations"][0]
    for other in (copied, pickled):
        assert torch.equal(other(ids)["elmo_representations"][0], want)
        other.load_state_dict(elmo.state_dict())


# ElmoTokenEmbedder


def test_token_embedder(files):
    ids = batch_to_ids(BATCHES[0])
    plain, projected = ElmoTokenEmbedder(*files).eval(), ElmoTokenEmbedder(*files, projection_dim=5).eval()
    assert (plain.get_output_dim(), projected.get_output_dim()) == (12, 5)
    want = Elmo(*files, 1).eval()(ids)["elmo_representations"][0]
    close(plain(elmo_tokens=ids), want)
    close(projected(ids), projected._projection(want))
    assert ElmoTokenEmbedder(*files).eval()(ids[None]).shape == (1, 3, 3, 12)


# ElmoEmbedder


@pytest.fixture
def embedder(files) -> ElmoEmbedder:
    return ElmoEmbedder(*files)


def test_embedder_carries_state_over_batches_in_order(files, embedder):
    core = elmokit.Elmo.load(files[1], state="carry", device="cpu")
    sentences = [tokens for batch in BATCHES for tokens in batch]
    got = list(embedder.embed_sentences(iter(sentences), batch_size=4))
    want = [
        v for start in range(0, len(sentences), 4) for v in core.encode(sentences[start : start + 4], output="layers")
    ]
    assert [v.shape for v in got] == [(3, len(tokens), 12) for tokens in sentences]
    assert all(v.dtype == np.float32 for v in got)
    for one, two in zip(got, want, strict=True):
        close(one, two)


def test_embedder_types(embedder):
    layers, mask = embedder.batch_to_embeddings([["a", "b"], ["c"]])
    assert layers.shape == (2, 3, 2, 12)
    assert mask.tolist() == [[True, True], [True, False]]
    embedder.reset_states()
    one, two = embedder.embed_batch([["a", "b"], ["c"]])
    close(one, layers[0])
    close(two, layers[1, :, :1])
    assert embedder.embed_sentence("ab").shape == (3, 2, 12)  # a string is a list of characters
    assert embedder.embed_batch([]) == []
    with pytest.raises(ConfigurationError, match="batch_size"):
        embedder.embed_sentences([["a"]], batch_size=0)


def test_an_empty_sentence_alone_leaves_the_state(embedder):
    assert embedder.embed_sentence([]).shape == (3, 0, 12)
    assert embedder.elmo_bilm._elmo_lstm._states is None
    assert [v.shape for v in embedder.embed_batch([["a"], []])] == [(3, 1, 12), (3, 0, 12)]
    assert embedder.elmo_bilm._elmo_lstm._states[0][:, 1].abs().max() > 0


LINES = "the river  bank \n\ta / b\nthe river  bank\nyes\n"


@pytest.mark.parametrize("output_format", ["all", "top", "average"])
def test_embed_file(files, embedder, tmp_path, output_format):
    target, source = tmp_path / "out.hdf5", io.StringIO(LINES)
    embedder.embed_file(source, str(target), output_format, batch_size=3)
    assert source.closed
    choose = {"all": lambda v: v, "top": lambda v: v[-1], "average": lambda v: v.mean(0)}[output_format]
    layers = list(ElmoEmbedder(*files).embed_sentences((line.split() for line in LINES.splitlines()), 3))
    with h5py.File(target) as file:
        assert set(file) == {"0", "1", "2", "3", "sentence_to_index"}
        for key, value in enumerate(layers):
            assert file[str(key)].dtype == np.float32
            close(file[str(key)][()], choose(value))
        assert file["sentence_to_index"].shape == (1,)
        assert json.loads(file["sentence_to_index"].asstr()[0]) == {"the river  bank": "2", "a / b": "1", "yes": "3"}
    assert list(tmp_path.iterdir()) == [target]


def test_embed_file_without_sentences_or_with_them_as_keys(embedder, tmp_path):
    embedder.embed_file(io.StringIO("a b\nc\n"), tmp_path / "one.h5", forget_sentences=True)
    embedder.embed_file(io.StringIO("a b\nc / d\n"), tmp_path / "two.h5", use_sentence_keys=True)
    embedder.embed_file(io.StringIO(""), tmp_path / "three.h5")
    with h5py.File(tmp_path / "one.h5") as file:
        assert set(file) == {"0", "1"}
    with h5py.File(tmp_path / "two.h5") as file:
        assert file["a b"].shape == (3, 2, 12)
        assert file["c / d"].shape == (3, 3, 12)
        assert "sentence_to_index" not in file
    with h5py.File(tmp_path / "three.h5") as file:
        assert json.loads(file["sentence_to_index"].asstr()[0]) == {}


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("a\n\nb\n", {}, "line 2 of the input is blank"),
        ("a\nb\na\n", {"use_sentence_keys": True}, "line 3 repeats 1"),
        ("a\na/b\n", {"use_sentence_keys": True}, "HDF5 cannot have the key 'a/b'"),
        ("a\n.\n", {"use_sentence_keys": True}, "HDF5 cannot have the key"),
        ("a\n/\n", {"use_sentence_keys": True}, "HDF5 cannot have the key"),
        ("a\nb\0c\n", {"use_sentence_keys": True}, "HDF5 cannot have the key"),
        ("a\n", {"output_format": "middle"}, "all, top or average"),
        ("a\n", {"batch_size": 0}, "batch_size"),
    ],
)
def test_embed_file_writes_nothing_on_a_mistake(embedder, tmp_path, text, arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        embedder.embed_file(io.StringIO(text), tmp_path / "out.h5", **arguments)
    assert list(tmp_path.iterdir()) == []


def test_embed_file_into_a_folder_that_is_not_there(embedder, tmp_path):
    with pytest.raises(ElmoError, match="cannot be written"):
        embedder.embed_file(io.StringIO("a\n"), tmp_path / "no" / "out.h5")


# Mistakes and files


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.full((1, 1, 50), 262), "between 0 and 261"),
        (torch.full((1, 1, 50), -1), "between 0 and 261"),
        (torch.ones(1, 1, 40, dtype=torch.long), "50 character ids, got 40"),
        (torch.ones(1, 1, 50), "whole numbers"),
        (torch.ones(1, 50, dtype=torch.long), "shape"),
        (torch.ones(1, 1, 1, 50, dtype=torch.long), "shape"),
        (batch_to_ids([["a", "b", "c"]]) * torch.tensor([1, 0, 1])[None, :, None], "after the last token"),
    ],
)
def test_ids_that_cannot_be_read(bilm, ids, message):
    with pytest.raises(ElmoError, match=message):
        bilm(ids)
    assert bilm._elmo_lstm._states is None


def test_int32_ids(bilm):
    want = run(bilm)
    bilm.reset_states()
    close(torch.stack(bilm(batch_to_ids(BATCHES[0]).int())["activations"]), want)


def test_models_that_are_not_there(files, tmp_path):
    for arguments in ((files[0], tmp_path / "none.hdf5"), (tmp_path / "none.json", files[1]), (files[0], None)):
        with pytest.raises(ConfigurationError) as error:
            Elmo(*arguments, 1)
        assert isinstance(error.value, ElmoError)
        assert error.value.message == str(error.value)
    with pytest.raises(ConfigurationError, match="at least 1"):
        Elmo(*files, 0)
    with pytest.raises(ConfigurationError, match=r"\[B, T, 50\]"):
        Elmo(*files, 1)(torch.ones(3, 50, dtype=torch.long))


def test_addresses(files, tmp_path, monkeypatch):
    """As old tutorials give them; the files are in the cache already, so nothing is fetched."""
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path))
    urls = tuple(f"https://example.invalid/models/{Path(file).name}" for file in files)
    for url, file in zip(urls, files, strict=True):
        cached_as(url).write_bytes(Path(file).read_bytes())
    close(run(_ElmoBiLm(*urls)), run(_ElmoBiLm(*files)))

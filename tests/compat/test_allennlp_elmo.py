"""Elmo, ScalarMix and ElmoTokenEmbedder: outputs, what trains, and saved task models."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

from elmokit.compat.allennlp import (
    ConfigurationError,
    Elmo,
    ElmoTokenEmbedder,
    ScalarMix,
    batch_to_ids,
    remove_sentence_boundaries,
)
from elmokit.config import ElmoConfig
from elmokit.formats.save import write_checkpoint
from support.allennlp_samples import BATCHES, CACHED, CONFIG, CONFIGS, checkpoint, close


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
    write_checkpoint(other, tmp_path / "other", "bilm")
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


def test_token_embedder(files):
    ids = batch_to_ids(BATCHES[0])
    plain, projected = ElmoTokenEmbedder(*files).eval(), ElmoTokenEmbedder(*files, projection_dim=5).eval()
    assert (plain.get_output_dim(), projected.get_output_dim()) == (12, 5)
    want = Elmo(*files, 1).eval()(ids)["elmo_representations"][0]
    close(plain(elmo_tokens=ids), want)
    close(projected(ids), projected._projection(want))
    assert ElmoTokenEmbedder(*files).eval()(ids[None]).shape == (1, 3, 3, 12)

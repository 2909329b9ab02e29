"""The biLM under AllenNLP's names: the numbers of elmokit, state carried from call to call, cached words."""

from __future__ import annotations

import copy
import logging
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import elmokit
from elmokit.compat.allennlp import (
    ConfigurationError,
    Elmo,
    ElmoEmbedder,
    ElmoTokenEmbedder,
    _ElmoBiLm,
    _ElmoCharacterEncoder,
    batch_to_ids,
)
from elmokit.compat.load import cached_as
from elmokit.errors import ElmoError
from support.allennlp_samples import BATCHES, CACHED, CONFIGS, close, run


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
        want = core.layers_of(batch)
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
    """A sentence continues from the last one in its row, however long ago and however large the batches between."""
    alone = [_ElmoBiLm(*files) for _ in range(6)]
    for batch in BATCHES:
        layers = torch.stack(bilm(batch_to_ids(batch))["activations"])
        for row, tokens in enumerate(batch):
            want = torch.stack(alone[row](batch_to_ids([tokens]))["activations"])
            close(layers[:, row, : len(tokens) + 2].detach(), want[:, 0].detach(), atol=2e-6)


# State


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


def test_character_encoder(files, bilm):
    ids = batch_to_ids(BATCHES[0])
    encoder = _ElmoCharacterEncoder(*files)
    out = encoder(ids)
    assert encoder.get_output_dim() == 6
    close(out["token_embedding"], bilm(ids)["activations"][0][..., :6])
    assert out["mask"].sum(1).tolist() == [5, 3, 4]


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
    assert "not in vocab_to_cache" in caplog.text


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
    assert "separately from the character network" in caplog.text
    assert elmo._elmo_lstm._word_embedding.weight.requires_grad


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

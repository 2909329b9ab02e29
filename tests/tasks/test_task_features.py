"""Stored ELMo vectors: the same numbers as live ones, computed once, whole after any accident, bounded."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from elmokit.config import LstmConfig
from elmokit.elmo import Elmo
from elmokit.errors import ElmoError
from elmokit.storage import vectors
from elmokit.storage.cache import cache_folder
from elmokit.tasks.inputs import SentenceBatch, frozen_features, live_layers
from support.tiny_models import tiny_config, word_config

SENTENCES = [("the", "bank"), ("a", "river", "bank", "of", "money"), (), ("the",), ("the", "bank"), ("bank", "the")]


@pytest.fixture
def computed(monkeypatch):
    """The sentences that the biLM was run on."""
    seen = []
    plain = Elmo.layers_of

    def layers_of(self, sentences, *options):
        seen.extend(map(tuple, sentences))
        return plain(self, sentences, *options)

    monkeypatch.setattr(Elmo, "layers_of", layers_of)
    return seen


@pytest.mark.parametrize(
    "config",
    [
        tiny_config(),
        word_config(),
        tiny_config(bidirectional=False),
        tiny_config(context=LstmConfig(13, 6, n_layers=1)),
    ],
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 2e-3), (torch.float32, 1e-5)])
def test_stored_vectors_are_the_live_ones(make_elmo, tmp_path, config, dtype, tolerance):
    elmo = make_elmo(config)
    stored = frozen_features(elmo, SENTENCES, cache=tmp_path, dtype=dtype)
    assert len(stored) == 6
    assert stored.lengths.tolist() == [2, 5, 0, 1, 2, 2]
    for indices in ([0, 1, 2, 3, 4, 5], [5, 1], [3], [2]):
        layers, lengths = stored.batch(indices)
        expected, expected_lengths = live_layers(elmo, [SENTENCES[index] for index in indices])
        assert layers.dtype == torch.float32
        torch.testing.assert_close(layers, expected, atol=tolerance, rtol=tolerance)
        assert torch.equal(lengths, expected_lengths)
        SentenceBatch(layers, None, lengths)
    assert stored.batch([])[0].shape[1:3] == (0, 0)


def test_a_sentence_is_computed_once(make_elmo, tmp_path, computed):
    elmo = make_elmo()
    reported = []
    first = frozen_features(elmo, SENTENCES, cache=tmp_path, progress=lambda *facts: reported.append(facts))
    assert sorted(computed) == sorted(set(SENTENCES))
    assert reported[-1] == (5, 5)
    computed.clear()
    again = frozen_features(elmo, SENTENCES[::-1], cache=tmp_path)
    assert not computed
    assert torch.equal(again.batch([5, 4])[0], first.batch([0, 1])[0])
    frozen_features(elmo, [("a", "new", "one"), *SENTENCES], cache=tmp_path)
    assert computed == [("a", "new", "one")]
    computed.clear()
    frozen_features(make_elmo(), SENTENCES, cache=tmp_path)  # an equal model, loaded again
    assert not computed
    frozen_features(make_elmo(seed=1), SENTENCES, cache=tmp_path)
    assert len(computed) == 5


def test_words_stay_separate(make_elmo, tmp_path):
    sentences = [("a b",), ("a", "b"), ("a\0b",), ("\ud800",), ('a", "b',)]
    stored = frozen_features(make_elmo(), sentences, cache=tmp_path)
    assert stored.lengths.tolist() == [1, 2, 1, 1, 1]
    assert not torch.equal(stored.batch([0])[0], stored.batch([4])[0])


def test_layer_0_is_stored_once_a_word(make_elmo, tmp_path):
    frozen_features(make_elmo(), SENTENCES, cache=tmp_path)
    (path,) = tmp_path.glob("*/*.safetensors")
    with safe_open(path, "pt") as file:
        assert file.get_tensor("words").shape == (6, 6)
        assert file.get_tensor("layers").shape == (10, 2, 12)
        assert file.get_tensor("layers").dtype == torch.float16


def test_layer_0_alone_needs_no_lstm_and_no_disk(make_elmo, tmp_path, computed):
    elmo = make_elmo()
    alone = frozen_features(elmo, SENTENCES, cache=tmp_path, layer_0=True)
    assert not computed
    assert not list(tmp_path.iterdir())
    expected, _ = live_layers(elmo, SENTENCES)
    torch.testing.assert_close(alone.batch(range(6))[0], expected[:1], atol=2e-3, rtol=2e-3)
    frozen_features(elmo, SENTENCES, cache=tmp_path)
    stored = frozen_features(elmo, SENTENCES, cache=tmp_path, layer_0=True)
    assert torch.equal(stored.batch(range(6))[0], alone.batch(range(6))[0])  # no result depends on a warm cache


def test_many_small_files_are_as_one(make_elmo, tmp_path, monkeypatch):
    elmo = make_elmo()
    whole = frozen_features(elmo, SENTENCES, cache=tmp_path / "whole")
    monkeypatch.setattr(vectors, "BLOCK_BYTES", 150)
    split = frozen_features(elmo, SENTENCES, cache=tmp_path / "split")
    assert len(list((tmp_path / "split").glob("*/*.safetensors"))) > 2
    torch.testing.assert_close(split.batch(range(6))[0], whole.batch(range(6))[0], atol=2e-3, rtol=2e-3)


def test_a_killed_run_goes_on_where_it_stopped(make_elmo, tmp_path, monkeypatch, computed):
    elmo = make_elmo()
    monkeypatch.setattr(vectors, "BLOCK_BYTES", 150)

    def stop(done, total):
        if done > 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        frozen_features(elmo, SENTENCES, cache=tmp_path, progress=stop)
    (folder,) = tmp_path.iterdir()
    (folder / ".half.safetensors.1.ab.tmp").write_bytes(b"what a killed process left")
    computed.clear()
    stored = frozen_features(elmo, SENTENCES, cache=tmp_path)
    assert sorted(computed) == [(), ("bank", "the"), ("the",)]  # the file that was being made
    assert not list(folder.glob("*.tmp"))
    expected, _ = live_layers(elmo, SENTENCES)
    torch.testing.assert_close(stored.batch(range(6))[0], expected, atol=2e-3, rtol=2e-3)


def test_numbers_too_large_for_half_precision_are_cut(make_elmo, tmp_path):
    stored = frozen_features(make_elmo(scale=1e7), SENTENCES, cache=tmp_path)
    assert torch.isfinite(stored.batch(range(6))[0]).all()


def test_live_layers_take_gradients_where_the_bilm_does(make_elmo):
    layers, lengths = live_layers(make_elmo(trainable=True), SENTENCES)
    assert layers.requires_grad
    assert lengths.tolist() == [2, 5, 0, 1, 2, 2]
    assert not live_layers(make_elmo(), SENTENCES)[0].requires_grad


def test_carried_state_is_refused(make_elmo, tmp_path):
    elmo = make_elmo(state="carry")
    for ask in (lambda: live_layers(elmo, SENTENCES), lambda: frozen_features(elmo, SENTENCES, cache=tmp_path)):
        with pytest.raises(ElmoError, match="state='zero'"):
            ask()


def test_boundaries_do_not_count(make_elmo, tmp_path):
    stored = frozen_features(make_elmo(boundaries=True), SENTENCES, cache=tmp_path)
    assert stored.batch([1])[0].shape == (3, 1, 5, 12)


def test_the_cache_is_where_the_environment_says(make_elmo, tmp_path, monkeypatch):
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path))
    frozen_features(make_elmo(), SENTENCES)
    assert len(list((tmp_path / "features").glob("*/*.safetensors"))) == 1
    monkeypatch.delenv("ELMOKIT_CACHE")
    assert cache_folder() == Path("~/.cache/elmokit").expanduser()

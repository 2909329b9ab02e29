"""Stored ELMo vectors: the same numbers as live ones, computed once, whole after any accident, bounded."""

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event

import pytest
import torch

from elmokit.config import LstmConfig
from elmokit.encode import encode_stream
from elmokit.errors import ElmoError
from elmokit.storage.cache import cache_folder
from elmokit.tasks import feature_store, features
from elmokit.tasks.features import fingerprint, frozen_features, live_layers
from elmokit.tasks.inputs import SentenceBatch
from tiny_models import tiny_config, word_config

SENTENCES = [("the", "bank"), ("a", "river", "bank", "of", "money"), (), ("the",), ("the", "bank"), ("bank", "the")]


@pytest.fixture
def computed(monkeypatch):
    """The sentences that the biLM was run on."""
    seen = []

    def noting(sentences, run, *rest):
        def noted(batch):
            seen.extend(map(tuple, batch))
            return run(batch)

        return encode_stream(sentences, noted, *rest)

    monkeypatch.setattr(features, "encode_stream", noting)
    return seen


@pytest.mark.parametrize(
    "config",
    [tiny_config(), word_config(), tiny_config(bidirectional=False), tiny_config(lstm=LstmConfig(13, 6, n_layers=1))],
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
    told = []
    first = frozen_features(elmo, SENTENCES, cache=tmp_path, progress=lambda *facts: told.append(facts))
    assert sorted(computed) == sorted(set(SENTENCES))
    assert told[-1] == (5, 5)
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


def test_words_are_kept_apart(make_elmo, tmp_path):
    sentences = [("a b",), ("a", "b"), ("a\0b",), ("\ud800",), ('a", "b',)]
    stored = frozen_features(make_elmo(), sentences, cache=tmp_path)
    assert stored.lengths.tolist() == [1, 2, 1, 1, 1]
    assert not torch.equal(stored.batch([0])[0], stored.batch([4])[0])


def test_layer_0_is_stored_once_a_word(make_elmo, tmp_path):
    frozen_features(make_elmo(), SENTENCES, cache=tmp_path)
    (path,) = tmp_path.glob("*/*.safetensors")
    with feature_store.safe_open(path, "pt") as file:
        assert file.get_tensor("words").shape == (6, 6)
        assert file.get_tensor("context").shape == (10, 2, 12)
        assert file.get_tensor("context").dtype == torch.float16


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
    monkeypatch.setattr(features, "_BLOCK_BYTES", 150)
    split = frozen_features(elmo, SENTENCES, cache=tmp_path / "split")
    assert len(list((tmp_path / "split").glob("*/*.safetensors"))) > 2
    torch.testing.assert_close(split.batch(range(6))[0], whole.batch(range(6))[0], atol=2e-3, rtol=2e-3)


def test_a_killed_run_goes_on_where_it_stopped(make_elmo, tmp_path, monkeypatch, computed):
    elmo = make_elmo()
    monkeypatch.setattr(features, "_BLOCK_BYTES", 150)

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


@pytest.mark.parametrize("damage", [b"", b"no such file", None])
def test_a_damaged_file_is_made_again(make_elmo, tmp_path, damage):
    elmo = make_elmo()
    frozen_features(elmo, SENTENCES, cache=tmp_path)
    (path,) = tmp_path.glob("*/*.safetensors")
    path.write_bytes(path.read_bytes()[:-10] if damage is None else damage)
    stored = frozen_features(elmo, SENTENCES, cache=tmp_path)
    assert torch.isfinite(stored.batch(range(6))[0]).all()
    (again,) = tmp_path.glob("*/*.safetensors")
    assert again.stat().st_size > 500


def test_a_full_disk_ends_in_one_sentence(make_elmo, tmp_path, monkeypatch):
    def full(tensors, path):
        Path(path).write_bytes(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(feature_store, "save_file", full)
    with pytest.raises(ElmoError, match=r"No space left on device: free some space there, or name .*ELMOKIT_CACHE"):
        frozen_features(make_elmo(), SENTENCES, cache=tmp_path)
    assert [path.name for path in tmp_path.glob("*/*")] == [".lock"]


def test_what_cannot_fit_is_refused_before_it_is_computed(make_elmo, tmp_path, monkeypatch, computed):
    usage = type("Usage", (), {"free": 100})
    monkeypatch.setattr(feature_store.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ElmoError, match=r"need 0.0 GB in .*0.0 GB are free"):
        frozen_features(make_elmo(), SENTENCES, cache=tmp_path)
    assert not computed


def test_a_cache_that_is_a_file_is_named(make_elmo, tmp_path):
    (tmp_path / "cache").write_text("")
    with pytest.raises(ElmoError, match=r"cannot be used .*ELMOKIT_CACHE"):
        frozen_features(make_elmo(), SENTENCES, cache=tmp_path / "cache")


def test_the_oldest_are_removed_where_the_cache_grows_too_large(make_elmo, tmp_path):
    elmo, other = make_elmo(), make_elmo(seed=1)
    batches = [[("the", "bank", str(number))] for number in range(3)]
    for age, batch in zip((300, 100, 200), batches, strict=True):
        known = set(tmp_path.glob("*/*.safetensors"))
        frozen_features(elmo, batch, cache=tmp_path)
        (path,) = set(tmp_path.glob("*/*.safetensors")) - known
        os.utime(path, (1e9 - age, 1e9 - age))
    size = path.stat().st_size
    in_use = frozen_features(elmo, batches[0], cache=tmp_path)  # the oldest, now the newest
    frozen_features(other, [("the", "bank", "x")], cache=tmp_path, most_bytes=2 * size + 150)
    assert len(list(tmp_path.glob("*/*.safetensors"))) == 3
    kept = feature_store.FeatureStore(tmp_path / fingerprint(elmo), (6, 2, 12))
    digests = [features._digest(batch[0]) for batch in batches]
    assert [digest in kept.find(digests) for digest in digests] == [True, True, False]
    frozen_features(other, [("the", "bank", "y")], cache=tmp_path, most_bytes=1)
    assert not list((tmp_path / fingerprint(elmo)).glob("*.safetensors"))
    assert torch.isfinite(in_use.batch([0])[0]).all()  # mapped, though its file is gone


def test_a_fingerprint_tells_models_apart(make_elmo):
    elmo = make_elmo()
    assert fingerprint(elmo) == fingerprint(make_elmo())
    others = [make_elmo(seed=1), make_elmo(word_config()), make_elmo(tiny_config(bidirectional=False))]
    codes = [fingerprint(model) for model in (elmo, *others)] + [fingerprint(elmo, torch.float32)]
    codes.append(fingerprint(make_elmo().to(torch.bfloat16)))
    with torch.no_grad():
        elmo.bilm.forward_lstm.layers[0].bias[0] += 1e-3
    assert len({*codes, fingerprint(elmo)}) == 7


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


def test_two_at_once_compute_once(make_elmo, tmp_path, caplog):
    """A lock is between open files, so that two threads are to it what two processes are."""
    caplog.set_level("INFO")
    sentences = [("the", "bank", str(number)) for number in range(50)]
    told: list[list[int]] = [[], []]
    both, waiting = Barrier(2), Event()

    def ask(number):
        def progress(done, total):
            told[number].append(done)
            waiting.wait(timeout=20)  # until the other has found the lock taken

        both.wait(timeout=20)
        return frozen_features(make_elmo(), sentences, cache=tmp_path, progress=progress).batch(range(50))[0]

    class Heard(logging.Handler):
        def emit(self, record):
            waiting.set()

    handler = Heard()
    feature_store.log.addHandler(handler)
    try:
        with ThreadPoolExecutor(2) as pool:
            first, second = pool.map(ask, range(2))
    finally:
        feature_store.log.removeHandler(handler)
    assert "waiting" in caplog.text
    assert sorted(map(len, told)) == [0, 1]
    assert torch.equal(first, second)
    assert len(list(tmp_path.glob("*/*.safetensors"))) == 1

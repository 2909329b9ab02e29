"""Runs share a cache, at the same time or in turns: each has its own prepared text, which is prepared once."""

from __future__ import annotations

import json

import pytest

from elmokit.corpus import prepare as preparing
from elmokit.corpus.prepared import PreparedCorpus
from elmokit.pretrain import loop
from elmokit.pretrain.batches import batches_from_process
from elmokit.pretrain.loop import Training
from support.training_runs import TINY, assert_same_run, stop_at, write_text

STEPS = ("--steps", "6", "--eval-every", "3", "--heldout-fraction", "0.02")


@pytest.fixture
def train(elmo, text, tmp_path, monkeypatch):
    """Train on one of two texts with a cache for both; `train.prepared` counts the texts that were read."""
    texts = {"one": text, "two": write_text(tmp_path / "two.txt", 200, seed=1)}
    build = preparing._build

    def counted(*arguments) -> None:
        run.prepared += 1
        build(*arguments)

    def run(name: str, *options: object, output: str | None = None, cache: str = "shared"):
        stored = ("--cache", tmp_path / cache, "--output", tmp_path / (output or name))
        ended = elmo("train", texts[name], *TINY, *STEPS, *stored, *options)
        assert ended.status in (0, 143), ended.err
        return ended.status

    run.prepared = 0
    monkeypatch.setattr(preparing, "_build", counted)
    return run


def prepared(folder):
    """Where a run's corpora lie."""
    return {name: part["folder"] for name, part in json.loads((folder / "run.json").read_text())["prepared"].items()}


def test_a_run_goes_on_when_another_text_is_prepared_meanwhile(train, tmp_path, monkeypatch) -> None:
    train("one", output="alone", cache="another")
    run, waiting = Training.run, ["two"]

    def beside(training: Training) -> int:
        if waiting:  # the other run comes when this one has its corpus and has not read a batch of it
            assert train(waiting.pop()) == 0
        return run(training)

    monkeypatch.setattr(Training, "run", beside)
    monkeypatch.setattr(loop, "batches_ahead", lambda batches, device: batches_from_process(batches, pinned=False))
    assert train("one") == 0
    assert_same_run(tmp_path / "alone", tmp_path / "one")
    assert train.prepared == 3


def test_runs_in_turns(train, tmp_path, monkeypatch) -> None:
    train("one", output="alone", cache="another")
    stop_at(monkeypatch, 2, 3)
    assert [train("one"), train("two")] == [143, 143]
    assert train.prepared == 3
    monkeypatch.setattr(preparing, "_build", None)  # reading a text again would fail
    assert [train("one", "--resume"), train("two", "--resume")] == [0, 0]
    assert_same_run(tmp_path / "alone", tmp_path / "one")
    assert prepared(tmp_path / "one") != prepared(tmp_path / "two")
    assert len(list((tmp_path / "shared").iterdir())) == 2


def test_the_same_text_is_prepared_once(train, elmo, text, tmp_path) -> None:
    held_out = write_text(tmp_path / "held.txt", 20, seed=2)
    for output in ("first", "second"):
        assert train("one", "--heldout", held_out, output=output) == 0
    assert train.prepared == 2
    assert prepared(tmp_path / "first") == prepared(tmp_path / "second")
    assert len(set(prepared(tmp_path / "first").values())) == 2
    ended = elmo("vocab", text, "--cache", tmp_path / "shared", "--output", tmp_path / "vocab.txt")
    assert (ended.status, train.prepared) == (0, 2)


def test_a_cache_that_has_moved(train, tmp_path, monkeypatch) -> None:
    stop_at(monkeypatch, 2)
    assert train("one") == 143
    (tmp_path / "shared").rename(tmp_path / "moved")
    assert train("one", "--resume", cache="moved") == 0
    assert train.prepared == 1


def test_a_run_of_the_former_layout(train, tmp_path, monkeypatch) -> None:
    stop_at(monkeypatch, 2)
    assert train("one") == 143
    (now,) = prepared(tmp_path / "one").values()
    former = tmp_path / "shared" / "corpus"
    PreparedCorpus.open(now).folder.rename(former)
    record = tmp_path / "one" / "run.json"
    record.write_text(record.read_text().replace(now, str(former)))
    assert train("two") == 0, "another run does not take its place"
    assert train("one", "--resume") == 0
    assert prepared(tmp_path / "one") == {"corpus": str(former)}
    assert train.prepared == 2

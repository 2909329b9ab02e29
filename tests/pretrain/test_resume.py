"""A run that was stopped or killed at any moment and resumed is, bit for bit, the run that was not."""

from __future__ import annotations

import random
import signal
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

from elmokit import Elmo
from elmokit.errors import ElmoError
from elmokit.pretrain.checkpoints import RunFolder
from elmokit.pretrain.updates import Updates
from support.training_runs import (
    TINY,
    assert_same_run,
    assert_same_snapshot,
    best_at,
    last_snapshot,
    metrics,
    python,
    stop_at,
    timeless,
)

LENGTH = ("--steps", "13", "--eval-every", "4", "--log-every", "3", "--heldout-fraction", "0.02")
WAYS = {
    "adam, full softmax, dropout": ("--dropout", "0.3"),
    "muon": ("--optimizer", "muon", "--weight-decay", "0.1"),
    "as in the paper": (
        *("--recipe", "paper", "--loss", "sampled", "--negatives", "7", "--accumulate", "2", "--batch-size", "4"),
        *("--dropout", "0.1"),
    ),
    "some states carried, sampled, in file order": (
        *("--reset", "0.5", "--accumulate", "3", "--loss", "sampled", "--negatives", "5", "--no-shuffle"),
        *("--decay", "linear", "--weight-decay", "0.1"),
    ),
    "words, tied": ("--input", "words", "--tie-softmax", "--reset", "0", "--optimizer", "adagrad"),
    "early stop": ("--patience", "2", "--learning-rate", "3", "--clip-norm", "0"),
}


@pytest.mark.parametrize(
    "way", [*list(WAYS)[:3], *(pytest.param(way, marks=pytest.mark.slow) for way in list(WAYS)[3:])]
)
def test_a_run_stopped_several_times_equals_the_one_that_was_not(elmo, text, tmp_path, monkeypatch, way) -> None:
    command = ("train", text, *TINY, *LENGTH, *WAYS[way])
    assert elmo(*command, "--output", tmp_path / "whole").status == 0
    stop_at(monkeypatch, 1, 5, 8, 10)
    statuses = [elmo(*command, "--output", tmp_path / "stopped", "--resume").status for _ in range(5)]
    assert statuses == ([143, 143, 143, 143, 0] if way != "early stop" else statuses)
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")


@pytest.mark.parametrize("step", [4, *(pytest.param(step, marks=pytest.mark.slow) for step in (3, 12))])
def test_every_moment_to_stop_is_as_good(elmo, text, tmp_path, monkeypatch, step) -> None:
    command = ("train", text, *TINY, *LENGTH)
    assert elmo(*command, "--output", tmp_path / "whole").status == 0
    stop_at(monkeypatch, step)
    stopped = elmo(*command, "--output", tmp_path / "stopped")
    assert stopped.status == 143
    assert f"stopped at step {step}" in stopped.err
    assert last_snapshot(tmp_path / "stopped").facts["progressed"]["step"] == step
    weights = last_snapshot(tmp_path / "stopped").part("network")
    for name, value in Elmo.load(tmp_path / "stopped").bilm.state_dict().items():  # the model of this moment
        assert torch.equal(value, weights[f"bilm.{name}"]), name
    ended = elmo("train", "--output", tmp_path / "stopped", "--resume")
    assert ended.status == 0
    assert f"continuing from step {step}" in ended.err
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")


def test_another_seed_is_another_run(elmo, text, tmp_path) -> None:
    for seed in (1, 2):
        elmo("train", text, *TINY, *LENGTH, "--seed", seed, "--output", tmp_path / str(seed))
    with pytest.raises(AssertionError):
        assert_same_snapshot(last_snapshot(tmp_path / "1"), last_snapshot(tmp_path / "2"))


def test_frozen_word_vectors_are_still_frozen_after_a_resume(elmo, text, tmp_path, monkeypatch) -> None:
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("".join(f"{word} {' '.join(['0.5'] * 12)}\n" for word in ("the", "bank", "sees")))
    words = ("--input", "words", "--word-vectors", vectors, "--no-train-word-vectors")
    command = ("train", text, *TINY, *LENGTH, *words)
    assert elmo(*command, "--output", tmp_path / "whole").status == 0
    stop_at(monkeypatch, 5)
    for _ in range(2):
        elmo(*command, "--output", tmp_path / "stopped", "--resume")
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")
    table = last_snapshot(tmp_path / "stopped").tensors["network.bilm.token_encoder.words.weight"]
    assert (table == 0.5).all(dim=1).sum() == 3


def test_more_steps_go_on_from_the_end(elmo, text, tmp_path) -> None:
    steady = ("--decay", "none", "--warmup", "0", "--heldout-fraction", "0")
    command = ("train", text, *TINY, *steady, "--output", tmp_path / "run")
    assert elmo(*command, "--steps", "6").status == 0
    assert elmo(*command, "--steps", "9", "--resume").status == 0
    assert last_snapshot(tmp_path / "run").facts["progressed"]["step"] == 9
    ended = elmo("train", "--output", tmp_path / "run", "--resume")
    assert "9 updates" in ended.err, "the new length is remembered"
    elmo("train", text, *TINY, *steady, "--steps", "9", "--output", tmp_path / "whole")
    assert_same_snapshot(last_snapshot(tmp_path / "whole"), last_snapshot(tmp_path / "run"))


def test_a_stopped_early_run_goes_on_with_more_patience(elmo, text, tmp_path) -> None:
    often = ("--eval-every", "1", "--heldout-fraction", "0.02", "--learning-rate", "0")
    command = ("train", text, *TINY, *often, "--steps", "8", "--output", tmp_path / "run")
    assert "stopped early" in elmo(*command, "--patience", "2").err
    assert last_snapshot(tmp_path / "run").facts["progressed"]["step"] == 3
    ended = elmo(*command, "--patience", "4", "--resume")
    assert "stopped early" in ended.err
    assert last_snapshot(tmp_path / "run").facts["progressed"]["step"] == 5
    assert "8 updates in" in elmo(*command, "--patience", "0", "--resume").err


def test_killed_between_the_best_and_the_last_checkpoint(elmo, text, tmp_path, monkeypatch) -> None:
    command = ("train", text, *TINY, *LENGTH)
    elmo(*command, "--output", tmp_path / "whole")
    replace, calls = Path.replace, []

    def killed(path: Path, target: Path) -> Path:
        result = replace(path, target)
        if Path(target).name == "best.safetensors":
            calls.append(target)
            if len(calls) == 2:
                raise KeyboardInterrupt  # nothing that follows is done, as after a kill
        return result

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        assert elmo(*command, "--output", tmp_path / "killed").status == 130
    assert RunFolder(tmp_path / "killed").steps() == [4]
    assert elmo(*command, "--output", tmp_path / "killed", "--resume").status == 0
    assert_same_run(tmp_path / "whole", tmp_path / "killed")


CHILD = """
import sys, time
import safetensors.torch
from elmokit.corpus.prepared import CorpusBuilder
from elmokit.pretrain.updates import Updates
from elmokit.cli import main

def mark(text):
    print(text, flush=True)
    time.sleep(0.03)

def slow_save(tensors, path, metadata, save=safetensors.torch.save_file):
    save(tensors, path, metadata)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    mark("half of a checkpoint")
    path.write_bytes(whole)

def slow_update(self, step, *arguments, update=Updates.update):
    update(self, step, *arguments)
    mark(f"update {step}")

def slow_finish(self, *arguments, finish=CorpusBuilder.finish):
    mark("corpus")
    return finish(self, *arguments)

safetensors.torch.save_file, Updates.update, CorpusBuilder.finish = slow_save, slow_update, slow_finish
mark("start")
main(sys.argv[1:])
"""


def test_killed_at_random_moments(elmo, text, tmp_path) -> None:
    """SIGKILL while the corpus is written, between updates and in the middle of a checkpoint."""
    command = ("train", text, *TINY, *LENGTH, "--checkpoint-every", "2", "--dropout", "0.3")
    assert elmo(*command, "--output", tmp_path / "whole").status == 0
    child = tmp_path / "child.py"
    child.write_text(CHILD)
    draw = random.Random(3)
    moments = ["corpus", "half of a checkpoint", f"update {draw.randint(5, 7)}", None]
    seen = []
    for moment in moments:
        process = python(
            child, *command, "--output", tmp_path / "killed", "--resume", env={"ELMOKIT_CACHE": str(tmp_path / "new")}
        )
        skip = draw.randint(1, 2) if moment == "half of a checkpoint" else 0
        for line in process.stdout:
            skip -= line.strip() == moment
            if line.strip() == moment and skip < 0:
                process.send_signal(signal.SIGKILL)
        _, err = process.communicate()
        seen.append(process.returncode)
        assert "Traceback" not in err, err
    assert seen == [-9, -9, -9, 0]
    assert_same_run(tmp_path / "whole", tmp_path / "killed")
    assert not list((tmp_path / "killed" / "checkpoints").glob(".*"))


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_lets_the_update_end(elmo, text, tmp_path, monkeypatch, number, status) -> None:
    command = ("train", text, *TINY, *LENGTH)
    elmo(*command, "--output", tmp_path / "whole")
    update = Updates.update

    def signalled(updates: Updates, step: int, *arguments) -> None:
        if step == 5:
            signal.raise_signal(number)
        update(updates, step, *arguments)

    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        patch.setattr(Updates, "update", signalled)
        ended = elmo(*command, "--output", tmp_path / "run")
    assert ended.status == status
    assert "stopped at step 6; resume to continue from here" in ended.err
    assert signal.getsignal(number) is before
    assert elmo(*command, "--output", tmp_path / "run", "--resume").status == 0
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_a_second_interrupt_does_not_wait(elmo, text, tmp_path, monkeypatch) -> None:
    update = Updates.update

    def signalled(updates: Updates, step: int, *arguments) -> None:
        if step == 5:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        update(updates, step, *arguments)

    command = ("train", text, *TINY, *LENGTH, "--output", tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(Updates, "update", signalled)
        ended = elmo(*command)
    assert ended.status == 130
    assert RunFolder(tmp_path / "run").steps() == [4], "nothing was saved after the second"
    assert elmo(*command, "--resume").status == 0


@pytest.mark.skipif(sys.platform == "win32", reason="limits on files are of POSIX")
@pytest.mark.parametrize("best", [True, False])
def test_a_full_disk_loses_no_earlier_checkpoint(elmo, refused, text, tmp_path, monkeypatch, best) -> None:
    command = ("train", text, *TINY, *LENGTH, "--checkpoint-every", "3")
    elmo(*command, "--output", tmp_path / "whole")
    save = safetensors.torch.save_file
    full_at = 4 if best else 3

    def full(tensors, path, metadata) -> None:
        full.calls += 1
        if full.calls < full_at:
            return save(tensors, path, metadata)
        save(tensors, path, metadata)
        path.write_bytes(path.read_bytes()[:1000])
        raise OSError(28, "No space left on device")

    full.calls = 0
    with monkeypatch.context() as patch:
        patch.setattr(safetensors.torch, "save_file", full)
        sentence = refused(*command, "--output", tmp_path / "run", after="step 4")
    assert "No space left on device" in sentence
    folder = RunFolder(tmp_path / "run")
    assert folder.steps() == ([4, 6] if best else [3, 4])
    assert folder.best().facts["progressed"]["step"] == 4
    assert not list(folder.checkpoints.glob(".*"))
    assert elmo(*command, "--output", tmp_path / "run", "--resume").status == 0
    assert_same_run(tmp_path / "whole", tmp_path / "run")


@pytest.mark.parametrize("what", ["metrics", "tensorboard", "export"])
def test_a_full_disk_elsewhere_can_be_resumed(elmo, refused, text, tmp_path, monkeypatch, what) -> None:
    if what == "tensorboard":
        pytest.importorskip("tensorboard")
    command = ("train", text, *TINY, *LENGTH, "--tensorboard")
    if what != "tensorboard":
        command = command[:-1]
    elmo(*command, "--output", tmp_path / "whole")

    def full(self, *arguments):
        full.calls += 1
        if full.calls > 5:
            raise OSError(28, "No space left on device")
        return plain(self, *arguments)

    full.calls = 0
    with monkeypatch.context() as patch:
        if what == "metrics":
            from elmokit.pretrain.metrics import OffsetFile

            plain = OffsetFile.write
            patch.setattr(OffsetFile, "write", full)
        elif what == "tensorboard":
            from tensorboard.summary.writer.record_writer import RecordWriter

            plain = RecordWriter.write
            patch.setattr(RecordWriter, "write", full)
        else:
            from elmokit.pretrain import run as train

            def no_room(*arguments) -> None:
                raise ElmoError("model.safetensors cannot be written: No space left on device")

            patch.setattr(train, "_export", no_room)
        sentence = refused(*command, "--output", tmp_path / "run", after="training: 13 updates")
    assert "No space left on device" in sentence
    assert elmo(*command, "--output", tmp_path / "run", "--resume").status == 0
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_metrics_of_a_lost_stretch_are_written_once(elmo, text, tmp_path, monkeypatch) -> None:
    """Updates after the last checkpoint are done again; their lines are not there twice."""
    command = ("train", text, *TINY, *LENGTH, "--log-every", "1")
    elmo(*command, "--output", tmp_path / "whole")
    update = Updates.update

    def dies(updates: Updates, step: int, *arguments) -> None:
        if step == 7:
            raise KeyboardInterrupt
        update(updates, step, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Updates, "update", dies)
        elmo(*command, "--output", tmp_path / "run")
    assert metrics(tmp_path / "run")[-1]["step"] == 7
    assert RunFolder(tmp_path / "run").steps() == [4]
    elmo(*command, "--output", tmp_path / "run", "--resume")
    assert timeless(metrics(tmp_path / "run")) == timeless(metrics(tmp_path / "whole"))


def test_the_last_checkpoints_and_the_best_are_stored(elmo, text, tmp_path, monkeypatch) -> None:
    best_at(monkeypatch, 8)
    command = ("train", text, *TINY, *LENGTH, "--checkpoint-every", "1", "--keep", "3")
    assert elmo(*command, "--output", tmp_path / "run").status == 0
    folder = RunFolder(tmp_path / "run")
    assert folder.steps() == [11, 12, 13]
    held = {line["step"]: line["heldout_perplexity"] for line in metrics(folder.folder) if "heldout_perplexity" in line}
    assert held.keys() == {4, 8, 12, 13}
    assert folder.best().facts["progressed"]["step"] == 8
    assert folder.best().facts["heldout"]["mean"] == held[8]


@pytest.mark.parametrize("damage", ["a flipped bit", "half of the file"])
def test_a_damaged_newest_checkpoint_costs_only_the_updates_since_the_one_before(
    elmo, text, tmp_path, monkeypatch, damage
) -> None:
    command = ("train", text, *TINY, *LENGTH, "--checkpoint-every", "3")
    elmo(*command, "--output", tmp_path / "whole")
    stop_at(monkeypatch, 7)
    elmo(*command, "--output", tmp_path / "run")
    newest = tmp_path / "run" / "checkpoints" / "step-0000000007.safetensors"
    data = bytearray(newest.read_bytes())
    data[-9] ^= 16
    newest.write_bytes(data if damage == "a flipped bit" else data[: len(data) // 2])
    ended = elmo(*command, "--output", tmp_path / "run", "--resume")
    assert ended.status == 0
    assert ended.err.count("is damaged") == 1
    assert "continuing from step 6" in ended.err
    assert_same_run(tmp_path / "whole", tmp_path / "run")

"""The loop of updates: how long it runs, what it measures when, and what it does with numbers that are not finite."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import pytest
import torch

from elmokit import Elmo
from elmokit.pretrain import loop
from elmokit.pretrain.checkpoints import RunFolder, read_snapshot
from elmokit.pretrain.distributed import Processes
from elmokit.pretrain.loop import Training
from elmokit.pretrain.recipe import make_recipe
from elmokit.pretrain.sentences import Sentences
from elmokit.pretrain.updates import Updates
from elmokit.pretrain.windows import WindowBatches, WindowReader
from support.tiny_models import tiny_checkpoint
from support.training_models import corpus_of, network_of, random_sentences, table_of
from support.training_runs import TINY, assert_same_run, last_snapshot, metrics, write_text

HELD_OUT = ("--heldout-fraction", "0.02")


@pytest.mark.parametrize("optimizer", ["adam", "muon", "adagrad"])
def test_an_update_that_is_not_finite_is_left_out(elmo, text, tmp_path, poison, optimizer) -> None:
    poison({5})
    often = ("--checkpoint-every", "1", "--keep", "20", "--log-every", "2", "--accumulate", "2", "--reset", "0")
    run = tmp_path / "run"
    ended = elmo("train", text, *TINY, *often, *HELD_OUT, "--steps", "8", "--optimizer", optimizer, "--output", run)
    assert ended.status == 0
    assert "step 5: 1 update left out" in ended.err
    at = {step: read_snapshot(run / "checkpoints" / f"step-{step:010d}.safetensors") for step in (4, 5, 6)}
    for name, value in at[4].tensors.items():
        same = torch.equal(value, at[5].tensors[name])
        assert same == (not name.startswith("data.")), f"{name}: only the reading continues"
        assert not name.startswith(("network.", "state.")) or torch.isfinite(at[6].tensors[name]).all()
    assert not torch.equal(at[5].tensors["state.h"], at[6].tensors["state.h"])
    assert [at[step].facts["progressed"]["skipped"] for step in (4, 5, 6)] == [0, 1, 1]
    lines = metrics(run)
    assert [line["step"] for line in lines if "event" in line] == [5]
    assert all(math.isfinite(line["perplexity"]) for line in lines if "perplexity" in line)


def test_a_run_without_finite_updates_gives_up(elmo, refused, text, tmp_path, poison, monkeypatch) -> None:
    command = (
        "train",
        text,
        *TINY,
        *HELD_OUT,
        "--checkpoint-every",
        "3",
        "--steps",
        "12",
        "--output",
        tmp_path / "run",
    )
    with monkeypatch.context() as patch:
        patch.setattr(loop, "MOST_SKIPPED", 4)
        poison(set(range(5, 100)))
        sentence = refused(*command, after="step 8: 1 update left out")
    assert "4 updates in a row" in sentence
    assert "resume with a lower one" in sentence
    assert RunFolder(tmp_path / "run").steps() == [3, 6]
    monkeypatch.undo()
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))
    ended = elmo(*command, "--resume", "--learning-rate", "0.0001")
    assert ended.status == 0, "what the sentence advises can be done"
    assert max(line.get("learning_rate", 0) for line in metrics(tmp_path / "run") if line["step"] > 6) <= 1e-4


def lift_held_out(monkeypatch, calls) -> None:
    """Let the held-out perplexities of these calls, counted from 1, come out ten times as high."""
    real, count = loop.evaluate, iter(range(1, 1000))

    def lifted(*args, **options):
        found = real(*args, **options)
        return replace(found, mean=10 * found.mean) if next(count) in calls else found

    monkeypatch.setattr(loop, "evaluate", lifted)
    monkeypatch.setattr(loop, "TRAINING_ROSE", -math.inf)  # as if the loss in training had risen too


def test_a_run_that_leaves_its_way_goes_back_and_on_with_half_the_rate(elmo, text, tmp_path, monkeypatch) -> None:
    lift_held_out(monkeypatch, {3})
    often = ("--eval-every", "2", "--checkpoint-every", "2", "--keep", "9", "--log-every", "1", "--warmup", "0")
    level = ("--decay", "none", "--learning-rate", "0.01", "--steps", "9")
    ended = elmo("train", text, *TINY, *often, *level, *HELD_OUT, "--output", tmp_path / "run")
    assert ended.status == 0
    assert "the perplexity rose in training and, held out, from" in ended.err
    assert "back to the best checkpoint, with 0.5 of the rate" in ended.err
    measured = [(line["step"], line["learning_rate"]) for line in metrics(tmp_path / "run") if "learning_rate" in line]
    first = [(step, 0.01) for step in range(1, 7)]
    assert measured == first + [(step, 0.005) for step in range(5, 10)]
    assert all(line["tokens_per_second"] > 0 for line in metrics(tmp_path / "run") if "tokens_per_second" in line)
    facts = last_snapshot(tmp_path / "run").facts["progressed"]
    assert (facts["step"], facts["fall_backs"]) == (9, 1)
    assert facts["predictions"] == 9 * 24
    card = (tmp_path / "run" / "README.md").read_text("utf-8")
    assert "adam at 0.01 (0.005 after going back to the best checkpoint)" in card
    # What was read after the best is read again, as a run that was killed there would.
    monkeypatch.undo()
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))
    for step in (6, 8, 9):
        (tmp_path / "run" / "checkpoints" / f"step-{step:010d}.safetensors").unlink()
    before = read_snapshot(tmp_path / "run" / "checkpoints" / "best.safetensors")
    again = elmo("train", text, *TINY, *often, *level, *HELD_OUT, "--output", tmp_path / "run", "--resume")
    assert "continuing from step 4" in again.err
    after = last_snapshot(tmp_path / "run")
    assert after.facts["progressed"]["fall_backs"] == 1, "the checkpoint after the return knows of it"
    assert before.facts["progressed"]["step"] >= 4


def test_after_a_return_there_is_a_checkpoint_at_once(elmo, text, tmp_path, monkeypatch) -> None:
    lift_held_out(monkeypatch, {3})
    plain, there = Training._fall_back, []

    def noted(training: Training):
        found = plain(training)
        there.append((training.folder.steps(), training.folder.latest()))
        return found

    monkeypatch.setattr(Training, "_fall_back", noted)
    often = ("--eval-every", "2", "--checkpoint-every", "1", "--keep", "1", "--steps", "9")
    assert elmo("train", text, *TINY, *often, *HELD_OUT, "--output", tmp_path / "run").status == 0
    ((steps, latest),) = there
    assert steps == [4], "those after it are gone, and it is not"
    assert latest.facts["progressed"]["fall_backs"] == 1


def test_patience_that_has_ended_ends_the_run_and_needs_no_return(elmo, text, tmp_path, monkeypatch) -> None:
    lift_held_out(monkeypatch, {3})
    often = ("--eval-every", "2", "--patience", "1", "--steps", "9")
    ended = elmo("train", text, *TINY, *often, *HELD_OUT, "--output", tmp_path / "run")
    assert ended.status == 0
    assert "stopped early" in ended.err
    assert "back to the best" not in ended.err
    progress = last_snapshot(tmp_path / "run").facts["progressed"]
    assert (progress["step"], progress["stopped_early"]) == (6, True)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_return_forgets_what_was_counted_after_the_checkpoint(tmp_path, rank) -> None:
    model, corpus = tiny_checkpoint(head=True), corpus_of(random_sentences([3, 5, 2] * 5), tmp_path)
    recipe = make_recipe(changes={"batch_size": 2, "window": 4})
    reader = WindowReader(Sentences(corpus), rows=2, window=4, reset=0.5)
    read = WindowBatches(table_of(model, corpus), reader, (range(2),)).tensors()
    network, cpu = network_of(model), torch.device("cpu")
    updates = Updates(recipe, network, n_modes=2, device=cpu, processes=Processes(rank=rank))
    updates.update(0, next(read)[0], 1e-3)
    snapshot = updates.snapshot()
    snapshot.tensors = {name: value.clone() for name, value in snapshot.tensors.items()}
    updates.update(1, next(read)[0], 1e-3)
    with torch.no_grad():
        network.head.bias.fill_(math.nan)
    updates.update(2, next(read)[0], 1e-3)
    updates.restore(snapshot)
    assert updates.left_out() == (0, 0)
    assert (updates.losses()[0] > 0) == (rank == 0), "the first has the sums of all processes"


def test_overfitting_is_not_going_astray(elmo, text, tmp_path, monkeypatch) -> None:
    lift_held_out(monkeypatch, {3})
    monkeypatch.setattr(loop, "TRAINING_ROSE", 0.1)  # it has not: the text is small, and learned
    ended = elmo("train", text, *TINY, "--eval-every", "2", "--steps", "9", *HELD_OUT, "--output", tmp_path / "run")
    assert ended.status == 0
    assert "back to" not in ended.err
    assert last_snapshot(tmp_path / "run").facts["progressed"]["fall_backs"] == 0


def test_updates_without_finite_gradients_bring_back_the_best_too(elmo, text, tmp_path, poison, monkeypatch) -> None:
    monkeypatch.setattr(loop, "MOST_SKIPPED", 3)
    poison(range(5, 8), times=3)
    often = ("--eval-every", "2", "--steps", "9", "--warmup", "0")
    ended = elmo("train", text, *TINY, *often, *HELD_OUT, "--output", tmp_path / "run")
    assert ended.status == 0
    assert "3 updates in a row gave no finite gradient: back to the best checkpoint" in ended.err
    assert last_snapshot(tmp_path / "run").facts["progressed"]["step"] == 9


def test_a_run_that_goes_astray_again_and_again_gives_up(elmo, refused, text, tmp_path, monkeypatch) -> None:
    lift_held_out(monkeypatch, range(2, 1000))
    often = ("--eval-every", "2", "--steps", "9", "--output", tmp_path / "run")
    sentence = refused("train", text, *TINY, *often, *HELD_OUT, after="0.125 of the rate")
    assert "the perplexity rose in training" in sentence
    assert "resume with a lower one" in sentence
    assert RunFolder(tmp_path / "run").steps() == [2]


def test_a_run_with_a_bad_update_resumes_exactly(elmo, text, tmp_path, poison) -> None:
    poison({4, 5})
    every = ("--log-every", "3", "--steps", "9", "--checkpoint-every", "3", "--keep", "9")
    command = ("train", text, *TINY, *HELD_OUT, *every)
    elmo(*command, "--output", tmp_path / "whole")
    elmo(*command, "--output", tmp_path / "again")
    for step in (6, 9):
        (tmp_path / "again" / "checkpoints" / f"step-{step:010d}.safetensors").unlink()
    assert "continuing from step 3" in elmo(*command, "--output", tmp_path / "again", "--resume").err
    assert_same_run(tmp_path / "whole", tmp_path / "again")


@pytest.mark.parametrize(
    ("length", "steps"),
    [
        (("--steps", "7"), 7),
        (("--epochs", "0.25"), None),
        (("--steps", "7", "--epochs", "50"), 7),
        (("--steps", "5", "--minutes", "60"), 5),
    ],
)
def test_the_shortest_length_decides(elmo, text, tmp_path, length, steps) -> None:
    elmo("train", text, *TINY, *length, *HELD_OUT, "--output", tmp_path / "run")
    if steps is None:
        every = 300 // 6  # one in so many sentences is held out
        read = [line.split() for n, line in enumerate(text.read_text().splitlines(), 1) if n % every]
        steps = math.ceil(0.25 * sum(len(line) + 1 for line in read) / (4 * 6))
    assert last_snapshot(tmp_path / "run").facts["progressed"]["step"] == steps
    assert metrics(tmp_path / "run")[-1]["step"] == steps, "the last update is measured"


def test_ten_epochs_where_nothing_is_said(elmo, tmp_path) -> None:
    text = write_text(tmp_path / "few.txt", 10)
    elmo("train", text, *TINY, "--output", tmp_path / "run")
    predictions = sum(len(line.split()) + 1 for line in text.read_text().splitlines())
    assert last_snapshot(tmp_path / "run").facts["progressed"]["step"] == math.ceil(10 * predictions / 24)


def test_minutes(elmo, text, tmp_path) -> None:
    ended = elmo("train", text, *TINY, "--minutes", "0.005", *HELD_OUT, "--output", tmp_path / "run")
    assert ended.status == 0
    lines = metrics(tmp_path / "run")
    assert lines[-1]["seconds"] >= 0.3
    assert "heldout_perplexity" in lines[-1], "measured at the end"
    assert all(line["learning_rate"] > 0 for line in lines if "learning_rate" in line)


def test_early_stop(elmo, text, tmp_path) -> None:
    often = ("--eval-every", "2", "--patience", "3", "--learning-rate", "0", "--steps", "50")
    ended = elmo("train", text, *TINY, *often, *HELD_OUT, "--output", tmp_path / "run")
    assert ended.status == 0
    assert "8 updates" in ended.err
    assert "stopped early" in ended.err
    held = [line["step"] for line in metrics(tmp_path / "run") if "heldout_perplexity" in line]
    assert held == [2, 4, 6, 8]
    assert RunFolder(tmp_path / "run").best().facts["progressed"]["step"] == 2


def test_intervals(elmo, text, tmp_path) -> None:
    every = ("--eval-every", "5", "--log-every", "4", "--checkpoint-every", "3", "--keep", "99", "--learning-rate", "0")
    elmo("train", text, *TINY, *every, "--steps", "13", *HELD_OUT, "--output", tmp_path / "run")
    lines = metrics(tmp_path / "run")
    assert [line["step"] for line in lines if "loss" in line] == [1, 4, 8, 12, 13]
    assert [line["step"] for line in lines if "heldout_perplexity" in line] == [5, 10, 13]
    assert RunFolder(tmp_path / "run").steps() == [3, 5, 6, 9, 12, 13], "the best, at 5, is stored as well"


def test_losses_are_means_over_the_updates_since_the_last_line(elmo, text, tmp_path) -> None:
    command = ("train", text, *TINY, "--steps", "6", *HELD_OUT)
    elmo(*command, "--log-every", "1", "--output", tmp_path / "each")
    elmo(*command, "--log-every", "3", "--output", tmp_path / "three")
    each = {line["step"]: line["loss"] for line in metrics(tmp_path / "each") if "loss" in line}
    three = {line["step"]: line["loss"] for line in metrics(tmp_path / "three") if "loss" in line}
    assert three.keys() == {1, 3, 6}
    assert three[3] == pytest.approx((each[2] + each[3]) / 2)
    assert three[6] == pytest.approx((each[4] + each[5] + each[6]) / 3)


def test_it_learns(elmo, text, tmp_path) -> None:
    elmo("train", text, *TINY, "--steps", "150", "--learning-rate", "0.02", *HELD_OUT, "--output", tmp_path / "run")
    held = [line["heldout_perplexity"] for line in metrics(tmp_path / "run") if "heldout_perplexity" in line]
    assert held[-1] < 8, "the grammar has 20 words and about 5 choices a place"


def test_held_out_files_are_not_read_in_training(elmo, text, tmp_path) -> None:
    held = write_text(tmp_path / "held.txt", 20, seed=5)
    elmo("train", text, *TINY, "--steps", "4", "--heldout", held, "--output", tmp_path / "run")
    predictions = sum(len(line.split()) + 1 for line in held.read_text().splitlines())
    snapshot = RunFolder(tmp_path / "run").best()
    assert snapshot.facts["heldout"]["predictions"] == predictions
    epoch = metrics(tmp_path / "run")[-1]["epoch"]
    total = sum(len(line.split()) + 1 for line in text.read_text().splitlines())
    assert epoch == pytest.approx(4 * 24 / total, abs=1e-4), "an epoch is the whole text"


@pytest.mark.parametrize(
    "lines",
    [
        ["the bank sees the river ."],
        ["bank"],
        ["bank", "river", "bank bank"],
        ["x " * 900],
    ],
    ids=["one sentence", "one word", "fewer sentences than rows", "one long sentence"],
)
def test_the_smallest_corpora(elmo, tmp_path, lines) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n".join(lines) + "\n")
    ended = elmo("train", text, *TINY, "--min-count", "1", "--steps", "3", "--output", tmp_path / "run")
    assert ended.status == 0, ended.err
    assert "no text is held out" in ended.err
    assert not (tmp_path / "run" / "checkpoints" / "best.safetensors").exists()
    assert Elmo.load(tmp_path / "run").encode(["bank"])[0].shape == (1, 24)
    assert "perplexity:" not in (tmp_path / "run" / "README.md").read_text()


def test_standard_input(elmo, text, tmp_path, monkeypatch) -> None:
    command = ("train", "-", *TINY, *HELD_OUT, "--steps", "6", "--output", tmp_path / "run")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.read_bytes())))
    assert elmo(*command).status == 0
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    ended = elmo(*command, "--resume", "--steps", "8")
    assert ended.status == 0, "a resumed run has what it read"
    elmo("train", text, *TINY, *HELD_OUT, "--steps", "6", "--output", tmp_path / "file")
    kept = tmp_path / "run" / "checkpoints" / "step-0000000006.safetensors"
    assert torch.equal(
        read_snapshot(kept).tensors["network.head.weight"],
        last_snapshot(tmp_path / "file").tensors["network.head.weight"],
    )

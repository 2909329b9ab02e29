"""`elmo train --context transformer` from end to end: exact resumes and legs, what is learnt, what is refused."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.pretrain.test_distributed import assert_close, assert_same_curve, torchrun

from elmokit import Elmo
from elmokit.pretrain.checkpoints import RunFolder
from elmokit.pretrain.loop import Training
from elmokit.pretrain.network import LanguageModelNetwork
from elmokit.pretrain.objective import SegmentObjective
from support.training_runs import assert_same_snapshot, last_snapshot, metrics, stop_at, timeless

SHAPE = (
    *("--context", "transformer", "--size", "16", "--blocks", "2", "--heads", "2", "--inner-size", "24"),
    *("--softmax-size", "8", "--every", "1", "--filters", "1:4,2:8", "--character-size", "4"),
)
SMALL = (*SHAPE, "--batch-tokens", "96", "--segment-tokens", "40")
WATCHED = ("--eval-every", "4", "--log-every", "3", "--checkpoint-every", "5", "--heldout-fraction", "0.05")


def assert_same_run(left, right) -> None:
    """Two runs that ended: checkpoints, metrics and exported models are equal, bit for bit."""
    assert_same_snapshot(last_snapshot(left), last_snapshot(right))
    assert_same_snapshot(RunFolder(left).best(), RunFolder(right).best())
    assert timeless(metrics(left)) == timeless(metrics(right))
    for name in ("model.safetensors", "lm_head.safetensors", "vocab.txt", "config.json"):
        assert (left / name).read_bytes() == (right / name).read_bytes(), name


def test_stops_and_kills_change_nothing(elmo, text, tmp_path, monkeypatch) -> None:
    command = ("train", text, *SMALL, *WATCHED, "--steps", "20", "--accumulate", "2")
    assert elmo(*command, "--output", tmp_path / "whole").status == 0
    stop_at(monkeypatch, 7, 13)
    assert elmo(*command, "--output", tmp_path / "stopped").status == 143
    assert elmo(*command, "--output", tmp_path / "stopped", "--resume").status == 143
    # As after kill -9: the run continues from a checkpoint before its last update.
    (tmp_path / "stopped" / "checkpoints" / "step-0000000013.safetensors").unlink()
    assert elmo(*command, "--output", tmp_path / "stopped", "--resume").status == 0
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")
    lines = [line for line in metrics(tmp_path / "whole") if "loss" in line]
    assert {"masked_perplexity", "forward_perplexity", "backward_perplexity"} <= lines[0].keys()
    sizes = np.diff([line["tokens"] for line in metrics(tmp_path / "whole") if "heldout_masked" in line])
    assert sizes.tolist()[0] * 2 == sizes.tolist()[-1], "updates grow"


def test_a_stopped_run_may_get_the_prediction_layer(elmo, text, tmp_path, monkeypatch) -> None:
    """It changes what the model gives, not what is trained, so that it may come with a resume."""
    command = ("train", text, *SMALL, "--steps", "4", "--output", tmp_path / "run")
    stop_at(monkeypatch, 2)
    stopped = elmo(*command, "--no-prediction-layer")
    assert stopped.status == 143
    assert "stopped at 41.38% of the run" in stopped.err
    assert Elmo.load(tmp_path / "run").config.n_outputs == 3
    ended = elmo(*command, "--resume", "--prediction-layer")
    assert ended.status == 0
    assert "changed: prediction_layer False → True" in ended.err
    assert Elmo.load(tmp_path / "run").config.n_outputs == 4


def test_legs_are_the_run(elmo, refused, text, tmp_path) -> None:
    """A leg ends at a share of the run; its folder is carried to where the text has another name."""
    command = (*SMALL, *WATCHED, "--tokens", "2400")
    assert elmo("train", text, *command, "--output", tmp_path / "whole").status == 0
    first = elmo("train", text, *command, "--until", "0.3", "--output", tmp_path / "here")
    assert first.status == 0
    assert "this leg ends at 32.00% of the run" in first.err
    leg = Elmo.load(tmp_path / "here")
    assert all(
        torch.equal(value, last_snapshot(tmp_path / "here").tensors[f"network.bilm.{name}"])
        for name, value in leg.bilm.state_dict().items()
    ), "a leg gives its last weights, not its best"
    there = tmp_path / "there"
    shutil.move(tmp_path / "here", there)
    shutil.move(text, tmp_path / "moved.txt")
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "other.txt").write_text("another text\n" * 50)
    again = ("--output", there, "--resume")
    assert "no longer the text" in refused("train", tmp_path / "other.txt", *again)
    assert elmo("train", tmp_path / "moved.txt", *command, *again, "--until", "0.7").status == 0
    assert elmo("train", *again).status == 0
    assert_same_run(tmp_path / "whole", there)


def test_a_leg_from_weights_alone_continues_the_schedules(elmo, refused, text, tmp_path) -> None:
    command = ("train", text, *SMALL, "--tokens", "4608", "--log-every", "1", "--heldout-fraction", "0.05")
    assert elmo(*command, "--until", "0.5", "--output", tmp_path / "first").status == 0
    assert elmo("convert", tmp_path / "first", tmp_path / "carried", "--dtype", "float16").status == 0
    rest = ("--batch-tokens", "96", "--segment-tokens", "40", "--tokens", "4608", "--log-every", "1")
    rest = ("train", text, *rest, "--init", tmp_path / "carried", "--done", "0.5")
    assert elmo(*rest, "--heldout-fraction", "0.05", "--output", tmp_path / "second").status == 0
    before, after = ([line for line in metrics(tmp_path / name) if "loss" in line] for name in ("first", "second"))
    assert (after[0]["step"], after[0]["tokens"], after[-1]["tokens"]) == (1, 2304 + 192, 4608)
    assert after[0]["learning_rate"] < before[-1]["learning_rate"] / 2, "the rate rises again ..."
    assert after[1]["learning_rate"] == pytest.approx(before[-1]["learning_rate"], rel=0.25), "... to the schedule"
    assert after[-1]["learning_rate"] < 0.1 * after[1]["learning_rate"]
    assert after[0]["loss"] == pytest.approx(before[-1]["loss"], abs=0.3)
    assert "init" in refused("train", text, *SMALL, "--done", "0.5", "--output", tmp_path / "third")


def test_minutes_end_a_leg_and_never_move_a_schedule(elmo, text, tmp_path, monkeypatch) -> None:
    command = ("train", text, *SMALL, *WATCHED, "--epochs", "0.5")
    assert elmo(*command, "--output", tmp_path / "whole").status == 0
    plain, clock = SegmentObjective.leg_ended, iter([0.0] * 6)
    monkeypatch.setattr(SegmentObjective, "leg_ended", lambda self, done, _: plain(self, done, next(clock, 61.0)))
    assert "this leg ends" in elmo(*command, "--minutes", "1", "--output", tmp_path / "legs").err
    assert last_snapshot(tmp_path / "legs").facts["progressed"]["step"] == 6
    monkeypatch.setattr(SegmentObjective, "leg_ended", plain)
    assert elmo(*command, "--output", tmp_path / "legs", "--resume").status == 0
    assert_same_run(tmp_path / "whole", tmp_path / "legs")


def test_two_processes_are_one(elmo, text, tmp_path) -> None:
    pace = ("--segment-tokens", "40", "--steps", "8", "--log-every", "3", "--checkpoint-every", "4")
    command = ("train", text, *SHAPE, *pace, "--dropout", "0", "--heldout-fraction", "0")
    assert elmo(*command, "--batch-tokens", "128", "--output", tmp_path / "one").status == 0
    _, err, status = torchrun(tmp_path, *command, "--batch-tokens", "64", "--output", tmp_path / "two")
    assert status == 0, err
    assert_same_curve(tmp_path / "one", tmp_path / "two")
    assert_close(last_snapshot(tmp_path / "one"), last_snapshot(tmp_path / "two"))


def test_masked_words_are_learnt_from_both_sides(elmo, tmp_path) -> None:
    """Sentences are runs of a cycle of words, so that every word follows from its neighbours."""
    draw, text = random.Random(0), tmp_path / "text.txt"
    words = [f"{a}{b}" for a in "bdgklmnp" for b in ("a", "en", "ir")]
    starts = [draw.randrange(24) for _ in range(1000)]
    lines = (" ".join(words[(start + n) % 24] for n in range(draw.randint(3, 9))) for start in starts)
    text.write_text("".join(f"{line}\n" for line in lines))
    shape = ("--size", "32", "--blocks", "2", "--heads", "2", "--inner-size", "48", "--softmax-size", "32")
    parts = ("--every", "1", "--filters", "1:16,2:32", "--character-size", "8", "--dropout", "0", "--grow", "1")
    pace = ("--batch-tokens", "512", "--steps", "150", "--learning-rate", "0.02", "--heldout-fraction", "0.05")
    ended = elmo("train", text, "--context", "transformer", *shape, *parts, *pace, "--output", tmp_path / "run")
    assert ended.status == 0, ended.err
    first, *_, last = [line for line in metrics(tmp_path / "run") if "heldout_masked" in line]
    assert last["heldout_masked"] < 6 < 15 < first["heldout_masked"]
    assert last["heldout_forward"] < 5
    assert last["heldout_backward"] < 5
    found = Elmo.load(tmp_path / "run").substitutes(["ba", "ben", "bir", "la", "den", "dir"], 3, k=3)
    assert "da" in dict(found)
    assert "masked perplexity" in elmo("eval", tmp_path / "run", text).out


def test_a_run_that_goes_astray_returns_to_its_best(elmo, text, tmp_path, monkeypatch) -> None:
    plain = Training._evaluate
    calls = iter(range(100))

    def evaluate(training: Training) -> bool:
        if next(calls) == 2:  # as if the third value were far worse, and the loss had risen too
            training.progress.loss += 10
            with monkeypatch.context() as patch:
                patch.setattr(SegmentObjective, "selection_perplexity", lambda *_: 1e6)
                return plain(training)
        return plain(training)

    monkeypatch.setattr(Training, "_evaluate", evaluate)
    ended = elmo("train", text, *SMALL, *WATCHED, "--steps", "20", "--output", tmp_path / "run")
    assert ended.status == 0
    assert "back to the best checkpoint, with 0.5 of the rate" in ended.err
    assert last_snapshot(tmp_path / "run").facts["progressed"]["step"] == 20


def test_an_update_without_finite_gradients_is_left_out(elmo, text, tmp_path, monkeypatch) -> None:
    plain, calls = LanguageModelNetwork.forward, iter(range(100))

    def forward(network, *arguments):
        loss, each, after = plain(network, *arguments)
        return (loss * float("nan") if next(calls) == 3 else loss), each, after

    monkeypatch.setattr(LanguageModelNetwork, "forward", forward)
    ended = elmo("train", text, *SMALL, "--steps", "8", "--output", tmp_path / "run")
    assert "1 update left out" in ended.err
    assert last_snapshot(tmp_path / "run").facts["progressed"]["skipped"] == 1


def test_words_with_word_vectors_sampled(elmo, text, tmp_path) -> None:
    (tmp_path / "vectors.txt").write_text("".join(f"{word} {' '.join(['0.5'] * 12)}\n" for word in ("the", "bank")))
    given = ("--input", "words", "--word-size", "12", "--word-vectors", tmp_path / "vectors.txt")
    shape = [part for part in SMALL if part not in ("--filters", "1:4,2:8", "--character-size", "4")]
    kinds = ("--no-train-word-vectors", "--weight-decay", "0", "--loss", "sampled", "--negatives", "5")
    ended = elmo("train", text, *shape, *given, *kinds, "--steps", "4", "--output", tmp_path / "run")
    assert ended.status == 0, ended.err
    model = Elmo.load(tmp_path / "run")
    row = model.bilm.token_encoder.words.weight[model.vocab.index("bank") + 1]
    assert torch.equal(row, torch.full((12,), 0.5))


def test_chinese_by_character_and_fine_tuning(elmo, refused, tmp_path) -> None:
    (tmp_path / "zh.txt").write_text("银行提高了利率。河岸上有一只鸟。\n" * 40, encoding="utf-8")
    read = ("--segment", "chars", "--split", "line", "--min-count", "1")
    assert elmo("train", tmp_path / "zh.txt", *SMALL, *read, "--steps", "4", "--output", tmp_path / "zh").status == 0
    more = ("--init", tmp_path / "zh", "--steps", "3", "--batch-tokens", "96")
    ended = elmo("train", tmp_path / "zh.txt", *more, "--output", tmp_path / "more")
    assert ended.status == 0, ended.err
    assert "muon" in ended.err, "the defaults are those of the model's encoder"
    assert Elmo.load(tmp_path / "more").encode(["银行"])[0].shape == (2, 16)
    sentence = refused("train", tmp_path / "zh.txt", *more, "--context", "lstm", "--output", tmp_path / "no")
    assert "transformer" in sentence


@pytest.mark.parametrize("int8", [False, True])
def test_a_model_grows_and_is_the_same_until_it_is_trained(elmo, refused, text, tmp_path, int8) -> None:
    assert elmo("train", text, *SMALL, "--steps", "6", "--output", tmp_path / "first").status == 0
    small = tmp_path / "small"
    elmo("convert", tmp_path / "first", small, *(["--dtype", "int8"] if int8 else []))
    grow = ("train", text, "--init", small, "--blocks", "5", "--batch-tokens", "96")
    ended = elmo(*grow, "--steps", "4", "--learning-rate", "0", "--output", tmp_path / "still")
    assert ended.status == 0, ended.err
    assert "blocks: 5, grown from the 2" in ended.err
    before, after = (Elmo.load(folder, dtype="float32") for folder in (small, tmp_path / "still"))
    assert after.config.context == replace(before.config.context, n_blocks=5)
    old, new = ([model.encode([["the", "bank"]], output="layers")[0][k] for k in (0, -1)] for model in (before, after))
    np.testing.assert_array_equal(old, new)
    assert elmo(*grow, "--steps", "4", "--output", tmp_path / "run").status == 0
    again = ("train", "--resume", "--steps", "6", "--output", tmp_path / "run")
    assert elmo(*again).status == 0
    trained = Elmo.load(tmp_path / "run").bilm.context.blocks
    assert all(block.out.abs().sum() > 0 and block.down.abs().sum() > 0 for block in trained)
    for options, sentence in (
        (("--blocks", "1"), "at least the 2 of small"),
        (("--size", "15"), "size cannot be given"),
    ):
        assert sentence in refused("train", text, "--init", small, *options, "--output", tmp_path / "no")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--context", "transformer", "--softmax-size", "500"), ("--softmax-size", "--prediction-layer", "384", "500")),
        (("--context", "transformer", "--cell-size", "8"), ("--cell-size", "lstm")),
        (("--context", "transformer", "--window", "8"), ("window", "lstm")),
        (("--context", "transformer", "--batch-size", "8"), ("--batch-size", "lstm")),
        (("--context", "transformer", "--recipe", "paper"), ("paper", "transformer")),
        (("--context", "transformer", "--size", "30", "--heads", "4"), ("size", "30", "32")),
        (("--context", "transformer", "--blocks", "3"), ("blocks", "3")),
        (("--context", "transformer", "--mask", "1.3"), ("mask", "1.3")),
        (("--context", "transformer", "--causal", "0.3,0.2,0.1"), ("causal", "0.3,0.2,0.1")),
        (("--context", "transformer", "--join", "2"), ("join", "2")),
        (("--context", "transformer", "--until", "1.5"), ("until", "1.5")),
        (("--context", "transformer", "--input", "words", "--tie-softmax"), ("--tie-softmax", "256", "384")),
        (("--mask", "0.2"), ("mask", "transformer")),
        (("--blocks", "2"), ("blocks", "transformer")),
        (("--until", "0.5"), ("until", "transformer")),
    ],
)
def test_a_mistake_is_one_sentence(refused, text, tmp_path, options, said) -> None:
    sentence = refused("train", text, *options, "--output", tmp_path / "run")
    for part in said:
        assert part in sentence
    assert not (tmp_path / "run").exists()


def test_an_lstm_may_be_given_tokens(elmo, text, tmp_path) -> None:
    shape = ("--cell-size", "8", "--output-size", "6", "--filters", "1:4", "--character-size", "4")
    pace = ("--batch-size", "4", "--window", "6", "--tokens", "230")
    assert elmo("train", text, *shape, *pace, "--output", tmp_path / "run").status == 0
    assert last_snapshot(tmp_path / "run").facts["progressed"]["step"] == 10

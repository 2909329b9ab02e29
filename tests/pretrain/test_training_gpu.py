"""Training on a CUDA device against the same on the CPU; run with `pytest -m gpu` where there is one."""

from __future__ import annotations

import math

import pytest
import torch

from elmokit import Elmo
from elmokit.pretrain.checkpoints import read_snapshot
from support.training_runs import last_snapshot, metrics

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.usefixtures("full_float32"),
]
SHAPE = ("--cell-size", "64", "--output-size", "32", "--filters", "1:16,2:16,3:32", "--character-size", "8")
PACE = ("--batch-size", "8", "--window", "6", "--heldout-fraction", "0.05", "--loss", "full")
EXACT = ("--precision", "float32", "--dropout", "0")
"""Without random numbers and with float32, two devices do the same sums in another order."""


@pytest.mark.parametrize("optimizer", ["adam", "muon", "adagrad"])
def test_the_gpu_follows_the_cpu(elmo, text, tmp_path, optimizer) -> None:
    """Past the updates in which CUDA graphs are recorded, with micro-batches, and held-out passes between."""
    often = ("--accumulate", "2", "--reset", "0.5", "--eval-every", "3", "--log-every", "1", "--steps", "16")
    rate = ("--learning-rate", "0.1" if optimizer == "adagrad" else "0.003")
    for device in ("cpu", "cuda"):
        command = ("train", text, *SHAPE, *PACE, *EXACT, *often, *rate, "--optimizer", optimizer, "--device", device)
        ended = elmo(*command, "--output", tmp_path / device)
        assert ended.status == 0, ended.err
    cpu, cuda = (metrics(tmp_path / device) for device in ("cpu", "cuda"))
    assert len(cpu) == len(cuda)
    for one, other in zip(cpu, cuda, strict=True):
        for name in one.keys() & {"loss", "perplexity", "gradient_norm", "heldout_perplexity", "learning_rate"}:
            assert other[name] == pytest.approx(one[name], rel=2e-3), (name, one["step"])
    first, second = (last_snapshot(tmp_path / device) for device in ("cpu", "cuda"))
    assert first.tensors.keys() == second.tensors.keys()
    torch.testing.assert_close(first.tensors["state.h"], second.tensors["state.h"].cpu(), rtol=0.05, atol=0.01)


@pytest.mark.parametrize("optimizer", ["adam", "muon", "adagrad"])
def test_an_update_that_is_not_finite_is_left_out(elmo, text, tmp_path, poison, optimizer) -> None:
    poison({5})
    often = ("--checkpoint-every", "1", "--keep", "20", "--log-every", "2", "--accumulate", "2", "--reset", "0")
    run = tmp_path / "run"
    command = ("train", text, *SHAPE, *PACE, *often, "--steps", "8", "--optimizer", optimizer, "--device", "cuda")
    ended = elmo(*command, "--output", run)
    assert ended.status == 0, ended.err
    assert "1 update left out" in ended.err
    at = {step: read_snapshot(run / "checkpoints" / f"step-{step:010d}.safetensors") for step in (4, 5, 6)}
    for name, value in at[4].tensors.items():
        same = torch.equal(value, at[5].tensors[name])
        assert same == (not name.startswith("data.")), f"{name}: only the reading continues"
        assert not name.startswith(("network.", "state.")) or torch.isfinite(at[6].tensors[name]).all(), name
    assert not torch.equal(at[5].tensors["state.h"], at[6].tensors["state.h"])
    assert [at[step].facts["progressed"]["skipped"] for step in (4, 5, 6)] == [0, 1, 1]
    assert all(math.isfinite(line["perplexity"]) for line in metrics(run) if "perplexity" in line)


def test_a_stopped_run_goes_on_as_if_it_had_not_stopped(elmo, text, tmp_path) -> None:
    """Within rounding: sums on a GPU are not made in one order."""
    every = ("--log-every", "1", "--steps", "12", "--checkpoint-every", "6", "--keep", "9", "--accumulate", "2")
    command = ("train", text, *SHAPE, *PACE, *every, "--precision", "float32", "--dropout", "0.1", "--device", "cuda")
    elmo(*command, "--output", tmp_path / "whole")
    elmo(*command, "--output", tmp_path / "again")
    (tmp_path / "again" / "checkpoints" / "step-0000000012.safetensors").unlink()
    assert "continuing from step 6" in elmo(*command, "--output", tmp_path / "again", "--resume").err
    whole, again = ([line for line in metrics(tmp_path / run) if "loss" in line] for run in ("whole", "again"))
    assert [line["step"] for line in whole] == [line["step"] for line in again]
    for one, other in zip(whole, again, strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-4), one["step"]
    assert Elmo.load(tmp_path / "again", device="cpu").encode("the bank")[0].shape == (2, 64)


def test_bfloat16_learns(elmo, text, tmp_path) -> None:
    ended = elmo("train", text, *SHAPE, *PACE, "--steps", "60", "--device", "cuda", "--output", tmp_path / "run")
    assert ended.status == 0, ended.err
    held_out = [line["heldout_perplexity"] for line in metrics(tmp_path / "run") if "heldout_perplexity" in line]
    assert held_out[-1] < 0.7 * held_out[0]


TRANSFORMER = (
    *(
        "--context",
        "transformer",
        "--size",
        "32",
        "--blocks",
        "2",
        "--heads",
        "2",
        "--inner-size",
        "48",
        "--every",
        "1",
    ),
    *("--softmax-size", "16", "--filters", "1:16,2:16", "--character-size", "8", "--heldout-fraction", "0.05"),
    *("--batch-tokens", "256", "--segment-tokens", "40", "--log-every", "1", "--eval-every", "4"),
)


def test_a_transformer_on_the_gpu_follows_the_cpu(elmo, text, tmp_path) -> None:
    """Its blocks are compiled, its attention is in Triton, its batches come from another process."""
    for device in ("cpu", "cuda"):
        command = ("train", text, *TRANSFORMER, *EXACT, "--steps", "12", "--accumulate", "2", "--device", device)
        ended = elmo(*command, "--output", tmp_path / device)
        assert ended.status == 0, ended.err
        assert "torch.compile failed" not in ended.err
    cpu, cuda = (metrics(tmp_path / device) for device in ("cpu", "cuda"))
    assert [line.keys() for line in cpu] == [line.keys() for line in cuda]
    for one, other in zip(cpu, cuda, strict=True):
        for name in one.keys() - {"seconds", "tokens_per_second"}:
            assert other[name] == pytest.approx(one[name], rel=5e-3), (name, one["step"])


def test_a_transformer_learns_in_bfloat16(elmo, text, tmp_path) -> None:
    ended = elmo("train", text, *TRANSFORMER, "--steps", "90", "--device", "cuda", "--output", tmp_path / "run")
    assert ended.status == 0, ended.err
    held_out = [line["heldout_perplexity"] for line in metrics(tmp_path / "run") if "heldout_perplexity" in line]
    assert held_out[-1] < 0.7 * held_out[0]
    assert Elmo.load(tmp_path / "run", device="cpu").encode("the bank")[0].shape == (2, 32)

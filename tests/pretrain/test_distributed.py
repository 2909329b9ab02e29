"""Two processes of torchrun: the run of one process with the double batch, and only the first writes and speaks.

Gradients are summed in another order than in one process, so runs agree to float32's rounding, not bit for bit; and
dropout is off, since each process draws its own.
"""

from __future__ import annotations

import signal
import socket
import sys
import time
from contextlib import suppress

import pytest
import torch

from support.training_runs import SHAPE, TIMES, last_snapshot, metrics, python, stop_at

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="torchrun needs POSIX")

RECIPE = (
    *("--window", "6", "--dropout", "0", "--loss", "sampled", "--negatives", "7", "--reset", "0.5"),
    *("--heldout-fraction", "0.02", "--eval-every", "4", "--log-every", "2", "--steps", "8"),
    *("--minutes", "60"),  # far away, and yet all processes must agree on the time
)


def torchrun(tmp_path, *arguments: object, interrupt_after: int = 0) -> tuple[str, str, int]:
    """Run a command in two processes, with a Ctrl-C once an update is logged: stdout, stderr, status."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1")
    process = python(
        *launcher, "--master-port", port, "-m", "elmokit", *arguments, env={"ELMOKIT_CACHE": str(tmp_path / "cache")}
    )
    try:
        while interrupt_after and process.poll() is None:
            with suppress(ValueError):  # half a line
                if metrics(tmp_path / "two")[-1]["step"] >= interrupt_after:
                    process.send_signal(signal.SIGINT)
                    break
            time.sleep(0.02)
        out, err = process.communicate(timeout=600)
        return out, err, process.returncode
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


def assert_close(left, right) -> None:
    """Rounding differs by about 1e-7 an update and Adam passes on the sign of small numbers, not their size."""
    for name, value in left.tensors.items():
        if name.startswith(("network.", "data.", "metrics.", "optimizer.")):
            torch.testing.assert_close(
                value, right.tensors[name], rtol=2e-3, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}"
            )
    assert left.facts["next_place"] == right.facts["next_place"]


def assert_same_curve(left, right) -> None:
    left, right = metrics(left), metrics(right)
    assert [line["step"] for line in left] == [line["step"] for line in right]
    for one, other in zip(left, right, strict=True):
        assert one.keys() == other.keys()
        for name in one.keys() - set(TIMES):
            assert one[name] == pytest.approx(other[name], rel=1e-4), (one["step"], name)


def test_two_processes_are_one_with_the_double_batch(elmo, text, tmp_path) -> None:
    command = ("train", text, *SHAPE, *RECIPE, "--accumulate", "2")
    assert elmo(*command, "--batch-size", "6", "--output", tmp_path / "one").status == 0
    out, err, status = torchrun(tmp_path, *command, "--batch-size", "3", "--output", tmp_path / "two")
    assert status == 0, err
    assert not out
    assert err.count("done: 8 updates") == 1, "the first process alone speaks"
    assert_same_curve(tmp_path / "one", tmp_path / "two")
    assert_close(last_snapshot(tmp_path / "one"), last_snapshot(tmp_path / "two"))
    states = last_snapshot(tmp_path / "two").tensors["state.h"]
    assert states.shape[:2] == (2, 2), "micro-batches, processes"
    single = last_snapshot(tmp_path / "one").tensors["state.h"][:, 0]
    torch.testing.assert_close(torch.cat([states[:, 0], states[:, 1]], dim=3), single, rtol=2e-3, atol=2e-5)
    card = (tmp_path / "two" / "README.md").read_text("utf-8")
    assert "2 processes" in card

    # The last checkpoint of two processes is continued by one process that has all rows.
    ended = elmo(*command, "--batch-size", "6", "--steps", "12", "--output", tmp_path / "two", "--resume")
    assert ended.status == 0, ended.err
    elmo(*command, "--batch-size", "6", "--steps", "12", "--output", tmp_path / "one", "--resume")
    assert_same_curve(tmp_path / "one", tmp_path / "two")
    assert_close(last_snapshot(tmp_path / "one"), last_snapshot(tmp_path / "two"))


def test_a_run_of_one_process_goes_on_in_two_that_are_interrupted(elmo, text, tmp_path, monkeypatch) -> None:
    command = ("train", text, *SHAPE, *RECIPE, "--reset", "0", "--steps", "2000", "--optimizer", "adagrad")
    stop_at(monkeypatch, 5)
    assert elmo(*command, "--batch-size", "4", "--output", tmp_path / "two").status == 143
    two = (*command, "--batch-size", "2", "--output", tmp_path / "two", "--resume")
    _, err, status = torchrun(tmp_path, *two, interrupt_after=6)
    assert status
    assert err.count("resume to continue from here") == 1
    stopped = last_snapshot(tmp_path / "two")
    step = stopped.facts["progressed"]["step"]
    assert step > 5
    assert f"stopped at step {step:,};" in err
    stop_at(monkeypatch, step)
    elmo(*command, "--batch-size", "4", "--output", tmp_path / "one")
    assert_same_curve(tmp_path / "one", tmp_path / "two")
    assert_close(last_snapshot(tmp_path / "one"), stopped)


def test_two_processes_go_back_together_and_give_up_together(text, tmp_path) -> None:
    steep = ("--learning-rate", "30", "--warmup", "0.5", "--eval-every", "1", "--checkpoint-every", "1", "--keep", "1")
    command = ("train", text, *SHAPE, *RECIPE, *steep, "--batch-size", "2", "--device", "cpu", "--workers", "1")
    _, err, status = torchrun(tmp_path, *command, "--output", tmp_path / "run")
    assert status
    assert err.count("back to the best checkpoint, with 0.125 of the rate") == 1
    assert err.count("elmo: ") == 1
    assert "the perplexity rose in training" in err.partition("elmo: ")[2]
    assert last_snapshot(tmp_path / "run").facts["progressed"]["fall_backs"] == 3


def test_a_mistake_is_said_once(tmp_path) -> None:
    _, err, status = torchrun(tmp_path, "train", tmp_path / "gone.txt", *SHAPE, "--output", tmp_path / "run")
    assert status
    assert err.count("elmo: ") == 1
    assert "gone.txt was not found" in err
    assert not (tmp_path / "run").exists()

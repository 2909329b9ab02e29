"""Runs of `elmo train` small enough for a test, and what is in their folders."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from elmokit.pretrain import loop
from elmokit.pretrain.checkpoints import RunFolder, Snapshot
from elmokit.pretrain.evaluate import HeldOutPerplexity, evaluate
from elmokit.pretrain.loop import Training

SHAPE = ("--cell-size", "24", "--output-size", "12", "--filters", "1:4,2:8", "--character-size", "4")
PACE = ("--batch-size", "4", "--window", "6")
TINY = (*SHAPE, *PACE)
TIMES = ("seconds", "tokens_per_second")
"""What two equal runs differ in."""

_NOUNS = ["bank", "river", "dog", "bird", "house", "tree", "naïve", "日本語"]
_VERBS = ["sees", "likes", "finds", "hears"]


class FinishedRun(NamedTuple):
    """How a command ended."""

    status: int
    out: str
    err: str


Command = Callable[..., FinishedRun]


def sentences(count: int, seed: int = 0) -> list[str]:
    """Sentences of a random grammar, 1 to 12 words long."""
    draw = random.Random(seed)

    def noun() -> str:
        return f"the {draw.choice(['', 'old ', 'big '])}{draw.choice(_NOUNS)}"

    def sentence() -> str:
        if draw.random() < 0.05:
            return draw.choice(_NOUNS)
        tail = f" and {noun()} {draw.choice(_VERBS)} it" if draw.random() < 0.3 else ""
        return f"{noun()} {draw.choice(_VERBS)} {noun()}{tail} ."

    return [sentence() for _ in range(count)]


def write_text(path: Path, count: int = 300, seed: int = 0) -> Path:
    path.write_text("".join(f"{line}\n" for line in sentences(count, seed)), encoding="utf-8")
    return path


def stop_at(monkeypatch, *steps: int) -> None:
    """Let the next runs stop as a polite kill would stop them: one at each of these steps, the one after at none."""
    left = list(steps)

    def stop_requested(training: Training) -> bool:
        if left and training.progress.step >= left[0]:
            del left[0]
            training.stop_signals.signal = 15
        return bool(training.stop_signals.signal)

    monkeypatch.setattr(Training, "_stop_requested", stop_requested)


def best_at(monkeypatch, step: int) -> None:
    """Let held-out perplexities be as they are at one step, and far worse at all others."""
    plain = Training._evaluate

    def evaluate_at(training: Training) -> bool:
        def spoiled(*arguments: Any, **named: Any) -> HeldOutPerplexity:
            result = evaluate(*arguments, **named)
            return result if training.progress.step == step else replace(result, mean=1e6 * result.mean)

        with monkeypatch.context() as patch:
            patch.setattr(loop, "evaluate", spoiled)
            return plain(training)

    monkeypatch.setattr(Training, "_evaluate", evaluate_at)
    monkeypatch.setattr(loop, "DIVERGED", math.inf)


def last_snapshot(folder: Path) -> Snapshot:
    snapshot = RunFolder(folder).latest()
    assert snapshot is not None
    return snapshot


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]


def timeless(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name not in TIMES} for line in lines]


def assert_same_snapshot(left: Snapshot, right: Snapshot) -> None:
    """Bit for bit: weights, optimiser, LSTM states, data position, sums; all numbers but the time."""
    assert left.tensors.keys() == right.tensors.keys()
    for name, value in left.tensors.items():
        assert torch.equal(value, right.tensors[name]), name
    facts = [{**s.facts, "progressed": {**s.facts["progressed"], "seconds": 0}} for s in (left, right)]
    assert facts[0] == facts[1]


def assert_same_run(left: Path, right: Path) -> None:
    """Two runs that ended: checkpoints, metrics and exported models are equal."""
    assert_same_snapshot(last_snapshot(left), last_snapshot(right))
    best = [RunFolder(folder).best() for folder in (left, right)]
    assert (best[0] is None) == (best[1] is None)
    if best[0] and best[1]:
        assert_same_snapshot(best[0], best[1])
    assert timeless(metrics(left)) == timeless(metrics(right))
    for name in ("model.safetensors", "lm_head.safetensors", "vocab.txt", "config.json", "bilm/weights.hdf5"):
        assert (left / name).read_bytes() == (right / name).read_bytes(), name


def python(*arguments: object, **changes: Any) -> subprocess.Popen[str]:
    """A Python of its own, with one thread, its stderr in a pipe."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **changes.pop("env", {})}
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        **changes,
    )

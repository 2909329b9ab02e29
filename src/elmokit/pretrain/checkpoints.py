"""The folder of a training run: what it was asked to do, and checkpoints that survive a kill at any moment.

| file | contains |
| --- | --- |
| run.json | the options, the corpus and the command that began the run |
| checkpoints/step-N.safetensors | everything that the update after N depends on |
| checkpoints/best.safetensors | the one with the lowest held-out perplexity |
| metrics.jsonl, curve.png, tensorboard/ | how it went |
| config.json, model.safetensors, … | the trained model, once the run has ended |
| bilm/ | the same as options.json and weights.hdf5 |
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from elmokit.errors import ElmoError
from elmokit.storage.atomic import disk_errors, sync, temporary_name, write_tensors, write_text
from elmokit.storage.cache import remove_leftovers
from elmokit.storage.locks import try_lock

FORMAT, VERSION = "elmokit-training", 1
_STEP = re.compile(r"step-(\d+)\.safetensors")


@dataclass
class Snapshot:
    """A moment of training: tensors by name, and facts for JSON."""

    tensors: dict[str, Tensor]
    """`network.*`, `optimizer.*`, `state.*`, `data.*`, `metrics.*`."""
    facts: dict[str, Any] = field(default_factory=dict)
    """The step and all other numbers."""

    def part(self, name: str) -> dict[str, Tensor]:
        """The tensors whose names begin with `name.`, without that beginning."""
        return {
            key.removeprefix(f"{name}."): value for key, value in self.tensors.items() if key.startswith(f"{name}.")
        }


@dataclass
class RunProgress:
    """How far a run is; stored in every checkpoint."""

    step: int = 0
    predictions: int = 0
    """Tokens that were read, over all processes; in windows the predictions of one direction."""
    seconds: float = 0.0
    best: float = math.inf
    """The lowest held-out perplexity."""
    best_step: int = 0
    best_loss: float = math.inf
    """The loss in training at that time."""
    loss: float = math.inf
    """The last one that was measured."""
    since_best: int = 0
    """Held-out perplexities since then."""
    skipped: int = 0
    """Updates that were left out because a gradient was not finite."""
    stopped_early: bool = False
    fall_backs: int = 0
    """Returns to the best checkpoint."""

    @property
    def rate_share(self) -> float:
        """The factor of the learning rate after them."""
        return 0.5**self.fall_backs


class RunFolder:
    """Reads and writes the files of a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self.metrics = folder / "metrics.jsonl"

    @property
    def started(self) -> bool:
        """Whether a run was begun here."""
        return (self.folder / "run.json").is_file()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One training at a time in a folder."""
        with disk_errors(self.folder):
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            try:
                lock = try_lock(self.folder / ".lock")
            except BlockingIOError as error:
                raise ElmoError(
                    f"another process is training in {self.folder}: wait for it or choose another"
                ) from error
        try:
            remove_leftovers(self.checkpoints, alone=True)
            yield
        finally:
            if not self.started:  # a mistake was found: leave nothing in a folder of other things
                with suppress(OSError):
                    lock.path.unlink()
                    self.checkpoints.rmdir()
                    self.folder.rmdir()
            lock.release()

    def write_request(self, values: dict[str, Any]) -> None:
        """Store what the run was asked to do."""
        write_text(self.folder / "run.json", json.dumps(values, indent=2, ensure_ascii=False) + "\n")

    def read_request(self) -> dict[str, Any]:
        """What the run was asked to do."""
        path = self.folder / "run.json"
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ElmoError(f"{path} cannot be read ({error}): start a new run in another folder") from error
        if not isinstance(values, dict) or values.get("version") != VERSION:
            raise ElmoError(f"{path} was written by another version of elmokit: start a new run in another folder")
        return values

    def save(self, snapshot: Snapshot, *, step: int, keep: int, best: bool) -> None:
        """Write a checkpoint, then remove the oldest and those of later steps, which a run that went back left.

        If the disk is full, the earlier ones stay.
        """
        path = self.checkpoints / f"step-{step:010d}.safetensors"
        if best:
            # The best first: a run killed between the two resumes before it and finds it again. In the other order it
            # would resume from a checkpoint that is the best by its own account, and the file would stay missing.
            write_snapshot(self.checkpoints / "best.safetensors", snapshot)
            self._name_again(self.checkpoints / "best.safetensors", path, snapshot)
        else:
            write_snapshot(path, snapshot)
        steps = self.steps()
        later, earlier = [n for n in steps if n > step], [n for n in steps if n <= step]
        for dropped in (*later, *earlier[:-keep]):
            (self.checkpoints / f"step-{dropped:010d}.safetensors").unlink(missing_ok=True)

    def _name_again(self, written: Path, path: Path, snapshot: Snapshot) -> None:
        """Give a file a second name: nothing more to write, and nothing that could be incomplete."""
        link = temporary_name(path)
        try:
            os.link(written, link)
            link.replace(path)
            sync(self.checkpoints)
        except OSError:  # a file system without hard links
            write_snapshot(path, snapshot)
        finally:
            link.unlink(missing_ok=True)

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, rising."""
        if not self.checkpoints.is_dir():
            return []
        found = (_STEP.fullmatch(path.name) for path in self.checkpoints.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def latest(self) -> Snapshot | None:
        """The last checkpoint, or None where there is none yet."""
        steps = self.steps()
        return read_snapshot(self.checkpoints / f"step-{steps[-1]:010d}.safetensors") if steps else None

    def best(self) -> Snapshot | None:
        """The checkpoint with the lowest held-out perplexity, or None where none was measured."""
        path = self.checkpoints / "best.safetensors"
        return read_snapshot(path) if path.is_file() else None


def write_snapshot(path: Path, snapshot: Snapshot) -> None:
    """Write one safetensors file, completely or not at all."""
    facts = {"format": FORMAT, "version": VERSION, **snapshot.facts}
    errors = partial(disk_errors, advice="the checkpoints before it are complete, so free some space and resume")
    write_tensors(path, snapshot.tensors, {"elmokit": json.dumps(facts)}, errors)


def read_snapshot(path: Path) -> Snapshot:
    """A checkpoint of a run."""
    try:
        with safe_open(path, "pt") as file:
            facts = json.loads((file.metadata() or {}).get("elmokit", "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise ElmoError(
            f"{path} is not a complete checkpoint ({error}): remove it to resume from the one before"
        ) from error
    if not isinstance(facts, dict) or facts.get("format") != FORMAT or facts.get("version") != VERSION:
        raise ElmoError(f"{path} is not a training checkpoint of this version of elmokit")
    return Snapshot(tensors, facts)


def state_dict_of(module: torch.nn.Module, prefix: str) -> dict[str, Tensor]:
    """A module's weights with a prefix to their names."""
    return {f"{prefix}.{name}": value for name, value in module.state_dict().items()}

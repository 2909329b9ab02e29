"""The folder of a training run: its request, and checkpoints that stay valid if the run is killed at any moment.

| file | contains |
| --- | --- |
| run.json | the options, the corpus and the command that began the run |
| checkpoints/step-N.safetensors | the state after N updates, complete for an exact resume |
| checkpoints/best.safetensors | the checkpoint with the lowest held-out perplexity |
| metrics.jsonl, curve.png, tensorboard/ | losses, perplexities and events |
| config.json, model.safetensors, … | the trained model, once the run has ended or was stopped by a signal |
| bilm/ | the same model as options.json and weights.hdf5 |
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from elmokit.errors import ElmoError
from elmokit.storage.atomic import atomic_file, disk_errors, write_tensors, write_text
from elmokit.storage.cache import remove_leftovers
from elmokit.storage.locks import try_lock

FORMAT, VERSION = "elmokit-training", 1
_STEP = re.compile(r"step-(\d+)\.safetensors")


@dataclass
class Snapshot:
    """The state of a run at one step: tensors by name, and values for JSON."""

    tensors: dict[str, Tensor]
    """`network.*`, `optimizer.*`, `state.*`, `data.*`, `metrics.*`."""
    facts: dict[str, Any] = field(default_factory=dict)
    """The progress of the run and all other values that are not tensors."""

    @property
    def step(self) -> int:
        """Number of updates so far."""
        return int(self.facts["progressed"]["step"])

    def part(self, name: str) -> dict[str, Tensor]:
        """The tensors whose names begin with `name.`, with this prefix removed."""
        start = f"{name}."
        return {key.removeprefix(start): value for key, value in self.tensors.items() if key.startswith(start)}


@dataclass
class RunProgress:
    """How far a run is; stored in every checkpoint."""

    step: int = 0
    predictions: int = 0
    """Tokens read by all processes; for windows, the predictions of one direction."""
    seconds: float = 0.0
    best: float = math.inf
    """The lowest held-out perplexity."""
    best_step: int = 0
    best_loss: float = math.inf
    """The training loss at `best_step`."""
    loss: float = math.inf
    """The last training loss that was measured."""
    since_best: int = 0
    """Number of held-out perplexities measured since `best_step`."""
    skipped: int = 0
    """Updates that were skipped because a gradient was not finite."""
    stopped_early: bool = False
    fall_backs: int = 0
    """Number of returns to the best checkpoint."""

    @property
    def rate_factor(self) -> float:
        """The factor of the learning rate: each return to the best checkpoint halves it."""
        return 0.5**self.fall_backs


class RunFolder:
    """Reads and writes the files of a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self.metrics = folder / "metrics.jsonl"

    @property
    def started(self) -> bool:
        """Whether a run has begun in this folder."""
        return (self.folder / "run.json").is_file()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder, so that only one process trains in it."""
        with disk_errors(self.folder):
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            try:
                lock = try_lock(self.folder / ".lock")
            except BlockingIOError as error:
                raise ElmoError(
                    f"another process is training in {self.folder}: wait for it, or choose another output"
                ) from error
        try:
            remove_leftovers(self.checkpoints, locked=True)
            yield
        finally:
            if not self.started:  # the request was refused: leave no traces in the user's folder
                with suppress(OSError):
                    lock.path.unlink()
                    self.checkpoints.rmdir()
                    self.folder.rmdir()
            lock.release()

    def write_request(self, values: dict[str, Any]) -> None:
        """Store the request of the run."""
        write_text(self.folder / "run.json", json.dumps(values, indent=2, ensure_ascii=False) + "\n")

    def read_request(self) -> dict[str, Any]:
        """The request of the run."""
        path = self.folder / "run.json"
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ElmoError(f"{path} cannot be read ({error}): start a new run in another folder") from error
        if not isinstance(values, dict) or values.get("version") != VERSION:
            raise ElmoError(f"{path} was written by another version of elmokit: start a new run in another folder")
        return values

    def save(self, snapshot: Snapshot, *, step: int, keep: int, best: bool) -> None:
        """Write a checkpoint, then remove the oldest ones and those of later steps.

        Later steps exist after a return to the best checkpoint. If the disk is full, the earlier checkpoints stay.
        """
        path = self._path(step)
        if best:
            # The best first: a run killed between the two writes resumes at an earlier step and writes the best again.
            # In the other order it would resume at the best step, and best.safetensors would stay missing.
            write_snapshot(self._best, snapshot)
            with atomic_file(
                path, _errors
            ) as temporary:  # a copy, not a link: damage to one file leaves the other intact
                shutil.copyfile(self._best, temporary)
        else:
            write_snapshot(path, snapshot)
        steps = self.steps()
        later, earlier = [n for n in steps if n > step], [n for n in steps if n <= step]
        for dropped in (*later, *earlier[:-keep]):
            self._path(dropped).unlink(missing_ok=True)

    @property
    def _best(self) -> Path:
        return self.checkpoints / "best.safetensors"

    def _path(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:010d}.safetensors"

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, in ascending order."""
        if not self.checkpoints.is_dir():
            return []
        found = (_STEP.fullmatch(path.name) for path in self.checkpoints.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def latest(self, report: Callable[[str], None] | None = None) -> Snapshot | None:
        """The last undamaged checkpoint, or None if there is none yet; `report` gets a sentence about a damaged one."""
        snapshot, damage = None, ""
        for step in reversed(self.steps()):
            try:
                snapshot = read_snapshot(self._path(step))
                break
            except ElmoError as error:
                damage = damage or str(error)
        if not damage:
            return snapshot
        with suppress(ElmoError):
            best = self.best()
            if best is not None and (snapshot is None or best.step > snapshot.step):
                snapshot = best
        if snapshot is None:
            raise ElmoError(f"{damage}, and no other checkpoint is intact: start a new run in another folder")
        if report is not None:
            report(f"{damage}: the run continues from the checkpoint of step {snapshot.step:,}")
        return snapshot

    def best(self) -> Snapshot | None:
        """The checkpoint with the lowest held-out perplexity, or None if none was measured."""
        return read_snapshot(self._best) if self._best.is_file() else None


_errors = partial(disk_errors, advice="earlier checkpoints are complete, so free some space and resume")


def write_snapshot(path: Path, snapshot: Snapshot) -> None:
    """Write one safetensors file with a checksum of its contents, completely or not at all."""
    facts = json.dumps({"format": FORMAT, "version": VERSION, **snapshot.facts})
    tensors = {name: value.detach().cpu().contiguous() for name, value in snapshot.tensors.items()}
    write_tensors(path, tensors, {"elmokit": facts, "sha256": _checksum(facts, tensors)}, _errors)


def read_snapshot(path: Path) -> Snapshot:
    """Read a checkpoint and verify its checksum."""
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        facts = json.loads(metadata.get("elmokit", "null"))
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise ElmoError(f"the checkpoint {path} is damaged ({error})") from error
    if not isinstance(facts, dict) or facts.get("format") != FORMAT or facts.get("version") != VERSION:
        raise ElmoError(f"{path} is not a training checkpoint of this version of elmokit")
    if metadata.get("sha256") != _checksum(metadata["elmokit"], tensors):
        raise ElmoError(f"the checkpoint {path} is damaged (its checksum differs)")
    return Snapshot(tensors, facts)


def _checksum(facts: str, tensors: Mapping[str, Tensor]) -> str:
    """The SHA-256 of everything in a checkpoint."""
    digest = hashlib.sha256(facts.encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def state_dict_of(module: torch.nn.Module, prefix: str) -> dict[str, Tensor]:
    """A module's weights, with a prefix added to their names."""
    return {f"{prefix}.{name}": value for name, value in module.state_dict().items()}

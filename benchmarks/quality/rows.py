"""The rows of the table, from tasks.toml, and the paths of their files."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from elmokit.errors import ElmoError

TABLE = Path(__file__).with_name("tasks.toml")
PROBES = ("pos", "wsd", "wic")
T = TypeVar("T")
_PACKED_TIMES = 4
_PACKINGS = ("", ".xz", ".gz", ".bz2", ".zst")


@dataclass(frozen=True)
class Row:
    """One task."""

    name: str
    title: str
    kind: Literal["pos", "wsd", "wic", "classify", "tag", "pair"]
    metric: str
    train: str
    """The training file inside the data folder, without .xz and the like."""
    dev: str = ""
    """The development file, in the folder of the test file; empty means the last fifth of `train`."""
    language: Literal["en", "zh"] = "en"
    columns: dict[str, str] = field(default_factory=dict)
    """Arguments of the reader that name columns."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the head, see elmokit.tasks.options."""

    @property
    def is_probe(self) -> bool:
        """Whether the row is a probe of frozen vectors, without a network of elmokit.tasks."""
        return self.kind in PROBES

    def files(self, data: Path, split: Literal["dev", "test"]) -> dict[str, list[Path]]:
        """The files by "train", "dev" and "measured", which is the test file, or the dev file again."""
        train, dev = find(data / self.train), find(data / self.dev) if self.dev else None
        reference = data / (self.dev or self.train)
        folder, suffix = reference.parent, reference.suffix
        tests = [
            path for path in sorted(folder.glob("test*")) if path.name.endswith(tuple(suffix + p for p in _PACKINGS))
        ]
        for name, path in ((self.train, train), (self.dev, dev)) if self.dev else ((self.train, train),):
            # A probe does not train on the dev file, so it does not need one for the test split.
            if path is None and not (name == self.dev and self.is_probe and split == "test"):
                raise ElmoError(f"{data / name} does not exist")
        measured = tests if split == "test" and tests else [dev] if dev else []
        if split == "test" and not tests:
            raise ElmoError(f"{folder} has no test file")
        return {"train": [train] if train else [], "dev": [dev] if dev else [], "measured": measured}

    def divided(self, train: Sequence[T], dev: Sequence[T], measured: Sequence[T]) -> tuple[Sequence[T], ...]:
        """The three sets of examples; without a development file, the last fifth of `train` is the development set."""
        if self.dev:
            return train, dev, measured
        cut = len(train) * 4 // 5
        return train[:cut], train[cut:], measured or train[cut:]

    def size(self, data: Path) -> int:
        """The approximate size of the unpacked training file in bytes."""
        path = find(data / self.train)
        if path is None:
            return 0
        return path.stat().st_size * (_PACKED_TIMES if path.suffix in _PACKINGS else 1)


def find(path: Path) -> Path | None:
    """The file, plain or packed."""
    return next((found for packing in _PACKINGS if (found := Path(f"{path}{packing}")).is_file()), None)


def read_rows(path: Path = TABLE) -> dict[str, Row]:
    """The rows by name."""
    with path.open("rb") as file:
        return {name: Row(name=name, **facts) for name, facts in tomllib.load(file).items()}

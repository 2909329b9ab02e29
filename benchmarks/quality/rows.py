"""The rows of the table as tasks.toml has them, and where their files lie."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from elmokit.errors import ElmoError

TABLE = Path(__file__).with_name("tasks.toml")
PROBES = ("pos", "wsd", "wic")
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
    dev: str
    """The development file; the test file is in the same folder."""
    language: Literal["en", "zh"] = "en"
    columns: dict[str, str] = field(default_factory=dict)
    """Arguments of the reader that name columns."""
    options: dict[str, Any] = field(default_factory=dict)
    """Of the head: see elmokit.tasks.options."""

    @property
    def is_probe(self) -> bool:
        """Whether the vectors are looked into as they are, without a network of elmokit.tasks."""
        return self.kind in PROBES

    def files(self, data: Path, split: Literal["dev", "test"]) -> dict[str, list[Path]]:
        """The files of "train", "dev" and what is measured on ("test", or the dev file again)."""
        train, dev = find(data / self.train), find(data / self.dev)
        folder, suffix = (data / self.dev).parent, Path(self.dev).suffix
        tests = [
            path for path in sorted(folder.glob("test*")) if path.name.endswith(tuple(suffix + p for p in _PACKINGS))
        ]
        for name, path in ((self.train, train), (self.dev, dev)):
            # A probe learns nothing from the dev file, so that it can do without one.
            if path is None and not (name == self.dev and self.is_probe and split == "test"):
                raise ElmoError(f"{data / name} is not there")
        measured = tests if split == "test" and tests else [dev] if dev else []
        if split == "test" and not tests:
            raise ElmoError(f"{folder} has no test file")
        return {"train": [train] if train else [], "dev": [dev] if dev else [], "measured": measured}

    def size(self, data: Path) -> int:
        """About how many bytes the training file has, unpacked."""
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

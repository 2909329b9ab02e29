"""Tables of what was measured: a row a quantity, a column a system, as Markdown for readers and JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from elmokit.storage.atomic import write_text


@dataclass(frozen=True)
class Row:
    """One quantity of all systems."""

    what: str
    unit: str
    better: Literal["less", "more"]
    values: dict[str, float]
    """By column; a system that was not measured is not there."""
    key: str = ""
    """What programs know it by."""


@dataclass(frozen=True)
class Table:
    """Rows under a title; ratios are against the column `peer`."""

    title: str
    columns: Mapping[str, str]
    """Names of columns and what to call them; one that begins with "floor" has no ratio."""
    rows: Sequence[Row]
    peer: str
    notes: Sequence[str] = ()
    absent: Mapping[str, str] = field(default_factory=dict)
    """Columns that were not measured, and why."""
    against: Mapping[str, str] = field(default_factory=dict)
    """Columns whose ratio is against another column than `peer`."""

    def markdown(self) -> str:
        """The table with a ratio behind every figure that has one."""
        head = ["", *self.columns.values()]
        lines = [head, ["---", *["---:"] * len(self.columns)]]
        lines += [[f"{row.what}, {row.unit}", *(self._cell(row, name) for name in self.columns)] for row in self.rows]
        parts = [f"### {self.title}", "\n".join("| " + " | ".join(line) + " |" for line in lines)]
        missing = [f"- {self.columns.get(name, name)} was not measured: {why}" for name, why in self.absent.items()]
        others = [f", of {self.columns[name]} to {self.columns[base]}" for name, base in self.against.items()]
        ratios = [f"- ratios are to {self.columns[self.peer]}{''.join(others)}"] if others else []
        if self.notes or missing or ratios:
            parts.append("\n".join([*ratios, *(f"- {note}" for note in self.notes), *missing]))
        return "\n\n".join(parts)

    def _cell(self, row: Row, name: str) -> str:
        value = row.values.get(name)
        if value is None:
            return "—"
        base = row.values.get(self.against.get(name, self.peer))
        if name == self.peer or name.startswith("floor") or not base or not value:
            return shown(value)
        ratio = base / value if row.better == "less" else value / base
        return f"{shown(value)} ({times(ratio)})"


def times(ratio: float) -> str:
    """How many times as fast, in as many digits as tell something."""
    return f"{ratio:.{0 if ratio >= 20 else 1 if ratio >= 2 else 2}f} ×"


def shown(value: float) -> str:
    """Three digits, and a comma between thousands."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.4f}"


def report(
    tables: Sequence[Table], command: str, facts: Mapping[str, str], peaks: str, agreement: Sequence[str]
) -> str:
    """All tables of a run with what a reader needs to believe them."""
    machine = "; ".join(f"{name} {value}" for name, value in facts.items())
    head = [f"`{command}`", f"{machine}; {peaks}.", "Before anything was timed: " + "; ".join(agreement) + "."]
    return "\n\n".join([*head, *(table.markdown() for table in tables)]) + "\n"


def save(path: Path, text: str, **found: Any) -> None:  # noqa: ANN401 - whatever JSON can hold
    """Write FILE.md, and the figures as FILE.json in the same folder."""
    plain = {name: [asdict(v) for v in value] if name == "tables" else value for name, value in found.items()}
    write_text(path.with_suffix(".md"), text)
    write_text(path.with_suffix(".json"), json.dumps(plain, indent=1, ensure_ascii=False) + "\n")

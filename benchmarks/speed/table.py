"""Tables of measurements, as Markdown for readers and JSON for programs, with one row per quantity."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from elmokit.errors import ElmoError
from elmokit.storage.atomic import write_text


@dataclass(frozen=True)
class Row:
    """One quantity of all systems."""

    what: str
    unit: str
    better: Literal["less", "more"]
    values: dict[str, float]
    """Column → value; a system that was not measured has none."""
    key: str = ""
    """The name of the row for programs."""


@dataclass(frozen=True)
class Table:
    """Rows under a title; ratios are against the column `peer`."""

    title: str
    columns: Mapping[str, str]
    """Names of columns and their titles; a column whose name begins with "floor" has no ratio."""
    rows: Sequence[Row]
    peer: str
    notes: Sequence[str] = ()
    absent: Mapping[str, str] = field(default_factory=dict)
    """Columns that were not measured → the reason."""
    against: Mapping[str, str] = field(default_factory=dict)
    """Column → the column for its ratio, if that is not `peer`."""

    def markdown(self) -> str:
        """The table, with the ratio to the peer after a value."""
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
    """A ratio of speeds with its significant digits."""
    return f"{ratio:.{0 if ratio >= 20 else 1 if ratio >= 2 else 2}f} ×"


def shown(value: float) -> str:
    """A value in about three digits, with commas between thousands."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.4f}"


def report(
    tables: Sequence[Table], command: str, facts: Mapping[str, str], peaks: str, agreement: Sequence[str]
) -> str:
    """All tables of a run, with the command, the machine and the results of the comparison."""
    machine = "; ".join(f"{name} {value}" for name, value in facts.items())
    head = [f"`{command}`", f"{machine}; {peaks}.", "Before anything was timed: " + "; ".join(agreement) + "."]
    return "\n\n".join([*head, *(table.markdown() for table in tables)]) + "\n"


def text_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for the sentences and the output."""
    parser.add_argument("--sentences", type=Path, metavar="FILE", help="text with one tokenised sentence per line")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights and of the choice of sentences")
    output_argument(parser)


def output_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option for the file of tables."""
    help = "the tables; FILE.json is written in the same folder"
    parser.add_argument("--output", type=Path, metavar="FILE.md", help=help)


def publish(
    script: str,
    given: Sequence[str] | None,
    output: Path | None,
    tables: Sequence[Table],
    *,
    facts: Mapping[str, str],
    peaks: str,
    agreement: Sequence[str],
    problem: str = "",
) -> None:
    """Print the tables of a run, with an output also write FILE.md and FILE.json; raise an error for a problem."""
    command = shlex.join(["python", f"benchmarks/{script}", *(sys.argv[1:] if given is None else given)])
    text = report(tables, command, facts, peaks, agreement)
    print(text)
    if output:
        figures = {"command": command, "facts": facts, "agreement": agreement, "tables": [asdict(t) for t in tables]}
        write_text(output.with_suffix(".md"), text)
        write_text(output.with_suffix(".json"), json.dumps(figures, indent=1, ensure_ascii=False) + "\n")
    if problem:
        raise ElmoError(problem)


def run_script(main: Callable[[], None]) -> None:
    """Run a script; a user's mistake is reported in one sentence."""
    try:
        main()
    except ElmoError as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}")

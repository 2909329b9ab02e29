"""Tune the heads of elmokit.tasks on development data: compare many settings of the same head.

    python benchmarks/quality/heads.py en --tasks sst2,trec,ner --jobs 10       # every setting of heads.toml
    python benchmarks/quality/heads.py en --tasks ner --settings defaults,fine-tune-1e-4 --seeds 3
    python benchmarks/quality/heads.py en --tasks sst2 --set dropout=0.4,learning_rate=0.002   # one setting

The vectors of the frozen model are computed once per task and shared by all settings. Every score is written to a JSON
Lines file at once; --resume skips the scores in that file. The best score is chosen on development data and so a little
too high: measure its setting on test data, or with other seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from cells import Score, Setting, Unit
from results import machine
from rows import TABLE, Row, read_rows
from run import data_folder, run_all

from elmokit.errors import ElmoError
from elmokit.tasks import TaskOptions

GRID = Path(__file__).with_name("heads.toml")
Options = dict[str, Any]
Name = tuple[str, str]
"""The names of a task and a setting."""


def read_grid(path: Path) -> dict[str, dict[str, Options]]:
    """Kind of head → name of a setting → its options, which are checked."""
    with path.open("rb") as file:
        grid: dict[str, dict[str, Options]] = tomllib.load(file)
    for settings in grid.values():
        for options in settings.values():
            check(options)
    return grid


def check(options: Options) -> None:
    """Refuse an option that heads do not have, or a wrong value of an option."""
    if unknown := set(options) - set(TaskOptions.__dataclass_fields__):
        raise ElmoError(f"a setting must have options of `elmo task train`, got {min(unknown)!r}")
    TaskOptions(**options)


def read_set(text: str) -> Options:
    """The options of a text such as "dropout=0.4,fine_tune=true"."""
    options = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        try:
            options[name.strip()] = json.loads(value)
        except ValueError:
            options[name.strip()] = value.strip()
    check(options)
    return options


def units_of(
    rows: Sequence[Row], grid: Mapping[str, Mapping[str, Options]], seeds: Sequence[int], wanted: Sequence[str] | None
) -> dict[Name, list[Unit]]:
    """The work for each task and setting; the longest first, so that the processes end at about the same time."""
    units: dict[Name, list[Unit]] = {}
    for row in rows:
        for name, options in grid.get(row.kind, {}).items():
            if wanted is None or name in wanted:
                units[row.name, name] = [Unit(row.name, ("elmo",), (seed,), options) for seed in seeds]
    return dict(sorted(units.items(), key=lambda item: not item[1][0].options.get("fine_tune", False)))


def read_scores(path: Path, work: Mapping[Name, Sequence[Unit]], facts: Mapping[str, Any]) -> dict[Name, list[Score]]:
    """The scores of a file that are part of the work, measured with the same options, model and limit."""
    known: dict[Name, list[Score]] = {name: [] for name in work}
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            line = json.loads(text)
        except ValueError:  # the incomplete last line of a killed run
            continue
        units = work.get((line["task"], line["setting"]))
        if units and {**facts, "options": units[0].options}.items() <= line.items():
            score = Score(**{name: line[name] for name in Score.__dataclass_fields__})
            known[line["task"], line["setting"]].append(score)
    return known


def render(
    rows: Sequence[Row], known: Mapping[Name, Sequence[Score]], grid: Mapping[str, Mapping[str, Options]]
) -> str:
    """For each task a table of its settings, the best first."""
    parts = []
    for row in rows:
        found = [(name, scores) for (task, name), scores in known.items() if task == row.name and scores]
        found.sort(key=lambda item: -mean(score.value for score in item[1]))
        lines = [["setting", row.metric, "seeds", "best epoch", "seconds", "options"]]
        lines.append(["---", *["---:"] * 4, "---"])
        for name, scores in found:
            values = [100 * score.value for score in scores]
            spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
            epochs = ", ".join(str(score.details["best epoch"]) for score in scores)
            options = ", ".join(f"{option}={value}" for option, value in grid[row.kind][name].items())
            seconds = f"{mean(score.seconds for score in scores):.0f}"
            lines.append([name, f"{mean(values):.2f}{spread}", str(len(values)), epochs, seconds, options])
        parts.append(f"## {row.title}\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines))
    return "\n\n".join(parts)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL", help="a model of any format, en for the bundled one")
    parser.add_argument(
        "--tasks", default="sst2,sst5,trec,ner", help="rows of tasks.toml, separated by commas [%(default)s]"
    )
    parser.add_argument("--grid", type=Path, default=GRID, metavar="FILE", help="another heads.toml")
    parser.add_argument("--settings", help="names of settings, separated by commas [all of the grid]")
    parser.add_argument("--set", metavar="OPTION=VALUE,…", help="one setting instead of the grid")
    parser.add_argument("--data", type=Path, metavar="DIR", help="the folder of the tasks [../shared/tasks]")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="number of seeds per setting [%(default)s]")
    parser.add_argument("--limit", type=int, metavar="N", help="use at most N training examples, evenly spread")
    parser.add_argument("--device", help="cpu, cuda … [a GPU if there is one]")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes at the same time [%(default)s]")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="store the vectors here for another run")
    parser.add_argument("--config", type=Path, default=TABLE, metavar="FILE", help="another tasks.toml")
    parser.add_argument("--output", type=Path, default=Path("heads.jsonl"), metavar="FILE", help="[%(default)s]")
    parser.add_argument("--resume", action="store_true", help="skip the scores that are already in the output")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> None:
    options = arguments(given)
    table, names = read_rows(options.config), options.tasks.split(",")
    if unknown := [name for name in names if name not in table or table[name].is_probe]:
        raise ElmoError(f"--tasks must name heads of {options.config}, got {unknown[0]!r}")
    if options.seeds < 1 or options.jobs < 1:
        raise ElmoError("--seeds and --jobs must be at least 1")
    rows = [table[name] for name in names]
    grid: dict[str, dict[str, Options]]
    if options.set is not None:
        grid = {row.kind: {"set": read_set(options.set)} for row in rows}
    else:
        grid = read_grid(options.grid)
    wanted = None if options.settings is None else options.settings.split(",")
    if wanted and (strange := set(wanted) - {name for settings in grid.values() for name in settings}):
        raise ElmoError(f"--settings must name settings of {options.grid}, got {min(strange)!r}")
    work = units_of(rows, grid, range(1, options.seeds + 1), wanted)
    run_facts = {"model": options.model, "limit": options.limit}
    known = read_scores(options.output, work, run_facts) if options.resume else {name: [] for name in work}
    if not options.resume:
        options.output.unlink(missing_ok=True)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="heads-") as temporary:
        setting = Setting(
            models={"en": options.model, "zh": options.model},
            data=data_folder(options.data),
            split="dev",
            wordnet=None,
            limit=options.limit,
            device=options.device,
            threads=max(1, (os.cpu_count() or 1) // options.jobs),
            cache=options.cache or Path(temporary),
            table=options.config,
        )
        done = {(name, score.seed) for name, scores in known.items() for score in scores}
        # Seed by seed, so that an interrupted run has complete seeds.
        queue = [
            (name, units[number])
            for number in range(options.seeds)
            for name, units in work.items()
            if (name, units[number].seeds[0]) not in done
        ]
        name_of = {id(unit): name for name, unit in queue}
        for number, (unit, scores) in enumerate(run_all([unit for _, unit in queue], setting, options.jobs), start=1):
            name = name_of[id(unit)]
            if isinstance(scores, str):
                shown = scores
            else:
                known[name] += scores
                shown = ", ".join(f"{100 * score.value:.2f} in {score.seconds:.0f} s" for score in scores)
                with options.output.open("a", encoding="utf-8") as file:
                    for score in scores:
                        line = {"setting": name[1], "options": unit.options, **run_facts, **asdict(score)}
                        file.write(json.dumps(line, ensure_ascii=False) + "\n")
            progress = f"[{number}/{len(queue)}, {time.perf_counter() - start:.0f} s]"
            print(f"{progress} {' '.join(name)} seed {unit.seeds[0]}: {shown}", file=sys.stderr, flush=True)
    print(f"{machine(options.device)}; {time.perf_counter() - start:.0f} s\n")
    print(render(rows, known, grid))


if __name__ == "__main__":
    try:
        main()
    except ElmoError as error:
        sys.exit(f"heads.py: {error}")
    except KeyboardInterrupt:
        sys.exit("heads.py: interrupted; --resume continues")

"""Measure the quality of a model: ELMo's mix against layer 0 of the same model and no ELMo, with the same heads.

    python benchmarks/quality/run.py MODEL
    python benchmarks/quality/run.py MODEL --chinese-model ZH --jobs 16 --seeds 3 --output quality.md --resume
    python benchmarks/quality/run.py MODEL --tasks pos,wsd,wic --limit 2000       # a quick look

Every score is written at once to a JSON Lines file next to the table; --resume continues from there. A row whose files
or model are missing is left out, and the table says why. A model may also be the folder of a BERT-like model
(config.json, tokenizer.json, model.safetensors): a word's vector is the mean of the vectors of its pieces.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path

from cells import Input, Score, Setting, Unit, run_unit
from results import Journal, machine, render
from rows import TABLE, Row, read_rows

from elmokit.errors import ElmoError
from elmokit.formats.bundled import resolve_model
from elmokit.storage.atomic import write_text

CHECKOUT = Path(__file__).resolve().parents[2]
WORDNET = Path("/usr/share/wordnet")
DETERMINISTIC = ("wsd", "wic")


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL", help="an English model of any format, en for the bundled one")
    parser.add_argument("--chinese-model", metavar="ZH", help="a Chinese model, for the Chinese rows")
    parser.add_argument("--data", type=Path, metavar="DIR", help="the folder of the tasks [../shared/tasks]")
    parser.add_argument("--tasks", help="rows to measure, separated by commas [all]; their names are in tasks.toml")
    parser.add_argument("--inputs", default="elmo,layer0,static", help="columns: elmo, layer0, static [%(default)s]")
    parser.add_argument("--seeds", type=int, default=3, metavar="N")
    parser.add_argument("--split", choices=("dev", "test"), default="dev", help="the data to measure on [%(default)s]")
    parser.add_argument(
        "--limit", type=int, metavar="N", help="use at most N training examples or sentences, evenly spread"
    )
    parser.add_argument("--wordnet", type=Path, metavar="DIR", help=f"WordNet 3.0, for the first sense [{WORDNET}]")
    parser.add_argument("--config", type=Path, default=TABLE, metavar="FILE", help="another tasks.toml")
    parser.add_argument("--device", help="cpu, cuda … [a GPU if there is one]")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes at the same time [%(default)s]")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="store the vectors here for another run")
    parser.add_argument("--output", type=Path, metavar="FILE.md", help="the table [quality-MODEL.md]")
    parser.add_argument("--resume", action="store_true", help="continue with the scores next to the table")
    return parser.parse_args(given)


def data_folder(given: Path | None) -> Path:
    if given is not None:
        return given
    folders = [CHECKOUT.parent / "shared" / "tasks", CHECKOUT / "shared" / "tasks"]
    return next((folder for folder in folders if folder.is_dir()), folders[0])


def chosen_rows(options: argparse.Namespace) -> list[Row]:
    rows = read_rows(options.config)
    names = list(rows) if options.tasks is None else options.tasks.split(",")
    if unknown := [name for name in names if name not in rows]:
        raise ElmoError(f"--tasks must name rows of {options.config} ({', '.join(rows)}), got {unknown[0]!r}")
    return [rows[name] for name in names]


def units_of(row: Row, inputs: Sequence[Input], seeds: Sequence[int]) -> Iterator[Unit]:
    """The units of a row: one unit of a probe gives the scores of all layers and seeds, a network gives one score."""
    if not row.is_probe:
        yield from (Unit(row.name, (name,), (seed,)) for seed in seeds for name in inputs)
        return
    chosen = tuple(seeds[:1] if row.kind in DETERMINISTIC else seeds)
    if layers := tuple(name for name in inputs if name != "static"):
        yield Unit(row.name, layers, chosen)
    if "static" in inputs:
        yield Unit(row.name, ("static",), chosen)


def key_of(row: Row, setting: Setting) -> str:
    """A digest of all settings on which a score depends besides its task, input and seed."""
    model = setting.models.get(row.language)
    newest = max((file.stat().st_mtime_ns for file in _files(Path(resolve_model(model)))), default=0) if model else 0
    facts = [model, newest, setting.split, setting.limit, str(setting.wordnet), row.options, row.columns]
    facts += [row.kind, row.metric, row.train, row.dev, str(setting.data.resolve())]
    return hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=8).hexdigest()


def _files(path: Path) -> list[Path]:
    return [file for file in ([path, *path.glob("*")] if path.is_dir() else [path]) if file.exists()]


def reason_against(row: Row, setting: Setting) -> str | None:
    """The reason why the row cannot be measured, or None."""
    try:
        row.files(setting.data, setting.split)
    except ElmoError as error:
        return str(error)
    if row.language not in setting.models:
        return "no --chinese-model was given"
    return None


def run_all(units: Sequence[Unit], setting: Setting, jobs: int) -> Iterator[tuple[Unit, list[Score] | str]]:
    """The scores of each unit, or the reason why there are none, in the order of completion."""
    if jobs == 1:
        for unit in units:
            try:
                yield unit, run_unit(unit, setting)
            except ElmoError as error:
                yield unit, str(error)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(run_unit, unit, setting): unit for unit in units}
        for future in as_completed(futures):
            try:
                yield futures[future], future.result()
            except BrokenProcessPool:
                pool.shutdown(wait=False, cancel_futures=True)
                raise ElmoError(
                    "a process was killed, perhaps because memory was full: continue with --resume and fewer --jobs"
                ) from None
            except Exception as error:  # noqa: BLE001 - a failed cell must not stop the others
                yield futures[future], f"{type(error).__name__}: {error}"


def main(given: Sequence[str] | None = None) -> None:
    options = arguments(given)
    rows = chosen_rows(options)
    inputs: list[Input] = options.inputs.split(",")
    if options.seeds < 1 or options.jobs < 1 or set(inputs) - {"elmo", "layer0", "static"}:
        raise ElmoError("--seeds and --jobs must be at least 1, and --inputs some of elmo, layer0, static")
    output: Path = options.output or Path(f"quality-{Path(options.model).resolve().name}.md")
    with tempfile.TemporaryDirectory(prefix="quality-") as temporary:
        setting = Setting(
            models={"en": options.model} | ({"zh": options.chinese_model} if options.chinese_model else {}),
            data=data_folder(options.data),
            split=options.split,
            wordnet=options.wordnet or (WORDNET if WORDNET.is_dir() else None),
            limit=options.limit,
            device=options.device,
            threads=max(1, (os.cpu_count() or 1) // options.jobs),
            cache=options.cache or Path(temporary),
            table=options.config,
        )
        fill(
            rows,
            inputs,
            list(range(1, options.seeds + 1)),
            setting,
            output,
            jobs=options.jobs,
            resume=options.resume,
            command=shlex.join(["python", "benchmarks/quality/run.py", *(sys.argv[1:] if given is None else given)]),
        )
    print(output.read_text(encoding="utf-8"))


def fill(
    rows: Sequence[Row],
    inputs: Sequence[Input],
    seeds: Sequence[int],
    setting: Setting,
    output: Path,
    *,
    jobs: int,
    resume: bool,
    command: str,
) -> None:
    """Measure the missing scores, and write the table again after every score."""
    by_name = {row.name: row for row in rows}
    keys = {row.name: key_of(row, setting) for row in rows}
    journal = Journal(output.with_suffix(".jsonl"), resume=resume)
    done = {(score.task, score.input, score.seed) for score in journal.scores(keys)}
    absent: dict[str, str] = {}
    units = []
    for unit in (unit for row in rows for unit in units_of(row, inputs, seeds)):
        row = by_name[unit.task]
        if reason := reason_against(row, setting):
            absent[row.title] = reason
        elif missing := tuple(s for s in unit.seeds if any((unit.task, name, s) not in done for name in unit.inputs)):
            units.append(replace(unit, seeds=missing))
    if jobs > 1:  # the longest first, so that the processes end at about the same time
        units.sort(key=lambda unit: -by_name[unit.task].size(setting.data))
    facts = [f"`{command}`", machine(setting.device)]

    def write() -> None:
        wanted = [s for s in journal.scores(keys) if s.seed in seeds]
        write_text(output, render(rows, wanted, absent, inputs, facts))

    write()
    for number, (unit, scores) in enumerate(run_all(units, setting, jobs), start=1):
        name = f"{unit.task} {'+'.join(unit.inputs)} seed {','.join(map(str, unit.seeds))}"
        if isinstance(scores, str):
            absent[name] = scores
            shown = scores
        else:
            journal.add(scores, keys[unit.task])
            shown = ", ".join(f"{100 * score.value:.2f}" for score in scores)
        print(f"[{number}/{len(units)}] {name}: {shown}", file=sys.stderr, flush=True)
        write()


if __name__ == "__main__":
    try:
        main()
    except ElmoError as error:
        sys.exit(f"run.py: {error}")
    except KeyboardInterrupt:
        sys.exit("run.py: interrupted; --resume continues from here")

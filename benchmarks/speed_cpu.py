"""Tokens to vectors on the CPU: elmokit and AllenNLP on the same sentences, in turns, after a check that they agree.

    python benchmarks/speed_cpu.py --output speed-cpu.md            # the original, the small and the bundled model
    python benchmarks/speed_cpu.py --models original --quick        # a first look
    python benchmarks/speed_cpu.py --sentences FILE --seed 7        # other text, other sentences, other weights

Every system runs in a process of its own, which times itself; the processes take turns, batch by batch. AllenNLP's
environment is made on the first run (benchmarks/peers/allennlp_environment.py); where that cannot be, a loop of its
structure stands in and the table says so. Weights of the released sizes are random, from the seed.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from peers.allennlp_environment import default_folder, make
from peers.systems import TITLES, Batch
from peers.talk import Child, NoSystemError
from speed import machine, models, parity, sentences, turns
from speed.table import Table, report, save

from elmokit.errors import ElmoError

PARITY_SENTENCES = 4
SHOWN = {"floor float32": "floor, float32", "floor int8": "floor, int8"}


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["original", "small", "en"], metavar="MODEL",
                        help="sizes (small, medium, original), en, or a model of any format [%(default)s]")  # fmt: skip
    parser.add_argument("--systems", default="allennlp,float32,int8,packed,reference", help="columns [%(default)s]")
    parser.add_argument("--sentences", type=Path, metavar="FILE", help="a tokenised sentence a line")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and of the choice of sentences")
    parser.add_argument("--count", type=int, help="sentences in batches [512]")
    parser.add_argument("--alone", type=int, help="sentences measured by themselves [25]")
    parser.add_argument("--tokens", type=int, default=20, help="of a sentence by itself [%(default)s]")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="[%(default)s]")
    parser.add_argument("--quick", action="store_true", help="64 sentences in batches and 7 by themselves")
    parser.add_argument("--allennlp", type=Path, metavar="DIR", help="its environment [in elmokit's cache]")
    parser.add_argument(
        "--output", type=Path, metavar="FILE.md", help="the tables; FILE.json is written in the same folder"
    )
    options = parser.parse_args(given)
    if options.count is None:
        options.count = 64 if options.quick else 512
    if options.alone is None:
        options.alone = 7 if options.quick else 25
    if unknown := set(options.systems.split(",")) - TITLES.keys():
        raise ElmoError(f"--systems must name some of {', '.join(TITLES)}, got {unknown.pop()!r}")
    if min(options.count, options.alone, options.tokens, options.threads) < 1:
        raise ElmoError("--count, --alone, --tokens and --threads must be at least 1")
    return options


def start(
    options: argparse.Namespace, folders: models.ModelFolders, stack: ExitStack
) -> tuple[dict[str, Child], dict[str, str]]:
    """The systems that can be run, and why the others cannot; the loop comes where AllenNLP does not."""
    children: dict[str, Child] = {}
    absent: dict[str, str] = {}
    waiting: list[str] = options.systems.split(",")
    while waiting:
        name = waiting.pop(0)
        say(f"loading {TITLES[name]}")
        try:
            python = make(options.allennlp or default_folder()) if name == "allennlp" else Path(sys.executable)
            child = Child(name, folders.of(name), python=python, threads=options.threads)
            children[name] = stack.enter_context(child)
        except (ElmoError, NoSystemError) as error:
            absent[name] = str(error)
            if name == "allennlp":
                waiting.insert(0, "loop")
    return children, absent


def disagreeing(children: Mapping[str, Child], batch: Batch, folder: Path) -> tuple[dict[str, str], list[str]]:
    """Systems whose vectors are not the reference's, and what was found of each, in words."""
    vectors = {name: child.vectors(batch, folder) for name, child in children.items()}
    exact = "reference" if "reference" in vectors else next(iter(vectors))
    wrong, said = {}, []
    for name in (name for name in vectors if name != exact):
        found = parity.compare(vectors[name], vectors[exact])
        said.append(f"{TITLES[name]} {found.words()}")
        if not parity.TOLERANCES["int8" if name == "int8" else "float32"].holds(found):
            wrong[name] = f"it is not the same function as the {TITLES[exact]} ({found.words()})"
    return wrong, said


def measure(
    model: str, options: argparse.Namespace, text: sentences.Text, peaks: machine.Peaks
) -> tuple[Table, list[str], bool]:
    """The table of a model, what parity found, and whether every system agreed."""
    plan = turns.Plan(
        text.of_length(options.tokens, options.alone + 1, options.seed), text.drawn(options.count, options.seed + 1)
    )
    with tempfile.TemporaryDirectory(prefix="speed-") as temporary, ExitStack() as stack:
        folder = Path(temporary)
        say(f"{model}: writing the model")
        folders = models.write(model, options.seed, folder, int8="int8" in options.systems.split(","))
        children, absent = start(options, folders, stack)
        # The first sentence is the first thing a process does; its figure is dropped with the rest where parity fails.
        first = {name: child.seconds([plan.alone[0]]) for name, child in children.items()}
        say("comparing vectors")
        wrong, said = disagreeing(children, plan.many[:PARITY_SENTENCES], folder)
        for name in wrong:
            children.pop(name)
        limits = turns.Limits(folders.config, peaks, machine.cpu_cache_bytes())
        found = turns.rows(children, first, plan, limits, say)
        lstm = folders.config.lstm
        columns = {name: TITLES[name] for name in children} | SHOWN
        notes = [f"{TITLES[name]}: {', '.join(f'{k} {v}' for k, v in c.facts.items())}" for name, c in children.items()]
        not_measured = {TITLES[name]: why for name, why in (absent | wrong).items()}
        title = f"{model}, {lstm.cell_size}/{lstm.output_size}, {lstm.n_layers} layers"
        table = Table(title, columns, found, next(iter(children)), notes, not_measured)
        return table, [f"{model}: {words}" for words in said], not wrong


def say(what: str) -> None:
    print(f"… {what}", file=sys.stderr, flush=True)


def main(given: Sequence[str] | None = None) -> None:
    options = arguments(given)
    torch.set_num_threads(options.threads)
    text = sentences.read(options.sentences, seed=options.seed)
    facts = machine.facts("cpu", options.threads) | {
        "text": f"{text.source}, {options.count} sentences in batches, median of {options.alone} by themselves"
    }
    peaks = machine.cpu_peaks()
    tables, agreement, agreed = [], [], True
    for model in options.models:
        table, said, fine = measure(model, options, text, peaks)
        tables.append(table)
        agreement += said
        agreed &= fine
    command = shlex.join(["python", "benchmarks/speed_cpu.py", *(sys.argv[1:] if given is None else given)])
    words = report(tables, command, facts, peaks.words(), agreement)
    print(words)
    if options.output:
        save(options.output, words, command=command, facts=facts, agreement=agreement, tables=tables)
    if not agreed:
        raise ElmoError("a system is not the same function as the reference, and was not timed")


if __name__ == "__main__":
    try:
        main()
    except ElmoError as error:
        sys.exit(f"speed_cpu.py: {error}")

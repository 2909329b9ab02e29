"""Tokens to vectors on the CPU: elmokit and its peers on the same sentences, in turns, after a check that they agree.

    python benchmarks/speed_cpu.py --output speed-cpu.md            # the original, the small and the bundled model
    python benchmarks/speed_cpu.py --models original --quick        # a first look
    python benchmarks/speed_cpu.py --models transformer             # the Transformer's shape, against MiniLM
    python benchmarks/speed_cpu.py --sentences FILE --seed 7        # other text, other sentences, other weights

Every system runs in its own process, which times itself. The processes take turns, batch by batch; all others are
stopped, so that threads that spin while they wait for work do not disturb the measurement. A sentence whose words are
known is computed many times in a row, other batches after a pause of 20 ms.

The peer of an LSTM is AllenNLP, which runs the same weights; if it cannot be installed, a loop of its structure is
measured instead and the table says so. The peer of a Transformer is all-MiniLM-L6-v2 in onnxruntime and in
transformers, with one vector per word from its last layer. The peers' environments are created on the first run
(benchmarks/peers/environments.py). Models of the released sizes have random weights, from the seed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from peers.environments import ALLENNLP
from peers.environments import MINILM as MINILM_ENVIRONMENT
from peers.systems import MINILM, TITLES, Batch
from peers.talk import Child, NoSystemError
from speed import machine, models, parity, sentences, turns
from speed.table import Table, publish, run_script, text_arguments

from elmokit import ElmoConfig
from elmokit.config import TransformerConfig
from elmokit.errors import ElmoError

PARITY_SENTENCES = 4
SHOWN = {"floor float32": "floor, float32", "floor int8": "floor, int8"}
OURS = ("float32", "int8", "packed", "reference")
SYSTEMS = {"lstm": ("allennlp", *OURS), "transformer": (*MINILM, *OURS)}
"""The default systems for each kind of context encoder."""


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["original", "small", "en"], metavar="MODEL",
                        help="a size (small, medium, original, transformer) or a model [%(default)s]")  # fmt: skip
    parser.add_argument("--systems", help=f"columns, of {','.join(TITLES)} [the peers of the model's kind and ours]")
    parser.add_argument("--count", type=int, help="sentences in batches [512]")
    parser.add_argument("--alone", type=int, help="sentences measured by themselves [25]")
    parser.add_argument("--tokens", type=int, default=20, help="tokens of a sentence by itself [%(default)s]")
    parser.add_argument(
        "--turns", type=int, default=3, help="measurements of known sentences, and of all [%(default)s]"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="[%(default)s]")
    parser.add_argument("--quick", action="store_true", help="64 sentences in batches and 7 by themselves")
    parser.add_argument("--allennlp", type=Path, metavar="DIR", help="its environment [in elmokit's cache]")
    parser.add_argument("--minilm", type=Path, metavar="DIR",
                        help="the files of all-MiniLM-L6-v2 [from the Hugging Face Hub]")  # fmt: skip
    text_arguments(parser)
    options = parser.parse_args(given)
    if options.count is None:
        options.count = 64 if options.quick else 512
    if options.alone is None:
        options.alone = 7 if options.quick else 25
    if options.systems and (unknown := set(options.systems.split(",")) - TITLES.keys()):
        raise ElmoError(f"--systems must name some of {', '.join(TITLES)}, got {unknown.pop()!r}")
    if min(options.count, options.alone, options.tokens, options.threads, options.turns) < 1:
        raise ElmoError("--count, --alone, --tokens, --turns and --threads must be at least 1")
    return options


class MiniLmFiles:
    """The environment and the files of all-MiniLM-L6-v2, created at the first use."""

    def __init__(self, source: Path | None, folder: Path) -> None:
        self.source = source
        self.folder = folder
        self.made: Path | ElmoError | None = None

    def python(self) -> Path:
        """Create all files in `folder` and return the Python interpreter; later calls give the same result or error."""
        if self.made is None:
            try:
                python = MINILM_ENVIRONMENT.make()
                say("all-MiniLM-L6-v2: writing its files")
                source = [] if self.source is None else [str(self.source.resolve())]
                MINILM_ENVIRONMENT.run(python, "-W", "ignore", "-m", "peers.minilm_files", str(self.folder), *source)
                self.made = python
            except ElmoError as error:
                self.made = error
        if isinstance(self.made, ElmoError):
            raise self.made
        return self.made


def start(
    options: argparse.Namespace, folders: models.ModelFolders, minilm: MiniLmFiles, stack: ExitStack
) -> tuple[dict[str, Child], dict[str, str]]:
    """The systems that can be run, and the reason for each of the others; a loop replaces a missing AllenNLP."""
    children: dict[str, Child] = {}
    absent: dict[str, str] = {}
    waiting = list(options.systems.split(",") if options.systems else SYSTEMS[folders.config.context.kind])
    while waiting:
        name = waiting.pop(0)
        say(f"loading {TITLES[name]}")
        try:
            python, folder = Path(sys.executable), minilm.folder
            if name in MINILM:
                python = minilm.python()
            else:
                folder = folders.of(name)
            if name == "allennlp":
                python = ALLENNLP.make(options.allennlp)
            children[name] = stack.enter_context(Child(name, folder, python=python, threads=options.threads))
        except (ElmoError, NoSystemError) as error:
            absent[name] = str(error)
            if name == "allennlp" and folders.bilm is not None:
                waiting.insert(0, "loop")
    return children, absent


def disagreeing(children: Mapping[str, Child], batch: Batch, folder: Path) -> tuple[dict[str, str], list[str]]:
    """The systems whose vectors differ from their reference, and a sentence about each comparison."""
    vectors = {name: child.vectors(batch, folder) for name, child in children.items()}
    wrong, comparisons = {}, []
    for first, names in (
        ("reference", [name for name in vectors if name not in MINILM]),
        ("minilm-transformers", [name for name in vectors if name in MINILM]),
    ):
        exact = first if first in names else next(iter(names), first)
        for name in (name for name in names if name != exact):
            found = parity.compare(vectors[name], vectors[exact])
            comparisons.append(f"{TITLES[name]} {found.summary()}")
            kind = {"int8": "int8", "minilm-onnx-int8": "peer's int8"}.get(name, "float32")
            if not parity.TOLERANCES[kind].allows(found):
                wrong[name] = f"it is not the same function as the {TITLES[exact]} ({found.summary()})"
    return wrong, comparisons


def shape(config: ElmoConfig) -> str:
    """The size of the context encoder as text."""
    if isinstance(config.context, TransformerConfig):
        return f"{config.context.n_blocks} × {config.context.size}"
    return f"{config.lstm.cell_size}/{config.lstm.output_size}, {config.lstm.n_layers} layers"


def measure(
    model: str, options: argparse.Namespace, text: sentences.Text, peaks: machine.Peaks, minilm: MiniLmFiles
) -> tuple[Table, list[str], bool]:
    """The table of a model, the results of the comparison, and whether every system agreed."""
    alone = text.of_length(options.tokens, options.alone + 1, options.seed)
    plan = turns.Plan(alone, text.drawn(options.count, options.seed + 1), turns=options.turns)
    with tempfile.TemporaryDirectory(prefix="speed-") as temporary, ExitStack() as stack:
        folder = Path(temporary)
        say(f"{model}: writing the model")
        int8 = options.systems is None or "int8" in options.systems.split(",")
        folders = models.write(model, options.seed, folder, int8=int8)
        children, absent = start(options, folders, minilm, stack)
        # Each process computes the first sentence before anything else; without parity, its time is not used.
        first = {name: child.seconds([plan.alone[0]]) for name, child in children.items()}
        say("comparing vectors")
        wrong, comparisons = disagreeing(children, plan.many[:PARITY_SENTENCES], folder)
        for name in wrong:
            children.pop(name)
        limits = turns.Limits(folders.config, peaks, machine.cpu_cache_bytes())
        found = turns.rows(children, first, plan, limits, say)
        columns = {name: TITLES[name] for name in children} | SHOWN
        notes = [f"{TITLES[name]}: {', '.join(f'{k} {v}' for k, v in c.facts.items())}" for name, c in children.items()]
        not_measured = {TITLES[name]: why for name, why in (absent | wrong).items()}
        title = f"{model}, {shape(folders.config)}"
        against = {"int8": "minilm-onnx-int8"} if {"int8", "minilm-onnx-int8"} <= children.keys() else {}
        table = Table(title, columns, found, next(iter(children)), notes, not_measured, against)
        return table, [f"{model}: {line}" for line in comparisons], not wrong


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
    with tempfile.TemporaryDirectory(prefix="minilm-") as temporary:
        minilm = MiniLmFiles(options.minilm, Path(temporary))
        for model in options.models:
            table, comparisons, fine = measure(model, options, text, peaks, minilm)
            tables.append(table)
            agreement += comparisons
            agreed &= fine
    if hasattr(os, "getloadavg"):
        facts["and when it ended"] = f"{os.getloadavg()[0]:.1f}"
    problem = "" if agreed else "a system is not the same function as the reference, and was not timed"
    found = {"facts": facts, "peaks": peaks.summary(), "agreement": agreement}
    publish("speed_cpu.py", given, options.output, tables, **found, problem=problem)


if __name__ == "__main__":
    run_script(main)

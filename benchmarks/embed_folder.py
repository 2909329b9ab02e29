"""`elmo embed FOLDER` with one worker and with several, on the same texts, and the estimated time for a large corpus.

    python benchmarks/embed_folder.py --workers 1 2 --turns 3

The files of all runs must be equal bit by bit. *Tokens per second* is by the wall clock and includes the start and
loading the model; *per CPU second* is by the CPU time of the processes, on which other programs have less influence.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from speed import machine, sentences

import elmokit
from elmokit.corpus.worker_process import available_cores
from elmokit.messages import duration

CORPUS_BYTES = 100e9


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--sentences", type=int, default=500, help="per file")
    parser.add_argument("--text", type=Path, help="one sentence per line [generated sentences]")
    parser.add_argument("--model", default="en")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(given)
    text = sentences.read(options.text)
    drawn = text.drawn(options.files * options.sentences, seed=1)
    with tempfile.TemporaryDirectory(prefix="folder-") as temporary:
        folder = Path(temporary)
        (folder / "texts").mkdir()
        for number in range(options.files):
            part = drawn[number :: options.files]
            lines = "".join(" ".join(tokens) + "\n" for tokens in part)
            (folder / "texts" / f"{number}.txt").write_text(lines, encoding="utf-8")
        size = sum(path.stat().st_size for path in (folder / "texts").iterdir())
        runs: dict[int, list[tuple[float, float]]] = {workers: [] for workers in options.workers}
        for _ in range(options.turns):
            for workers in options.workers:
                runs[workers].append(run(folder, workers, options))
        tokens = written_tokens(folder / str(options.workers[0]))
    report(options, runs, tokens, size, text.source)


def run(folder: Path, workers: int, options: argparse.Namespace) -> tuple[float, float]:
    """Seconds by the wall clock and of CPU time; the files must be equal to those of the first run."""
    output = folder / str(workers)
    shutil.rmtree(output, ignore_errors=True)
    command = ["embed", str(folder / "texts"), "--output", str(output), "--workers", str(workers), "--to", "npy"]
    command += ["--model", options.model, "--dtype", options.dtype, "--device", options.device, "--quiet"]
    used, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", "elmokit", *command], check=True)
    seconds, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    first = folder / str(options.workers[0])
    for path in first.glob("*.npy"):
        assert path.read_bytes() == (output / path.name).read_bytes(), f"{path.name} differs with {workers} workers"
    return seconds, after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime


def written_tokens(folder: Path) -> int:
    records = (folder / ".elmokit").glob("*.npy.json")
    return sum(json.loads(path.read_text(encoding="utf-8"))["tokens"] for path in records)


def report(
    options: argparse.Namespace, runs: dict[int, list[tuple[float, float]]], tokens: int, size: int, source: str
) -> None:
    print(f"`python benchmarks/embed_folder.py {' '.join(sys.argv[1:])}`\n")
    load = os.getloadavg()[0]
    versions = f"torch {torch.__version__}, elmokit {elmokit.__version__}"
    print(f"{machine.cpu_name()}, {available_cores()} cores, load {load:.1f}; {versions}")
    print(f"{source}; {options.files} files, {tokens:,} tokens, {size / tokens:.2f} bytes per token")
    print(f"model {options.model}, {options.dtype}, {options.device}; best and all of {options.turns} turns\n")
    print("| workers | tokens per second | all turns | per CPU second | 100 GB on one such machine |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for workers, turns in runs.items():
        rates = [tokens / seconds for seconds, _ in turns]
        cpu = max(tokens / used for _, used in turns)
        whole = CORPUS_BYTES / (size / tokens) / max(rates)
        shown = ", ".join(f"{rate:,.0f}" for rate in rates)
        print(f"| {workers} | {max(rates):,.0f} | {shown} | {cpu:,.0f} | {duration(whole)} |")


if __name__ == "__main__":
    main()

"""The biLSTM alone on a GPU: elmokit's choice and its packed path, a loop of AllenNLP's structure, and cuDNN.

    python benchmarks/speed_gpu.py --output speed-gpu.md
    python benchmarks/speed_gpu.py --batches 1 32 --modes bfloat16 --lengths equal      # a part of it

Sentences have 22 tokens including the boundaries, or real lengths. A time is the median between CUDA events over calls
in a row; for one sentence there is also the wall-clock time. Each system is first compared with the reference in
float64. cuDNN has no clips and no skip connections between its layers: it is compared and measured without them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from peers.plain import reference
from speed import machine, models, parity, sentences
from speed.cudnn import CudnnStacks
from speed.floors import BYTES, input_weights, lstm_operations, step_weights
from speed.network import Network, batch_of
from speed.table import Row, Table, publish, run_script, text_arguments
from torch import Tensor
from training_ops import milliseconds

from elmokit import ElmoConfig
from elmokit.errors import ElmoError
from elmokit.ops.bilstm import choose

MODES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "tf32": torch.float32}
TOKENS = 22
COLUMNS = {
    "loop": "a loop of AllenNLP's structure",
    "cudnn": "cuDNN, no clips",
    "packed": "packed torch",
    "ours": "elmokit",
    "floor": "floor",
}
PARITY_LENGTHS = (22, 1, 9, 31, 15)
LONGEST_RUN = 500.0
"""The time limit for one figure in milliseconds."""


def agreement(network: Network, mode: str) -> tuple[dict[str, str], list[str]]:
    """The systems whose vectors differ from the reference, and a sentence about each comparison."""
    lengths = torch.tensor(PARITY_LENGTHS)
    x = batch_of(lengths, network, torch.float64)
    exact = {}
    for name, given in (("all", network), ("cudnn", network.without_clips())):
        skip = name == "all" and network.config.lstm.skip_connections
        exact[name] = reference(x, lengths, given.to(torch.float64).stacks, skip_connections=skip)[-1].cpu().numpy()
    wrong, comparisons = {}, []
    given = network.to(MODES[mode])
    for name in given.systems():
        try:
            found = given.tops(x.to(MODES[mode]), lengths, name).float().cpu().numpy()
        except (RuntimeError, ElmoError) as error:
            wrong[name] = str(error).splitlines()[0]
            continue
        by_sentence = [
            [side[row, :n] for row, n in enumerate(PARITY_LENGTHS)]
            for side in (found, exact["cudnn" if name == "cudnn" else "all"])
        ]
        result = parity.compare(*by_sentence)
        comparisons.append(f"{mode}, {COLUMNS[name]} {result.summary()}")
        if not parity.TOLERANCES[mode].allows(result):
            wrong[name] = f"it is not the same function as the reference ({result.summary()})"
    return wrong, comparisons


def measure(network: Network, mode: str, lengths: Tensor, absent: Mapping[str, str]) -> dict[str, float]:
    """Milliseconds of a batch by system."""
    given = network.to(MODES[mode])
    x = batch_of(lengths, network, MODES[mode])
    runs: dict[str, Callable[[], object]] = dict(given.runs(x, lengths))
    if "cudnn" not in absent:
        cudnn = CudnnStacks(given.stacks)
        runs["cudnn"] = partial(cudnn, cudnn.prepare(x, lengths))
    return {name: timed(run, network.device) for name, run in runs.items() if name not in absent}


def timed(run: Callable[[], object], device: torch.device) -> float:
    """The median milliseconds of as many calls in a row as fit into the time limit."""
    once = milliseconds(run, device, 3)
    return milliseconds(run, device, max(5, min(200, int(LONGEST_RUN / max(once, 1e-3)))))


def wall(run: Callable[[], object], device: torch.device, repeats: int = 50) -> float:
    """The median milliseconds from a call until its result is ready."""
    times = []
    for _ in range(repeats + 3):
        machine.wait(device)
        start = time.perf_counter()
        run()
        machine.wait(device)
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times[3:])


def floor_milliseconds(config: ElmoConfig, lengths: Tensor, mode: str, peaks: machine.Peaks) -> float:
    """The least milliseconds for a batch: the longer of its arithmetic and of reading every weight once."""
    arithmetic = int(lengths.sum()) * lstm_operations(config) / peaks.operations[mode]
    reading = (step_weights(config) + input_weights(config)) * BYTES[mode] / peaks.bytes_read
    return 1000 * max(arithmetic, reading)


def table_of(
    network: Network,
    mode: str,
    kind: str,
    batches: Mapping[int, Tensor],
    peaks: machine.Peaks,
    absent: Mapping[str, str],
) -> Table:
    rows = []
    for batch, lengths in batches.items():
        found = measure(network, mode, lengths, absent)
        found["floor"] = floor_milliseconds(network.config, lengths, mode, peaks)
        tokens = int(lengths.sum())
        name = "1 sentence" if batch == 1 else f"{batch:,} sentences"
        rows.append(Row(name, "ms", "less", found, f"{batch} ms"))
        speeds = {system: 1000 * tokens / took for system, took in found.items()}
        rows.append(Row(name, "tokens/s", "more", speeds, f"{batch} tokens/s"))
        if batch == 1:
            runs = network.to(MODES[mode]).runs(batch_of(lengths, network, MODES[mode]), lengths)
            clock = {system: wall(run, network.device) for system, run in runs.items() if system not in absent}
            rows.append(Row(f"{name}, on the wall", "ms", "less", clock, "1 wall"))
    x = batch_of(torch.tensor([TOKENS]), network, MODES[mode])
    chosen = choose(x, network.to(MODES[mode]).stacks, gradient=False)
    shape = f"{TOKENS} tokens each" if kind == "equal" else "real lengths"
    lstm = network.config.lstm
    title = f"biLSTM {lstm.cell_size}/{lstm.output_size}, {mode}, {shape}"
    notes = [f"elmokit chose {chosen.path} ({chosen.why})"]
    return Table(title, COLUMNS, rows, "loop" if "loop" not in absent else "packed", notes, absent)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", choices=[*models.SIZES, "tiny"], default="original")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32, 128, 512, 2048])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--lengths", nargs="+", choices=["equal", "ragged"], default=["equal", "ragged"])
    text_arguments(parser)
    return parser.parse_args(given)


@torch.no_grad()
def main(given: Sequence[str] | None = None) -> None:
    options = arguments(given)
    device = torch.device(options.device)
    text = sentences.read(options.sentences, seed=options.seed)
    network = Network.random(models.config_of(options.size), options.seed, device)
    peaks = machine.peaks(options.device)
    facts = machine.facts(options.device) | {"lengths": text.source}
    tables, comparisons, agreed = [], [], True
    for mode in options.modes:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = mode == "tf32"
        absent, lines = agreement(network, mode)
        comparisons += lines
        agreed &= not absent
        if device.type == "cpu":
            absent["cudnn"] = "there is none on a CPU"
        for kind in options.lengths:
            batches = {n: torch.full((n,), TOKENS) for n in options.batches}
            if kind == "ragged":
                drawn = {n: text.drawn(n, options.seed) for n in options.batches}
                batches = {n: torch.tensor([len(s) + 2 for s in rows]) for n, rows in drawn.items()}
            tables.append(table_of(network, mode, kind, batches, peaks, absent))
            print(tables[-1].markdown(), "\n", file=sys.stderr, flush=True)
    problem = "" if agreed else "not every system could be measured: the tables say why"
    found = {"facts": facts, "peaks": peaks.summary(), "agreement": comparisons}
    publish("speed_gpu.py", given, options.output, tables, **found, problem=problem)


if __name__ == "__main__":
    run_script(main)

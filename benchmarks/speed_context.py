"""Context encoders alone on the CPU, in turns: Transformer blocks with random weights and the biLSTM of `en-lstm`.

    python benchmarks/speed_context.py                      # a sentence of 20 words, then batches of 64 and 512
    python benchmarks/speed_context.py --cpu-time           # CPU time of one thread, for a machine with other load

Both get token vectors, so that the time does not include the character part. A sentence has two boundaries besides its
words.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence

import torch

from elmokit import Elmo
from elmokit.model.lstm import LstmEncoder
from elmokit.ops.attention import Segments
from elmokit.ops.bilstm import bilstm
from elmokit.ops.int8 import Int8Matrix, column_sizes
from elmokit.ops.native.transformer import transformer_native
from elmokit.ops.transformer import transformer_packed
from elmokit.ops.weights import BlockWeights

SIZE, BLOCKS, HEADS, INNER, WINDOW = 384, 8, 6, 960, 64
OUTPUTS = [0, 2, 4, 6, 8]
Run = Callable[[], object]


def random_blocks() -> list[BlockWeights]:
    shapes = ((3 * SIZE, SIZE), (SIZE, SIZE), (2 * INNER, SIZE), (SIZE, INNER), (HEADS, SIZE), (HEADS,))
    return [BlockWeights(*(torch.randn(shape) / shape[-1] ** 0.5 for shape in shapes)) for _ in range(BLOCKS)]


def lstm_runs(lengths: Sequence[int]) -> dict[str, Run]:
    runs: dict[str, Run] = {}
    given = torch.tensor(lengths)
    for dtype in ("float32", "int8"):
        model = Elmo.load("en-lstm", dtype=dtype)
        [encoder] = [part for part in model.modules() if isinstance(part, LstmEncoder)]
        stacks, skip = encoder.stacks(), encoder.config.skip_connections
        x = torch.randn(len(lengths), max(lengths), stacks[0][0].input.shape[1])
        runs[f"biLSTM {dtype}"] = lambda s=stacks, x=x, skip=skip: bilstm(x, given, s, skip_connections=skip)
    return runs


def transformer_runs(lengths: Sequence[int]) -> dict[str, Run]:
    x, plain = torch.randn(sum(lengths), SIZE), random_blocks()
    halves = [BlockWeights(*(part.half().float() for part in block)) for block in plain]
    small = [BlockWeights(*(Int8Matrix.of(m, column_sizes(m)) for m in block[:4]), *block[4:]) for block in plain]
    kinds = {"float32": plain, "float32 from halves": halves, "int8": small}

    def run(path: Callable[..., object], blocks: list[BlockWeights]) -> Run:
        return lambda: path(x, Segments.of(lengths), blocks, window=WINDOW, outputs=OUTPUTS)

    runs = {f"Transformer {name}": run(transformer_native, blocks) for name, blocks in kinds.items()}
    return runs | {"Transformer torch, compiled products": run(transformer_packed, plain)}


def in_turns(runs: dict[str, Run], repeats: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(repeats + 2):  # the first two warm up
        for name, run in runs.items():
            start = clock()
            run()
            if turn > 1:
                seconds[name].append(clock() - start)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2, help="[%(default)s]")
    parser.add_argument("--repeats", type=int, default=300, help="turns for one sentence [%(default)s]")
    parser.add_argument("--batches", type=int, nargs="*", default=[64, 512], help="sentences [%(default)s]")
    parser.add_argument("--batch-repeats", type=int, default=5, help="turns for a batch [%(default)s]")
    parser.add_argument("--cpu-time", action="store_true", help="CPU time of one thread, without waiting")
    options = parser.parse_args()
    torch.set_num_threads(1 if options.cpu_time else options.threads)
    clock = time.thread_time if options.cpu_time else time.perf_counter
    random.seed(0)
    print("| sentences | tokens | encoder | best ms | median ms | tokens per second |")
    print("| --- | --- | --- | --- | --- | --- |")
    for count in (1, *options.batches):
        lengths = [22] if count == 1 else [max(3, min(60, round(random.gauss(24, 9)))) for _ in range(count)]
        repeats = options.repeats if count == 1 else options.batch_repeats
        for name, seconds in in_turns(lstm_runs(lengths) | transformer_runs(lengths), repeats, clock).items():
            best, median = 1e3 * min(seconds), 1e3 * statistics.median(seconds)
            rate = sum(lengths) / min(seconds)
            print(f"| {count} | {sum(lengths)} | {name} | {best:.2f} | {median:.2f} | {rate:,.0f} |")


if __name__ == "__main__":
    with torch.inference_mode():
        main()

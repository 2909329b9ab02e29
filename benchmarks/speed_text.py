"""A text file to vectors on the host, end to end: reading, words, the network, the copy to the host.

    python benchmarks/speed_text.py --device cuda --output speed-text.md
    python benchmarks/speed_text.py --device cuda --sentences FILE --count 50000

`Elmo.stream` over the lines of a file, original size, random weights. The first pass of a process also loads kernels
and records graphs; the second pass is timed with an empty cache of words. The peer is a loop of AllenNLP's structure in
float32, on fewer sentences, sorted by length and in batches of 64.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from peers.ours import Ours
from peers.plain import Plain
from speed import machine, models, parity, sentences
from speed.floors import lstm_operations, word_operations
from speed.table import Row, Table, publish, run_script, text_arguments

from elmokit import Elmo, ElmoConfig
from elmokit.errors import ElmoError

PEER_SENTENCES = 1024
PARITY_SENTENCES = 8
COLUMNS = {"loop": "a loop of AllenNLP's structure, float32", "ours": "elmokit", "floor": "floor"}


def through(elmo: Elmo, path: Path, **options: int) -> tuple[int, float]:
    """The number of tokens of a file, and the seconds until the last of their vectors is on the host."""
    start, tokens = time.perf_counter(), 0
    with path.open(encoding="utf-8") as file:
        for vectors in elmo.stream((line.split() for line in file), **options):
            tokens += len(vectors)
    return tokens, time.perf_counter() - start


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--size", choices=[*models.SIZES, "tiny"], default="original")
    parser.add_argument("--count", type=int, default=30_000, help="sentences [%(default)s]")
    parser.add_argument("--batch-tokens", type=int, help="batch_tokens of elmokit [its default]")
    text_arguments(parser)
    return parser.parse_args(given)


def measure(ours: Ours, peer: Plain, path: Path, lines: list[list[str]], batch_tokens: int | None) -> list[Row]:
    """The rows of the table: tokens per second of a first and a second pass, and of the peer."""
    given = {} if batch_tokens is None else {"batch_tokens": batch_tokens}
    speeds = []
    for _ in range(2):
        ours.fresh()
        tokens, seconds = through(ours.elmo, path, **given)
        speeds.append(tokens / seconds)
    few = lines[:PEER_SENTENCES]
    peer.encode_all(few[:64])
    start = time.perf_counter()
    peer.encode_all(few)
    loop = sum(map(len, few)) / (time.perf_counter() - start)
    return [
        Row("the first pass of a process", "tokens/s", "more", {"ours": speeds[0]}, "first"),
        Row("another pass, no word known", "tokens/s", "more", {"loop": loop, "ours": speeds[1]}, "again"),
    ]


def floor(config: ElmoConfig, lines: list[list[str]], peaks: machine.Peaks, dtype: str) -> float:
    """Tokens per second if only the matrix products took time, with the characters of each word computed once."""
    words = {word for line in lines for word in line}
    operations = sum(word_operations(config, min(48, len(word.encode()))) for word in words)
    operations += sum(len(line) + 2 for line in lines) * lstm_operations(config)
    return sum(map(len, lines)) * peaks.operations[dtype] / operations


def main(given: Sequence[str] | None = None) -> None:
    options = arguments(given)
    text = sentences.read(options.sentences, seed=options.seed)
    lines = text.drawn(min(options.count, len(text.sentences)), options.seed)
    peaks = machine.peaks(options.device)
    with tempfile.TemporaryDirectory(prefix="speed-") as temporary:
        folder = Path(temporary)
        path = folder / "sentences.txt"
        path.write_text("".join(" ".join(line) + "\n" for line in lines), encoding="utf-8")
        model = str(models.write(options.size, options.seed, folder, int8=False).elmokit)
        ours = Ours(model, options.dtype, device=options.device)
        peer = Plain(model, structure="loop", device=options.device)
        found = parity.compare(ours.encode(lines[:PARITY_SENTENCES]), peer.encode(lines[:PARITY_SENTENCES]))
        comparison = f"{options.dtype} {found.summary()} against the loop in float32"
        if not parity.TOLERANCES[options.dtype].allows(found):
            raise ElmoError(f"{comparison}: the vectors do not agree, so nothing is timed")
        rows = measure(ours, peer, path, lines, options.batch_tokens)
    config = ours.elmo.config
    rows[1].values["floor"] = floor(config, lines, peaks, options.dtype)
    facts = machine.facts(options.device) | {"text": f"{text.source}, {len(lines):,} sentences"}
    title = f"text file to vectors, {config.lstm.cell_size}/{config.lstm.output_size}, {options.dtype}"
    tables = [Table(title, COLUMNS, rows, "loop", [f"elmokit chose {ours.facts['path']}"])]
    found = {"facts": facts, "peaks": peaks.summary(), "agreement": [comparison]}
    publish("speed_text.py", given, options.output, tables, **found)


if __name__ == "__main__":
    run_script(main)

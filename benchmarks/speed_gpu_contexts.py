"""Both context encoders on a GPU in one run: the LSTM and the Transformer, in the shapes of the bundled models.

    python benchmarks/speed_gpu_contexts.py --output speed-gpu-contexts.md
    python benchmarks/speed_gpu_contexts.py --batches 32 2048 --modes bfloat16      # the figures of docs/speed.md

"network": token vectors on the GPU → all layers on the GPU; the median time between CUDA events over calls in a row.
"until it is there": the wall-clock time of one call. "encode": lists of known words → arrays on the host, in
wall-clock time. Sentences have 22 tokens including the boundaries, or with `--ragged` real lengths. Weights are random;
each system is first compared with the reference in float64.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from peers.plain import reference
from speed import machine, parity, sentences
from speed.models import random_weights
from speed.table import Row, Table, publish, run_script, text_arguments
from speed_gpu import MODES, PARITY_LENGTHS, TOKENS, timed, wall
from torch import Tensor

from elmokit import Elmo, ElmoConfig
from elmokit.config import CharacterConfig, LstmConfig, TransformerConfig
from elmokit.formats.checkpoint import Checkpoint
from elmokit.model.lstm import LstmEncoder
from elmokit.model.transformer import TransformerEncoder
from elmokit.ops.attention import Segments
from elmokit.ops.bilstm import bilstm
from elmokit.ops.paths import forced
from elmokit.ops.reference import transformer_reference

COLUMNS = {"lstm": "LSTM", "packed": "Transformer, packed torch", "transformer": "Transformer"}
FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 256))
PACKED_SENTENCES = 64
"""The largest batch for torch's operations, which compute one sentence at a time."""
REPEATS = 20
"""Number of calls for the median of a wall-clock time."""
SHAPES = {
    "bundled": (LstmConfig(1536, 256), TransformerConfig(384)),
    "tiny": (LstmConfig(24, 8), TransformerConfig(24, 2, 2, 32, 4, 8, 1)),
}


@dataclass(frozen=True)
class Batch:
    """Sentences, and their token vectors in the layouts of both encoders."""

    words: list[list[str]]
    lengths: Tensor  # [B], including the boundaries
    padded: Tensor  # [B, T, P of the LSTM]
    flat: Tensor  # [N, P of the Transformer]

    @classmethod
    def of(cls, words: list[list[str]], models: Mapping[str, Elmo], dtype: torch.dtype) -> Batch:
        """A batch of random vectors with the scale of a token encoder's outputs."""
        lengths = torch.tensor([len(sentence) + 2 for sentence in words])
        generator = torch.Generator().manual_seed(int(lengths.sum()))
        sizes = [models[name].config.context.token_size for name in ("lstm", "transformer")]
        padded = torch.randn(len(words), int(lengths.max()), sizes[0], generator=generator)
        padded *= (torch.arange(padded.shape[1]) < lengths.unsqueeze(1)).unsqueeze(-1)
        flat = torch.randn(int(lengths.sum()), sizes[1], generator=generator)
        device = models["lstm"].device
        return cls(words, lengths, padded.to(device, dtype), flat.to(device, dtype))


def models_of(shape: str, seed: int, device: torch.device, dtype: torch.dtype) -> dict[str, Elmo]:
    """Random models, one for each context encoder."""
    found = {}
    for context in SHAPES[shape]:
        config = ElmoConfig(context, CharacterConfig(FILTERS, n_highway=1))
        weights = random_weights(config, seed)
        found[context.kind] = Elmo(Checkpoint(config, weights, kind="elmokit", where="random")).to(device, dtype).eval()
    return found


def networks(models: Mapping[str, Elmo], batch: Batch) -> dict[str, Callable[[], Sequence[Tensor]]]:
    """The computation of each system on the token vectors of a batch."""
    lstm, blocks = models["lstm"].bilm.context, models["transformer"].bilm.context
    assert isinstance(lstm, LstmEncoder)
    assert isinstance(blocks, TransformerEncoder)
    outputs = range(0, blocks.config.n_blocks + 1, blocks.config.every)
    skip = lstm.config.skip_connections

    def transformer() -> Tensor:
        return blocks.run(batch.flat, Segments.of(batch.lengths.tolist()), outputs)

    def packed() -> Tensor:
        with forced("packed"):
            return transformer()

    return {
        "lstm": lambda: bilstm(batch.padded, batch.lengths, lstm.stacks(), skip_connections=skip).layers,
        "packed": packed,
        "transformer": transformer,
    }


def agreement(models: Mapping[str, Elmo], exact: Mapping[str, Elmo], mode: str) -> tuple[dict[str, str], list[str]]:
    """The systems whose vectors differ from the reference, and a sentence about each comparison."""
    words = [["word"] * n for n in PARITY_LENGTHS]
    batch, plain = Batch.of(words, models, MODES[mode]), Batch.of(words, exact, torch.float64)
    lengths = batch.lengths.tolist()
    tops = {
        "lstm": _reference_lstm(exact["lstm"], plain),
        "transformer": _reference_blocks(exact["transformer"], plain),
    }
    wrong, comparisons = {}, []
    for name, run in networks(models, batch).items():
        for _ in range(3):  # launched, recorded, replayed
            top = run()[-1].double().cpu()
        rows = [row[:n] for row, n in zip(top, lengths, strict=True)] if name == "lstm" else top.split(lengths)
        expected = tops["lstm" if name == "lstm" else "transformer"]
        result = parity.compare([row.numpy() for row in rows], [row.numpy() for row in expected])
        comparisons.append(f"{mode}, {COLUMNS[name]} {result.summary()}")
        if not parity.TOLERANCES[mode].allows(result):
            wrong[name] = f"it is not the same function as the reference ({result.summary()})"
    return wrong, comparisons


def _reference_lstm(elmo: Elmo, batch: Batch) -> list[Tensor]:
    """The top layer of each sentence."""
    context = elmo.bilm.context
    assert isinstance(context, LstmEncoder)
    skip = context.config.skip_connections
    top = reference(batch.padded, batch.lengths, context.stacks(), skip_connections=skip)[-1]
    return [row[:n] for row, n in zip(top, batch.lengths.tolist(), strict=True)]


def _reference_blocks(elmo: Elmo, batch: Batch) -> list[Tensor]:
    context = elmo.bilm.context
    assert isinstance(context, TransformerEncoder)
    blocks, config = context.block_weights(), context.config
    return [
        transformer_reference(x, blocks, window=config.window, outputs=[config.n_blocks])[0]
        for x in batch.flat.split(batch.lengths.tolist())
    ]


def table_of(
    models: Mapping[str, Elmo], mode: str, batches: Mapping[int, list[list[str]]], kind: str, absent: Mapping[str, str]
) -> Table:
    """The table of one mode."""
    device, rows = models["lstm"].device, []
    for count, words in batches.items():
        batch = Batch.of(words, models, MODES[mode])
        left_out = {*absent, *(["packed"] if count > PACKED_SENTENCES else [])}
        tokens = int(batch.lengths.sum())
        runs = {name: run for name, run in networks(models, batch).items() if name not in left_out}
        name = "1 sentence" if count == 1 else f"{count:,} sentences"
        found = {system: timed(run, device) for system, run in runs.items()}
        rows.append(Row(f"{name}, network", "ms", "less", found, f"{count} network ms"))
        speeds = {system: 1000 * tokens / took for system, took in found.items()}
        rows.append(Row(f"{name}, network", "tokens/s", "more", speeds, f"{count} network tokens/s"))
        clock = {system: wall(run, device, REPEATS) for system, run in runs.items()}
        rows.append(Row(f"{name}, network until it is there", "ms", "less", clock, f"{count} network wall"))
        whole = {
            system: wall(run, device, REPEATS)
            for system, run in encoders(models, words).items()
            if system not in left_out
        }
        rows.append(Row(f"{name}, encode", "ms", "less", whole, f"{count} encode ms"))
        speeds = {system: 1000 * tokens / took for system, took in whole.items()}
        rows.append(Row(f"{name}, encode", "tokens/s", "more", speeds, f"{count} encode tokens/s"))
    notes = [f"{COLUMNS[system]}: {elmo.explain(32, TOKENS)}" for system, elmo in models.items()]
    return Table(f"Context encoders, {mode}, {kind}", COLUMNS, rows, "lstm", notes, absent)


def encoders(models: Mapping[str, Elmo], words: list[list[str]]) -> dict[str, Callable[[], object]]:
    """The whole of `encode` for each system: from words to arrays on the host."""

    def packed() -> object:
        with forced("packed"):
            return models["transformer"].encode(words)

    return {
        "lstm": lambda: models["lstm"].encode(words),
        "packed": packed,
        "transformer": lambda: models["transformer"].encode(words),
    }


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="where to measure (default: cuda)")
    parser.add_argument("--shape", choices=SHAPES, default="bundled", help="sizes of both models (default: bundled)")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32, 2048], help="sentences per batch")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=["bfloat16", "float32"])
    parser.add_argument("--ragged", action="store_true", help=f"sentences of real lengths instead of {TOKENS} tokens")
    text_arguments(parser)
    return parser.parse_args(given)


@torch.no_grad()
def main(given: Sequence[str] | None = None) -> None:
    options = arguments(given)
    device = torch.device(options.device)
    text = sentences.read(options.sentences, seed=options.seed)
    exact = models_of(options.shape, options.seed, torch.device("cpu"), torch.float64)
    peaks = machine.peaks(options.device)
    facts = machine.facts(options.device) | {"text": text.source}
    kind = "real lengths" if options.ragged else f"{TOKENS} tokens each"
    batches = {
        n: text.drawn(n, options.seed) if options.ragged else text.of_length(TOKENS - 2, n, options.seed)
        for n in options.batches
    }
    tables, comparisons, agreed = [], [], True
    for mode in options.modes:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = mode == "tf32"
        models = models_of(options.shape, options.seed, device, MODES[mode])
        absent, lines = agreement(models, exact, mode)
        comparisons += lines
        agreed &= not absent
        tables.append(table_of(models, mode, batches, kind, absent))
        print(tables[-1].markdown(), "\n", file=sys.stderr, flush=True)
    problem = "" if agreed else "not every system could be measured: the tables say why"
    found = {"facts": facts, "peaks": peaks.summary(), "agreement": comparisons}
    publish("speed_gpu_contexts.py", given, options.output, tables, **found, problem=problem)


if __name__ == "__main__":
    run_script(main)

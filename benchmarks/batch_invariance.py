"""How much a sentence's vectors change with its batch: in elmokit, and in the same network with plain matrix products.

    python benchmarks/batch_invariance.py [--size medium] [--device cpu]

The weights are random, in two strengths; strong weights make the LSTM chaotic, so that a difference in a last digit
grows and becomes visible.
"""

from __future__ import annotations

import argparse
import platform

import numpy as np
import torch

from elmokit import BiLM, Elmo, ElmoConfig
from elmokit.config import CharacterConfig, LstmConfig
from elmokit.formats.checkpoint import Checkpoint
from elmokit.model import int8
from elmokit.ops import bilstm
from elmokit.ops.paths import forced

FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
SIZES = {"small": (1024, 128), "medium": (2048, 256), "original": (4096, 512)}
TEXT = [
    *("The", "bank", "raised", "interest", "rates", "for", "the", "third", "time", "this", "year", ",", "and", "the"),
    *("river", "bank", "was", "flooded", "again", "after", "two", "weeks", "of", "rain", ";", "nobody", "in", "the"),
    *("village", "had", "seen", "anything", "like", "it", "before", "."),
]


def build(size: str, strength: float) -> Elmo:
    cell, output = SIZES[size]
    config = ElmoConfig(LstmConfig(cell, output), CharacterConfig(FILTERS, n_highway=2))
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: strength * torch.randn(value.shape, generator=generator) / value.shape[-1] ** 0.5
        for name, value in BiLM(config).state_dict().items()
    }
    return Elmo(Checkpoint(config, weights, kind="elmokit", where="random"), type_cache_mb=0)


def spread(elmo: Elmo) -> float:
    """The largest difference in any layer between a sentence alone and the same sentence in batches of 2 to 32."""
    sentences = [TEXT[start : start + 5 + start % 23] for start in range(32)]
    alone = [elmo.encode([sentence], output="layers")[0] for sentence in sentences]
    largest = 0.0
    for batch in (2, 3, 5, 8, 32):
        for start in range(0, 32 - batch + 1, batch):
            for number, found in enumerate(elmo.encode(sentences[start : start + batch], output="layers")):
                largest = max(largest, float(np.abs(found - alone[start + number]).max()))
    return largest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_float32_matmul_precision("highest")
    where = torch.cuda.get_device_name() if arguments.device != "cpu" else torch.backends.cpu.get_cpu_capability()
    print(f"torch {torch.__version__}, {platform.machine()}, {where}, {torch.get_num_threads()} threads")
    modules = (int8, bilstm)
    ours = bilstm.linear
    for strength in (1.0, 3.0):
        elmo = build(arguments.size, strength).to(arguments.device)
        print(f"{arguments.size}, strength {strength:g}: elmokit {spread(elmo):.1e}", end="", flush=True)
        try:
            for module in modules:
                module.linear = torch.nn.functional.linear  # type: ignore[assignment]
            bilstm.filled = lambda rows: rows
            with forced("packed"):
                print(f", plain products {spread(elmo):.1e}")
        finally:
            for module in modules:
                module.linear = ours
            bilstm.filled = filled


filled = bilstm.filled

if __name__ == "__main__":
    main()

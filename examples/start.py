"""Shared by the examples: their arguments, and a tiny model trained on their own text if the user names no model."""

from __future__ import annotations

import argparse
import io
import random
from collections.abc import Iterable, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import torch
from torch import nn

from elmokit import Elmo, ScalarMix
from elmokit.pretrain.request import TrainRequest
from elmokit.pretrain.run import run_training

Item = TypeVar("Item")
# Far too small for real use: it only shows how the parts work together.
RECIPE = {
    "cell_size": 48,
    "output_size": 24,
    "filters": "1:8,2:16,3:24",
    "batch_size": 8,
    "window": 12,
    "learning_rate": 0.01,
    "heldout_fraction": 0,
    "steps": 80,
    "seed": 1,
}


def arguments(
    about: str | None, *, epochs: int | None = None, segment: bool = False, output: bool = False
) -> argparse.Namespace:
    """The arguments [MODEL [TRAIN DEV]] --limit N, and --epochs, --segment and --output if the example uses them."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", metavar="MODEL", help="model of any format [a tiny one, trained now]")
    parser.add_argument("train", nargs="?", metavar="TRAIN", help="examples to learn from [generated]")
    parser.add_argument("dev", nargs="?", metavar="DEV", help="examples to score on")
    parser.add_argument("--limit", type=int, metavar="N", help="use the first N examples of each file")
    if epochs:
        parser.add_argument("--epochs", type=int, metavar="N", default=epochs, help="[%(default)s]")
    if segment:
        parser.add_argument(
            "--segment", choices=["whitespace", "chars", "jieba"], help="how text is tokenised [as for MODEL]"
        )
    if output:
        parser.add_argument("--output", metavar="DIR", help="folder for the trained model [nothing is saved]")
    given = parser.parse_args()
    if (given.train is None) != (given.dev is None):
        parser.error("TRAIN and DEV must be given together")
    return given


def batches(items: Sequence[Item], size: int = 8, *, shuffle: int | None = None) -> list[list[Item]]:
    """The items in batches of this size; `shuffle` is the seed of their order."""
    order = list(items) if shuffle is None else random.Random(shuffle).sample(items, len(items))
    return [order[start : start + size] for start in range(0, len(order), size)]


def shown(mix: nn.Module) -> str:
    """The weights of a mix as text."""
    assert isinstance(mix, ScalarMix)
    shares = " ".join(f"{share:.3f}" for share in mix.weights.softmax(0).tolist())
    return f"mix of the layers {shares}, gamma {mix.gamma.item():.3f}"


def open_model(path: str | None, text: Iterable[str], *, mixes: int | None = None) -> Elmo:
    """`Elmo.load(path)`, or without a path a tiny model trained on the sentences of `text`."""
    if path is not None:
        return Elmo.load(path, mixes=mixes)
    print("No MODEL was named: training a tiny one on the text of this example ...")
    torch.set_num_threads(1)  # such small products gain nothing from more threads
    with TemporaryDirectory() as folder, redirect_stderr(io.StringIO()):
        corpus, output, prepared = Path(folder, "corpus.txt"), Path(folder, "model"), Path(folder, "prepared")
        corpus.write_text("".join(f"{sentence}\n" for sentence in text), encoding="utf-8")
        run_training(TrainRequest([str(corpus)], output, cache=prepared, device="cpu", changes=RECIPE))
        return Elmo.load(output, mixes=mixes, device="cpu")

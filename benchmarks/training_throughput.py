"""Tokens per second of `elmo train`, end to end, for each preset, against the plain loop of torch operations.

The time includes all parts of an update: reading windows, the character part, both directions, the full softmax,
clipping, the optimiser. The reference runs the same weights and batches through the equations step by step under
autograd, with a softmax over the whole batch; before anything is timed, the two losses and gradients must agree. A
token is one prediction of each direction, as in bilm-tf.

    python benchmarks/training_throughput.py                  # CPU: tiny
    python benchmarks/training_throughput.py --device cuda    # small, medium, original in bfloat16
    python benchmarks/training_throughput.py --device cuda --context transformer --presets small

A Transformer has no plain loop here; tests compare its loss and gradients with the equations. Its tokens are those that
it reads, boundaries included.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from elmokit.corpus.prepare import prepare
from elmokit.corpus.prepared import PreparedCorpus, build_vocabulary
from elmokit.model.context import State
from elmokit.ops.reference import lstm_windows_reference
from elmokit.pretrain.batches import Batch, batches_ahead
from elmokit.pretrain.checkpoints import RunFolder
from elmokit.pretrain.distributed import Processes
from elmokit.pretrain.loop import Training
from elmokit.pretrain.network import LanguageModelNetwork
from elmokit.pretrain.recipe import Recipe, make_recipe
from elmokit.pretrain.setup import data_of, new_start
from elmokit.pretrain.windows import WindowBatch

SENTENCES, TYPES = 100_000, 120_000


def made_corpus(folder: Path) -> PreparedCorpus:
    """Random sentences whose words have natural frequencies and lengths (Zipf's law; rarer words are longer)."""
    random = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    lengths = np.minimum(20, 1 + np.log2(np.arange(1, TYPES + 1)) / 2 + random.poisson(2, TYPES)).astype(int)
    words = ["".join(random.choice(letters, n)) for n in lengths]
    chances = 1 / (np.arange(TYPES) + 2.7) ** 1.1
    drawn = random.choice(TYPES, size=(SENTENCES, 24), p=chances / chances.sum())
    sizes = random.integers(5, 25, SENTENCES)
    return PreparedCorpus.from_sentences(([words[i] for i in row[:n]] for row, n in zip(drawn, sizes)), folder)  # noqa: B905


def training_for(recipe: Recipe, corpus: PreparedCorpus, device: torch.device, folder: Path) -> Training:
    vocab = build_vocabulary(corpus, max_size=recipe.vocab_size, min_count=1)
    start = new_start(recipe, vocab)
    data = data_of(recipe, start, corpus, None)
    return Training(recipe, start.network, data, RunFolder(folder), device=device, processes=Processes())


def measure(training: Training, seconds: float, warm_up: int) -> tuple[float, float]:
    """Tokens per second, and distinct words per token, after the first updates."""
    batches = batches_ahead(training.objective.batches(), training.device)
    words = 0
    try:
        start, updates = time.perf_counter(), 0
        while (
            updates < warm_up or time.perf_counter() - start < seconds / 2
        ):  # kernels are loaded when a new shape comes
            training.updates.update(updates, next(batches)[0], 1e-4)
            _wait(training.device)
            updates += 1
        start, updates = time.perf_counter(), 0
        while updates < 3 or time.perf_counter() - start < seconds:
            parts, _ = next(batches)
            words += sum(_distinct(part) for part in parts)
            training.updates.update(updates, parts, 1e-4)
            updates += 1
            if updates % 20 == 0:
                _wait(training.device)  # otherwise the loop would only queue work on the GPU
        _wait(training.device)
        spent = time.perf_counter() - start
    finally:
        batches.close()
    tokens = updates * training.objective.size(0)
    return tokens / spent, words / tokens


def measure_reference(training: Training, seconds: float) -> float:
    """Tokens per second of the plain loop with the same batches and optimiser."""
    batches = batches_ahead(training.objective.batches(), training.device)
    state = training.updates.states[0]
    try:
        start, updates = 0.0, -1
        while updates < 2 or time.perf_counter() - start < seconds:
            if updates == 0:
                _wait(training.device)
                start = time.perf_counter()
            batch = next(batches)[0][0].to(training.device)
            for parameter in training.updates.trained:
                parameter.grad = None
            reference_loss(training.updates.network, batch, state, training.updates.precision).backward()
            torch.nn.utils.clip_grad_norm_(training.updates.trained, training.recipe.clip_norm)
            for optimizer in training.updates.optimizers:
                optimizer.step()
            updates += 1
        _wait(training.device)
        return updates * training.objective.size(0) / (time.perf_counter() - start)
    finally:
        batches.close()


def reference_loss(
    network: LanguageModelNetwork, batch: WindowBatch, state: State, precision: torch.dtype
) -> torch.Tensor:
    """The loss of a batch by the equations, with every step and the whole softmax under autograd."""
    bilm = network.bilm
    with torch.autocast(batch.inputs.device.type, torch.bfloat16, enabled=precision == torch.bfloat16):
        x = F.embedding(batch.inputs, bilm.token_encoder(batch.characters, batch.words))
        assert bilm.context.backward_lstm is not None
        for number in range(bilm.config.lstm.n_layers):
            x = F.dropout(x, network.dropout, network.training)
            weights = [
                stack.layers[number].weights() for stack in (bilm.context.forward_lstm, bilm.context.backward_lstm)
            ]  # type: ignore[operator]
            y, _, _ = lstm_windows_reference(x, batch.keep, weights, state.h[:, number], state.c[:, number])
            x = x + y if number and bilm.config.lstm.skip_connections else y
        x = F.dropout(x, network.dropout, network.training)
        logits = F.linear(x.flatten(0, 2), network.softmax_weight(), network.head.bias)
        return F.cross_entropy(logits.float(), batch.targets.flatten())


def check(training: Training) -> tuple[float, float]:
    """The relative differences of the loss and the gradients of one batch from the reference."""
    batches = batches_ahead(training.objective.batches(), training.device)
    batch = next(batches)[0][0].to(training.device)
    batches.close()
    network, state = training.updates.network.eval(), training.updates.states[0]
    found = []
    for loss in (
        reference_loss(network, batch, state, training.updates.precision),
        network(batch, state, None, training.updates.precision)[0],
    ):
        gradients = torch.autograd.grad(loss, training.updates.trained, allow_unused=True)
        found.append((loss.item(), torch.cat([g.float().flatten() for g in gradients if g is not None])))
    (a, ga), (b, gb) = found
    return abs(a - b) / abs(a), float((ga - gb).norm() / ga.norm())


def _distinct(batch: Batch) -> int:
    ids = batch.characters if batch.characters is not None else batch.words
    assert ids is not None
    return len(ids)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--context", default="lstm", choices=["lstm", "transformer"])
    parser.add_argument("--presets", nargs="*")
    parser.add_argument("--corpus", nargs="*", help="text to read [random words of natural frequencies]")
    parser.add_argument("--segment", default="none")
    parser.add_argument("--split", default="none")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rows", type=int, help="rows per batch")
    parser.add_argument("--window", type=int, help="tokens per row")
    parser.add_argument("--words", type=int, help="words in the softmax")
    parser.add_argument("--tokens", type=int, help="tokens per batch of a transformer")
    parser.add_argument("--no-reference", action="store_true")
    arguments = parser.parse_args()
    lstm = arguments.context == "lstm"
    arguments.no_reference |= not lstm
    device = torch.device(arguments.device)
    cuda = device.type == "cuda"
    presets = arguments.presets or (["small", "medium", "original"] if cuda else ["tiny"])
    name = (
        torch.cuda.get_device_name() if cuda else f"{platform.processor() or 'CPU'}, {torch.get_num_threads()} threads"
    )
    print(f"{name}; torch {torch.__version__}, Python {platform.python_version()}")
    print("| preset | batch | words | distinct a token | tokens/s | plain loop | ratio | loss, gradients off by |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if arguments.corpus:
            corpus = prepare(
                arguments.corpus, segment=arguments.segment, split=arguments.split, folder=folder / "corpus"
            )
        else:
            corpus = made_corpus(folder / "corpus")
        for preset in presets:
            size = {"batch_size": arguments.rows or (1024 if cuda else 32), "window": arguments.window or 20}
            if not lstm:
                size = {
                    "context": "transformer",
                    "grow": 1,
                    "batch_tokens": arguments.tokens or (65_536 if cuda else 2048),
                }
            changes = {
                **size,
                "vocab_size": arguments.words or (50_000 if cuda else 10_000),
                "loss": "full",
                "steps": 1_000_000,
                "heldout_fraction": 0.0,
            }
            recipe = make_recipe(preset=preset, changes=changes)
            training = training_for(recipe, corpus, device, folder)
            off = ("", "")
            plain = ratio = "not run"
            if not arguments.no_reference:
                differences = check(training)
                if max(differences) > (2e-2 if cuda else 1e-5):
                    raise SystemExit(f"{preset}: loss and gradients are off by {differences}, so nothing is timed")
                off = tuple(f"{value:.1e}" for value in differences)
            speed, distinct = measure(training, arguments.seconds, warm_up=10 if cuda else 2)
            if not arguments.no_reference:
                reference = measure_reference(training, arguments.seconds / 2)
                plain, ratio = f"{reference:,.0f}", f"{speed / reference:.2f}"
            n_words = len(training.updates.network.head.bias)
            shape = f"{recipe.batch_size} x {recipe.window}" if lstm else f"{recipe.batch_tokens:,}"
            print(
                f"| {preset} | {shape} | {n_words:,} | {distinct:.3f} | {speed:,.0f} | {plain} | {ratio} | "
                f"{', '.join(off)} |",
                flush=True,
            )
            del training
            if cuda:
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

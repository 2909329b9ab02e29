"""Parts of speech by layer: a linear classifier on each layer, as the ELMo paper compares its two LSTM layers.

The classifier is linear so that it shows what a layer contains, not what a network could compute from the layer.
Dimensions: K layers, N tokens, vectors of size D, C classes.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.analyse.probes.sources import ElmoSource, LayerSource, source_of
from elmokit.elmo import Elmo
from elmokit.errors import ElmoError
from elmokit.tasks.classify import check_unseen_labels
from elmokit.tasks.inputs import frozen_features, rounded
from elmokit.tasks.reading import token_location
from elmokit.tasks.tag import TaggedExample

log = logging.getLogger(__name__)
Labels = NDArray[np.int64]
LayerRows = Callable[[int, int, int], Tensor]
"""A function from a layer, a first token and an end token to the vectors [N, D] in float16."""

_BLOCK_TOKENS = 16_384
_MIN_DEVIATION = 1e-4


@dataclass(frozen=True)
class LinearOptions:
    """How the linear classifier is trained."""

    epochs: int = 8
    """Number of passes over the tokens; raised if it gives fewer than `least_updates` updates."""
    least_updates: int = 3000
    """Minimum number of updates."""
    batch_size: int = 512
    """Tokens per update."""
    learning_rate: float = 0.01
    """Initial learning rate of Adam, which falls linearly to zero."""
    penalty: float = 4e-4
    """λ of the penalty λ/2·‖w‖², against overfitting of long vectors."""
    seed: int = 1
    """Seed of the order of the tokens and of the initial weights."""


@dataclass(frozen=True)
class PosResult:
    """The accuracy of the predicted tags on the dev data."""

    accuracy: dict[str, float]
    """By layer: "0" …, the "mean" of the layers, and "mix", a weighted mean learned with the classifier."""
    runs: dict[str, tuple[float, ...]]
    """By layer, the accuracy with each seed; `accuracy` is the mean."""
    baseline: float
    """The accuracy of each word's most frequent tag in training; new words get the most frequent tag of all."""
    tags: tuple[str, ...]
    """The tags of the training data."""
    train_tokens: int
    """Number of tokens that the classifiers were trained on."""
    dev_tokens: int
    """Number of tokens that the accuracy was measured on."""


def probe_pos(
    source: Elmo | LayerSource,
    train: Sequence[TaggedExample],
    dev: Sequence[TaggedExample],
    *,
    options: LinearOptions | None = None,
    seeds: Sequence[int] = (1,),
    folder: Path | None = None,
) -> PosResult:
    """Train a linear classifier of tags on each layer, once for each seed, and measure it on `dev`.

    The vectors of all layers are computed once, as float16. Those of an Elmo are stored in `folder`, by default
    features/ in the cache, for the next probe or task; those of another source stay in memory.

    >>> probe_pos(elmo, train, dev).accuracy  # doctest: +SKIP
    {'0': 0.89, '1': 0.94, '2': 0.93, 'mean': 0.95, 'mix': 0.95}
    """
    chosen, options = source_of(source), options or LinearOptions()
    for name, examples in (("train", train), ("dev", dev)):
        if not any(example.tokens for example in examples):
            raise ElmoError(f"{name} must have tokens to probe parts of speech, got none", name)
    if not seeds:
        raise ElmoError("seeds must contain at least one seed, got none", "seeds")
    tags = tuple(sorted({tag for example in train for tag in _tags(example)}))
    found = (
        (tag, partial(token_location, None, example.line, example.tokens, index))
        for example in dev
        for index, tag in enumerate(_tags(example))
    )
    for note in check_unseen_labels(tags, found):
        log.warning("dev, %s", note)
    # Neighbouring sentences are similar, so a fixed shuffle makes each block a mixture.
    shuffled = [train[index] for index in np.random.default_rng(0).permutation(len(train))]
    train_labels, dev_labels = _labels(shuffled, tags), _labels(dev, tags)
    runs: defaultdict[str, tuple[float, ...]] = defaultdict(tuple)
    train_rows, dev_rows = (_read_rows(chosen, examples, folder) for examples in (shuffled, dev))
    for name, parts in _layer_sets(chosen).items():
        train_features, dev_features = (
            [MeanLayer(rows, part, (len(labels), chosen.size)) for part in parts]
            for rows, labels in ((train_rows, train_labels), (dev_rows, dev_labels))
        )
        for seed in seeds:
            probe = fit_linear(train_features, train_labels, len(tags), replace(options, seed=seed), chosen.device)
            runs[name] += (float((probe.predict(dev_features) == dev_labels).mean()),)
    return PosResult(
        accuracy={name: sum(values) / len(values) for name, values in runs.items()},
        runs=dict(runs),
        baseline=_baseline(train, dev),
        tags=tags,
        train_tokens=len(train_labels),
        dev_tokens=len(dev_labels),
    )


def _layer_sets(source: LayerSource) -> dict[str, list[Sequence[int]]]:
    """The input layers of each probe by name; each input layer is the mean of some layers of the source."""
    count = len(source.names)
    alone: list[Sequence[int]] = [(number,) for number in range(count)]
    parts = {name: [layer] for name, layer in zip(source.names, alone, strict=True)}
    return parts if count == 1 else {**parts, "mean": [range(count)], "mix": alone}


def _read_rows(source: LayerSource, examples: Sequence[TaggedExample], folder: Path | None) -> LayerRows:
    """The vectors of all tokens of the examples, computed once."""
    sentences = [example.tokens for example in examples]
    if isinstance(source, ElmoSource):
        return frozen_features(
            source.elmo, sentences, cache=folder, batch_tokens=source.batch_tokens, progress=source.progress
        ).rows
    layers = torch.cat([rounded(torch.from_numpy(each), torch.float16) for each in source.stream(sentences)], dim=1)
    return lambda layer, start, end: layers[layer, start:end]


def _tags(example: TaggedExample) -> tuple[str, ...]:
    if example.tags is None or len(example.tags) != len(example.tokens):
        raise ElmoError(f"a POS probe needs a tag for each token, but the sentence of line {example.line} lacks some")
    return example.tags


def _labels(examples: Sequence[TaggedExample], tags: Sequence[str]) -> Labels:
    """The number of the tag of each token; -1, which is never predicted, for a tag unknown from training."""
    numbers = {tag: number for number, tag in enumerate(tags)}
    return np.array([numbers.get(tag, -1) for example in examples for tag in _tags(example)], np.int64)


def _baseline(train: Sequence[TaggedExample], dev: Sequence[TaggedExample]) -> float:
    """The accuracy of the most frequent tag of each word; see `PosResult.baseline`."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for example in train:
        for token, tag in zip(example.tokens, _tags(example), strict=True):
            counts[token][tag] += 1
    most_frequent = sum(counts.values(), Counter()).most_common(1)[0][0]
    best = {token: min(tags, key=lambda tag: (-tags[tag], tag)) for token, tags in counts.items()}
    pairs = [
        (best.get(token, most_frequent), tag)
        for example in dev
        for token, tag in zip(example.tokens, _tags(example), strict=True)
    ]
    return sum(found == wanted for found, wanted in pairs) / len(pairs)


class MeanLayer:
    """The mean of some layers [N, D], read from the disk slice by slice."""

    def __init__(self, rows: LayerRows, layers: Sequence[int], shape: tuple[int, int]) -> None:
        self._rows, self._layers, self.shape = rows, layers, shape

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        """The rows of a slice, [N, D]."""
        start, end, _ = rows.indices(self.shape[0])
        found, *others = (self._rows(layer, start, end) for layer in self._layers)
        return (sum(others, found.float()) / len(self._layers) if others else found).numpy()


Features = Sequence[MeanLayer | NDArray[Any]]
"""K layers, each [N, D]."""


class LinearProbe(nn.Module):
    """Softmax regression on standardised vectors; for several layers it also learns a mix."""

    centre: Tensor
    deviation: Tensor

    def __init__(self, centre: Tensor, deviation: Tensor, classes: int, generator: torch.Generator) -> None:
        """`centre` and `deviation` [K, D] standardise the vectors."""
        super().__init__()
        layers, size = centre.shape
        self.register_buffer("centre", centre)
        self.register_buffer("deviation", deviation)
        self.mix = nn.Parameter(torch.zeros(layers))
        self.weight = nn.Parameter(torch.randn(classes, size, generator=generator) * 0.01)
        self.bias = nn.Parameter(torch.zeros(classes))

    def forward(self, vectors: Tensor) -> Tensor:
        """vectors [K, N, D] → logits [N, C]."""
        # Standardise the weights, not the vectors: there are far fewer of them.
        weights = self.weight / self.deviation.unsqueeze(1)  # [K, C, D]
        shifts = torch.einsum("kcd,kd->kc", weights, self.centre)
        logits = torch.einsum("knd,kcd->knc", vectors, weights) - shifts.unsqueeze(1)
        return torch.einsum("k,knc->nc", self.mix.softmax(0), logits) + self.bias

    @torch.no_grad()
    def predict(self, features: Features) -> Labels:
        """features, K layers [N, D] → the most probable class of each token [N]."""
        found = [self(block).argmax(1).cpu().numpy() for block in _blocks(features, self.bias.device)]
        return np.concatenate(found) if found else np.zeros(0, np.int64)


def fit_linear(
    features: Features, labels: Labels, classes: int, options: LinearOptions, device: torch.device
) -> LinearProbe:
    """Train a probe on K layers [N, D] with labels [N] in 0 … C-1.

    In each epoch the blocks of tokens have a new order, and so have the tokens within each block. Blocks are used
    because a disk is fast only if long pieces are read.
    """
    generator = torch.Generator().manual_seed(options.seed)
    probe = LinearProbe(*_moments(features, device), classes, generator).to(device)
    optimizer = torch.optim.Adam(probe.parameters(), lr=options.learning_rate, weight_decay=options.penalty)
    starts = list(range(0, len(labels), _BLOCK_TOKENS))
    in_epoch = sum(-(-len(labels[start : start + _BLOCK_TOKENS]) // options.batch_size) for start in starts)
    epochs = max(options.epochs, -(-options.least_updates // in_epoch))
    updates = epochs * in_epoch
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: 1 - done / updates)
    for _ in range(epochs):
        for number in torch.randperm(len(starts), generator=generator).tolist():
            start = starts[number]
            block = _block(features, start, device)
            wanted = torch.from_numpy(labels[start : start + _BLOCK_TOKENS]).to(device)
            order = torch.randperm(len(wanted), generator=generator).to(device)
            for chosen in torch.split(order, options.batch_size):
                optimizer.zero_grad()
                torch.autograd.backward(F.cross_entropy(probe(block[:, chosen]), wanted[chosen]))
                optimizer.step()
                schedule.step()
    return probe.eval()


def _moments(features: Features, device: torch.device) -> tuple[Tensor, Tensor]:
    """The mean and the standard deviation of the vectors, both [K, D]."""
    count, size = features[0].shape
    total, squares = (torch.zeros(len(features), size, dtype=torch.float64, device=device) for _ in range(2))
    for block in _blocks(features, device):
        total += block.sum(1)
        squares += block.square().sum(1)
    mean = total / max(1, count)
    variance = (squares / max(1, count) - mean.square()).clamp(min=0)
    # A lower bound, so that a dimension that hardly varies does not dominate the others.
    return mean.float(), variance.sqrt().float().clamp(min=_MIN_DEVIATION)


def _blocks(features: Features, device: torch.device) -> Iterator[Tensor]:
    for start in range(0, features[0].shape[0], _BLOCK_TOKENS):
        yield _block(features, start, device)


def _block(features: Features, start: int, device: torch.device) -> Tensor:
    layers = np.stack([layer[start : start + _BLOCK_TOKENS] for layer in features])
    return torch.from_numpy(layers).to(device).float()

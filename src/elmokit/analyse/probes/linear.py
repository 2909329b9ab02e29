"""A linear classifier of tokens: what a layer says openly, without a network that could work it out.

K layers, N tokens, D numbers in a vector, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.storage.vectors import StoredLayers

Labels = NDArray[np.int64]

_BLOCK = 16_384
_LEAST_DEVIATION = 1e-4


class StoredRows:
    """The mean of some layers of stored sentences, row by row."""

    def __init__(self, stored: StoredLayers, layers: Sequence[int], size: int) -> None:
        self._stored, self._layers = stored, layers
        self.shape = (int(stored.lengths.sum()), size)

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        """Some rows, [N, D]."""
        start, end, _ = rows.indices(self.shape[0])
        found, *others = (self._stored.rows(layer, start, end) for layer in self._layers)
        if others:
            found = found.float()
            for other in others:
                found += other
            found /= len(self._layers)
        return found.numpy()


Features = Sequence[StoredRows | NDArray[Any]]
"""K layers, each [N, D]."""


@dataclass(frozen=True)
class LinearOptions:
    """How the classifier is trained."""

    epochs: int = 8
    """Times through the tokens, and more where that would be too few updates."""
    least_updates: int = 3000
    """Updates that few tokens get too."""
    batch_size: int = 512
    """Tokens in an update."""
    learning_rate: float = 0.01
    """Of Adam at the start; it falls to zero along a straight line."""
    penalty: float = 4e-4
    """λ of λ/2·‖w‖²: long vectors would learn the training tokens by heart."""
    seed: int = 1
    """Of the order of the tokens and the first weights."""


class LinearProbe(nn.Module):
    """Softmax regression on standardised vectors; over several layers, on a mix of them that is learned with it."""

    centre: Tensor
    deviation: Tensor

    def __init__(self, centre: Tensor, deviation: Tensor, classes: int, generator: torch.Generator) -> None:
        """`centre` and `deviation` [K, D]: what is taken off the vectors, and what they are divided by."""
        super().__init__()
        layers, size = centre.shape
        self.register_buffer("centre", centre)
        self.register_buffer("deviation", deviation)
        self.mix = nn.Parameter(torch.zeros(layers))
        self.weight = nn.Parameter(torch.randn(classes, size, generator=generator) * 0.01)
        self.bias = nn.Parameter(torch.zeros(classes))

    def forward(self, vectors: Tensor) -> Tensor:
        """[K, N, D] → logits [N, C]."""
        # The weights are divided in place of the vectors, which are many more.
        weights = self.weight / self.deviation.unsqueeze(1)  # [K, C, D]
        shifts = torch.einsum("kcd,kd->kc", weights, self.centre)
        logits = torch.einsum("knd,kcd->knc", vectors, weights) - shifts.unsqueeze(1)
        return torch.einsum("k,knc->nc", self.mix.softmax(0), logits) + self.bias

    @torch.no_grad()
    def predict(self, features: Features) -> Labels:
        """K layers [N, D] → the likeliest class of each token [N]."""
        found = [self(block).argmax(1).cpu().numpy() for block in _blocks(features, self.bias.device)]
        return np.concatenate(found) if found else np.zeros(0, np.int64)


def fit_linear(
    features: Features, labels: Labels, classes: int, options: LinearOptions, device: torch.device
) -> LinearProbe:
    """Train on K layers [N, D] with labels [N] in 0 … C-1.

    Tokens are read block by block in a new order each epoch, so that a disk is read in long runs; inside a block their
    order is random.
    """
    generator = torch.Generator().manual_seed(options.seed)
    probe = LinearProbe(*_moments(features, device), classes, generator).to(device)
    optimizer = torch.optim.Adam(probe.parameters(), lr=options.learning_rate, weight_decay=options.penalty)
    starts = list(range(0, len(labels), _BLOCK))
    in_epoch = sum(-(-len(labels[start : start + _BLOCK]) // options.batch_size) for start in starts)
    epochs = max(options.epochs, -(-options.least_updates // in_epoch))
    updates = epochs * in_epoch
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: 1 - done / updates)
    for _ in range(epochs):
        for number in torch.randperm(len(starts), generator=generator).tolist():
            start = starts[number]
            block = _block(features, start, device)
            wanted = torch.from_numpy(labels[start : start + _BLOCK]).to(device)
            order = torch.randperm(len(wanted), generator=generator).to(device)
            for chosen in torch.split(order, options.batch_size):
                optimizer.zero_grad()
                torch.autograd.backward(F.cross_entropy(probe(block[:, chosen]), wanted[chosen]))
                optimizer.step()
                schedule.step()
    return probe.eval()


def _moments(features: Features, device: torch.device) -> tuple[Tensor, Tensor]:
    """The mean and the standard deviation of each number, [K, D] both."""
    count, size = features[0].shape
    total, squares = (torch.zeros(len(features), size, dtype=torch.float64, device=device) for _ in range(2))
    for block in _blocks(features, device):
        total += block.sum(1)
        squares += block.square().sum(1)
    mean = total / max(1, count)
    variance = (squares / max(1, count) - mean.square()).clamp(min=0)
    # Not smaller than a trace: a number that hardly changes must not become the loudest.
    return mean.float(), variance.sqrt().float().clamp(min=_LEAST_DEVIATION)


def _blocks(features: Features, device: torch.device) -> Iterator[Tensor]:
    for start in range(0, features[0].shape[0], _BLOCK):
        yield _block(features, start, device)


def _block(features: Features, start: int, device: torch.device) -> Tensor:
    layers = np.stack([layer[start : start + _BLOCK] for layer in features])
    return torch.from_numpy(layers).to(device).float()

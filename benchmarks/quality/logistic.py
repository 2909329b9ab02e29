"""Logistic regression on frozen vectors: softmax on standardised values, full-batch L-BFGS, automatic penalty.

scikit-learn's needs minutes and a concatenated float64 copy of all layers; this one reads float16 layers in blocks, on
a GPU or a CPU, and does not concatenate them. K layers, N examples, vectors of size D, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

PENALTIES = (1.0, 0.1, 0.01)
"""λ of λ/2·‖w‖² per input value, for the loss summed over the examples; the strongest first."""
_BLOCK = 65_536
_CHOICE_EXAMPLES = 40_000
_CHOICE_SHARE = 0.15
_LEAST_DEVIATION = 1e-4
_FLOAT32_NUMBERS = 2**29
"""Vectors with up to this number of values (2 GB) are converted once instead of in every iteration."""


@dataclass(frozen=True)
class Logistic:
    """A trained classifier: weights [K, D, C] for vectors that are not standardised, and a bias [C]."""

    weight: Tensor
    bias: Tensor
    penalty: float

    def logits(self, vectors: Tensor) -> Tensor:
        """vectors [K, N, D] → [N, C]."""
        return torch.cat([_logits(block, self.weight, self.bias) for _, block in _blocks(vectors)])

    def predict(self, vectors: Tensor) -> Tensor:
        """vectors [K, N, D] → the most likely class of each example [N]."""
        return self.logits(vectors).argmax(1)


def fit_logistic(vectors: Tensor, labels: Tensor, classes: int, *, iterations: int = 100) -> Logistic:
    """Train on vectors [K, N, D] of any dtype, with labels [N] in 0 … C-1; the examples must be in random order.

    The penalty is the one of three with the smallest loss on held-out examples, from at most 40,000 examples in all.
    """
    if vectors.numel() <= _FLOAT32_NUMBERS:
        vectors = vectors.float()
    count = min(len(labels), _CHOICE_EXAMPLES)
    cut = count - max(1, round(_CHOICE_SHARE * count))
    losses: dict[float, float] = {}
    start = None
    for penalty in PENALTIES:
        # Starting from the weights of the stronger penalty saves iterations.
        start, tried = _fit(vectors[:, :cut], labels[:cut], classes, penalty, iterations // 2, start)
        logits = tried.logits(vectors[:, cut:count])
        losses[penalty] = float(torch.nn.functional.cross_entropy(logits, labels[cut:count]))
    return _fit(vectors, labels, classes, min(losses, key=losses.__getitem__), iterations)[1]


def _blocks(vectors: Tensor) -> Iterator[tuple[slice, Tensor]]:
    for start in range(0, vectors.shape[1], _BLOCK):
        yield slice(start, start + _BLOCK), vectors[:, start : start + _BLOCK]


def _logits(block: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    logits = bias.expand(block.shape[1], -1).contiguous()
    for layer, weights in zip(block, weight, strict=True):
        logits.addmm_(layer.float(), weights)
    return logits


def _moments(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the standard deviation of each dimension, both [K, D]."""
    total = torch.zeros(vectors.shape[0], vectors.shape[2], dtype=torch.float64, device=vectors.device)
    squares = torch.zeros_like(total)
    for _, block in _blocks(vectors):
        for number, layer in enumerate(block):
            values = layer.float()
            total[number] += values.sum(0)
            squares[number] += values.square().sum(0)
    mean = total / vectors.shape[1]
    variance = (squares / vectors.shape[1] - mean.square()).clamp(min=0)
    return mean.float(), variance.sqrt().float().clamp(min=_LEAST_DEVIATION)


def _fit(
    vectors: Tensor, labels: Tensor, classes: int, penalty: float, iterations: int, start: Tensor | None = None
) -> tuple[Tensor, Logistic]:
    """The flat weights for standardised vectors [K·D·C + C], and the classifier."""
    layers, count, size = vectors.shape
    mean, deviation = _moments(vectors)
    flat = torch.zeros(layers * size * classes + classes, device=vectors.device) if start is None else start.clone()
    flat.requires_grad_()
    strength = penalty * layers * size / count
    optimizer = torch.optim.LBFGS(
        [flat], max_iter=iterations, tolerance_change=1e-6, history_size=10, line_search_fn="strong_wolfe"
    )

    @torch.no_grad()
    def loss() -> float:
        # The weights are scaled instead of the vectors, because there are far fewer of them.
        weight, bias = _scaled(flat.detach(), mean, deviation, classes)
        gradient = torch.zeros_like(weight)
        total = torch.zeros((), dtype=torch.float64, device=vectors.device)
        sums = torch.zeros(classes, device=vectors.device)
        for rows, block in _blocks(vectors):
            logs = _logits(block, weight, bias).log_softmax(1)
            wanted = labels[rows].unsqueeze(1)
            total -= logs.gather(1, wanted).sum()
            errors = logs.exp_()
            errors.scatter_(1, wanted, errors.gather(1, wanted) - 1)
            sums += errors.sum(0)
            for number, layer in enumerate(block):
                gradient[number].addmm_(layer.float().T, errors)
        gradient = (gradient - mean.unsqueeze(2) * sums) / deviation.unsqueeze(2)
        found = torch.cat([gradient.flatten(), sums]) / count
        weights = flat.detach()[:-classes]
        found[:-classes] += strength * weights
        flat.grad = found
        return float(total / count + 0.5 * strength * weights.square().sum())

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    found = flat.detach()
    return found, Logistic(*_scaled(found, mean, deviation, classes), penalty)


def _scaled(flat: Tensor, mean: Tensor, deviation: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Weights for standardised vectors → weights [K, D, C] and a bias [C] for the original vectors."""
    weight = flat[:-classes].view(*mean.shape, classes) / deviation.unsqueeze(2)
    return weight, flat[-classes:] - torch.einsum("kd,kdc->c", mean, weight)

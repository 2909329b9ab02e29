"""Muon: a matrix moves along its gradient with all directions made equally long.

The momentum G of a matrix is replaced by the nearest matrix with orthonormal rows (or columns), U Vᵀ where G = U S Vᵀ,
found by a few products instead of the decomposition. An LSTM's matrix is four, one a gate, and each is taken by itself.
The numbers of all matrices lie end to end, and those of one shape together: a step is few operations, however many
matrices there are, for it is the processor that has to issue them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

_QUINTIC = (3.4445, -4.7750, 2.0315)
"""s → a s + b s³ + c s⁵ brings any s from (0, 1] near 1 within a few rounds."""
_ROUNDS = 5
_SIZE_OF_ADAM = 0.2
"""The root mean square of Adam's updates, about: with it one learning rate serves both."""


class Muon(torch.optim.Optimizer):
    """Steps of `lr` along the orthogonalised momentum; `blocks` says into how many matrices a weight is cut.

    `found_inf`, where it is not None, is a tensor: with anything but 0 in it a step changes nothing.
    """

    def __init__(
        self, blocks: Mapping[Tensor, int], *, momentum: float, weight_decay: float, precision: torch.dtype
    ) -> None:
        groups = [{"params": [parameter], "blocks": count} for parameter, count in blocks.items()]
        super().__init__(groups, {"lr": 0.0, "momentum": momentum, "weight_decay": weight_decay})
        self.precision = precision
        self.found_inf: Tensor | None = None
        self._laid: _Laid | None = None

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Take one step along the gradients that are there."""
        assert closure is None
        given = {g["params"][0]: g["blocks"] for g in self.param_groups if g["params"][0].grad is not None}
        if not given:
            return
        # One of each for all weights, which move together.
        ((rate, share, decay),) = {(g["lr"], g["momentum"], g["weight_decay"]) for g in self.param_groups}
        laid = self._lay(given)
        gradients = torch.cat([weight.grad.reshape(-1) for weight in laid.weights if weight.grad is not None])
        momenta, bad = laid.momenta, None if self.found_inf is None else self.found_inf != 0
        if bad is None:
            torch.lerp(gradients, momenta, share, out=momenta)
        else:
            torch.where(bad, momenta, torch.lerp(gradients, momenta, share), out=momenta)
        change = torch.lerp(gradients, momenta, share, out=gradients)  # the momentum a step ahead (Nesterov's)
        for alike in laid.alike:
            alike.make_orthogonal(change, self.precision)
        changes = laid.by_weight(change)
        torch._foreach_mul_(changes, laid.sizes)
        if decay:
            torch._foreach_add_(changes, laid.weights, alpha=decay)
        if bad is not None:
            change.masked_fill_(bad, 0.0)
        torch._foreach_add_(laid.weights, changes, alpha=-rate)

    def _lay(self, blocks: Mapping[Tensor, int]) -> _Laid:
        """The weights with their momenta end to end; a momentum that was put in a weight's state is taken in."""
        before = {weight: self.state[weight].get("momentum") for weight in blocks}
        laid = self._laid
        if laid is None or before.keys() != laid.parts.keys() or any(before[w] is not laid.parts[w] for w in before):
            laid = self._laid = _Laid(blocks)
            for weight, part in laid.parts.items():
                if (momentum := before[weight]) is not None:
                    part.copy_(momentum)
                self.state[weight]["momentum"] = part
        return laid


class _Laid:
    """Weights whose momenta lie end to end in one memory, those of one shape side by side."""

    def __init__(self, blocks: Mapping[Tensor, int]) -> None:
        cut = {weight: (len(weight) // count, weight.shape[1]) for weight, count in blocks.items()}
        self.weights = sorted(cut, key=lambda weight: (sorted(cut[weight]), cut[weight]))
        self.sizes = [_SIZE_OF_ADAM * math.sqrt(max(cut[weight])) for weight in self.weights]
        self.momenta = self.weights[0].new_zeros(sum(weight.numel() for weight in self.weights))
        self.parts = dict(zip(self.weights, self.by_weight(self.momenta), strict=True))
        self.alike: list[_Alike] = []
        start = 0
        for (rows, columns), same in groupby(self.weights, key=lambda weight: sorted(cut[weight])):
            counts = {False: 0, True: 0}
            for weight in same:
                counts[cut[weight][0] > cut[weight][1]] += blocks[weight]
            self.alike.append(_Alike(start, rows, columns, counts[False], counts[True]))
            start += rows * columns * sum(counts.values())

    def by_weight(self, numbers: Tensor) -> list[Tensor]:
        """The parts of numbers that lie like the momenta, in the weights' shapes."""
        parts = torch.split(numbers, [weight.numel() for weight in self.weights])
        return [part.view(weight.shape) for part, weight in zip(parts, self.weights, strict=True)]


@dataclass(frozen=True)
class _Alike:
    """Matrices side by side from `start` on: first `wide` that are [p, q], then `tall` that are [q, p]; p ≤ q."""

    start: int
    p: int
    q: int
    wide: int
    tall: int

    def make_orthogonal(self, numbers: Tensor, precision: torch.dtype) -> None:
        """Each matrix by its orthogonal one, in place."""
        size = self.p * self.q
        turn = self.start + self.wide * size
        wide = numbers[self.start : turn].view(self.wide, self.p, self.q)
        tall = numbers[turn : turn + self.tall * size].view(self.tall, self.q, self.p).mT
        found = orthogonal(torch.cat([wide, tall]).to(precision))
        for part, made in ((wide, found[: self.wide]), (tall, found[self.wide :])):
            if len(part):
                part.copy_(made)


def orthogonal(matrices: Tensor) -> Tensor:
    """[N, p, q], p ≤ q → matrices with nearly orthonormal rows: each singular value becomes one near 1."""
    a, b, c = _QUINTIC
    x: Tensor = matrices / matrices.flatten(1).norm(dim=1).clamp(min=1e-7)[:, None, None]
    for _ in range(_ROUNDS):
        square = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x

"""Optimisers (Adam, Muon, Adagrad), the schedule of the learning rate, and gradient clipping."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from elmokit.errors import ElmoError
from elmokit.pretrain.recipe import Recipe

_TABLES = ("head.weight", "embedding.weight", "words.weight", "gate_weight")
"""Tables with a row for each word, character or attention head: Muon is for other matrices only."""
_QUINTIC = (3.4445, -4.7750, 2.0315)
"""s → a s + b s³ + c s⁵ moves any s in (0, 1] near 1 in a few rounds."""
_ROUNDS = 5
_ADAM_UPDATE_SIZE = 0.2
"""About the root mean square of Adam's updates, so that one learning rate fits both optimisers."""


def make_optimizers(
    recipe: Recipe,
    names: Mapping[Tensor, str],
    precision: torch.dtype = torch.float32,
    *,
    joined: Mapping[str, int] | None = None,
) -> list[torch.optim.Optimizer]:
    """The recipe's optimisers of all trainable weights; `set_rate` sets their learning rate before each update.

    `joined`: the number of matrices that a weight consists of, by the last part of its name.
    """
    trained = [parameter for parameter in names if parameter.requires_grad]
    if recipe.optimizer == "adagrad":
        # As TensorFlow: no epsilon, and sums that start at the recipe's accumulator (1).
        return [torch.optim.Adagrad(trained, lr=0.0, initial_accumulator_value=recipe.accumulator, eps=0.0)]
    optimizers: list[torch.optim.Optimizer] = []
    decay = recipe.weight_decay
    if recipe.optimizer == "muon":
        matrices = [p for p in trained if p.dim() == 2 and not names[p].endswith(_TABLES)]
        blocks = {p: (joined or {}).get(names[p].rpartition(".")[2], 1) for p in matrices}
        if blocks:
            optimizers.append(Muon(blocks, momentum=recipe.momentum, weight_decay=decay, precision=precision))
        trained = [parameter for parameter in trained if parameter not in blocks]
        decay = 0.0  # the row of a rare word would decay to zero
    kinds = (([p for p in trained if p.dim() > 1], decay), ([p for p in trained if p.dim() <= 1], 0.0))
    if groups := [{"params": params, "weight_decay": share} for params, share in kinds if params]:
        betas = (recipe.beta1, recipe.beta2)
        optimizers.append(torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=1e-9, fused=True))
    return optimizers


def set_rate(optimizers: Iterable[torch.optim.Optimizer], rate: float) -> None:
    """Set the learning rate of the next update."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate


def rate_at(recipe: Recipe, done: float) -> float:
    """The learning rate when the share `done` of the run is done, from 0 to 1."""
    if recipe.warmup and done < recipe.warmup:
        return recipe.learning_rate * done / recipe.warmup
    if recipe.decay == "none":
        return recipe.learning_rate
    left = 1 - (done - recipe.warmup) / max(1e-9, 1 - recipe.warmup)
    left = min(1.0, max(0.0, left))
    share = left if recipe.decay == "linear" else (1 - math.cos(math.pi * left)) / 2
    return recipe.learning_rate * (recipe.final_rate + (1 - recipe.final_rate) * share)


def clip_gradients(parameters: list[nn.Parameter], bound: float) -> Tensor:
    """Scale all gradients so that their joint norm is at most `bound` (0: no bound); returns the norm before."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if bound:
        # As TensorFlow: no epsilon is added to the norm.
        torch._foreach_mul_(gradients, bound / norm.clamp(min=bound))
    return norm


class Muon(torch.optim.Optimizer):
    """Moves matrices along their momentum G with all its singular values made equal: U Vᵀ where G = U S Vᵀ.

    `blocks` says how many matrices each weight consists of; an LSTM's weight has one per gate. The momenta are in one
    buffer, those of equal shape next to each other, so a step takes few operations for any number of matrices. If
    `found_inf` is a tensor and not 0, a step changes nothing.
    """

    def __init__(
        self, blocks: Mapping[Tensor, int], *, momentum: float, weight_decay: float, precision: torch.dtype
    ) -> None:
        groups = [{"params": [parameter], "blocks": count} for parameter, count in blocks.items()]
        super().__init__(groups, {"lr": 0.0, "momentum": momentum, "weight_decay": weight_decay})
        self.precision = precision
        self.found_inf: Tensor | None = None
        self._momenta: _JoinedMomenta | None = None

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Take one step with the weights that have a gradient."""
        assert closure is None
        blocks = {g["params"][0]: g["blocks"] for g in self.param_groups if g["params"][0].grad is not None}
        if not blocks:
            return
        # All weights have the same options.
        ((rate, share, decay),) = {(g["lr"], g["momentum"], g["weight_decay"]) for g in self.param_groups}
        momenta = self._momenta_of(blocks)
        gradients = torch.cat([weight.grad.reshape(-1) for weight in momenta.weights if weight.grad is not None])
        buffer, bad = momenta.buffer, None if self.found_inf is None else self.found_inf != 0
        if bad is None:
            torch.lerp(gradients, buffer, share, out=buffer)
        else:
            torch.where(bad, buffer, torch.lerp(gradients, buffer, share), out=buffer)
        change = torch.lerp(gradients, buffer, share, out=gradients)  # the momentum one step ahead (Nesterov)
        for group in momenta.groups:
            group.make_orthogonal(change, self.precision)
        changes = momenta.by_weight(change)
        torch._foreach_mul_(changes, momenta.sizes)
        if decay:
            torch._foreach_add_(changes, momenta.weights, alpha=decay)
        if bad is not None:
            change.masked_fill_(bad, 0.0)
        torch._foreach_add_(momenta.weights, changes, alpha=-rate)

    def _momenta_of(self, blocks: Mapping[Tensor, int]) -> _JoinedMomenta:
        """The momenta in one buffer; a momentum that was loaded into a weight's state is copied into it."""
        before = {weight: self.state[weight].get("momentum") for weight in blocks}
        momenta = self._momenta
        known = {} if momenta is None else momenta.parts
        if momenta is None or known.keys() != before.keys() or any(before[key] is not known[key] for key in before):
            momenta = self._momenta = _JoinedMomenta(blocks)
            for weight, part in momenta.parts.items():
                if (momentum := before[weight]) is not None:
                    part.copy_(momentum)
                self.state[weight]["momentum"] = part
        return momenta


class _JoinedMomenta:
    """The momenta of all weights in one buffer, those of equal shape next to each other."""

    def __init__(self, blocks: Mapping[Tensor, int]) -> None:
        cut = {weight: (len(weight) // count, weight.shape[1]) for weight, count in blocks.items()}
        self.weights = sorted(cut, key=lambda weight: (sorted(cut[weight]), cut[weight]))
        self.sizes = [_ADAM_UPDATE_SIZE * math.sqrt(max(cut[weight])) for weight in self.weights]
        self.buffer = self.weights[0].new_zeros(sum(weight.numel() for weight in self.weights))
        self.parts = dict(zip(self.weights, self.by_weight(self.buffer), strict=True))
        self.groups: list[_EqualMatrices] = []
        start = 0
        for (rows, columns), same in groupby(self.weights, key=lambda weight: sorted(cut[weight])):
            counts = {False: 0, True: 0}
            for weight in same:
                counts[cut[weight][0] > cut[weight][1]] += blocks[weight]
            self.groups.append(_EqualMatrices(start, rows, columns, counts[False], counts[True]))
            start += rows * columns * sum(counts.values())

    def by_weight(self, buffer: Tensor) -> list[Tensor]:
        """Views of a buffer with the layout of the momenta, one per weight and in its shape."""
        parts = torch.split(buffer, [weight.numel() for weight in self.weights])
        return [part.view(weight.shape) for part, weight in zip(parts, self.weights, strict=True)]


@dataclass(frozen=True)
class _EqualMatrices:
    """Adjacent matrices in a buffer from `start` on: `wide` ones of [p, q], then `tall` ones of [q, p]; p ≤ q."""

    start: int
    p: int
    q: int
    wide: int
    tall: int

    def make_orthogonal(self, buffer: Tensor, precision: torch.dtype) -> None:
        """Replace each matrix by the nearest one with orthonormal rows or columns, approximately."""
        size = self.p * self.q
        middle = self.start + self.wide * size
        wide = buffer[self.start : middle].view(self.wide, self.p, self.q)
        tall = buffer[middle : middle + self.tall * size].view(self.tall, self.q, self.p).mT
        found = orthogonal(torch.cat([wide, tall]).to(precision))
        for part, made in ((wide, found[: self.wide]), (tall, found[self.wide :])):
            if len(part):
                part.copy_(made)


def orthogonal(matrices: Tensor) -> Tensor:
    """[N, p, q], p ≤ q → matrices with nearly orthonormal rows: each singular value is moved near 1."""
    a, b, c = _QUINTIC
    x: Tensor = matrices / matrices.flatten(1).norm(dim=1).clamp(min=1e-7)[:, None, None]
    for _ in range(_ROUNDS):
        square = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x


SLOTS: dict[type[torch.optim.Optimizer], tuple[str, ...]] = {
    torch.optim.AdamW: ("exp_avg", "exp_avg_sq", "step"),
    torch.optim.Adagrad: ("sum", "step"),
    Muon: ("momentum",),
}
"""The names of the state that each optimiser stores for each weight."""


def slots_of(optimizers: Iterable[torch.optim.Optimizer], names: Mapping[Tensor, str]) -> dict[str, Tensor]:
    """The state of the optimisers by weight and slot: `name.slot`."""
    return {
        f"{names[parameter]}.{slot}": values[slot]
        for optimizer in optimizers
        for parameter, values in optimizer.state.items()
        for slot in SLOTS[type(optimizer)]
    }


def restore_slots(
    optimizers: Iterable[torch.optim.Optimizer], names: Mapping[Tensor, str], slots: Mapping[str, Tensor]
) -> None:
    """Restore the state that `slots_of` returned; weights without a stored state start without one."""
    for optimizer in optimizers:
        for parameter in (each for group in optimizer.param_groups for each in group["params"]):
            found = {slot: slots.get(f"{names[parameter]}.{slot}") for slot in SLOTS[type(optimizer)]}
            if all(value is None for value in found.values()):
                continue
            for slot, value in found.items():
                if value is None or (slot != "step" and value.shape != parameter.shape):
                    raise ElmoError(f"the optimiser's {slot} for {names[parameter]} is missing or has another shape")
            optimizer.state[parameter] = {
                slot: value.to(parameter.device).clone() for slot, value in found.items() if value is not None
            }


def start_from_sums(
    optimizers: Iterable[torch.optim.Optimizer], names: Mapping[Tensor, str], sums: Mapping[str, Tensor]
) -> None:
    """Start Adagrad with the sums of squared gradients from a TensorFlow checkpoint."""
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            value = sums.get(names[parameter])
            if value is not None and value.shape == parameter.shape:
                state["sum"].copy_(value)

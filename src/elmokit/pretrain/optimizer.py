"""How weights follow gradients: Adam, Muon or Adagrad, the learning rate over the run, the bound on the gradients."""

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
"""Weights that are rows for words, characters or attention heads: they are matrices by their shape only."""
_QUINTIC = (3.4445, -4.7750, 2.0315)
"""s → a s + b s³ + c s⁵ brings any s from (0, 1] near 1 within a few rounds."""
_ROUNDS = 5
_SIZE_OF_ADAM = 0.2
"""About the root mean square of Adam's updates: with it one learning rate is right for both."""


def make_optimizers(
    recipe: Recipe,
    names: Mapping[Tensor, str],
    precision: torch.dtype = torch.float32,
    *,
    joined: Mapping[str, int] | None = None,
) -> list[torch.optim.Optimizer]:
    """The recipe's optimisers of the weights that learn; their rate is set before each update.

    `joined`: how many matrices a weight joins, by the last part of its name.
    """
    trained = [parameter for parameter in names if parameter.requires_grad]
    if recipe.optimizer == "adagrad":
        # TensorFlow adds nothing to the root, and its sums start at 1.
        return [torch.optim.Adagrad(trained, lr=0.0, initial_accumulator_value=recipe.accumulator, eps=0.0)]
    optimizers: list[torch.optim.Optimizer] = []
    decay = recipe.weight_decay
    if recipe.optimizer == "muon":
        matrices = [p for p in trained if p.dim() == 2 and not names[p].endswith(_TABLES)]
        blocks = {p: (joined or {}).get(names[p].rpartition(".")[2], 1) for p in matrices}
        if blocks:
            optimizers.append(Muon(blocks, momentum=recipe.momentum, weight_decay=decay, precision=precision))
        trained = [parameter for parameter in trained if parameter not in blocks]
        decay = 0.0  # a rare word's row would fade away
    kinds = (([p for p in trained if p.dim() > 1], decay), ([p for p in trained if p.dim() <= 1], 0.0))
    if groups := [{"params": params, "weight_decay": share} for params, share in kinds if params]:
        betas = (recipe.beta1, recipe.beta2)
        optimizers.append(torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=1e-9, fused=True))
    return optimizers


def set_rate(optimizers: Iterable[torch.optim.Optimizer], rate: float) -> None:
    """Set the rate of the next update."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate


def rate_at(recipe: Recipe, done: float) -> float:
    """The learning rate after a share `done` of the run, from 0 to 1."""
    if recipe.warmup and done < recipe.warmup:
        return recipe.learning_rate * done / recipe.warmup
    if recipe.decay == "none":
        return recipe.learning_rate
    left = 1 - (done - recipe.warmup) / max(1e-9, 1 - recipe.warmup)
    left = min(1.0, max(0.0, left))
    share = left if recipe.decay == "linear" else (1 - math.cos(math.pi * left)) / 2
    return recipe.learning_rate * (recipe.final_rate + (1 - recipe.final_rate) * share)


def clip_gradients(parameters: list[nn.Parameter], bound: float) -> Tensor:
    """Scale all gradients together so that their norm is at most `bound` (0: no bound); returns the norm before."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if bound:
        # As TensorFlow scales: nothing is added to the norm.
        torch._foreach_mul_(gradients, bound / norm.clamp(min=bound))
    return norm


class Muon(torch.optim.Optimizer):
    """Moves matrices along their momentum G with all its singular values made equal: U Vᵀ where G = U S Vᵀ.

    `blocks` says into how many matrices a weight is cut; an LSTM's weight joins one per gate. The momenta are in one
    memory, those of equal shape side by side, so a step is few operations however many matrices there are. If
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
        """Take one step along the gradients that there are."""
        assert closure is None
        blocks = {g["params"][0]: g["blocks"] for g in self.param_groups if g["params"][0].grad is not None}
        if not blocks:
            return
        # One of each for all weights, which move together.
        ((rate, share, decay),) = {(g["lr"], g["momentum"], g["weight_decay"]) for g in self.param_groups}
        momenta = self._momenta_of(blocks)
        gradients = torch.cat([weight.grad.reshape(-1) for weight in momenta.weights if weight.grad is not None])
        memory, bad = momenta.memory, None if self.found_inf is None else self.found_inf != 0
        if bad is None:
            torch.lerp(gradients, memory, share, out=memory)
        else:
            torch.where(bad, memory, torch.lerp(gradients, memory, share), out=memory)
        change = torch.lerp(gradients, memory, share, out=gradients)  # the momentum one step ahead (Nesterov)
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
        """The momenta in one memory; a momentum that was put in a weight's state is copied into it."""
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
    """The momenta of all weights in one memory, those of equal shape side by side."""

    def __init__(self, blocks: Mapping[Tensor, int]) -> None:
        cut = {weight: (len(weight) // count, weight.shape[1]) for weight, count in blocks.items()}
        self.weights = sorted(cut, key=lambda weight: (sorted(cut[weight]), cut[weight]))
        self.sizes = [_SIZE_OF_ADAM * math.sqrt(max(cut[weight])) for weight in self.weights]
        self.memory = self.weights[0].new_zeros(sum(weight.numel() for weight in self.weights))
        self.parts = dict(zip(self.weights, self.by_weight(self.memory), strict=True))
        self.groups: list[_EqualMatrices] = []
        start = 0
        for (rows, columns), same in groupby(self.weights, key=lambda weight: sorted(cut[weight])):
            counts = {False: 0, True: 0}
            for weight in same:
                counts[cut[weight][0] > cut[weight][1]] += blocks[weight]
            self.groups.append(_EqualMatrices(start, rows, columns, counts[False], counts[True]))
            start += rows * columns * sum(counts.values())

    def by_weight(self, memory: Tensor) -> list[Tensor]:
        """The parts of a memory in the order of the momenta, in the weights' shapes."""
        parts = torch.split(memory, [weight.numel() for weight in self.weights])
        return [part.view(weight.shape) for part, weight in zip(parts, self.weights, strict=True)]


@dataclass(frozen=True)
class _EqualMatrices:
    """Matrices side by side from `start` on: first `wide` that are [p, q], then `tall` that are [q, p]; p ≤ q."""

    start: int
    p: int
    q: int
    wide: int
    tall: int

    def make_orthogonal(self, memory: Tensor, precision: torch.dtype) -> None:
        """Replace each matrix by its orthogonal one."""
        size = self.p * self.q
        middle = self.start + self.wide * size
        wide = memory[self.start : middle].view(self.wide, self.p, self.q)
        tall = memory[middle : middle + self.tall * size].view(self.tall, self.q, self.p).mT
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


SLOTS: dict[type[torch.optim.Optimizer], tuple[str, ...]] = {
    torch.optim.AdamW: ("exp_avg", "exp_avg_sq", "step"),
    torch.optim.Adagrad: ("sum", "step"),
    Muon: ("momentum",),
}
"""What an optimiser stores for each weight."""


def slots_of(optimizers: Iterable[torch.optim.Optimizer], names: Mapping[Tensor, str]) -> dict[str, Tensor]:
    """What the optimisers store, by weight and slot: `name.slot`."""
    return {
        f"{names[parameter]}.{slot}": values[slot]
        for optimizer in optimizers
        for parameter, values in optimizer.state.items()
        for slot in SLOTS[type(optimizer)]
    }


def restore_slots(
    optimizers: Iterable[torch.optim.Optimizer], names: Mapping[Tensor, str], slots: Mapping[str, Tensor]
) -> None:
    """Restore what `slots_of` gave; weights without any start again."""
    for optimizer in optimizers:
        for parameter in (each for group in optimizer.param_groups for each in group["params"]):
            found = {slot: slots.get(f"{names[parameter]}.{slot}") for slot in SLOTS[type(optimizer)]}
            if all(value is None for value in found.values()):
                continue
            for slot, value in found.items():
                if value is None or (slot != "step" and value.shape != parameter.shape):
                    raise ElmoError(f"the optimiser's {slot} for {names[parameter]} is missing or of another shape")
            optimizer.state[parameter] = {
                slot: value.to(parameter.device).clone() for slot, value in found.items() if value is not None
            }


def start_from_sums(
    optimizers: Iterable[torch.optim.Optimizer], names: Mapping[Tensor, str], sums: Mapping[str, Tensor]
) -> None:
    """Let Adagrad start with the sums of squared gradients from another system's checkpoint."""
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            value = sums.get(names[parameter])
            if value is not None and value.shape == parameter.shape:
                state["sum"].copy_(value)

"""How weights follow gradients: Adam, Muon or Adagrad, the rate over the run, the bound on the gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from elmokit.errors import ElmoError
from elmokit.pretrain.muon import Muon
from elmokit.pretrain.recipe import Recipe

SLOTS: dict[type[torch.optim.Optimizer], tuple[str, ...]] = {
    torch.optim.AdamW: ("exp_avg", "exp_avg_sq", "step"),
    torch.optim.Adagrad: ("sum", "step"),
    Muon: ("momentum",),
}
"""What an optimiser keeps for each weight."""
_TABLES = ("head.weight", "embedding.weight", "words.weight", "gate_weight")
"""Weights that are rows for words, characters or attention heads: of a matrix they have only the shape."""


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
    found: list[torch.optim.Optimizer] = []
    if recipe.optimizer == "muon":
        blocks = {p: (joined or {}).get(names[p].rpartition(".")[2], 1) for p in trained if _is_matrix(p, names[p])}
        if blocks:
            kept = {"momentum": recipe.momentum, "weight_decay": recipe.weight_decay}
            found.append(Muon(blocks, **kept, precision=precision))
        trained = [parameter for parameter in trained if parameter not in blocks]
    decay = 0.0 if recipe.optimizer == "muon" else recipe.weight_decay  # a rare word's row would fade away
    groups = [
        {"params": [p for p in trained if p.dim() > 1], "weight_decay": decay},
        {"params": [p for p in trained if p.dim() <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if groups:
        found.append(torch.optim.AdamW(groups, lr=0.0, betas=(recipe.beta1, recipe.beta2), eps=1e-9, fused=True))
    return found


def _is_matrix(parameter: Tensor, name: str) -> bool:
    return parameter.dim() == 2 and not name.endswith(_TABLES)


def set_rate(optimizers: Iterable[torch.optim.Optimizer], rate: float) -> None:
    """The rate of the next update."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate


def rate_at(recipe: Recipe, done: float) -> float:
    """The learning rate when a share `done` of the run, from 0 to 1, lies behind."""
    if recipe.warmup and done < recipe.warmup:
        return recipe.learning_rate * done / recipe.warmup
    if recipe.decay == "none":
        return recipe.learning_rate
    left = 1 - (done - recipe.warmup) / max(1e-9, 1 - recipe.warmup)
    left = min(1.0, max(0.0, left))
    share = left if recipe.decay == "linear" else (1 - math.cos(math.pi * left)) / 2
    return recipe.learning_rate * (recipe.final_rate + (1 - recipe.final_rate) * share)


def clip_gradients(parameters: list[nn.Parameter], bound: float) -> Tensor:
    """Scale all gradients together so that their norm is at most `bound` (0: no bound); the norm before that."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if bound:
        # As TensorFlow scales: nothing is added to the norm.
        torch._foreach_mul_(gradients, bound / norm.clamp(min=bound))
    return norm


def slots_of(optimizers: Iterable[torch.optim.Optimizer], names: Mapping[Tensor, str]) -> dict[str, Tensor]:
    """The optimisers' memory by weight and slot, `name.slot`."""
    return {
        f"{names[parameter]}.{slot}": values[slot]
        for optimizer in optimizers
        for parameter, values in optimizer.state.items()
        for slot in SLOTS[type(optimizer)]
    }


def restore_slots(
    optimizers: Iterable[torch.optim.Optimizer], names: Mapping[Tensor, str], slots: Mapping[str, Tensor]
) -> None:
    """Put back what `slots_of` gave; weights without any start afresh."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
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
    """Let Adagrad begin with the sums of squared gradients that another system's checkpoint brought."""
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            value = sums.get(names[parameter])
            if value is not None and value.shape == parameter.shape:
                state["sum"].copy_(value)

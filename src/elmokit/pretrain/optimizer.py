"""How weights follow gradients: Adam or Adagrad, the rate over the run, the bound on the gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from elmokit.errors import ElmoError
from elmokit.pretrain.recipe import Recipe

SLOTS = {"adam": ("exp_avg", "exp_avg_sq"), "adagrad": ("sum",)}
"""What an optimiser keeps for each weight, by torch's names."""


def make_optimizer(recipe: Recipe, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The recipe's optimiser; its rate is set anew before each update."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if recipe.optimizer == "adagrad":
        # TensorFlow adds nothing to the root, and its sums start at 1.
        return torch.optim.Adagrad(trained, lr=0.0, initial_accumulator_value=recipe.accumulator, eps=0.0)
    groups = [
        {"params": [p for p in trained if p.dim() > 1], "weight_decay": recipe.weight_decay},
        {"params": [p for p in trained if p.dim() <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=0.0, betas=(recipe.beta1, recipe.beta2), eps=1e-9, fused=True)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """The rate of the next update."""
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


def slots_of(optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str], kind: str) -> dict[str, Tensor]:
    """The optimiser's memory by weight and slot, `name.slot`, and its count of updates."""
    slots = {}
    for parameter, values in optimizer.state.items():
        for slot in (*SLOTS[kind], "step"):
            slots[f"{names[parameter]}.{slot}"] = values[slot]
    return slots


def restore_slots(
    optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str], kind: str, slots: Mapping[str, Tensor]
) -> None:
    """Put back what `slots_of` gave; weights without any start afresh."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            found = {slot: slots.get(f"{names[parameter]}.{slot}") for slot in (*SLOTS[kind], "step")}
            if all(value is None for value in found.values()):
                continue
            for slot, value in found.items():
                if value is None or (slot != "step" and value.shape != parameter.shape):
                    raise ElmoError(f"the optimiser's {slot} for {names[parameter]} is missing or of another shape")
            optimizer.state[parameter] = {
                slot: value.to(parameter.device).clone() for slot, value in found.items() if value is not None
            }


def start_from_sums(optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str], sums: Mapping[str, Tensor]) -> None:
    """Let Adagrad begin with the sums of squared gradients that another system's checkpoint brought."""
    for parameter, state in optimizer.state.items():
        value = sums.get(names[parameter])
        if value is not None and value.shape == parameter.shape:
            state["sum"].copy_(value)

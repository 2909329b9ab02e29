"""Updates of the weights: the gradients of some batches, clipped and applied; the recurrent state is carried over.

All random numbers of an update depend only on the seed and the step, so a checkpoint needs no random state
and a resumed run draws the same numbers as an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from elmokit.model.bilm import file_name
from elmokit.model.context import State
from elmokit.pretrain.batches import Batch
from elmokit.pretrain.checkpoints import Snapshot, state_dict_of
from elmokit.pretrain.distributed import Processes
from elmokit.pretrain.network import LanguageModelNetwork, Negatives, sample_negatives
from elmokit.pretrain.optimizer import (
    clip_gradients,
    make_optimizers,
    restore_slots,
    set_rate,
    slots_of,
    start_from_sums,
)
from elmokit.pretrain.recipe import Recipe
from elmokit.pretrain.sentences import hashed

_WORTH_SAMPLING = 4 / 3
"""Least speed-up of an update for which the softmax is sampled: each sampled update learns a little less."""


class Updates:
    """The network, its optimisers and the states of this process's rows; `rate` is the last learning rate."""

    def __init__(
        self,
        recipe: Recipe,
        network: LanguageModelNetwork,
        *,
        n_modes: int,
        device: torch.device,
        processes: Processes,
        slots: Mapping[str, Tensor] | None = None,
    ) -> None:
        """`n_modes`: the number of prediction modes. `slots`: see `Training`."""
        self.recipe, self.device, self.processes = recipe, device, processes
        self.network = network.to(device)
        self.trained = [p for p in self.network.parameters() if p.requires_grad]
        self.names: dict[Tensor, str] = {p: file_name(name) for name, p in self.network.named_parameters()}
        self.precision = choose_precision(recipe, device)
        self.optimizers = make_optimizers(
            recipe, self.names, self.precision, joined=network.bilm.context.joined_matrices
        )
        if slots and recipe.optimizer == "adagrad":
            start_from_sums(self.optimizers, self.names, slots)
        self.sampled = choose_sampled(recipe, network, device)
        self.parallel: nn.Module = self.network
        if processes.count > 1:
            self.parallel = DistributedDataParallel(self.network)
        zeros = (self.network.bilm.context.zero_state(recipe.batch_size) for _ in range(recipe.accumulate))
        self.states = [state for state in zeros if state is not None]  # [] for an encoder without a state
        self.rate = 0.0
        self._norm = torch.zeros((), device=device)
        self._in_a_row = torch.zeros((), dtype=torch.int64, device=device)
        self._since = torch.zeros((), dtype=torch.int64, device=device)
        self._losses = torch.zeros(n_modes, dtype=torch.float64, device=device)
        self._counts = torch.zeros(n_modes, dtype=torch.float64)  # number of predictions in the losses, ...
        self._counted = 0  # ... and of updates

    def update(self, step: int, batches: list[Batch], rate: float) -> None:
        """Make one update of the weights; it is skipped if a gradient is not finite."""
        recipe = self.recipe
        if not self.network.training:
            self.network.train()
        torch.manual_seed(_seed(recipe.seed, step, self.processes.rank))
        negatives = self._negatives(step)
        scale = (recipe.window if recipe.scale_by_window else 1) / len(batches)
        after: list[State] = []
        losses = torch.zeros_like(self._losses)
        for parameter in self.trained:
            parameter.grad = None
        states: Sequence[State | None] = self.states or [None] * len(batches)
        for number, (batch, state) in enumerate(zip(batches, states, strict=True)):
            last = number == len(batches) - 1
            with nullcontext() if last or self.processes.count == 1 else self.parallel.no_sync():  # type: ignore[operator]
                loss, each, state_after = self.parallel(batch.to(self.device), state, negatives, self.precision)
                torch.autograd.backward(loss * scale)
            losses += batch.sums(each)
            self._counts += torch.tensor(batch.counts())
            after += [] if state_after is None else [state_after.detach()]
        self._norm = clip_gradients(self.trained, recipe.clip_norm)
        self._apply(after, losses, torch.isfinite(self._norm), rate)

    def _apply(self, after: list[State], losses: Tensor, finite: Tensor, rate: float) -> None:
        """Apply the update and the state after it if `finite`, otherwise neither; a GPU is not waited for."""
        self.rate = rate
        set_rate(self.optimizers, rate)
        if self.device.type == "cuda" and self.recipe.optimizer != "adagrad":
            found_inf = (~finite).float()
            for optimizer in self.optimizers:
                optimizer.found_inf = found_inf  # type: ignore[attr-defined]
                optimizer.grad_scale = None  # type: ignore[attr-defined]
                optimizer.step()
            self.states = [
                State(torch.where(finite, new.h, old.h), torch.where(finite, new.c, old.c))
                for new, old in zip(after, self.states, strict=True)
            ]
            self._losses += losses.masked_fill(~finite, 0.0)
        elif bool(finite):
            for optimizer in self.optimizers:
                optimizer.step()
            self.states = after
            self._losses += losses
        bad = (~finite).long()
        self._counted += 1
        self._in_a_row = (self._in_a_row + bad) * bad
        self._since += bad

    def _negatives(self, step: int) -> Negatives | None:
        """The words of the sampled softmax, the same in every process."""
        if not self.sampled:
            return None
        generator = torch.Generator().manual_seed(_seed(self.recipe.seed, step, -1))
        words, tries = sample_negatives(len(self.network.head.bias), self.recipe.negatives, generator)
        return Negatives(words.to(self.device), tries)

    def left_out(self) -> tuple[int, int]:
        """The number of updates skipped in a row until now, and since the last call; this waits for a GPU."""
        in_a_row, since = int(self._in_a_row), int(self._since)
        self._since.zero_()
        if (
            since
        ):  # approximate: nearly all updates have one size, and nothing waits for a GPU to learn which were skipped
            self._counts = self._counts / self._counted * (self._counted - since)
            self._counted -= since
        return in_a_row, since

    def gradient_norm(self) -> float:
        """The norm of the last update's gradients before they were clipped."""
        return float(self._norm)

    def losses(self) -> list[float]:
        """The mean loss of each mode since the last call, NaN without predictions; [] if there was no update."""
        if not self._counted:
            return []
        losses, counts = self.processes.total(torch.stack([self._losses.cpu(), self._counts]))
        self._losses.zero_()
        self._counts.zero_()
        self._counted = 0
        means: list[float] = (losses / counts).tolist()
        return means

    def snapshot(self) -> Snapshot:
        """Weights, optimiser state, carried states of all processes, and sums of losses."""
        parts = {"state.h": [state.h for state in self.states], "state.c": [state.c for state in self.states]}
        carried = {  # [micro-batches, processes, D, L, B, …]
            name: torch.stack([torch.stack(self.processes.gathered(value)) for value in values])
            for name, values in parts.items()
            if values
        }
        slots = slots_of(self.optimizers, self.names)
        tensors = {
            **state_dict_of(self.network, "network"),
            **{f"optimizer.{name}": value for name, value in slots.items()},
            **carried,
            "metrics.losses": self.processes.total(self._losses.cpu()),
            "metrics.counts": self.processes.total(self._counts),
        }
        return Snapshot(tensors, {"counted": self._counted, "left_out_in_a_row": int(self._in_a_row)})

    def restore(self, snapshot: Snapshot) -> None:
        """Continue from a snapshot; the number of processes may have changed."""
        self.network.load_state_dict(snapshot.part("network"))
        restore_slots(self.optimizers, self.names, snapshot.part("optimizer"))
        if saved := snapshot.part("state"):
            self.states = [self._own_rows(saved, number) for number in range(self.recipe.accumulate)]
        share = float(self.processes.first)  # the snapshot has the sums of all processes, so only the first takes them
        self._losses.copy_(share * snapshot.tensors["metrics.losses"])
        self._counts.copy_(share * snapshot.tensors["metrics.counts"])
        self._counted = snapshot.facts["counted"]
        self._since.zero_()
        self._in_a_row.fill_(snapshot.facts["left_out_in_a_row"])

    def _own_rows(self, saved: Mapping[str, Tensor], number: int) -> State:
        """This process's rows of batch `number` of an update, from the saved rows of all processes."""
        first = (number * self.processes.count + self.processes.rank) * self.recipe.batch_size
        # [micro-batches, processes, D, L, B, S] → [D, L, rows, S]
        rows = [saved[part].permute(2, 3, 0, 1, 4, 5).flatten(2, 4) for part in ("h", "c")]
        h, c = (part[:, :, first : first + self.recipe.batch_size].to(self.device).contiguous() for part in rows)
        return State(h, c)


def choose_precision(recipe: Recipe, device: torch.device) -> torch.dtype:
    """The dtype to compute in; weights and optimiser state are always float32."""
    if recipe.precision == "auto":
        supported = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
        return torch.bfloat16 if supported else torch.float32
    return torch.bfloat16 if recipe.precision == "bfloat16" else torch.float32


def choose_sampled(recipe: Recipe, network: LanguageModelNetwork, device: torch.device) -> bool:
    """Whether the softmax is sampled; "auto" samples on a CPU if that should make updates a third faster."""
    if recipe.negatives >= len(network.head.bias):
        return False
    if recipe.loss == "auto":
        rest, full, sampled = estimated_cost(recipe, network)
        return device.type == "cpu" and rest + full >= _WORTH_SAMPLING * (rest + sampled)
    return recipe.loss == "sampled"


def estimated_cost(recipe: Recipe, network: LanguageModelNetwork) -> tuple[float, float, float]:
    """The relative time per token on a CPU of the network without its softmax, the full softmax, and the sampled one.

    It is the number of products with measured factors. No clock is used, so that a run is the same on every machine.
    """
    named = network.bilm.named_parameters()
    matrices = [p for name, p in named if p.dim() > 1 and not name.endswith(("embedding.weight", "words.weight"))]
    words, size = network.softmax_weight().shape
    predictions = 0.5 if recipe.objective == "segments" else network.bilm.config.n_directions  # per token
    return (
        1.5 * sum(p.numel() for p in matrices),
        predictions * size * words,
        1.2 * predictions * size * recipe.negatives,
    )


def _seed(seed: int, step: int, rank: int) -> int:
    value = hashed(np.array([step], np.uint64), seed) ^ hashed(np.array([rank + 1], np.uint64), 0)
    return int(value[0] >> np.uint64(1))

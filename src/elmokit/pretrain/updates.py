"""Updates of the weights: gradients of some batches, clipped and applied, with the recurrent state carried on.

Every random number of an update follows from the seed and the update's number, so a checkpoint needs no random state
and a resumed run draws what the first would have drawn.
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
from elmokit.pretrain.sentences import mixed

_WORTH_SAMPLING = 4 / 3
"""How many times as fast an update must be for a sampled softmax, which learns a little less from it."""


class Updates:
    """The network, its optimiser and the states of this process's rows; `rate` is that of the last update."""

    def __init__(
        self,
        recipe: Recipe,
        network: LanguageModelNetwork,
        *,
        ways: int,
        device: torch.device,
        processes: Processes,
        slots: Mapping[str, Tensor] | None = None,
    ) -> None:
        """`ways`: parts of the loss. `slots`: Adagrad's sums by the network's names, of a run of another system."""
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
        self.states = [state for state in zeros if state is not None]  # [] for an encoder without
        self.rate = 0.0
        self._norm = torch.zeros((), device=device)
        self._in_a_row = torch.zeros((), dtype=torch.int64, device=device)
        self._since = torch.zeros((), dtype=torch.int64, device=device)
        self._losses = torch.zeros(ways, dtype=torch.float64, device=device)
        self._counts = torch.zeros(ways, dtype=torch.float64)  # predictions that the losses are over, ...
        self._counted = 0  # ... and updates

    def update(self, step: int, batches: list[Batch], rate: float) -> None:
        """One update of the weights; left out where a gradient is not finite."""
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
        """Take the update and the state after it, or neither; on a GPU without waiting to know which."""
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
        """The same words in every process, as one process with all rows would have."""
        if not self.sampled:
            return None
        generator = torch.Generator().manual_seed(_seed(self.recipe.seed, step, -1))
        words, tries = sample_negatives(len(self.network.head.bias), self.recipe.negatives, generator)
        return Negatives(words.to(self.device), tries)

    def left_out(self) -> tuple[int, int]:
        """The updates left out in a row until now, and those since the last call; this waits for a GPU."""
        in_a_row, since = int(self._in_a_row), int(self._since)
        self._since.zero_()
        if since:  # nearly all updates are of one size, and a GPU is not waited for to know which were left out
            self._counts = self._counts / self._counted * (self._counted - since)
            self._counted -= since
        return in_a_row, since

    def gradient_norm(self) -> float:
        """The norm of the last update's gradients before they were clipped."""
        return float(self._norm)

    def losses(self) -> list[float]:
        """The mean loss of each way since this was last asked, NaN where nothing was predicted; [] without updates."""
        if not self._counted:
            return []
        losses, counts = self.processes.total(torch.stack([self._losses.cpu(), self._counts]))
        self._losses.zero_()
        self._counts.zero_()
        self._counted = 0
        means: list[float] = (losses / counts).tolist()
        return means

    def snapshot(self) -> Snapshot:
        """All of it, of all processes."""
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
        """Continue from a snapshot; the rows may be divided among another number of processes than wrote it."""
        self.network.load_state_dict(snapshot.part("network"))
        restore_slots(self.optimizers, self.names, snapshot.part("optimizer"))
        if saved := snapshot.part("state"):
            self.states = [self._own_rows(saved, number) for number in range(self.recipe.accumulate)]
        share = float(self.processes.first)  # the others add nothing to its sums
        self._losses.copy_(share * snapshot.tensors["metrics.losses"])
        self._counts.copy_(share * snapshot.tensors["metrics.counts"])
        self._counted = snapshot.facts["counted"]
        self._since.zero_()
        self._in_a_row.fill_(snapshot.facts["left_out_in_a_row"])

    def _own_rows(self, saved: Mapping[str, Tensor], number: int) -> State:
        """This process's rows of one of the batches of an update, from those of all processes."""
        first = (number * self.processes.count + self.processes.rank) * self.recipe.batch_size
        # [micro-batches, processes, D, L, B, S] → [D, L, rows, S]
        rows = [saved[part].permute(2, 3, 0, 1, 4, 5).flatten(2, 4) for part in ("h", "c")]
        h, c = (part[:, :, first : first + self.recipe.batch_size].to(self.device).contiguous() for part in rows)
        return State(h, c)


def choose_precision(recipe: Recipe, device: torch.device) -> torch.dtype:
    """The numbers to compute in; weights and optimiser are float32 in any case."""
    if recipe.precision == "auto":
        able = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
        return torch.bfloat16 if able else torch.float32
    return torch.bfloat16 if recipe.precision == "bfloat16" else torch.float32


def choose_sampled(recipe: Recipe, network: LanguageModelNetwork, device: torch.device) -> bool:
    """Whether the softmax is sampled; by default on a CPU where updates are then a third faster by the estimate."""
    if recipe.negatives >= len(network.head.bias):
        return False
    if recipe.loss == "auto":
        rest, full, sampled = estimated_cost(recipe, network)
        return device.type == "cpu" and rest + full >= _WORTH_SAMPLING * (rest + sampled)
    return recipe.loss == "sampled"


def estimated_cost(recipe: Recipe, network: LanguageModelNetwork) -> tuple[float, float, float]:
    """The time per token on a CPU: of all but the softmax, of the full softmax, of the sampled one; in one unit.

    It is the number of products, with factors from measurements: the sizes decide, never the clock, so that a run is
    the same on every machine.
    """
    named = network.bilm.named_parameters()
    matrices = [p for name, p in named if p.dim() > 1 and not name.endswith(("embedding.weight", "words.weight"))]
    words, size = network.softmax_weight().shape
    ways = 0.5 if recipe.objective == "segments" else network.bilm.config.n_directions  # predictions per token
    return 1.5 * sum(p.numel() for p in matrices), ways * size * words, 1.2 * ways * size * recipe.negatives


def _seed(seed: int, step: int, rank: int) -> int:
    value = mixed(np.array([step], np.uint64), seed) ^ mixed(np.array([rank + 1], np.uint64), 0)
    return int(value[0] >> np.uint64(1))

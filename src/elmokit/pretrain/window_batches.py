"""Windows of text as the network takes them, for encoders that read row by row and carry a state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from elmokit.pretrain.batches import Arrays, Batch, Batches
from elmokit.pretrain.type_table import TypeTable
from elmokit.pretrain.windows import NO_TARGET, Position, Sentences, WindowReader, Windows

if TYPE_CHECKING:  # see `elmokit.pretrain.batches`
    from torch import Tensor

    from elmokit.model.context import ContextEncoder, State


@dataclass(frozen=True, eq=False)
class WindowBatch(Batch):
    """Windows with their distinct tokens once, and where each occurs."""

    characters: Tensor | None
    words: Tensor | None
    inputs: Tensor  # [D, T, B] which of the U
    targets: Tensor  # [D, T, B]
    keep: Tensor  # [T, B]

    def read(
        self, context: ContextEncoder, types: Tensor, state: State | None, *, dropout: float
    ) -> tuple[Tensor, State | None]:
        """types [U, P] → what the softmax reads [D, T, B, S], and the state after the windows."""
        from torch.nn import functional as F

        return context.read_windows(F.embedding(self.inputs, types), self.keep, state, dropout=dropout)

    def row_weight(self) -> float:
        """The loss is a mean."""
        return 1 / self.targets.numel()

    def sums(self, losses: Tensor) -> Tensor:
        """[D, T, B] → [D]."""
        import torch

        return losses.sum(dim=(1, 2), dtype=torch.float64)

    def counts(self) -> list[int]:
        """Every token is predicted in each direction."""
        return [self.targets[0].numel()] * len(self.targets)


@dataclass(frozen=True, eq=False)
class WindowBatches(Batches):
    """Windows of `rows` x `window` tokens in the order of the reading; each process fills its own rows."""

    types: TypeTable
    sentences: Sentences
    rows: int
    """Rows of text, over all processes."""
    shares: tuple[range, ...]
    """The rows of each of this process's batches."""
    window: int
    reset: float
    seed: int
    position: Position

    def arrays(self) -> Iterator[tuple[list[Arrays], Position]]:
        """Each update's batches as arrays, and the position after them."""
        reader = WindowReader(
            self.sentences,
            rows=self.rows,
            window=self.window,
            reset=self.reset,
            seed=self.seed,
            position=self.position,
        )
        while plan := reader.read():
            yield [window_arrays(self.types, reader.fill(plan, share)) for share in self.shares], plan.position

    def batch(self, parts: Mapping[str, Tensor]) -> WindowBatch:
        """A batch of the tensors that these arrays became."""
        return WindowBatch.of(parts)


def window_arrays(types: TypeTable, windows: Windows) -> Arrays:
    """Windows → the parts of a batch."""
    inputs, targets = windows.inputs[: types.directions], windows.targets[: types.directions]
    wanted = np.where(targets == NO_TARGET, NO_TARGET, types.vocab_index[targets])
    return {**types.arrays(inputs), "targets": wanted, "keep": windows.keep}


def window_batch(types: TypeTable, windows: Windows) -> WindowBatch:
    """Windows → what the network takes."""
    return WindowBatch.of_arrays(window_arrays(types, windows))

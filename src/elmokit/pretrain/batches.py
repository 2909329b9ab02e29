"""What updates read: batches of tensors, and the process or thread that makes them.

The batches of a run are a function of the position, so they are the same wherever and whenever they are made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, Self

from elmokit.pretrain.sentences import Arrays

if TYPE_CHECKING:  # a process that only makes batches does not need torch, which takes seconds to start
    import torch
    from torch import Tensor

    from elmokit.model.context import ContextEncoder, State

Position = Any
"""Where the reading is; each objective has its own."""


class Batch(ABC):
    """The tensors of one batch: a frozen dataclass for each objective."""

    on_cpu: ClassVar[tuple[str, ...]] = ()
    """Parts that stay on the CPU."""
    characters: Tensor | None  # [U, M] ids of the distinct tokens, as many columns as their longest needs
    words: Tensor | None  # [U]
    targets: Tensor  # rows of the softmax, negative where there is none

    @abstractmethod
    def read(
        self, context: ContextEncoder, types: Tensor, state: State | None, *, dropout: float
    ) -> tuple[Tensor, State | None]:
        """The distinct tokens' vectors [U, P] → what the softmax reads for each target, and the state after it."""

    @abstractmethod
    def row_weight(self) -> Tensor | float:
        """What each prediction counts in the loss, [predictions] or one number for all."""

    @abstractmethod
    def sums(self, losses: Tensor) -> Tensor:
        """−log p in the targets' shape → its sum for each part of the loss, in float64."""

    @abstractmethod
    def counts(self) -> list[int]:
        """The predictions of each part of the loss."""

    @classmethod
    def of(cls, parts: Mapping[str, Tensor]) -> Self:
        """A batch of the parts that there are, by name."""
        return cls(**{item.name: parts.get(item.name) for item in fields(cls)})  # type: ignore[arg-type]

    @classmethod
    def of_arrays(cls, arrays: Arrays) -> Self:
        """The same numbers as tensors."""
        import torch

        return cls.of({name: torch.from_numpy(part) for name, part in arrays.items()})

    def to(self, device: torch.device) -> Self:
        """The same on a device, without waiting for the copy."""
        return self if device.type == "cpu" else self._with(lambda part: part.to(device, non_blocking=True))

    def pinned(self) -> Self:
        """The same in memory that a GPU can copy from while the program continues."""
        return self._with(lambda part: part.pin_memory())

    def _with(self, change: Callable[[Tensor], Tensor]) -> Self:
        parts = {item.name: getattr(self, item.name) for item in fields(self)}  # type: ignore[arg-type]
        return self.of(
            {name: part if name in self.on_cpu else change(part) for name, part in parts.items() if part is not None}
        )


class Batches(ABC):
    """What each update reads, update after update: a dataclass that can be sent to another process."""

    position: Position
    """Where the reading begins."""

    @abstractmethod
    def arrays(self) -> Iterator[tuple[list[Arrays], Position]]:
        """Each update's batches as arrays, and the position after them."""

    @abstractmethod
    def batch(self, parts: Mapping[str, Tensor]) -> Batch:
        """A batch of the tensors that these arrays became."""

    def here(self) -> Iterator[tuple[list[Batch], Position]]:
        """Each update's batches, and the position after them, made by whoever asks for them."""
        import torch

        for parts, position in self.arrays():
            yield (
                [self.batch({name: torch.from_numpy(part) for name, part in each.items()}) for each in parts],
                position,
            )

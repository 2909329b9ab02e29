"""The batches of a run in their order: which text, from where on, in windows of what shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from elmokit.pretrain.type_table import Arrays, Batch, TypeTable
from elmokit.pretrain.windows import Position, Sentences, WindowReader


@dataclass(frozen=True, eq=False)
class Batches:
    """What an update reads, update after update; the same from the same position, wherever it is made."""

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
    """Where the reading begins."""

    def arrays(self) -> Iterator[tuple[list[Arrays], Position]]:
        """Each update's batches as arrays, and where the reading stands after them."""
        reader = WindowReader(
            self.sentences,
            rows=self.rows,
            window=self.window,
            reset=self.reset,
            seed=self.seed,
            position=self.position,
        )
        while plan := reader.read():
            yield [self.types.arrays(reader.fill(plan, share)) for share in self.shares], plan.position

    def here(self) -> Iterator[tuple[list[Batch], Position]]:
        """Each update's batches, and where the reading stands after them, made by whoever asks for them."""
        for parts, position in self.arrays():
            yield [Batch.of_arrays(each) for each in parts], position

"""The weights of one LSTM layer in one direction, and of one Transformer block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

from torch import Tensor

from elmokit.ops.int8 import Int8Matrix

Matrix = TypeVar("Matrix", Tensor, Int8Matrix)


@dataclass(frozen=True, eq=False)
class _LstmParts(Generic[Matrix]):
    """The weights of a layer; the gates in 4H are in the order input, forget, candidate, output."""

    input: Matrix  # [4H, P_in]
    recurrent: Matrix  # [4H, P]
    bias: Tensor  # [4H]
    projection: Matrix | None  # [P, H]
    forget_bias: float = 1.0
    cell_clip: float | None = None
    projection_clip: float | None = None


class LstmWeights(_LstmParts[Tensor]):
    """A layer with its matrices in a floating-point dtype."""


class Int8LstmWeights(_LstmParts[Int8Matrix]):
    """A layer with int8 matrices and a float32 bias."""

    def dense(self, convert: Callable[[Int8Matrix], Tensor] = Int8Matrix.dense) -> LstmWeights:
        """The same layer with float32 matrices; `convert` may cache them."""
        projection = None if self.projection is None else convert(self.projection)
        bounds = (self.forget_bias, self.cell_clip, self.projection_clip)
        return LstmWeights(convert(self.input), convert(self.recurrent), self.bias, projection, *bounds)


AnyLstmWeights = LstmWeights | Int8LstmWeights


class BlockWeights(NamedTuple):
    """The weights of one block: H heads, P numbers per token, I numbers inside the feed-forward part."""

    qkv: Tensor | Int8Matrix  # [3P, P]: queries, keys, values
    out: Tensor | Int8Matrix  # [P, P]
    up: Tensor | Int8Matrix  # [2I, P]: values, then their gates
    down: Tensor | Int8Matrix  # [P, I]
    gate_weight: Tensor  # [H, P]
    gate_bias: Tensor  # [H]

    @property
    def n_heads(self) -> int:
        """H."""
        return len(self.gate_bias)

    def tensors(self) -> Iterator[Tensor]:
        """All tensors of the block; an int8 matrix has several."""
        for part in self:
            if isinstance(part, Int8Matrix):
                yield from part.tensors()
            else:
                yield part


class HeadWeights(NamedTuple):
    """The layer between the last block and the softmax."""

    weight: Tensor | Int8Matrix  # [S, P]
    bias: Tensor  # [S]

    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors of the head."""
        return (*(self.weight.tensors() if isinstance(self.weight, Int8Matrix) else (self.weight,)), self.bias)


class BlockStack(tuple[BlockWeights, ...]):
    """All blocks of an encoder, with properties that are computed once."""

    @cached_property
    def tensors(self) -> list[Tensor]:
        """All tensors of all blocks."""
        return [tensor for weights in self for tensor in weights.tensors()]

    @cached_property
    def int8(self) -> tuple[bool, ...]:
        """Whether each block is int8."""
        return tuple(isinstance(weights.qkv, Int8Matrix) for weights in self)


@dataclass(frozen=True)
class Bounds:
    """The forget bias and the clips of a layer, which are the same in both directions."""

    forget_bias: float
    cell_clip: float | None
    projection_clip: float | None

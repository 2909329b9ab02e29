"""int8 matrices in a network: modules whose buffers are saved and copied with the network, but not trained.

A network is built with float32 weights; `to_int8` then replaces the modules that have matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from operator import is_
from typing import Self

import torch
from torch import Tensor, nn

from elmokit.errors import ElmoError
from elmokit.ops.int8 import LARGEST, Int8Matrix, column_sizes
from elmokit.ops.linear import linear

_BLOCK = 2**20
"""The number of values that are quantised at once, which limits the additional memory."""
VALUES, SCALES, COLUMNS = ".values", ".scales", ".columns"
"""The suffixes of an int8 matrix's name in a file."""


class Int8Weight(nn.Module):
    """A matrix [O, K]: `values` int8 [O, K], `scales` float32 [O] and optional factors `columns` float32 [K]."""

    values: Tensor
    scales: Tensor
    columns: Tensor | None

    def __init__(self, rows: int, columns: int, *, factors: bool = False) -> None:
        super().__init__()
        self.register_buffer("values", torch.zeros(rows, columns, dtype=torch.int8))
        self.register_buffer("scales", torch.ones(rows))
        self.register_buffer("columns", torch.ones(columns) if factors else None)
        self._known: tuple[Int8Matrix, tuple[int, ...]] | None = None

    def matrix(self) -> Int8Matrix:
        """The matrix: the same object until its values change, so that its packed forms can be cached."""
        tensors = tuple(part for part in self._buffers.values() if part is not None)  # faster than attributes
        known, now = self._known, tuple(map(version, tensors))
        if known is None or known[1] != now or not all(map(is_, known[0].tensors(), tensors)):
            known = self._known = Int8Matrix(*tensors), now
        return known[0]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """As in torch, but scales and factors stay float32: float16 would change the matrix."""
        before = {name: part for name, part in self._buffers.items() if part is not None}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, part in before.items():
            now = getattr(self, name)
            if now.dtype != part.dtype:
                setattr(self, name, part.to(now.device))
        return self

    def extra_repr(self) -> str:
        """The size of the matrix, for `repr`."""
        return "{} x {}, int8".format(*self.values.shape)


class Int8Linear(nn.Module):
    """`nn.Linear` with an int8 matrix and a float32 bias."""

    def __init__(self, size_in: int, size_out: int, *, bias: bool = True, factors: bool = False) -> None:
        super().__init__()
        self.weight = Int8Weight(size_out, size_in, factors=factors)
        self.bias = nn.Parameter(torch.zeros(size_out)) if bias else None


Linear = nn.Linear | Int8Linear


def to_int8(network: nn.Module, *, factors: bool = True) -> None:
    """Replace linear layers, and the weights that a module names in `int8_weights`, by int8 ones of the same shape.

    Weights that a module also names in `int8_factors` have factors of their columns; without `factors`, as in older
    files, none has. The new matrices have no values yet: `load_state_dict` fills them with the result of `quantised`.
    Embedding tables are not replaced: they are not multiplied, so int8 would lose accuracy and save no time.
    """
    for module in list(network.modules()):
        with_factors = getattr(module, "int8_factors", ()) if factors else ()
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                sizes, bias = (child.in_features, child.out_features), child.bias is not None
                setattr(module, name, Int8Linear(*sizes, bias=bias, factors=name in with_factors))
        for name in getattr(module, "int8_weights", ()):
            weight = getattr(module, name)
            if weight is not None:
                delattr(module, name)
                setattr(module, name, Int8Weight(*weight.shape, factors=name in with_factors))


def matrix_of(layer: Linear) -> Tensor | Int8Matrix:
    """The matrix [O, K] of a layer."""
    return layer.weight.matrix() if isinstance(layer, Int8Linear) else layer.weight


def matrix_and_bias(layer: Linear) -> tuple[Tensor | Int8Matrix, Tensor]:
    """The matrix [O, K] and the bias [O] of a layer that has one."""
    assert layer.bias is not None
    return matrix_of(layer), layer.bias


def apply_linear(layer: Linear, x: Tensor) -> Tensor:
    """x [N, K] → [N, O], each row independent of the others."""
    return linear(x, matrix_of(layer), layer.bias)


def version(tensor: Tensor) -> int:
    """A number that grows when the tensor is changed in place; always −1 for tensors of inference mode."""
    return -1 if tensor.is_inference() else tensor._version


def quantised(weights: Mapping[str, Tensor], names: set[str], factors: Collection[str] = ()) -> dict[str, Tensor]:
    """The weights, those in `names` as int8, and those in `factors` with factors of their columns."""
    found: dict[str, Tensor] = {}
    for name, value in weights.items():
        if name in names:
            found[name + VALUES] = torch.zeros(value.shape, dtype=torch.int8)
            found[name + SCALES] = torch.ones(len(value))
            columns = column_sizes(value) if name in factors else None
            if columns is not None:
                found[name + COLUMNS] = columns
            size = max(1, _BLOCK // value.shape[1])
            for start in range(0, len(value), size):
                rows = Int8Matrix.of(value[start : start + size], columns)
                found[name + VALUES][start : start + size] = rows.values
                found[name + SCALES][start : start + size] = rows.scales
        else:
            found[name] = value
    return found


def dense(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights with int8 matrices converted to float32."""
    found: dict[str, Tensor] = {}
    for name, value in weights.items():
        if name.endswith(VALUES):
            base = name.removesuffix(VALUES)
            columns = weights[base + COLUMNS].float() if base + COLUMNS in weights else None
            found[base] = Int8Matrix(value, weights[base + SCALES].float(), columns).dense()
        elif not name.endswith((SCALES, COLUMNS)):
            found[name] = value
    return found


def check_int8(value: Tensor, name: str, where: str) -> None:
    """Refuse values that int8 products do not support."""
    if value.dtype != torch.int8 or int(value.min()) < -LARGEST:
        raise ElmoError(f"{where}: {name} must be int8 values from -{LARGEST} to {LARGEST}; fetch it again")

"""int8 matrices in a network: modules whose buffers are saved and copied with it, but not trained.

A network is built in floats; `to_int8` then replaces the modules that have matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Self

import torch
from torch import Tensor, nn

from elmokit.errors import ElmoError
from elmokit.ops.int8 import LARGEST, Int8Matrix
from elmokit.ops.linear import linear

_BLOCK = 2**20
"""Values that are quantised at once, which bounds the additional memory."""
VALUES, SCALES = ".values", ".scales"
"""The suffixes of an int8 matrix's name in a file."""


class Int8Weight(nn.Module):
    """A matrix [O, K]: `values` int8 [O, K] and `scales` float32 [O]."""

    values: Tensor
    scales: Tensor

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.register_buffer("values", torch.zeros(rows, columns, dtype=torch.int8))
        self.register_buffer("scales", torch.ones(rows))
        self._known: tuple[Int8Matrix, int, int] | None = None

    def matrix(self) -> Int8Matrix:
        """The same object as long as its values do not change, so that what is made from it can be cached with it."""
        values, scales = self._buffers["values"], self._buffers["scales"]  # attributes of modules take longer
        assert values is not None
        assert scales is not None
        known, now = self._known, (version(values), version(scales))
        if known is None or known[0].values is not values or known[0].scales is not scales or known[1:] != now:
            known = self._known = Int8Matrix(values, scales), *now
        return known[0]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """As in torch, but the scales are always float32: in float16 they would be another matrix."""
        scales = self.scales
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.scales.dtype != scales.dtype:
            self.scales = scales.to(self.scales.device)
        return self

    def extra_repr(self) -> str:
        """Its size, as torch's own layers show theirs."""
        return "{} x {}, int8".format(*self.values.shape)


class Int8Linear(nn.Module):
    """`nn.Linear` with an int8 matrix; the bias stays float32."""

    def __init__(self, size_in: int, size_out: int, *, bias: bool = True) -> None:
        super().__init__()
        self.weight = Int8Weight(size_out, size_in)
        self.bias = nn.Parameter(torch.zeros(size_out)) if bias else None


Linear = nn.Linear | Int8Linear


def to_int8(network: nn.Module) -> None:
    """Replace every linear layer, and the weights that a module names in `int8_weights`, by int8 ones of that shape.

    The new matrices have no values yet: `load_state_dict` fills them with what `quantised` made. Tables remain floats:
    their rows are read, never multiplied, so int8 would cost accuracy and save no time.
    """
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, Int8Linear(child.in_features, child.out_features, bias=child.bias is not None))
        for name in getattr(module, "int8_weights", ()):
            weight = getattr(module, name)
            if weight is not None:
                delattr(module, name)
                setattr(module, name, Int8Weight(*weight.shape))


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
    """A number that grows when the tensor is changed in place; tensors of inference mode have none."""
    return -1 if tensor.is_inference() else tensor._version


def quantised(weights: Mapping[str, Tensor], names: set[str]) -> dict[str, Tensor]:
    """The same weights, those in `names` as int8."""
    found: dict[str, Tensor] = {}
    for name, value in weights.items():
        if name in names:
            found[name + VALUES] = torch.zeros(value.shape, dtype=torch.int8)
            found[name + SCALES] = torch.ones(len(value))
            size = max(1, _BLOCK // value.shape[1])
            for start in range(0, len(value), size):
                rows = Int8Matrix.of(value[start : start + size])
                found[name + VALUES][start : start + size] = rows.values
                found[name + SCALES][start : start + size] = rows.scales
        else:
            found[name] = value
    return found


def dense(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same weights, all in floats."""
    found: dict[str, Tensor] = {}
    for name, value in weights.items():
        if name.endswith(VALUES):
            base = name.removesuffix(VALUES)
            found[base] = Int8Matrix(value, weights[base + SCALES].float()).dense()
        elif not name.endswith(SCALES):
            found[name] = value
    return found


def check_int8(value: Tensor, name: str, where: str) -> None:
    """Refuse values that the int8 products do not support."""
    if value.dtype != torch.int8 or int(value.min()) < -LARGEST:
        raise ElmoError(f"{where}: {name} must be int8 values from -{LARGEST} to {LARGEST}; fetch it again")

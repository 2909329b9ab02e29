"""A matrix product whose rows do not depend on their neighbours, by the compiled library."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from elmokit.errors import ElmoError
from elmokit.ops.int8 import Int8Matrix
from elmokit.ops.native.binding import Linear, library
from elmokit.ops.native.cores import most_threads
from elmokit.ops.native.packed import check_on_cpu, packed

LEAST_PRODUCTS = 1_000_000
"""Multiplications that justify another thread."""


def linear_native(x: Tensor, weight: Tensor | Int8Matrix, bias: Tensor | None, *, twice: bool = False) -> Tensor:
    """x [N, K] · weightᵀ [K, O] + bias [O] → [N, O], float32 on the CPU, without gradients.

    For an int8 matrix, x is rounded to int8; with `twice`, the rounding error is rounded and multiplied too.
    """
    if x.dtype != torch.float32 or x.device.type != "cpu":
        raise ElmoError(f"the compiled kernels take float32 on the CPU, got {x.dtype} on {x.device}")
    if x.shape[1:] != weight.shape[1:] or (bias is not None and bias.shape != weight.shape[:1]):
        sizes = f"rows of {list(x.shape[1:])}" + ("" if bias is None else f" and a bias of {list(bias.shape)}")
        raise ElmoError(f"a matrix {list(weight.shape)} does not fit {sizes}")
    check_on_cpu(bias)
    x = x.detach().contiguous()
    if isinstance(weight, Int8Matrix) and weight.columns is not None:
        x, weight = x * weight.columns, Int8Matrix(weight.values, weight.scales)
    bias = None if bias is None else bias.detach().float().contiguous()
    kernels = library()
    matrix = packed(kernels, weight)
    rows, (outputs, inputs) = len(x), weight.shape
    y = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    threads = min(most_threads(), max(1, rows * outputs * inputs // LEAST_PRODUCTS))
    job = Linear(
        matrix.matrix,
        None if bias is None else bias.data_ptr(),
        x.data_ptr(),
        y.data_ptr(),
        rows,
        matrix.int8,
        matrix.int8 and twice,
        threads,
    )
    if kernels.linear(ctypes.byref(job)):
        raise MemoryError("there is not enough memory for this matrix product")
    return y

"""Weight matrices in the order the kernels read them, cached as long as the tensors they were made from."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from elmokit.errors import ElmoError
from elmokit.ops.int8 import Int8Matrix
from elmokit.ops.native.binding import Library, Matrix
from elmokit.ops.native.cores import most_threads
from elmokit.ops.native.memory import let_go
from elmokit.ops.native.tensor_cache import TensorCache

MOST_INT8_INPUTS = 65536
"""More products of 8-bit numbers may not fit in a 32-bit sum."""


class PackedMemory:
    """Memory of the library's own, large enough for some matrices, which follow each other in large pages."""

    def __init__(self, kernels: Library, size: int) -> None:
        address: int | None = kernels.allocate(size)
        if address is None:
            raise MemoryError(f"no {size} bytes for packed matrices")
        weakref.finalize(self, kernels.free, address).atexit = False
        self._free, self._end = address, address + size

    def take(self, size: int) -> int:
        """The address of so many bytes, at the beginning of a cache line."""
        address = self._free
        self._free += -(-size // 64) * 64
        assert self._free <= self._end
        return address


def packed_bytes(
    kernels: Library, weight: Tensor | Int8Matrix, *, gates: int = 1, parts: int = 1, repeated: Sequence[int] = ()
) -> int:
    """Bytes of a packed matrix, at most: where they are fewer, the rest of its memory is never touched."""
    inputs, int8 = weight.shape[1:].numel() + len(repeated), isinstance(weight, Int8Matrix)
    matrix = Matrix(outputs=weight.shape[0], inputs=inputs, gates=gates, parts=parts + bool(repeated))
    tables = 8 * kernels.table_items(ctypes.byref(matrix))
    size: int = kernels.panel_bytes(ctypes.byref(matrix), int8) + tables + 4 * inputs * int8 + 5 * 64
    return size


class PackedMatrix:
    """The panels of one matrix.

    Inputs of int8 come in parts, each with a scale of its own. What the rounding of `repeated` ones leaves over is one
    more part, with their columns once more; their numbers rise, and the other parts must have the same size.
    """

    def __init__(
        self,
        kernels: Library,
        weight: Tensor | Int8Matrix,
        *,
        gates: int = 1,
        parts: int = 1,
        repeated: Sequence[int] = (),
        memory: PackedMemory | None = None,
    ) -> None:
        self.library = kernels
        self.int8 = isinstance(weight, Int8Matrix)
        outputs, inputs = weight.shape[0], weight.shape[1:].numel()
        if self.int8 and inputs > MOST_INT8_INPUTS:
            raise ElmoError(f"a matrix of 8 bits may have {MOST_INT8_INPUTS} inputs at most, got {inputs}: use float32")
        values, scales = values_and_scales(weight)
        values = values.detach().to(torch.int8 if self.int8 else torch.float32).contiguous()
        half = not self.int8 and fit_halves(kernels, values)
        self.matrix = Matrix(outputs=outputs, inputs=inputs, gates=gates, half=half, parts=parts)
        pointer = ctypes.byref(self.matrix)
        size = packed_bytes(kernels, weight, gates=gates, parts=parts, repeated=repeated)
        self.memory = memory or PackedMemory(kernels, size)
        if repeated:
            values = torch.cat([values, values[:, list(repeated)]], dim=1)
            self.matrix.inputs, self.matrix.parts, self.matrix.repeats = values.shape[1], parts + 1, len(repeated)
            self.matrix.repeated = self.memory.take(4 * len(repeated))
            ctypes.memmove(self.matrix.repeated, (ctypes.c_int32 * len(repeated))(*repeated), 4 * len(repeated))
        self.matrix.panels = self.memory.take(self.library.panel_bytes(pointer, self.int8))
        if scales is not None:
            size = 4 * self.library.table_items(pointer)
            self.matrix.scales, self.matrix.offsets = self.memory.take(size), self.memory.take(size)
        if isinstance(weight, Int8Matrix) and weight.columns is not None:
            columns = weight.columns.detach().float().contiguous()
            self.matrix.columns = self.memory.take(4 * inputs)
            ctypes.memmove(self.matrix.columns, columns.data_ptr(), 4 * inputs)
        scales = None if scales is None else scales.detach().float().contiguous()
        threads = most_threads() if values.numel() > 1 << 18 else 1
        self.library.pack(pointer, values.data_ptr(), None if scales is None else scales.data_ptr(), threads)
        let_go(values)


_packed_matrices = TensorCache[PackedMatrix]()


def packed(
    kernels: Library, weight: Tensor | Int8Matrix, *, gates: int = 1, parts: int = 1, factors: bool = False
) -> PackedMatrix:
    """The panels of weight [O, …], packed again only where it has changed.

    Its rows are so many gates of cells; inputs of int8 come in so many parts, each with a scale of its own. `factors`
    says whether the product multiplies by the factors of columns.
    """
    if isinstance(weight, Int8Matrix) and weight.columns is not None:
        if not factors:
            raise ElmoError("this product takes no int8 matrix with factors of its columns")
        check_place(weight.columns)
    values, scales = values_and_scales(weight)
    check_place(values, scales)
    tensors = weight.tensors() if isinstance(weight, Int8Matrix) else [weight]
    return _packed_matrices.of(
        kernels, tensors, (gates, parts), lambda: PackedMatrix(kernels, weight, gates=gates, parts=parts)
    )


def fit_halves(kernels: Library, values: Tensor) -> bool:
    """Whether 16 bits hold all numbers exactly, and this machine widens those on their way into a product."""
    check_place(values)
    values = values.detach().float().contiguous()
    return bool(kernels.fit_halves(values.data_ptr(), values.numel()))


def values_and_scales(weight: Tensor | Int8Matrix) -> tuple[Tensor, Tensor | None]:
    """A matrix's numbers, and their scales where they are of 8 bits."""
    return (weight.values, weight.scales) if isinstance(weight, Int8Matrix) else (weight, None)


def check_place(*weights: Tensor | None) -> None:
    """Refuse weights whose address is none of the CPU's."""
    for weight in weights:
        if weight is not None and not weight.is_cpu:
            raise ElmoError(f"inputs on the CPU need weights on the CPU, got some on {weight.device}: move all of them")

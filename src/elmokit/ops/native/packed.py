"""Weight matrices in the order in which the kernels read them, cached as long as their tensors exist."""

from __future__ import annotations

import ctypes
import mmap
import sys
import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from elmokit.errors import ElmoError
from elmokit.ops.int8 import Int8Matrix
from elmokit.ops.native.binding import Library, Matrix
from elmokit.ops.native.cores import mapped_files, most_threads
from elmokit.ops.native.tensor_cache import TensorCache

MOST_INT8_INPUTS = 65536
"""The sum of more int8 products may not fit in 32 bits."""
PAGE_OUT = 21
"""MADV_PAGEOUT, which drops pages from memory; unchanged pages of a file are read again when they are needed."""
LEAST_RELEASED = 1 << 20
"""The size in bytes of the smallest tensor whose pages are released."""


class PackedMemory:
    """Memory of the compiled library for several matrices in a row, in large pages if possible."""

    def __init__(self, kernels: Library, size: int) -> None:
        address: int | None = kernels.allocate(size)
        if address is None:
            raise MemoryError(f"there is not enough memory for packed matrices of {size} bytes")
        weakref.finalize(self, kernels.free, address).atexit = False
        self._free, self._end = address, address + size

    def take(self, size: int) -> int:
        """The address of the next `size` free bytes, at the beginning of a cache line."""
        address = self._free
        self._free += -(-size // 64) * 64
        assert self._free <= self._end
        return address


def packed_bytes(
    kernels: Library, weight: Tensor | Int8Matrix, *, gates: int = 1, parts: int = 1, repeated: Sequence[int] = ()
) -> int:
    """The most bytes that a packed matrix takes; it may use fewer, and the rest is never written."""
    inputs, int8 = weight.shape[1:].numel() + len(repeated), isinstance(weight, Int8Matrix)
    matrix = Matrix(outputs=weight.shape[0], inputs=inputs, gates=gates, parts=parts + bool(repeated))
    tables = 8 * kernels.table_items(ctypes.byref(matrix))
    size: int = kernels.panel_bytes(ctypes.byref(matrix), int8) + tables + 4 * inputs * int8 + 5 * 64
    return size


class PackedMatrix:
    """The panels of one matrix.

    The int8 inputs are divided into `parts` of the same size, each with its own scale. The inputs in `repeated`, in
    rising order, are rounded twice: their rounding errors are one more part, for which their columns are stored again.
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
            raise ElmoError(f"an int8 matrix may have at most {MOST_INT8_INPUTS} inputs, got {inputs}: use float32")
        values, scales = values_and_scales(weight)
        values = values.detach().to(torch.int8 if self.int8 else torch.float32).contiguous()
        float16 = not self.int8 and float16_is_exact(kernels, values)
        self.matrix = Matrix(outputs=outputs, inputs=inputs, gates=gates, float16=float16, parts=parts)
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
        release_pages(values)


_packed_matrices = TensorCache[PackedMatrix]()


def packed(
    kernels: Library, weight: Tensor | Int8Matrix, *, gates: int = 1, parts: int = 1, factors: bool = False
) -> PackedMatrix:
    """The panels of weight [O, …], packed again only if it has changed.

    Its rows are those of `gates` gates; int8 inputs are divided into `parts`, each with its own scale. `factors` says
    whether the product supports factors of columns.
    """
    if isinstance(weight, Int8Matrix) and weight.columns is not None:
        if not factors:
            raise ElmoError("this product does not support an int8 matrix with factors of its columns")
        check_on_cpu(weight.columns)
    values, scales = values_and_scales(weight)
    check_on_cpu(values, scales)
    tensors = weight.tensors() if isinstance(weight, Int8Matrix) else [weight]
    return _packed_matrices.of(
        kernels, tensors, (gates, parts), lambda: PackedMatrix(kernels, weight, gates=gates, parts=parts)
    )


def float16_is_exact(kernels: Library, values: Tensor) -> bool:
    """Whether float16 represents all numbers exactly, and the kernels can read float16 on this machine."""
    check_on_cpu(values)
    values = values.detach().float().contiguous()
    return bool(kernels.float16_is_exact(values.data_ptr(), values.numel()))


def values_and_scales(weight: Tensor | Int8Matrix) -> tuple[Tensor, Tensor | None]:
    """The values of a matrix, and its scales if it is int8."""
    return (weight.values, weight.scales) if isinstance(weight, Int8Matrix) else (weight, None)


def check_on_cpu(*weights: Tensor | None) -> None:
    """Refuse weights that are not on the CPU."""
    for weight in weights:
        if weight is not None and not weight.is_cpu:
            raise ElmoError(f"inputs on the CPU need weights on the CPU, got some on {weight.device}: move all of them")


def release_pages(values: Tensor) -> None:
    """Drop the memory of a large tensor that is mapped from a file, which is read again when it is needed."""
    if sys.platform != "linux" or values.nbytes < LEAST_RELEASED or not values.is_contiguous():
        return
    start = -(-values.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    stop = (values.data_ptr() + values.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if is_mapped_file(start, stop):
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), PAGE_OUT)


def is_mapped_file(start: int, stop: int) -> bool:
    """Whether one mapping of a file contains these addresses; other memory would be written to swap space."""
    return any(first <= start and stop <= last and not path.startswith("/dev/") for first, last, path in mapped_files())

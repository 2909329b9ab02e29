"""Objects made from tensors, cached as long as the tensors exist and made again if one of them has changed.

A tensor has changed if it was moved or written to in place. torch counts writes, except those through `.data` and in
inference mode. To detect those, a hash of some of the numbers is compared.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

from elmokit.ops.native.binding import Library

Made = TypeVar("Made")


@dataclass(frozen=True)
class _Entry(Generic[Made]):
    """An object, and a description of the tensors that it was made from."""

    made: Made
    marks: list[list[object]]
    addresses: ctypes.Array[ctypes.c_void_p]
    sizes: ctypes.Array[ctypes.c_int64]
    sample: int
    references: list[weakref.ref[Tensor]]

    def sampled(self, kernels: Library) -> int:
        """A hash of some of the numbers, which is different if they have changed."""
        number: int = kernels.sample(self.addresses, self.sizes, len(self.references))
        return number


class TensorCache(Generic[Made]):
    """A cache of objects of one kind, by the tensors that they were made from."""

    def __init__(self) -> None:
        self._entries: dict[tuple[object, ...], _Entry[Made]] = {}

    def __len__(self) -> int:
        """The number of cached objects."""
        return len(self._entries)

    def of(self, kernels: Library, tensors: Sequence[Tensor], facts: object, make: Callable[[], Made]) -> Made:
        """The object that `make` returns for these tensors and facts, from the cache if nothing has changed."""
        key = (facts, id(kernels), *map(id, tensors))
        marks = _marks(tensors)
        found = self._entries.get(key)
        if found is not None and found.marks == marks and found.sampled(kernels) == found.sample:
            return found.made
        made = make()
        count = len(tensors)
        addresses = (ctypes.c_void_p * count)(*(tensor.data_ptr() for tensor in tensors))
        sizes = (ctypes.c_int64 * count)(*(t.nbytes if t.is_cpu and t.is_contiguous() else 0 for t in tensors))
        sample: int = kernels.sample(addresses, sizes, count)

        def forget(_: weakref.ref[Tensor]) -> None:
            if self._entries.get(key) is entry:  # the ids may belong to other tensors by now
                del self._entries[key]

        references = [weakref.ref(tensor, forget) for tensor in tensors]
        entry = self._entries[key] = _Entry(made, marks, addresses, sizes, sample, references)
        return made


def _marks(tensors: Sequence[Tensor]) -> list[list[object]]:
    """Values that are different if torch counted a change; one list per property, which is faster to build."""
    try:
        versions: list[object] = [tensor._version for tensor in tensors]
    except RuntimeError:  # a tensor of inference mode has none
        versions = [None if tensor.is_inference() else tensor._version for tensor in tensors]
    shapes: list[object] = [tensor.shape for tensor in tensors]
    dtypes: list[object] = [tensor.dtype for tensor in tensors]
    return [versions, list(map(Tensor.data_ptr, tensors)), list(map(Tensor.stride, tensors)), shapes, dtypes]

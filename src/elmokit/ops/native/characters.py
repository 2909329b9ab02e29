"""The character part of words in one call of the compiled library."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from elmokit.errors import ElmoError
from elmokit.ops.int8 import Int8Matrix
from elmokit.ops.native.binding import AffineArguments, Characters, Filters, HighwayArguments, Library, library
from elmokit.ops.native.cores import most_threads
from elmokit.ops.native.packed import check_on_cpu, packed
from elmokit.ops.native.tensor_cache import TensorCache

LEAST_PRODUCTS = 5_000_000
"""Multiplications that justify another thread, even if it has to be woken first."""
FEW_WORDS = 4
"""Words per thread; with fewer, all threads share the matrices instead of the words."""

Affine = tuple[Tensor | Int8Matrix, Tensor]
"""A matrix [O, K], or filters [O, c, width], and a bias [O]."""


@dataclass(frozen=True)
class CharacterWeights:
    """The weights of the character part; its highways and its projection are all float32 or all int8."""

    table: Tensor  # [symbols, c]
    padding: int  # the row of the table for padding
    filters: Sequence[tuple[Tensor, Tensor]]  # weight [O, c, width] and bias [O] for each width
    activation: str  # relu or tanh
    highways: Sequence[tuple[Affine, Affine]]  # transform and gate
    projection: Affine | None

    @property
    def int8(self) -> bool:
        """Whether there are int8 matrices."""
        return any(isinstance(matrix, Int8Matrix) for matrix, _ in self._affines())

    def tensors(self) -> Iterator[Tensor]:
        """All tensors of the character part."""
        yield self.table
        for matrix, bias in (*self.filters, *self._affines()):
            yield from (*matrix.tensors(), bias) if isinstance(matrix, Int8Matrix) else (matrix, bias)

    def check(self) -> None:
        """Refuse weights that do not fit: the library trusts every size and address."""
        if self.table.dtype != torch.float32 or not self.table.is_cpu:
            kind = f"{self.table.dtype} on {self.table.device}"
            raise ElmoError(f"the compiled kernels take float32 on the CPU, got {kind}")
        size = sum(len(bias) for _, bias in self.filters)
        square = [part for highway in self.highways for part in highway]
        fits = all(weight.shape[1] == self.table.shape[1] for weight, _ in self.filters)
        fits = fits and all(matrix.shape == (size, size) for matrix, _ in square)
        fits = fits and (self.projection is None or self.projection[0].shape[1:] == (size,))
        fits = fits and all(bias.shape == matrix.shape[:1] for matrix, bias in (*self.filters, *self._affines()))
        fits = fits and all(isinstance(matrix, Int8Matrix) == self.int8 for matrix, _ in self._affines())
        for matrix, _ in self._affines():
            if isinstance(matrix, Int8Matrix) and matrix.columns is not None:
                fits = fits and matrix.columns.shape == (size,)
        if not fits:
            raise ElmoError(f"the weights of the character part do not fit {size} filters")

    def _affines(self) -> Iterator[Affine]:
        for highway in self.highways:
            yield from highway
        if self.projection is not None:
            yield self.projection


def characters_native(ids: Tensor, weights: CharacterWeights, *, pool: bool = False) -> Tensor:
    """ids [U, M] → [U, P], or [U, F] without a projection; on the CPU, without gradients.

    A word ends with its last character that is not padding. With `pool`, the threads are those of torch's OpenMP, which
    then stay awake for some milliseconds.
    """
    kernels = library()
    facts = (weights.padding, weights.activation, len(weights.highways), weights.projection is None)
    plan = _plans.of(kernels, list(weights.tensors()), facts, lambda: _CharactersPlan(kernels, weights))
    words, longest = ids.shape
    if not ids.is_cpu or longest < plan.widest:
        got = f"{longest} on {ids.device}"
        raise ElmoError(f"words must be on the CPU and have at least {plan.widest} characters (a filter), got {got}")
    # numpy copies in this thread. Torch's threads would stay awake afterwards, on cores that the kernels need.
    rows = np.ascontiguousarray(ids.numpy(), np.int64)
    y = torch.empty(words, plan.size, dtype=torch.float32)
    threads = min(most_threads(), max(1, words * (plan.products + plan.window_sums * longest) // LEAST_PRODUCTS))
    job = Characters.from_buffer_copy(plan.job)
    job.ids, job.words, job.longest, job.y = rows.ctypes.data, words, longest, y.data_ptr()
    job.threads, job.shared, job.pool = threads, words < FEW_WORDS * threads, pool
    status = kernels.characters(ctypes.byref(job))
    if status == 1:
        raise MemoryError("there is not enough memory for the characters of these words")
    if status:
        raise IndexError(f"character ids must be from 0 to {plan.job.symbols - 1}")
    return y


class _CharactersPlan:
    """The weights in the structures of the compiled library."""

    def __init__(self, kernels: Library, weights: CharacterWeights) -> None:
        weights.check()
        self._kernels = kernels
        self._referenced: list[object] = []  # objects that the structures point to
        filters = [Filters(self._affine((weight.mT, bias)), weight.shape[2]) for weight, bias in weights.filters]
        highways = [HighwayArguments(*map(self._affine, highway)) for highway in weights.highways]
        projection = AffineArguments()
        if weights.projection is not None:
            projection = self._affine(weights.projection, factors=True)
        table = weights.table.detach().contiguous()
        self._referenced.append(table)
        outputs = sum(len(bias) for _, bias in weights.filters)
        self.size = outputs if weights.projection is None else weights.projection[0].shape[0]
        self.widest = max(each.width for each in filters)
        self.window_sums = sum(weight[:, 0].numel() for weight, _ in weights.filters)
        self.products = outputs * (2 * len(highways) * outputs + self.size)
        self.job = Characters(
            table=table.data_ptr(),
            symbols=len(table),
            size=table.shape[1],
            padding=weights.padding,
            filters=(Filters * len(filters))(*filters),
            widths=len(filters),
            outputs=outputs,
            tanh=weights.activation == "tanh",
            highways=(HighwayArguments * len(highways))(*highways),
            depth=len(highways),
            projection=projection,
            int8=weights.int8,
        )

    def _affine(self, affine: Affine, *, factors: bool = False) -> AffineArguments:
        matrix, bias = packed(self._kernels, affine[0], factors=factors), affine[1]
        check_on_cpu(bias)
        bias = bias.detach().float().contiguous()
        self._referenced += [matrix, bias]
        return AffineArguments(matrix.matrix, bias.data_ptr())


_plans = TensorCache[_CharactersPlan]()

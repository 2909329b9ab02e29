"""A cache of the vectors of words without context: a table whose size in bytes is limited."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from elmokit.errors import ElmoError
from elmokit.model.int8 import version
from elmokit.model.placement import moved

Encode = Callable[[Sequence[str]], Tensor]
"""A function from distinct words to their vectors [U, P]."""
Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class CachedWords:
    """The words of a batch: a table of vectors and the row of each word in it."""

    table: Tensor  # [U, P]; rows of words that are not in the batch may change
    rows: Rows  # [N]

    def vectors(self, rows: Rows) -> Tensor:
        """The vectors [N, P] in these rows of the table."""
        table = self.table
        if _numpy_copies(table):
            return torch.from_numpy(table.numpy().take(rows, axis=0))
        return nn.functional.embedding(moved(torch.from_numpy(rows), table.device), table)


class TypeCache:
    """The vectors of words without context that `Elmo` has computed.

    `hits` counts the words whose vector was cached, and `misses` those whose vector was computed, over all batches; the
    two sentence boundaries count once per batch. When the table is full, a new one begins with the words of the current
    batch. Changed weights are detected, except changes that torch does not count (`.data`, inference mode): after such
    a change, call `clear`.
    """

    def __init__(self, megabytes: float = 64) -> None:
        if isinstance(megabytes, bool) or not isinstance(megabytes, int | float) or not 0 <= megabytes < float("inf"):
            raise ElmoError(
                f"type_cache_mb must be a number of megabytes of at least 0 (0 is off), got {megabytes!r}",
                "type_cache_mb",
            )
        self.megabytes = megabytes
        self.hits = self.misses = 0
        self._known: _WordTable | None = None
        self._lock = threading.Lock()
        _caches.add(self)

    def __len__(self) -> int:
        """The number of cached words."""
        known = self._known
        return 0 if known is None else len(known.numbers)

    @property
    def capacity(self) -> int:
        """The most words that fit into the cache; 0 before the first batch, when the size of a vector is unknown."""
        known = self._known
        return 0 if known is None else len(known.table)

    @property
    def nbytes(self) -> int:
        """The size of the cached vectors in bytes."""
        known = self._known
        return 0 if known is None else len(known.numbers) * known.table.shape[1] * known.table.element_size()

    def clear(self) -> None:
        """Remove all words, and set the counts to 0."""
        with self._lock:
            self._known, self.hits, self.misses = None, 0, 0

    def __repr__(self) -> str:
        size = f"{len(self):,} words, {self.nbytes / 1e6:.1f} of {self.megabytes:g} MB"
        return f"TypeCache({size}, {self.hits:,} hits, {self.misses:,} misses)"

    def __getstate__(self) -> dict[str, Any]:
        """A copied or pickled cache is empty."""
        return {"megabytes": self.megabytes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def look_up(self, words: list[str], encode: Encode, encoder: nn.Module) -> CachedWords:
        """The words of a batch → their vectors; `encode`, which runs `encoder`, computes those that are not cached."""
        weights = _Weights.of(encoder) if self.megabytes else None
        if weights is None:
            numbers = _WordNumbers()
            rows = numbers.of(words)
            return CachedWords(encode(list(numbers)), rows)
        with self._lock:
            known = self._known
            if known is None or known.weights != weights:
                self._known = None
                return self._begin(words, encode, weights, None)
            before = len(known.numbers)
            rows = known.numbers.of(words)
            new = known.numbers.since(before)
            if len(known.numbers) > len(known.table):
                known.numbers.forget(new)
                return self._begin(words, encode, weights, known)
            if new:
                try:
                    known.fill(before, encode(new))
                except BaseException:
                    known.numbers.forget(new)
                    raise
            self.hits += len(words) - len(new)
            self.misses += len(new)
            return CachedWords(known.table, rows)

    def after_fork(self) -> None:
        """Empty a locked cache in a child process, which lacks the thread that has the lock and fills the table."""
        if self._lock.locked():
            self._lock, self._known = threading.Lock(), None

    def _begin(self, words: list[str], encode: Encode, weights: _Weights, full: _WordTable | None) -> CachedWords:
        """Make a new table with the words of this batch; vectors in the full table are copied."""
        distinct = dict.fromkeys(words)
        old = [] if full is None else [word for word in distinct if word in full.numbers]
        new = [word for word in distinct if full is None or word not in full.numbers]
        parts = [] if full is None or not old else [full.table[full.numbers.of(old)]]
        parts += [encode(new)] if new or not parts else []
        vectors = torch.cat(parts) if len(parts) > 1 else parts[0]
        numbers = _WordNumbers()
        numbers.of([*old, *new])
        capacity = int(self.megabytes * 1e6) // (vectors.shape[1] * vectors.element_size())
        self.hits += len(words) - len(new)
        self.misses += len(new)
        if len(distinct) > capacity:  # the batch gets its own table, and the cache does not change
            return CachedWords(vectors, numbers.of(words))
        with torch.inference_mode(False):  # otherwise it could not be used outside of that mode
            table = torch.empty(capacity, vectors.shape[1], dtype=vectors.dtype, device=vectors.device)
        known = self._known = _WordTable(table, numbers, weights)
        known.fill(0, vectors)
        return CachedWords(table, numbers.of(words))


_caches: WeakSet[TypeCache] = WeakSet()


def _after_fork() -> None:
    for cache in list(_caches):
        cache.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _WordNumbers(dict[str, int]):
    """Words in the order of their first use, each with its number."""

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        return number

    def of(self, words: list[str]) -> Rows:
        """The numbers of words; new words get the next numbers."""
        return np.fromiter(map(self.__getitem__, words), np.int64, len(words))

    def since(self, number: int) -> list[str]:
        """The words with this number and higher ones."""
        return list(islice(reversed(self), len(self) - number))[::-1]

    def forget(self, words: Sequence[str]) -> None:
        """Remove these words, which must have the highest numbers."""
        for word in words:
            del self[word]


@dataclass(frozen=True, eq=False)
class _WordTable:
    """A table of vectors; a row that was returned is never written again."""

    table: Tensor  # [capacity, P]
    numbers: _WordNumbers
    weights: _Weights

    @torch.no_grad()
    def fill(self, start: int, vectors: Tensor) -> None:
        """Write these vectors to the rows from `start` on."""
        end = start + len(vectors)
        if _numpy_copies(self.table) and _numpy_copies(vectors):
            self.table.numpy()[start:end] = vectors.numpy()
            return
        with torch.inference_mode(False):
            self.table[start:end] = vectors


def _numpy_copies(tensor: Tensor) -> bool:
    """Whether numpy can copy a tensor; numpy does so in this thread.

    Torch's threads would stay awake for some milliseconds, on cores that the compiled kernels need next.
    """
    return tensor.is_cpu and tensor.dtype == torch.float32 and not tensor.requires_grad


@dataclass(frozen=True)
class _Weights:
    """The weights that vectors were computed from; equal if they are the same, unchanged and in the same dtype."""

    marks: tuple[object, ...]
    tensors: list[Tensor] = field(compare=False)
    """References to the tensors, so that no new tensor can get the address of one of them."""

    @classmethod
    def of(cls, encoder: nn.Module) -> _Weights | None:
        """The weights of an encoder; None if vectors must not be cached.

        They must not be cached for weights with gradients, and for the copies of DataParallel, which list no weights.
        """
        tensors = _tensors(encoder)
        if not tensors or any(tensor.requires_grad for tensor in tensors):
            return None
        device = tensors[0].device.type
        computed_in = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        marks = (computed_in, *map(id, tensors), *map(Tensor.data_ptr, tensors), *map(version, tensors))
        return cls(marks, tensors)


def _tensors(module: nn.Module) -> list[Tensor]:
    """A module's parameters and buffers; this runs for every batch, and torch's own `parameters` is slower."""
    tensors: list[Tensor | None] = []
    modules: list[nn.Module | None] = [module]
    for each in modules:  # the list grows during the loop
        if each is not None:
            tensors += each._parameters.values()
            tensors += each._buffers.values()
            modules += each._modules.values()
    return [tensor for tensor in tensors if tensor is not None]

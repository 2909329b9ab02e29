"""Stores vectors of sentences by key: in memory-mapped files that processes share, or in a process's memory.

    ROOT/NAME/<random>.safetensors

A key is a hash of a sentence's tokens. NAME is a hash of everything else that determines the vectors: the model, the
layers, the dtype. S sentences have N rows in total; a row is a token, or a sentence if its tokens are pooled:

| tensor | shape | contents |
| --- | --- | --- |
| keys | [S, 16] uint8 | the key of each sentence |
| ends | [S] int64 | the end of each sentence among the N rows |
| layers | [N, L, D] | the vectors of each row |
| words | [U, P] | the context-free vectors of the distinct words; [0, 0] without them |
| word_rows | [N] int32 | the index in `words` of each row; [0] without them |

A file is written completely or not at all and never changes. So each sentence is computed once, a killed run resumes
where it stopped, and several processes can read and write at the same time.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import shutil
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from elmokit.errors import ElmoError
from elmokit.storage.atomic import disk_errors, write_tensors
from elmokit.storage.cache import KEY_BYTES, remove_leftovers, remove_oldest
from elmokit.storage.locks import wait_for_lock

log = logging.getLogger(__name__)

MOST_BYTES = 20_000_000_000
"""Limit in bytes for the files of all stores in ROOT; above it the least recently used are removed."""
BLOCK_BYTES = 64_000_000
"""Bytes of vectors in a file, the most that a killed run loses."""
_OTHER_FOLDER = "name another folder with cache or ELMOKIT_CACHE"
_IF_FULL = f"free some space there, or {_OTHER_FOLDER}"
_ERRORS = partial(disk_errors, advice=_OTHER_FOLDER, if_full=_IF_FULL)
_SUFFIX = ".safetensors"
_FILES = "[0-9a-f]" * 16 + _SUFFIX
"""A pattern that matches the names of these files and not those of a user's files in the same folder."""
_MERGED = 8
"""Number of files of similar size that are merged into one."""


@dataclass(frozen=True, eq=False)
class VectorBlock:
    """The vectors of some sentences, in memory or in a memory-mapped file."""

    keys: Tensor  # [S, 16]
    ends: Tensor  # [S]
    layers: Tensor  # [N, L, D]
    words: Tensor  # [U, P]
    word_rows: Tensor  # [N]

    @classmethod
    def of(
        cls, rows: Mapping[bytes, int], layers: Tensor, words: Tensor | None = None, word_rows: Tensor | None = None
    ) -> VectorBlock:
        """A block of sentences; `rows` maps each key to its number of rows."""
        return cls(
            torch.from_numpy(np.frombuffer(b"".join(rows), np.uint8).reshape(-1, KEY_BYTES).copy()),
            torch.tensor(list(rows.values()), dtype=torch.int64).cumsum(0),
            layers,
            torch.empty(0, 0, dtype=layers.dtype) if words is None else words,
            torch.empty(0, dtype=torch.int32) if word_rows is None else word_rows,
        )

    @classmethod
    def joined(cls, blocks: Sequence[VectorBlock]) -> VectorBlock:
        """One block with the sentences of several blocks."""
        first_row = np.cumsum([0, *(len(block.layers) for block in blocks)]).tolist()
        first_word = np.cumsum([0, *(len(block.words) for block in blocks)]).tolist()
        return cls(
            torch.cat([block.keys for block in blocks]),
            torch.cat([block.ends + first for block, first in zip(blocks, first_row, strict=False)]),
            torch.cat([block.layers for block in blocks]),
            torch.cat([block.words for block in blocks]),
            torch.cat([block.word_rows + first for block, first in zip(blocks, first_word, strict=False)]),
        )

    def is_valid(self, size: int, layers: int, width: int) -> bool:
        """Whether the parts are consistent and have the sizes (P, L, D)."""
        rows, ends, words = len(self.layers), self.ends, self.word_rows
        return (
            self.keys.shape == (len(ends), KEY_BYTES)
            and self.layers.shape[1:] == (layers, width)
            and self.words.shape[1:] == (size,)
            and len(words) == (rows if size else 0)
            and self.keys.dtype == torch.uint8
            and not (ends.is_floating_point() or words.is_floating_point())
            and (int(ends[-1]) if len(ends) else 0) == rows
            and bool((ends.diff(prepend=ends.new_zeros(1)) >= 0).all())
            and (not len(words) or 0 <= int(words.min()) <= int(words.max()) < len(self.words))
        )


class VectorSpan(NamedTuple):
    """The rows of a sentence in a block."""

    block: VectorBlock
    start: int
    end: int


class _KeySearch:
    """A search for keys: the spans that were found, and the files that were searched."""

    def __init__(self, keys: Collection[bytes]) -> None:
        self.found: dict[bytes, VectorSpan] = {}
        self.searched: set[Path] = set()
        self._keys = np.sort(np.frombuffer(b"".join(keys), f"S{KEY_BYTES}"))

    def add_from(self, block: VectorBlock) -> bool:
        """Add the spans of wanted sentences in the block; returns whether any is new."""
        before = len(self.found)
        keys, ends = block.keys.numpy(), block.ends.numpy()
        here = keys.reshape(-1).view(self._keys.dtype)
        near = np.searchsorted(self._keys, here).clip(max=max(len(self._keys) - 1, 0))
        for number in np.flatnonzero(self._keys[near] == here).tolist() if len(self._keys) else ():
            span = VectorSpan(block, int(ends[number - 1]) if number else 0, int(ends[number]))
            self.found.setdefault(keys[number].tobytes(), span)
        return len(self.found) > before


class VectorStore:
    """The stored vectors of one kind; `shape` is (P, L, D), the sizes of word vectors, layers and vectors."""

    def __init__(self, folder: Path, shape: tuple[int, int, int]) -> None:
        self.folder, self.shape = folder, shape
        self._open: dict[Path, VectorBlock] = {}

    def find(self, keys: Collection[bytes]) -> dict[bytes, VectorSpan]:
        """The spans of the stored sentences among these keys."""
        search = _KeySearch(keys)
        self._search(search)
        return search.found

    def complete(
        self,
        rows: Mapping[bytes, int],
        compute: Callable[[Sequence[bytes], Callable[[int], None]], VectorBlock],
        *,
        dtype: torch.dtype,
        most_sentences: int = 1 << 30,
        progress: Callable[[int, int], None] | None = None,
    ) -> dict[bytes, VectorSpan]:
        """The spans of the sentences of these keys; `rows` maps each key to its number of rows.

        Missing sentences are computed by one process at a time, in files of at most `most_sentences`. `compute` gets
        their keys, and a function to call with the number of them that are done. `progress` is called with the numbers
        of computed and of missing sentences.
        """
        search = _KeySearch(rows)
        self._search(search)
        found, known = search.found, len(search.found)
        missing = {key: count for key, count in rows.items() if key not in found}
        row_bytes = self.shape[1] * self.shape[2] * dtype.itemsize
        coming = row_bytes * sum(missing.values())

        def note(count: int) -> None:
            if progress is not None:
                progress(len(found) - known + count, len(missing))

        for group in _groups(missing, max(1, BLOCK_BYTES // row_bytes), most_sentences):
            if all(key in found for key in group):
                continue  # another process has stored them in the meantime
            with self._exclusive():
                self._search(search)
                if new := [key for key in group if key not in found]:
                    self._make_space(coming)
                    coming = 0  # space is made for all files at once
                    self._add(compute(new, note))
                    self._search(search)
                    self._merge()
        return found

    def _search(self, search: _KeySearch) -> None:
        """Search the files that have not been searched."""
        with _ERRORS(self.folder):  # the folder may be another user's and not readable
            files = {*self._open, *self.folder.glob(_FILES)}
        for path in sorted(files - search.searched):
            search.searched.add(path)
            block = self._block(path)
            if block is not None and search.add_from(block):
                with suppress(OSError):  # marks it as used; the cache may be read-only
                    os.utime(path)
            else:
                self._open.pop(path, None)

    def _block(self, path: Path) -> VectorBlock | None:
        if path not in self._open:
            try:
                with safe_open(path, "pt") as file:
                    block = VectorBlock(**{part.name: file.get_tensor(part.name) for part in fields(VectorBlock)})
            except FileNotFoundError:
                return None  # another process has removed it since it was listed
            except (SafetensorError, OSError) as error:
                log.warning("%s is not a complete file of vectors (%s): they are computed again", path, error)
                with suppress(OSError):
                    path.unlink()
                return None
            if not block.is_valid(*self.shape):
                return None
            self._open[path] = block
        return self._open[path]

    def _add(self, block: VectorBlock) -> None:
        path = self.folder / f"{secrets.token_hex(8)}{_SUFFIX}"
        write_tensors(path, vars(block), errors=_ERRORS)
        # From now on mapped, which is valid even if another process removes the file to make space.
        self._open[path] = self._block(path) or block

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Let one process at a time add vectors, so that no process computes what another one is about to store."""
        with _ERRORS(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = wait_for_lock(self.folder / ".lock", "another process is computing vectors of this model")
        with lock:
            remove_leftovers(self.folder, locked=lock.supported)
            yield

    def _make_space(self, coming: int) -> None:
        """Remove the least recently used files of all stores in ROOT, except those that this store has open."""
        files = self.folder.parent.glob(f"*/{_FILES}")
        remove_oldest(files, MOST_BYTES - coming, keep=self._open)
        free = shutil.disk_usage(self.folder).free
        if free < coming:
            raise ElmoError(
                f"the vectors need {coming / 1e9:.1f} GB in {self.folder}, and {free / 1e9:.1f} GB are free: {_IF_FULL}"
            )

    def _merge(self) -> None:
        """Merge files of similar size, so that a store with many small additions has few files."""
        if os.name == "nt":
            return  # Windows cannot remove mapped files
        similar = defaultdict(list)
        for path in self.folder.glob(_FILES):
            with suppress(OSError):
                if (size := path.stat().st_size) < BLOCK_BYTES // 2:
                    similar[int(math.log(max(size, 1), _MERGED))].append(path)
        for paths in similar.values():
            if len(paths) >= _MERGED:
                blocks = {path: block for path in paths if (block := self._block(path)) is not None}
                self._add(VectorBlock.joined(list(blocks.values())))
                for path in blocks:
                    del self._open[path]
                    path.unlink(missing_ok=True)


def _groups(rows: Mapping[bytes, int], most_rows: int, most_sentences: int) -> Iterator[list[bytes]]:
    """Groups of keys, one per file; a group exceeds `most_rows` only if it is a single sentence."""
    group: list[bytes] = []
    total = 0
    for key, count in rows.items():
        if group and (total + count > most_rows or len(group) == most_sentences):
            yield group
            group, total = [], 0
        group.append(key)
        total += count
    if group:
        yield group


class StoredLayers:
    """The stored layers of sentences, read by batches of sentences or by rows.

    `lengths` are the numbers of rows of the sentences, and `width` is D. `layers` is the number of stored layers to
    read. With `words`, the word vectors come before them as layer 0.
    """

    def __init__(self, spans: Sequence[VectorSpan], *, layers: int, width: int, words: bool = False) -> None:
        self._spans, self._layers, self._width, self._words = spans, layers, width, int(words)
        self.lengths = torch.tensor([span.end - span.start for span in spans], dtype=torch.long)

    def __len__(self) -> int:
        return len(self._spans)

    def batch(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Indices of sentences → layers [L+1, B, T, D] in float32, with zeros as padding, and lengths [B]."""
        lengths = self.lengths[list(indices)]
        width = int(lengths.max()) if len(lengths) else 0
        batch = torch.zeros(self._words + self._layers, len(lengths), width, self._width)
        for slot, index in enumerate(indices):
            block, start, end = self._spans[index]
            filled = batch[:, slot, : end - start]
            if self._words:
                words = block.words[block.word_rows[start:end]]  # [T, P]
                filled[0].view(len(words), self._width // words.shape[1], words.shape[1]).copy_(words.unsqueeze(1))
            filled[self._words :].copy_(block.layers[start:end, : self._layers].transpose(0, 1))
        return batch, lengths

    def rows(self, layer: int, start: int, end: int) -> Tensor:
        """One layer of the rows `start` to `end` of all sentences, [N, D], in the stored dtype."""
        parts, last = [], 0
        for block, begin, stop in self._runs:
            first, last = last, last + stop - begin
            if first < end and last > start:
                inside = slice(begin + max(start - first, 0), stop - max(last - end, 0))
                if layer < self._words:
                    words = block.words[block.word_rows[inside]]
                    parts.append(words.repeat(1, self._width // words.shape[1]))
                else:
                    parts.append(block.layers[inside, layer - self._words])
        if len(parts) == 1:
            return parts[0]
        return torch.cat(parts) if parts else torch.empty(0, self._width)

    @cached_property
    def _runs(self) -> list[VectorSpan]:
        """The spans in order, with adjacent ones in a file merged, which is faster to read."""
        runs: list[VectorSpan] = []
        for span in self._spans:
            if runs and runs[-1].block is span.block and runs[-1].end == span.start:
                runs[-1] = VectorSpan(span.block, runs[-1].start, span.end)
            else:
                runs.append(span)
        return runs


class RecentVectors:
    """Vectors by key in this process's memory, at most `most_bytes`; the least recently used are removed first."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._vectors: OrderedDict[bytes, NDArray[np.float32]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def find(self, keys: Collection[bytes]) -> dict[bytes, NDArray[np.float32]]:
        """The stored vectors of these keys."""
        with self._lock:
            return {key: self._vectors[key] for key in keys if key in self._vectors}

    def add(self, vectors: Mapping[bytes, NDArray[np.float32]]) -> None:
        """Add vectors, or mark stored ones as just used."""
        with self._lock:
            for key, vector in vectors.items():
                if key not in self._vectors:
                    self._vectors[key] = vector
                    self._bytes += vector.nbytes
                self._vectors.move_to_end(key)
            while self._bytes > self.most_bytes and self._vectors:
                self._bytes -= self._vectors.popitem(last=False)[1].nbytes

    def clear(self) -> None:
        """Remove all vectors."""
        with self._lock:
            self._vectors.clear()
            self._bytes = 0

"""ELMo vectors on the disk: of one model, a file for some thousand sentences, mapped into memory when read.

    features/<fingerprint>/<random>.safetensors

The fingerprint is that of the model's weights and of the number type. S sentences of N words in all, of which U are
different:

| tensor | shape | holds |
| --- | --- | --- |
| digests | [S, 16] uint8 | of each sentence's words, by which it is found |
| ends | [S] int64 | where among the N words each sentence ends |
| words | [U, P] | layer 0 of each different word: it depends on the word alone, and both directions have the same |
| rows | [N] int32 | the row in `words` of each word |
| context | [N, L, D] | the LSTM layers of each word |

A file appears whole or not at all and never changes, so that sentences of any task are computed once for a model, a
run that was killed goes on where it stopped, and several processes read and write at the same time.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from elmokit.errors import ElmoError
from elmokit.formats.atomic import replacing
from elmokit.output.lock import acquire, release

log = logging.getLogger(__name__)

DIGEST_SIZE = 16
_SUFFIX = ".safetensors"
_NAMES = ("digests", "ends", "words", "rows", "context")
_WAIT_SECONDS = 0.1
_OLD_SECONDS = 86_400
_ELSEWHERE = "free some space there, or name another folder with ELMOKIT_CACHE"


@dataclass(frozen=True, eq=False)
class Block:
    """Sentences with their vectors, in memory or in a file that is mapped."""

    digests: Tensor  # [S, 16]
    ends: Tensor  # [S]
    words: Tensor  # [U, P]
    rows: Tensor  # [N]
    context: Tensor  # [N, L, D]

    def places(self) -> Iterator[tuple[bytes, int, int]]:
        """Each sentence's digest, where its words begin and where they end."""
        digests, ends = self.digests.numpy().tobytes(), self.ends.tolist()
        for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            yield digests[number * DIGEST_SIZE : (number + 1) * DIGEST_SIZE], start, end

    def is_whole(self, size: int, layers: int, width: int) -> bool:
        """Whether the parts belong together and to a model of this shape (P, L, D)."""
        return (
            self.digests.shape == (len(self.ends), DIGEST_SIZE)
            and self.words.shape[1:] == (size,)
            and self.context.shape == (len(self.rows), layers, width)
            and (int(self.ends[-1]) if len(self.ends) else 0) == len(self.rows)
        )


class Place(NamedTuple):
    """Where a sentence's vectors are."""

    block: Block
    start: int
    end: int


class FeatureStore:
    """The stored vectors of one model, whose token vectors, LSTM layers and outputs have the shape (P, L, D)."""

    def __init__(self, folder: Path, shape: tuple[int, int, int]) -> None:
        self.folder, self.shape = folder, shape
        self._open: dict[Path, Block] = {}

    def find(self, digests: Collection[bytes]) -> dict[bytes, Place]:
        """Where the sentences of these digests are; those that are not stored are left out."""
        wanted, found = set(digests), dict[bytes, Place]()
        for path in sorted({*self._open, *self.folder.glob(f"[!.]*{_SUFFIX}")}):
            block = self._block(path)
            here = {} if block is None else {d: Place(block, s, e) for d, s, e in block.places() if d in wanted}
            if here.keys() - found.keys():
                found = here | found
                with suppress(OSError):  # used now, whether or not the cache can be written
                    os.utime(path)
            else:
                self._open.pop(path, None)
        return found

    def add(self, block: Block) -> None:
        """Write a block to the disk."""
        path = self.folder / f"{secrets.token_hex(8)}{_SUFFIX}"
        try:
            with replacing(path) as temporary:
                try:
                    save_file({name: getattr(block, name).contiguous() for name in _NAMES}, temporary)
                except SafetensorError as error:  # its word for a disk that is full
                    raise OSError(str(error)) from error
        except ElmoError as error:
            raise ElmoError(f"{error}: {_ELSEWHERE}") from error
        self._block(path)  # mapped from now on, though another process should remove it to make room

    @contextmanager
    def alone(self) -> Iterator[None]:
        """One process at a time that adds to this store, so that none computes what another is about to write."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            fd = self._wait()
        except OSError as error:
            raise ElmoError(
                f"the folder {self.folder} for ELMo vectors cannot be used ({error.strerror or error}): name another "
                "with ELMOKIT_CACHE"
            ) from error
        try:
            for leftover in self.folder.glob(".*.tmp"):
                with suppress(OSError):
                    if fd is not None or time.time() - leftover.stat().st_mtime > _OLD_SECONDS:
                        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
            yield
        finally:
            release(fd)

    def make_room(self, coming: int, most_bytes: int) -> None:
        """Remove what was used longest ago, of any model, where `coming` bytes would take the cache above most_bytes.

        What this store has open stays, also where it alone is more than that.
        """
        files = []
        for path in self.folder.parent.glob(f"*/[!.]*{_SUFFIX}"):
            with suppress(OSError):
                facts = path.stat()
                files.append((facts.st_mtime, facts.st_size, path))
        total = coming + sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= most_bytes:
                break
            if path not in self._open:
                with suppress(OSError):  # another process may have removed it, or on Windows still read it
                    path.unlink()
                total -= size
        free = shutil.disk_usage(self.folder).free
        if free < coming:
            raise ElmoError(
                f"the ELMo vectors need {coming / 1e9:.1f} GB in {self.folder}, and {free / 1e9:.1f} GB are free: "
                f"{_ELSEWHERE}"
            )

    def _block(self, path: Path) -> Block | None:
        if path not in self._open:
            try:
                with safe_open(path, "pt") as file:
                    block = Block(*(file.get_tensor(name) for name in _NAMES))
            except FileNotFoundError:
                return None  # removed by another process since it was listed
            except (SafetensorError, OSError) as error:
                log.warning("%s is not a whole file of ELMo vectors (%s): they are computed again", path, error)
                with suppress(OSError):
                    path.unlink()
                return None
            if not block.is_whole(*self.shape):
                return None
            self._open[path] = block
        return self._open[path]

    def _wait(self) -> int | None:
        told = False
        while True:
            try:
                return acquire(self.folder / ".lock")
            except BlockingIOError:
                if not told:
                    log.info("another process is computing ELMo vectors of this model: waiting for it")
                told = True
                time.sleep(_WAIT_SECONDS)


def block_of(sentences: Collection[tuple[bytes, int]], words: Tensor, rows: Tensor, context: Tensor) -> Block:
    """A block from the digests and lengths of its sentences, and their vectors."""
    digests = torch.frombuffer(bytearray(b"".join(digest for digest, _ in sentences)), dtype=torch.uint8)
    ends = torch.tensor([length for _, length in sentences]).cumsum(0)
    return Block(digests.reshape(-1, DIGEST_SIZE), ends, words, rows, context)

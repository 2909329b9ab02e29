"""Reads TensorFlow V2 checkpoints (`PREFIX.index` and `PREFIX.data-0000k-of-0000n`) without TensorFlow.

The index is a table in LevelDB's layout whose values are small protobufs: where in which data file a tensor lies, and
what it is. Nothing read here is trusted: every length is checked before it is used, every checksum is compared, and
whatever is wrong becomes an ElmoError.
"""

import io
import math
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
import numpy.typing as npt

from elmokit.errors import ElmoError
from elmokit.formats.crc32c import masked_crc32c
from elmokit.formats.leveldb_table import MAX_TABLE, Cursor, Table, damaged, quoted

_MAX_TENSORS = 1_000_000
_MAX_RANK = 32  # numpy's limit before version 2
_CHUNK = 16 << 20

_BFLOAT16 = 14
_DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 4: "|u1", 9: "<i8", 10: "|b1", _BFLOAT16: "<f4", 19: "<f2"}
_SUPPORTED = "float32, float64, float16, bfloat16, int32, int64, uint8 or bool"

# What open and read raise for a file that cannot be read, a member of a damaged zip included.
_READ_ERRORS = (OSError, EOFError, zipfile.BadZipFile, zlib.error)

# The value of a protobuf field: a number, or the bytes of a string or a message.
_Field = int | bytes


def _fields(message: Cursor) -> Iterator[tuple[int, _Field]]:
    """Yield the number and value of each field of a protobuf message."""
    while message.left:
        tag = message.varint()
        match tag & 7:
            case 0:
                yield tag >> 3, message.varint()
            case 1:
                yield tag >> 3, message.fixed(8)
            case 2:
                yield tag >> 3, message.take(message.varint())
            case 5:
                yield tag >> 3, message.fixed(4)
            case wire:
                raise damaged(message.where, "a protobuf field must have wire type 0, 1, 2 or 5", wire)


def _number(where: str, field: _Field) -> int:
    """Return a protobuf integer; int32 and int64 are stored as 64 bits in two's complement."""
    if not isinstance(field, int):
        raise damaged(where, "this protobuf field must be a number", f"{len(field)} bytes")
    return field - (1 << 64) if field >> 63 else field


def _message(where: str, field: _Field) -> Cursor:
    if isinstance(field, int):
        raise damaged(where, "this protobuf field must be a message", f"the number {field}")
    return Cursor(where, field)


@dataclass(frozen=True, slots=True)
class _Entry:
    """Where one tensor lies and what it is."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc: int
    partitioned: bool


def _parse_entry(where: str, value: bytes, shards: int) -> _Entry:
    """Read a BundleEntryProto: 1 dtype, 2 shape, 3 data file, 4 offset, 5 size, 6 checksum, 7 slices."""
    numbers = dict.fromkeys((1, 3, 4, 5, 6), 0)
    shape: list[int] = []
    partitioned = False
    for number, field in _fields(Cursor(where, value)):
        if number in numbers:
            numbers[number] = _number(where, field)
        elif number == 2:
            for part, inner in _fields(_message(where, field)):
                if part == 2:
                    sizes = [_number(where, size) for n, size in _fields(_message(where, inner)) if n == 1]
                    shape.append(sizes[-1] if sizes else 0)
                elif part == 3 and inner:
                    raise damaged(where, "a tensor must have a known rank", "an unknown one")
        elif number == 7:
            partitioned = True
    if len(shape) > _MAX_RANK:
        raise damaged(where, f"a tensor may have at most {_MAX_RANK} dimensions", len(shape))
    if any(size < 0 for size in shape) or math.prod(max(size, 1) for size in shape) >> 59:
        raise damaged(where, "a tensor's sizes must not be negative or too large for memory", shape)
    dtype, shard, offset, size, crc = numbers.values()
    if not 0 <= shard < shards:
        raise damaged(where, f"a tensor must lie in data file 0 to {shards - 1}", shard)
    if offset < 0 or size < 0:
        raise damaged(where, "a tensor's offset and size must not be negative", f"{offset} and {size}")
    return _Entry(dtype, tuple(shape), shard, offset, size, crc, partitioned)


class TensorBundle:
    """The tensors of one TensorFlow V2 checkpoint, read one at a time.

    `prefix` is the checkpoint's name without `.index`; `open_file` opens one of its files by name, so a checkpoint may
    lie in a folder (`from_path`), in a zip (`TensorBundle("model.ckpt-1", archive.open)`) or in memory. The files are
    closed after each use.
    """

    def __init__(self, prefix: str, open_file: Callable[[str], IO[bytes]]) -> None:
        self.prefix = prefix
        self._open_file = open_file
        self._shard_sizes: dict[int, int] = {}
        self._entries: dict[str, _Entry] = {}
        where = f"{prefix}.index"
        with self._open(where) as file:
            data = file.read(MAX_TABLE + 1)
        if len(data) > MAX_TABLE:
            raise damaged(where, f"a checkpoint index may have at most {MAX_TABLE} bytes", "more")
        items = Table(where, data).items()
        key, value = next(items, (None, b""))
        if key != b"":
            raise damaged(where, "the first key must be the header's, which is empty", quoted(key or b"no key"))
        self._shards = self._parse_header(where, value)
        for key, value in items:
            # Keys that begin with a zero byte are the parts of partitioned tensors, listed under their own name too.
            if key[0] == 0:
                continue
            try:
                name = key.decode()
            except UnicodeDecodeError:
                raise damaged(where, "a tensor's name must be UTF-8", quoted(key)) from None
            self._entries[name] = _parse_entry(f"{where}: tensor {quoted(name)}", value, self._shards)
            if len(self._entries) > _MAX_TENSORS:
                raise damaged(where, f"a checkpoint may hold at most {_MAX_TENSORS} tensors", "more")

    @classmethod
    def from_path(cls, prefix: Path | str) -> Self:
        """Open a checkpoint on disk: TensorBundle.from_path("folder/model.ckpt-1")."""
        return cls(str(prefix), lambda name: Path(name).open("rb"))

    def names(self) -> list[str]:
        """Return the tensors' names, sorted as in the file."""
        return list(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape; () for a scalar."""
        return self._entry(name).shape

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return the type that `read` gives: the stored one, but float32 for bfloat16."""
        code = self._entry(name).dtype
        if code not in _DTYPES:
            raise ElmoError(
                f"{self.prefix}.index: tensor {quoted(name)} must be {_SUPPORTED}, got TensorFlow type {code} "
                "(leave this tensor out, or convert it in TensorFlow)"
            )
        return np.dtype(_DTYPES[code])

    def read(self, name: str) -> npt.NDArray[Any]:
        """Return one tensor in memory of its own, after checking its checksum."""
        with self._open_shard(self._entry(name).shard) as (where, file):
            return self._read_from(where, file, name)

    def read_many(self, names: Iterable[str]) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """Yield each name with its tensor in the order of the data files, so that a zip is unpacked once."""
        shards: dict[int, list[str]] = {}
        for name in sorted(names, key=lambda name: self._entry(name).offset):
            shards.setdefault(self._entry(name).shard, []).append(name)
        for shard in sorted(shards):
            with self._open_shard(shard) as (where, file):
                for name in shards[shard]:
                    yield name, self._read_from(where, file, name)

    def _parse_header(self, where: str, value: bytes) -> int:
        """Read a BundleHeaderProto (1 number of data files, 2 byte order); return the number of data files."""
        numbers = {1: 0, 2: 0}
        for number, field in _fields(Cursor(where, value)):
            if number in numbers:
                numbers[number] = _number(where, field)
        if numbers[2] != 0:
            raise ElmoError(
                f"{where}: the tensors must be stored little-endian (0), got byte order {numbers[2]} "
                "(save the checkpoint again on a little-endian machine)"
            )
        if not 0 < numbers[1] < 100_000:
            raise damaged(where, "a checkpoint must have 1 to 99999 data files", numbers[1])
        return numbers[1]

    def _entry(self, name: str) -> _Entry:
        if name not in self._entries:
            raise ElmoError(
                f"{self.prefix}.index: a tensor must be one of the {len(self)} in the checkpoint, got {quoted(name)} "
                "(names() lists them)"
            )
        return self._entries[name]

    @contextmanager
    def _open(self, name: str) -> Iterator[IO[bytes]]:
        """Open a file of the checkpoint; what goes wrong in opening or reading it becomes an ElmoError."""
        try:
            file = self._open_file(name)
        except (FileNotFoundError, NotADirectoryError, KeyError):  # a zip says KeyError
            raise ElmoError(
                f"{name}: a checkpoint must have its .index and all its .data files side by side, got no such file "
                "(copy the missing file, and give the name without .index)"
            ) from None
        except (*_READ_ERRORS, RuntimeError) as error:  # a zip says RuntimeError for a member it cannot unpack
            raise self._unreadable(name, error) from error
        with file:
            try:
                yield file
            except _READ_ERRORS as error:
                raise self._unreadable(name, error) from error

    @staticmethod
    def _unreadable(name: str, error: Exception) -> ElmoError:
        reason = str(error) or type(error).__name__
        return ElmoError(f"{name}: the file must be readable, got {reason} (check its permissions or copy it again)")

    @contextmanager
    def _open_shard(self, shard: int) -> Iterator[tuple[str, IO[bytes]]]:
        where = f"{self.prefix}.data-{shard:05d}-of-{self._shards:05d}"
        with self._open(where) as file:
            if shard not in self._shard_sizes:
                # Once only: inside a zip, seeking to the end unpacks the whole member.
                self._shard_sizes[shard] = file.seek(0, io.SEEK_END)
            yield where, file

    def _read_from(self, where: str, file: IO[bytes], name: str) -> npt.NDArray[Any]:
        entry, dtype = self._entry(name), self.dtype(name)
        if entry.partitioned:
            raise ElmoError(
                f"{self.prefix}.index: tensor {quoted(name)} must be stored in one piece, got a partitioned one "
                "(save the checkpoint again without a partitioner)"
            )
        where = f"{where}: tensor {quoted(name)}"
        if entry.dtype == _BFLOAT16:
            dtype = np.dtype("<u2")
        expected = math.prod(entry.shape) * dtype.itemsize
        if entry.size != expected:
            raise damaged(where, f"shape {entry.shape} must take {expected} bytes", entry.size)
        available = self._shard_sizes[entry.shard]
        if entry.offset + entry.size > available:
            end = entry.offset + entry.size
            raise damaged(where, f"bytes {entry.offset} to {end} must lie in the file", f"{available} bytes")
        try:
            array: npt.NDArray[Any] = np.empty(entry.shape, dtype)
            self._fill(where, file, entry, array.reshape(-1).view(np.uint8))
            if entry.dtype == _BFLOAT16:
                wide = array.astype("<u4")
                array = np.left_shift(wide, 16, out=wide).view("<f4")  # bfloat16 is the upper half of a float32
            elif dtype.kind == "b":
                np.not_equal(array.view(np.uint8), 0, out=array)  # a byte above 1 is no bool to numpy
        except MemoryError:
            raise ElmoError(
                f"{where}: the tensor must fit in memory, got {entry.size} bytes (use a machine with more)"
            ) from None
        return array

    def _fill(self, where: str, file: IO[bytes], entry: _Entry, raw: npt.NDArray[np.uint8]) -> None:
        """Read a tensor's bytes into `raw` and compare their checksum."""
        file.seek(entry.offset)
        filled = 0
        while filled < raw.size:
            chunk = file.read(min(_CHUNK, raw.size - filled))
            if not chunk:
                raise damaged(where, f"the data must have {raw.size} bytes", filled)
            raw[filled : filled + len(chunk)] = np.frombuffer(chunk, np.uint8)
            filled += len(chunk)
        actual = masked_crc32c(raw)
        if actual != entry.crc:
            raise damaged(where, f"the checksum must be {entry.crc:#010x} as stored", f"{actual:#010x}")

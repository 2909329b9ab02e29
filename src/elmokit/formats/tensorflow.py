"""bilm-tf's training checkpoints (`PREFIX.index`, `PREFIX.data-00000-of-00001`, options.json), read without TensorFlow.

They contain the weights of bilm.py under other names, with the softmax and Adagrad's state. The index is a table in
LevelDB's layout: a footer points to an index block, which points to blocks of sorted keys and values. A value is a
small protobuf: the data file, offset, shape and type of a tensor. No file is trusted: every length is checked before it
is used, every checksum is verified, and an ElmoError says what is wrong.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import DamagedFileError, ElmoError
from elmokit.formats.bilm import HDF5_SUFFIXES, WeightsFile, options_name, read_weights
from elmokit.formats.checkpoint import Checkpoint
from elmokit.formats.registry import Format, ModelFiles
from elmokit.formats.source import Source, read_text

_SUFFIX = ".index"
MAGIC = 0xDB4775248B80FB57
"""The last 8 bytes of an index, little-endian."""

# Limit in bytes for an index, and for its decompressed blocks and keys: shared prefixes make a small file large.
_MAX_TABLE = 64 << 20
_FOOTER = 48
_TRAILER = 5  # one byte for the compression, four for the checksum
_MAX_KEY = 4096

_MAX_TENSORS = 1_000_000
_MAX_RANK = 32  # numpy's limit before version 2

_BFLOAT16 = 14
_DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 4: "|u1", 9: "<i8", 10: "|b1", _BFLOAT16: "<f4", 19: "<f2"}
_SUPPORTED = "float32, float64, float16, bfloat16, int32, int64, uint8 or bool"

# The value of a protobuf field: a number, or the bytes of a string or a message.
_Field = int | bytes


def detect(source: Source, name: str | None) -> str | None:
    """The prefix of a checkpoint: the newest one in a folder, or the one that a file belongs to."""
    if name is None or name == "checkpoint":
        return _newest_checkpoint(source)
    for marker in (_SUFFIX, ".data-", ".meta"):
        prefix = name.partition(marker)[0]
        if marker in name and prefix + _SUFFIX in source.names():
            return prefix
    index = source.path(name + _SUFFIX)
    return name if index is not None and index.is_file() else None


def read(files: ModelFiles) -> Checkpoint:
    """Read a model from `PREFIX.index`, its data files and options.json."""
    index = files.main + _SUFFIX
    file = WeightsFile(TensorBundle(files.source, files.main), "tensorflow", files.source.describe(index))
    return read_weights(files, file, options_name(files, index))


def _newest_checkpoint(source: Source) -> str | None:
    """The checkpoint that the file `checkpoint` names, or the one with the highest step."""
    names = source.names()
    prefixes = [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX) and _is_index(source, name)]
    if "checkpoint" in names:
        for line in read_text(source, "checkpoint").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model_checkpoint_path":
                # Often an absolute path on another machine, so only its last part is used.
                named = value.strip().strip('"').replace("\\", "/").rpartition("/")[2]
                if f"{named}{_SUFFIX}" in names:
                    return named
                # Without checkpoints, the weights may be in an HDF5 file in the same folder.
                if not prefixes and not any(name.endswith(HDF5_SUFFIXES) for name in names):
                    raise ElmoError(
                        f"{source.describe('checkpoint')} names {named}, and {source.describe(named)}.index is missing"
                    )
    return max(prefixes, key=_step, default=None)


def _step(prefix: str) -> tuple[int, str]:
    number = prefix.rpartition("-")[2]
    return (int(number) if number.isascii() and number.isdigit() and len(number) < 20 else -1, prefix)


def _is_index(source: Source, name: str) -> bool:
    with source.open(name) as file:
        file.seek(0, io.SEEK_END)
        file.seek(max(0, file.tell() - 8))
        return int.from_bytes(file.read(), "little") == MAGIC


class TensorBundle:
    """The tensors of one TensorFlow V2 checkpoint, read one at a time; `prefix` is its name without `.index`.

    The files are closed after each use.
    """

    def __init__(self, source: Source, prefix: str) -> None:
        self._source, self._prefix, self._index = source, prefix, source.describe(prefix + _SUFFIX)
        self._entries: dict[str, _TensorEntry] = {}
        with source.open(prefix + _SUFFIX) as file:
            data = file.read(_MAX_TABLE + 1)
        if len(data) > _MAX_TABLE:
            raise _damaged(self._index, f"a checkpoint index may have at most {_MAX_TABLE} bytes", "more")
        items = _Table(self._index, data).items()
        key, value = next(items, (None, b""))
        if key != b"":
            raise _damaged(self._index, "the first key must be the header's, which is empty", _quoted(key or b"no key"))
        self._shards = _parse_header(self._index, value)
        for key, value in items:
            # Keys that begin with a zero byte are parts of partitioned tensors, which also have an entry of their own.
            if key[0] == 0:
                continue
            try:
                name = key.decode()
            except UnicodeDecodeError:
                raise _damaged(self._index, "a tensor's name must be UTF-8", _quoted(key)) from None
            self._entries[name] = _parse_entry(f"{self._index}: tensor {_quoted(name)}", value, self._shards)
            if len(self._entries) > _MAX_TENSORS:
                raise _damaged(self._index, f"a checkpoint may have at most {_MAX_TENSORS} tensors", "more")

    def names(self) -> list[str]:
        """The tensors' names, sorted as in the file."""
        return list(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor; () for a scalar."""
        return self._entries[name].shape

    def read(self, name: str) -> NDArray[Any]:
        """Read one tensor into its own memory and verify its checksum; bfloat16 becomes float32."""
        entry, where = self._entries[name], f"{self._index}: tensor {_quoted(name)}"
        if entry.dtype not in _DTYPES:
            raise ElmoError(
                f"{where} must be {_SUPPORTED}, got TensorFlow type {entry.dtype} "
                "(leave this tensor out, or convert it in TensorFlow)"
            )
        if entry.partitioned:
            raise ElmoError(
                f"{where} must be stored in one piece, got a partitioned one "
                "(save the checkpoint again without a partitioner)"
            )
        shard = f"{self._prefix}.data-{entry.shard:05d}-of-{self._shards:05d}"
        with self._source.open(shard) as file:
            return _read_tensor(f"{self._source.describe(shard)}: tensor {_quoted(name)}", file, entry)


def _parse_header(where: str, value: bytes) -> int:
    """The number of data files in a BundleHeaderProto (1 number of data files, 2 byte order)."""
    fields = _message(where, value)
    shards, order = _number(where, fields, 1), _number(where, fields, 2)
    if order != 0:
        raise ElmoError(
            f"{where}: the tensors must be stored little-endian (0), got byte order {order} "
            "(save the checkpoint again on a little-endian machine)"
        )
    if not 0 < shards < 100_000:
        raise _damaged(where, "a checkpoint must have 1 to 99999 data files", shards)
    return shards


def _read_tensor(where: str, file: BinaryIO, entry: _TensorEntry) -> NDArray[Any]:
    """Read a tensor from its data file and verify its checksum."""
    bfloat16 = entry.dtype == _BFLOAT16
    dtype = np.dtype("<u2" if bfloat16 else _DTYPES[entry.dtype])
    expected = math.prod(entry.shape) * dtype.itemsize
    if entry.size != expected:
        raise _damaged(where, f"shape {entry.shape} must take {expected} bytes", entry.size)
    end, available = entry.offset + entry.size, file.seek(0, io.SEEK_END)
    if end > available:
        raise _damaged(where, f"bytes {entry.offset} to {end} must be in the file", f"{available} bytes")
    try:
        array: NDArray[Any] = np.empty(entry.shape, dtype)
        raw = array.reshape(-1).view(np.uint8)
        file.seek(entry.offset)
        filled = file.readinto(raw)  # type: ignore[attr-defined]
        if filled != raw.size:
            raise _damaged(where, f"the data must have {raw.size} bytes", filled)
        actual = masked_crc32c(raw)
        if actual != entry.crc:
            raise _damaged(where, f"the checksum must be {entry.crc:#010x} as stored", f"{actual:#010x}")
        if bfloat16:
            wide = array.astype("<u4")
            array = np.left_shift(wide, 16, out=wide).view("<f4")  # bfloat16 is the upper half of a float32
        elif dtype.kind == "b":
            np.not_equal(array.view(np.uint8), 0, out=array)  # NumPy does not accept a bool byte above 1
    except MemoryError:
        raise ElmoError(
            f"{where}: the tensor must fit in memory, got {entry.size} bytes (use a machine with more memory)"
        ) from None
    return array


@dataclass(frozen=True, slots=True)
class _TensorEntry:
    """The location, type and shape of a tensor."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc: int
    partitioned: bool


def _parse_entry(where: str, value: bytes, shards: int) -> _TensorEntry:
    """Read a BundleEntryProto: 1 dtype, 2 shape, 3 data file, 4 offset, 5 size, 6 checksum, 7 slices."""
    fields = _message(where, value)
    shape: list[int] = []
    for part in map(partial(_message, where), fields.get(2, ())):
        shape += [_number(where, _message(where, size), 1) for size in part.get(2, ())]
        if any(part.get(3, ())):
            raise _damaged(where, "a tensor must have a known rank", "an unknown one")
    if len(shape) > _MAX_RANK:
        raise _damaged(where, f"a tensor may have at most {_MAX_RANK} dimensions", len(shape))
    if any(size < 0 for size in shape) or math.prod(max(size, 1) for size in shape) >> 59:
        raise _damaged(where, "a tensor's sizes must not be negative or too large for memory", shape)
    dtype, shard, offset, size, crc = (_number(where, fields, number) for number in (1, 3, 4, 5, 6))
    if not 0 <= shard < shards:
        raise _damaged(where, f"a tensor must be in data file 0 to {shards - 1}", shard)
    if offset < 0 or size < 0:
        raise _damaged(where, "a tensor's offset and size must not be negative", f"{offset} and {size}")
    return _TensorEntry(dtype, tuple(shape), shard, offset, size, crc, partitioned=7 in fields)


def _damaged(where: str, rule: str, got: object) -> ElmoError:
    """The error for a file that breaks a rule of its format."""
    return DamagedFileError(f"{where}: {rule}, got {got} (the file is damaged or cut short: copy the checkpoint again)")


def _quoted(name: str | bytes) -> str:
    """A name for an error message, shortened if it is long."""
    return repr(name) if len(name) <= 100 else f"{name[:100]!r}…"


class _Cursor:
    """Bytes with a reading position; a read past the end is an error."""

    def __init__(self, where: str, data: bytes) -> None:
        self.where = where
        self.data = data
        self.at = 0

    @property
    def left(self) -> int:
        """The number of unread bytes."""
        return len(self.data) - self.at

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        if count > self.left:
            raise _damaged(self.where, f"a field of {count} bytes must be inside its block", f"{self.left} bytes")
        self.at += count
        return self.data[self.at - count : self.at]

    def fixed(self, count: int) -> int:
        """Return the next `count` bytes as a little-endian number."""
        return int.from_bytes(self.take(count), "little")

    def varint(self) -> int:
        """Return the next varint: 7 bits per byte, lowest first; all bytes but the last have the top bit set."""
        value = 0
        for shift in range(0, 70, 7):
            byte = self.fixed(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
        if byte >= 0x80 or value >> 64:
            raise _damaged(self.where, "a varint must fit in 64 bits", f"a longer one at byte {self.at}")
        return value


def _unsnappy(where: str, data: bytes, limit: int) -> bytes:
    """Decompress a raw snappy block of at most `limit` bytes."""
    cursor = _Cursor(where, data)
    size = cursor.varint()
    if size > limit:
        raise _damaged(where, f"the unpacked blocks must fit in {_MAX_TABLE} bytes", f"a block of {size}")
    out = bytearray()
    while cursor.left:
        tag = cursor.fixed(1)
        kind, length = tag & 3, (tag >> 2) + 1
        if kind == 0:
            if length > 60:
                length = cursor.fixed(length - 60) + 1
            out += cursor.take(length)
        else:
            if kind == 1:
                length = (tag >> 2 & 7) + 4
                distance = (tag >> 5) << 8 | cursor.fixed(1)
            else:
                distance = cursor.fixed(2 if kind == 2 else 4)
            if not 0 < distance <= len(out):
                raise _damaged(where, f"a snappy copy must reach back 1 to {len(out)} bytes", distance)
            source = len(out) - distance
            piece = out[source : source + length]
            # A copy that is longer than its distance repeats its own output.
            out += (piece * (length // len(piece) + 1))[:length]
        if len(out) > size:
            break
    if len(out) != size:
        raise _damaged(where, f"a snappy block must unpack to its {size} bytes", len(out))
    return bytes(out)


class _Table:
    """The keys and values of a table in memory; `where` is the name of its file in errors."""

    def __init__(self, where: str, data: bytes) -> None:
        self.where = where
        self.data = data
        self.body = len(data) - _FOOTER
        self.budget = _MAX_TABLE

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield every key and value, in the order of the keys."""
        if self.body < 0:
            raise _damaged(self.where, f"a checkpoint index must end in a footer of {_FOOTER} bytes", len(self.data))
        footer = _Cursor(self.where, self.data[self.body :])
        magic = int.from_bytes(footer.data[-8:], "little")
        if magic != MAGIC:
            raise ElmoError(
                f"{self.where}: a TensorFlow V2 checkpoint index must end in the number {MAGIC:#x}, got {magic:#x} "
                "(give the prefix of a V2 checkpoint, or copy a damaged one again)"
            )
        self._handle(footer, self.body)  # the metaindex, which TensorFlow leaves empty
        start, end = self._handle(footer, self.body)
        blocks_end, last_end, last_key = start, 0, None
        for _, value in self._entries(self._block(start, end)):
            start, end = self._handle(_Cursor(self.where, value), blocks_end)
            if start < last_end:
                raise _damaged(self.where, f"the next block must begin at byte {last_end} or later", start)
            last_end = end + _TRAILER
            for key, item in self._entries(self._block(start, end)):
                if last_key is not None and key <= last_key:
                    raise _damaged(self.where, f"the keys must rise after {_quoted(last_key)}", _quoted(key))
                last_key = key
                yield key, item

    def _handle(self, cursor: _Cursor, limit: int) -> tuple[int, int]:
        """Read the position of a block: its first byte and its end, without its trailer."""
        start, size = cursor.varint(), cursor.varint()
        if start + size + _TRAILER > limit:
            raise _damaged(self.where, f"a block must end before byte {limit}", f"{size} bytes at byte {start}")
        return start, start + size

    def _block(self, start: int, end: int) -> bytes:
        where = f"{self.where}: block at byte {start}"
        stored = int.from_bytes(self.data[end + 1 : end + _TRAILER], "little")
        actual = masked_crc32c(memoryview(self.data)[start : end + 1])
        if stored != actual:
            raise _damaged(where, f"the checksum must be {stored:#010x} as stored", f"{actual:#010x}")
        block = self.data[start:end]
        match self.data[end]:
            case 0:
                pass
            case 1:
                block = _unsnappy(where, block, self.budget)
            case other:
                raise _damaged(where, "the compression must be 0 (none) or 1 (snappy)", other)
        self.budget -= len(block)
        return block

    def _entries(self, block: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries of a block in order; the restart points at its end are only for searches."""
        restarts = int.from_bytes(block[-4:], "little")
        end = len(block) - 4 * (restarts + 1)
        if end < 0:
            raise _damaged(self.where, f"a block of {len(block)} bytes must contain its restart points", restarts)
        cursor = _Cursor(self.where, block[:end])
        key = b""
        while cursor.left:
            shared, fresh, size = cursor.varint(), cursor.varint(), cursor.varint()
            if shared > len(key):
                raise _damaged(self.where, f"a key may share at most {len(key)} bytes with the one before", shared)
            if shared + fresh > _MAX_KEY:
                raise _damaged(self.where, f"a key may have at most {_MAX_KEY} bytes", shared + fresh)
            key = key[:shared] + cursor.take(fresh)
            self.budget -= len(key)
            if self.budget < 0:
                raise _damaged(self.where, f"the unpacked blocks and keys must fit in {_MAX_TABLE} bytes", "more")
            yield key, cursor.take(size)


def _message(where: str, data: _Field) -> dict[int, list[_Field]]:
    """The values of each field of a protobuf message, by field number."""
    if isinstance(data, int):
        raise _damaged(where, "this protobuf field must be a message", f"the number {data}")
    cursor = _Cursor(where, data)
    fields: dict[int, list[_Field]] = {}
    while cursor.left:
        tag = cursor.varint()
        match tag & 7:
            case 0:
                value: _Field = cursor.varint()
            case 1 | 5 as wire:
                value = cursor.fixed(8 if wire == 1 else 4)
            case 2:
                value = cursor.take(cursor.varint())
            case wire:
                raise _damaged(where, "a protobuf field must have wire type 0, 1, 2 or 5", wire)
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def _number(where: str, fields: dict[int, list[_Field]], number: int) -> int:
    """An integer field of a message, 0 if it is missing; negative numbers are in two's complement."""
    value = fields.get(number, [0])[-1]
    if not isinstance(value, int):
        raise _damaged(where, "this protobuf field must be a number", f"{len(value)} bytes")
    return value - (1 << 64) if value >> 63 else value


# CRC-32C (Castagnoli) with numpy, about a gigabyte per second.
#
# A checksum is the remainder of the message, read as a polynomial over GF(2), divided by a fixed polynomial. Appending
# zeros to a message is a linear map on its remainder, so one table lookup can combine words that are far apart in the
# buffer, without a walk over the words between them. Bits are reflected: bit 0 is the highest power.

Words = NDArray[np.uint32]
_POLYNOMIAL = 0x82F63B78
_ONES = 0xFFFFFFFF
_MASK_DELTA = 0xA282EAD8

_BLOCK = 1 << 15  # 128 KiB: small enough for the cache, large enough to hide numpy's cost per call


def crc32c(data: bytes | memoryview | NDArray[np.uint8]) -> int:
    """The CRC-32C of a contiguous buffer: crc32c(b"123456789") == 0xE3069283."""
    if len(data) == 0:
        return 0
    raw = np.frombuffer(data, np.uint8)
    words = raw[: raw.size // 4 * 4].view("<u4")
    register = _after_words(words)
    for byte in raw[words.size * 4 :].tolist():
        register ^= byte
        for _ in range(8):
            register = _times_x(register)
    return register ^ _ONES


def masked_crc32c(data: bytes | memoryview | NDArray[np.uint8]) -> int:
    """The CRC-32C as LevelDB and TensorFlow store it: rotated, with a constant added."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & _ONES


def _after_words(words: Words) -> int:
    """The checksum register after the words."""
    register = _ONES
    for start in range(0, words.size, _BLOCK):
        block = words[start : start + _BLOCK]
        # Leading zeros do not change a remainder, so a block that is not full is padded at the front.
        state: Words = np.zeros(1 << (block.size - 1).bit_length(), "<u4")
        state[-block.size :] = block
        state[-block.size] ^= register
        while half := state.size // 2:
            state = _append_zeros(state[:half], half.bit_length() - 1) ^ state[half:]
        register = _apply(_columns(0), int(state[0]))
    return register


def _append_zeros(remainders: Words, level: int) -> Words:
    """The remainders of the same messages with 2**level zero words appended."""
    low, high = _tables(level)
    halves = remainders.view("<u2")
    moved: Words = low.take(halves[0::2])
    moved ^= high.take(halves[1::2])
    return moved


@cache
def _tables(level: int) -> tuple[Words, Words]:
    """_columns(level) as lookup tables for the low and the high 16 bits of a remainder."""
    columns = _columns(level)
    tables = []
    for half in (columns[:16], columns[16:]):
        table: Words = np.zeros(1, "<u4")
        for column in half:
            table = np.concatenate([table, table ^ np.uint32(column)])
        tables.append(table)
    return tables[0], tables[1]


@cache
def _columns(level: int) -> tuple[int, ...]:
    """The GF(2) matrix that appends 2**level zero words, as the result of each of the 32 bits."""
    if level:
        # Applying a matrix twice doubles the number of zeros.
        once = _columns(level - 1)
        return tuple(_apply(once, column) for column in once)
    columns = []
    for bit in range(32):
        register = 1 << bit
        for _ in range(32):
            register = _times_x(register)
        columns.append(register)
    return tuple(columns)


def _apply(columns: tuple[int, ...], remainder: int) -> int:
    """Multiply a GF(2) matrix by one remainder."""
    result = 0
    for bit, column in enumerate(columns):
        if remainder >> bit & 1:
            result ^= column
    return result


def _times_x(register: int) -> int:
    """Append one zero bit."""
    return register >> 1 ^ (_POLYNOMIAL if register & 1 else 0)


FORMAT = Format(
    name="tensorflow",
    description="a TensorFlow checkpoint of bilm-tf (.index and .data files)",
    detect=detect,
    read=read,
    files=("checkpoint", "*.index", "*.data-*", "*.json", "vocab.txt"),
    takes_options=True,
)

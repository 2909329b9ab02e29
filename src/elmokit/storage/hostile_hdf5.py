"""Reads HDF5 files that may be damaged or malicious, within limits.

The HDF5 library follows links into other files, decompresses a chunk to any size, and may never return from a damaged
heap, which stores strings of variable length. So links are refused, chunks are first decompressed here, and these
strings are read without the library.
"""

from __future__ import annotations

import itertools
import math
import struct
import zlib
from collections import OrderedDict
from typing import Any, BinaryIO

import h5py

from elmokit.errors import DamagedFileError, ElmoError
from elmokit.storage.trusted import check_decompressed_size, max_decompressed_size

MAGIC = b"\x89HDF\r\n\x1a\n"
READ_ERRORS = (OSError, RuntimeError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, MemoryError)
"""The errors of the library and h5py for files that are cut short, have flipped bits or false sizes."""

_SHUFFLE, _DEFLATE, _CHECKSUM = h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_FLETCHER32
_FILTERS = {(_DEFLATE,), (_SHUFFLE, _DEFLATE), (_DEFLATE, _CHECKSUM), (_SHUFFLE, _DEFLATE, _CHECKSUM)}
_FILTERS |= {(_SHUFFLE,), (_CHECKSUM,), (_SHUFFLE, _CHECKSUM)}
"""The allowed filters of chunks, in their order; others may load libraries or decompress without limits."""
_REFERENCE = struct.Struct("<IQI")
"""The reference to a string in its dataset: its length, the address of its heap, its number in the heap."""
_OBJECT = struct.Struct("<H6xQ")
"""The header of an object in a heap: its number and its length."""
_HEAPS_AT_ONCE = 8


def has(group: Any, name: str) -> bool:  # noqa: ANN401 - h5py has no types
    """Whether a group contains a name, without opening the object. A link is refused."""
    if not group.id.links.exists(name.encode()):
        return False
    if group.id.links.get_info(name.encode()).type != h5py.h5l.TYPE_HARD:
        raise ValueError(f"{name} points outside the file")
    return True


def find(group: Any, name: str) -> Any | None:  # noqa: ANN401
    """The group or dataset of this name in a group, or None. A link is refused."""
    return group[name] if has(group, name) else None


def check_numbers(dataset: Any, where: str, file_bytes: int) -> None:  # noqa: ANN401
    """Refuse a dataset without numbers, outside this file, cut short, or far larger than `file_bytes` decompressed."""
    if dataset.dtype.kind not in "fiu":
        raise ElmoError(f"{where} must contain numbers, got {dataset.dtype}")
    _refuse_external(dataset, where)
    shape = (0,) if dataset.shape is None else dataset.shape
    stored, needed = dataset.id.get_storage_size(), math.prod(shape) * dataset.dtype.itemsize
    plist = dataset.id.get_create_plist()
    filters = tuple(plist.get_filter(number)[0] for number in range(plist.get_nfilters()))
    if stored < needed and (not filters or not stored):
        raise _cut_short(where, stored, needed)
    chunk_bytes = math.prod(dataset.chunks or (0,)) * dataset.dtype.itemsize
    check_decompressed_size(max(needed, chunk_bytes), file_bytes, where)
    if dataset.chunks is None:
        return
    if filters and filters not in _FILTERS:
        raise ElmoError(
            f"{where} must be plain or packed with gzip, got the HDF5 filters {filters}: h5repack changes them"
        )
    for corner in itertools.product(*map(range, (0,) * len(shape), shape, dataset.chunks)):
        info = dataset.id.get_chunk_info_by_coord(corner)
        if info.byte_offset is None or not 0 <= info.size <= max_decompressed_size(file_bytes):
            raise _cut_short(where, stored, needed)
        if _DEFLATE in filters and not info.filter_mask >> filters.index(_DEFLATE) & 1:
            _, compressed = dataset.id.read_direct_chunk(corner)
            if len(zlib.decompressobj().decompress(compressed, chunk_bytes + 5)) > chunk_bytes + 4:  # 4 for a checksum
                raise DamagedFileError(
                    f"{where} has a chunk that unpacks to more than its {chunk_bytes} bytes; do not trust it"
                )


def integer_attribute(file: Any, name: str) -> int | None:  # noqa: ANN401
    """An integer attribute of the file, or None. Text is refused, because it may be of variable length."""
    if not h5py.h5a.exists(file.id, name.encode()):
        return None
    attribute = h5py.h5a.open(file.id, name.encode())
    if attribute.get_type().get_class() not in (h5py.h5t.INTEGER, h5py.h5t.ENUM) or attribute.shape != ():
        raise ValueError(f"the attribute {name} must be a whole number")
    return int(file.attrs[name])


class VariableLengthStrings:
    """The variable-length strings of a dataset [N], read from `raw`, the open file."""

    def __init__(self, dataset: Any, raw: BinaryIO, where: str) -> None:  # noqa: ANN401
        kind = h5py.check_string_dtype(dataset.dtype)
        if kind is None or kind.length is not None or dataset.ndim != 1:
            raise ElmoError(f"{where} must contain strings of variable length, got {dataset.dtype}")
        _refuse_external(dataset, where)
        self._raw = raw
        self._bytes = raw.seek(0, 2)
        self._length = int(dataset.shape[0])
        needed, stored = self._length * _REFERENCE.size, dataset.id.get_storage_size()
        self._offset = dataset.id.get_offset() if needed else 0
        if self._offset is None or stored != needed or self._offset + needed > self._bytes:
            raise _cut_short(where, stored, needed)
        self._heaps: OrderedDict[int, tuple[bytes, dict[int, tuple[int, int]]]] = OrderedDict()
        self._budget = max_decompressed_size(self._bytes)
        """Limit for the bytes of all heaps: many overlapping heaps could each be as long as the file."""

    def __len__(self) -> int:
        return self._length

    def read(self, start: int, stop: int) -> list[str]:
        """The strings from `start` to `stop`."""
        self._raw.seek(self._offset + start * _REFERENCE.size)
        data = self._raw.read((min(stop, self._length) - start) * _REFERENCE.size)
        found, heap = [], -1
        for length, address, index in _REFERENCE.iter_unpack(data):
            if not length:
                found.append("")
                continue
            if address != heap:  # adjacent strings are usually in one heap
                (contents, objects), heap = self._heap(address), address
            at, size = objects[index]
            if length > size:
                raise ValueError(f"a string of {length} bytes in an object of {size}")
            found.append(contents[at : at + length].partition(b"\0")[0].decode("utf-8"))
        return found

    def _heap(self, address: int) -> tuple[bytes, dict[int, tuple[int, int]]]:
        """The bytes of a heap, and the offset and length of each object in it."""
        if address not in self._heaps:
            if len(self._heaps) == _HEAPS_AT_ONCE:
                self._heaps.popitem(last=False)
            self._heaps[address] = self._read_heap(address)
        self._heaps.move_to_end(address)
        return self._heaps[address]

    def _read_heap(self, address: int) -> tuple[bytes, dict[int, tuple[int, int]]]:
        if address + 16 > self._bytes:
            raise ValueError(f"a heap must be in the file, got byte {address}")
        self._raw.seek(address)
        magic, version, size = struct.unpack("<4sB3xQ", self._raw.read(16))
        self._budget -= size
        if magic != b"GCOL" or version != 1 or not 16 <= size <= self._bytes - address or self._budget < 0:
            raise ValueError(f"no heap at byte {address}")
        data, at = self._raw.read(size - 16), 0
        objects = {}
        while at + 16 <= len(data):
            index, length = _OBJECT.unpack_from(data, at)
            if not index:  # free space
                break
            at += 16
            if length > len(data) - at:
                raise ValueError(f"an object of {length} bytes beyond the end of its heap")
            objects[index] = at, length
            at += -(-length // 8) * 8
        return data, objects


def _refuse_external(dataset: Any, where: str) -> None:  # noqa: ANN401
    if dataset.external or dataset.is_virtual:
        raise DamagedFileError(f"{where} must be in the file itself, and it points to another one; do not trust it")


def _cut_short(where: str, stored: int, needed: int) -> ElmoError:
    return DamagedFileError(f"{where} is cut short: {stored} of its {needed} bytes are there; fetch the file again")

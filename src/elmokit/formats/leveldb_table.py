"""Reads tables in LevelDB's layout, which TensorFlow uses for the index of a checkpoint.

A table is blocks of sorted keys and values, found through an index block, found through a footer. Nothing read here is
trusted: every length is checked before it is used and every block's checksum is compared.
"""

from collections.abc import Iterator

from elmokit.errors import ElmoError
from elmokit.formats.crc32c import masked_crc32c

MAX_TABLE = 64 << 20
"""The most bytes of a file, and of its unpacked blocks and keys: keys share prefixes and could unfold without end."""

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48
_TRAILER = 5  # one byte for the compression, four for the checksum
_MAX_KEY = 4096


def damaged(where: str, rule: str, got: object) -> ElmoError:
    """Return the error for a file that breaks a rule of its format."""
    return ElmoError(f"{where}: {rule}, got {got} (the file is damaged or cut short: copy the checkpoint again)")


def quoted(name: str | bytes) -> str:
    """Return a name for an error message, cut where it is too long to read."""
    return repr(name) if len(name) <= 100 else f"{name[:100]!r}…"


class Cursor:
    """Bytes of one file with a position; it never reads past the end."""

    def __init__(self, where: str, data: bytes) -> None:
        self.where = where
        self.data = data
        self.at = 0

    @property
    def left(self) -> int:
        """The number of bytes that are not read yet."""
        return len(self.data) - self.at

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        if count > self.left:
            raise damaged(self.where, f"a field of {count} bytes must lie inside its block", f"{self.left} bytes")
        self.at += count
        return self.data[self.at - count : self.at]

    def fixed(self, count: int) -> int:
        """Return the next `count` bytes as a little-endian number."""
        return int.from_bytes(self.take(count), "little")

    def varint(self) -> int:
        """Return the next number of 7 bits a byte, lowest first, the top bit set on all but the last."""
        value = 0
        for shift in range(0, 70, 7):
            byte = self.fixed(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
        if byte >= 0x80 or value >> 64:
            raise damaged(self.where, "a varint must fit in 64 bits", f"a longer one at byte {self.at}")
        return value


def _unsnappy(where: str, data: bytes, limit: int) -> bytes:
    """Decompress a raw snappy block of at most `limit` bytes."""
    cursor = Cursor(where, data)
    size = cursor.varint()
    if size > limit:
        raise damaged(where, f"the unpacked blocks must fit in {MAX_TABLE} bytes", f"a block of {size}")
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
                raise damaged(where, f"a snappy copy must reach back 1 to {len(out)} bytes", distance)
            source = len(out) - distance
            piece = out[source : source + length]
            # A copy longer than its distance repeats what it has just written.
            out += (piece * (length // len(piece) + 1))[:length]
        if len(out) > size:
            break
    if len(out) != size:
        raise damaged(where, f"a snappy block must unpack to its {size} bytes", len(out))
    return bytes(out)


class Table:
    """The keys and values of a table that is all in memory; `where` names its file in errors."""

    def __init__(self, where: str, data: bytes) -> None:
        self.where = where
        self.data = data
        self.body = len(data) - _FOOTER
        self.budget = MAX_TABLE

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield every key and value; the keys rise strictly."""
        if self.body < 0:
            raise damaged(self.where, f"a checkpoint index must end in a footer of {_FOOTER} bytes", len(self.data))
        footer = Cursor(self.where, self.data[self.body :])
        magic = int.from_bytes(footer.data[-8:], "little")
        if magic != _MAGIC:
            raise ElmoError(
                f"{self.where}: a TensorFlow V2 checkpoint index must end in the number {_MAGIC:#x}, got {magic:#x} "
                "(give the prefix of a V2 checkpoint, or copy a damaged one again)"
            )
        self._handle(footer, self.body)  # the metaindex, which TensorFlow leaves empty
        start, end = self._handle(footer, self.body)
        blocks_end, last_end, last_key = start, 0, None
        for _, value in self._entries(self._block(start, end)):
            start, end = self._handle(Cursor(self.where, value), blocks_end)
            if start < last_end:
                raise damaged(self.where, f"the next block must begin at byte {last_end} or later", start)
            last_end = end + _TRAILER
            for key, item in self._entries(self._block(start, end)):
                if last_key is not None and key <= last_key:
                    raise damaged(self.where, f"the keys must rise after {quoted(last_key)}", quoted(key))
                last_key = key
                yield key, item

    def _handle(self, cursor: Cursor, limit: int) -> tuple[int, int]:
        """Return where a block begins and ends, its trailer excluded."""
        start, size = cursor.varint(), cursor.varint()
        if start + size + _TRAILER > limit:
            raise damaged(self.where, f"a block must end before byte {limit}", f"{size} bytes at byte {start}")
        return start, start + size

    def _block(self, start: int, end: int) -> bytes:
        where = f"{self.where}: block at byte {start}"
        stored = int.from_bytes(self.data[end + 1 : end + _TRAILER], "little")
        actual = masked_crc32c(memoryview(self.data)[start : end + 1])
        if stored != actual:
            raise damaged(where, f"the checksum must be {stored:#010x} as stored", f"{actual:#010x}")
        block = self.data[start:end]
        match self.data[end]:
            case 0:
                pass
            case 1:
                block = _unsnappy(where, block, self.budget)
            case other:
                raise damaged(where, "the compression must be 0 (none) or 1 (snappy)", other)
        self.budget -= len(block)
        return block

    def _entries(self, block: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries of a block, in order; the restart points at its end serve only a search."""
        restarts = int.from_bytes(block[-4:], "little")
        end = len(block) - 4 * (restarts + 1)
        if end < 0:
            raise damaged(self.where, f"a block of {len(block)} bytes must hold its restart points", restarts)
        cursor = Cursor(self.where, block[:end])
        key = b""
        while cursor.left:
            shared, fresh, size = cursor.varint(), cursor.varint(), cursor.varint()
            if shared > len(key):
                raise damaged(self.where, f"a key may share at most {len(key)} bytes with the one before", shared)
            if shared + fresh > _MAX_KEY:
                raise damaged(self.where, f"a key may have at most {_MAX_KEY} bytes", shared + fresh)
            key = key[:shared] + cursor.take(fresh)
            self.budget -= len(key)
            if self.budget < 0:
                raise damaged(self.where, f"the unpacked blocks and keys must fit in {MAX_TABLE} bytes", "more")
            yield key, cursor.take(size)

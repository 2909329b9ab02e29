"""Writes TensorFlow V2 checkpoints for tests: slow, plain, and sharing no code with the reader."""

from collections.abc import Collection, Iterable
from pathlib import Path

import numpy as np

MAGIC = 0xDB4775248B80FB57
DTYPES = {"float32": 1, "float64": 2, "int32": 3, "uint8": 4, "int64": 9, "bool": 10, "bfloat16": 14, "float16": 19}


def write_bundle(
    prefix: Path,
    tensors: dict[str, np.ndarray],
    shards: int = 1,
    snappy: bool = False,
    restart_interval: int = 16,
    block_size: int = 4096,
    bfloat16: Collection[str] = (),
) -> None:
    """Write PREFIX.index and its data files, the tensors dealt out to the shards in turn by sorted name.

    float32 tensors named in `bfloat16` are stored as that type, their lower 16 bits cut off.
    """
    items = [(b"", header_proto(shards))]
    data = [bytearray() for _ in range(shards)]
    for index, name in enumerate(sorted(tensors, key=str.encode)):
        tensor, shard = np.asarray(tensors[name]), index % shards
        dtype = "bfloat16" if name in bfloat16 else tensor.dtype.name
        raw = tensor.astype(tensor.dtype.newbyteorder("<")).tobytes()
        if name in bfloat16:
            raw = (np.frombuffer(raw, "<u4") >> 16).astype("<u2").tobytes()
        entry = entry_proto(DTYPES[dtype], tensor.shape, shard, len(data[shard]), len(raw), masked_crc(raw))
        items.append((name.encode(), entry))
        data[shard] += raw
    for shard, raw in enumerate(data):
        Path(f"{prefix}.data-{shard:05d}-of-{shards:05d}").write_bytes(raw)
    Path(f"{prefix}.index").write_bytes(table(items, snappy, restart_interval, block_size))


def header_proto(shards: int, big_endian: bool = False) -> bytes:
    return _field(1, shards) + (_field(2, 1) if big_endian else b"") + _field(3, _field(1, 1))


def entry_proto(dtype: int, shape: Iterable[int], shard: int, offset: int, size: int, crc: int) -> bytes:
    dimensions = b"".join(_field(2, _field(1, dimension)) for dimension in shape)
    # As in any proto3 file, zeros are left out.
    numbers = b"".join(_field(n, value) for n, value in ((3, shard), (4, offset), (5, size)) if value)
    return _field(1, dtype) + _field(2, dimensions) + numbers + b"\x35" + crc.to_bytes(4, "little")


def table(items: list[tuple[bytes, bytes]], snappy: bool, restart_interval: int = 16, block_size: int = 4096) -> bytes:
    """Return a LevelDB table; a block is closed once it has `block_size` bytes."""
    blocks, pending = [], []
    for item in items:
        pending.append(item)
        if sum(len(key) + len(value) for key, value in pending) >= block_size:
            blocks.append((pending[-1][0], block(pending, restart_interval)))
            pending = []
    if pending:
        blocks.append((pending[-1][0], block(pending, restart_interval)))
    return table_of_blocks(blocks, snappy)


def table_of_blocks(blocks: list[tuple[bytes, bytes]], snappy: bool = False) -> bytes:
    """Return a table of ready blocks, each given with its last key, all with good checksums."""
    out = bytearray()

    def add(content: bytes) -> bytes:
        content = _snappy(content) + b"\x01" if snappy else content + b"\x00"
        handle = varint(len(out)) + varint(len(content) - 1)
        out.extend(content + masked_crc(content).to_bytes(4, "little"))
        return handle

    handles = [(key, add(content)) for key, content in blocks]
    metaindex, index = add(block([])), add(block(handles, 1))
    return bytes(out) + (metaindex + index).ljust(40, b"\0") + MAGIC.to_bytes(8, "little")


def block(items: list[tuple[bytes, bytes]], restart_interval: int = 16) -> bytes:
    out, restarts, last = bytearray(), [], b""
    for index, (key, value) in enumerate(items):
        shared = 0
        if index % restart_interval == 0:
            restarts.append(len(out))
        else:
            while shared < min(len(key), len(last)) and key[shared] == last[shared]:
                shared += 1
        out += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    restarts = restarts or [0]
    return bytes(out) + b"".join(number.to_bytes(4, "little") for number in [*restarts, len(restarts)])


def varint(value: int) -> bytes:
    value %= 1 << 64
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def masked_crc(data: bytes) -> int:
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) % (1 << 32)


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ 0x82F63B78 * (value & 1)
        table.append(value)
    return table


_CRC_TABLE = _crc_table()


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    return varint(number << 3) + varint(value)


def _snappy(data: bytes) -> bytes:
    """Compress greedily, with each of snappy's three kinds of copy and of short and long literals."""
    out, literal, seen, at = bytearray(varint(len(data))), 0, {}, 0

    def flush(end: int) -> None:
        size = end - literal
        if size > 60:
            width = ((size - 1).bit_length() + 7) // 8
            out.append(59 + width << 2)
            out.extend((size - 1).to_bytes(width, "little"))
        elif size:
            out.append(size - 1 << 2)
        out.extend(data[literal:end])

    while at + 4 <= len(data):
        source = seen.get(data[at : at + 4])
        seen[data[at : at + 4]] = at
        if source is None:
            at += 1
            continue
        flush(at)
        size = 4
        while size < 64 and at + size < len(data) and data[source + size] == data[at + size]:
            size += 1
        distance = at - source
        if size < 12 and distance < 2048:
            out += bytes([distance >> 8 << 5 | size - 4 << 2 | 1, distance & 255])
        elif size % 2 and distance < 65536:
            out.append(size - 1 << 2 | 2)
            out += distance.to_bytes(2, "little")
        else:
            out.append(size - 1 << 2 | 3)
            out += distance.to_bytes(4, "little")
        at += size
        literal = at
    flush(len(data))
    return bytes(out)

"""CRC-32C (Castagnoli) with numpy, about a gigabyte a second: the checksum of TensorFlow's checkpoint files.

A checksum is the remainder of the message, read as a polynomial over GF(2), divided by a fixed polynomial. Appending
zeros to a message is a linear map on its remainder, so words far apart in the buffer can be brought together by one
table lookup instead of a walk over everything between them. Bits are reflected: bit 0 is the highest power.
"""

from functools import cache

import numpy as np
import numpy.typing as npt

_POLYNOMIAL = 0x82F63B78
_ONES = 0xFFFFFFFF
_MASK_DELTA = 0xA282EAD8

_LANES = 1 << 14  # 64 KiB of state: small enough for the cache, large enough to hide numpy's cost per call

Words = npt.NDArray[np.uint32]


def crc32c(data: bytes | memoryview | npt.NDArray[np.uint8]) -> int:
    """Return the CRC-32C of a contiguous buffer: crc32c(b"123456789") == 0xE3069283."""
    if len(data) == 0:
        return 0
    raw = np.frombuffer(data, np.uint8)
    words = raw[: raw.size // 4 * 4].view("<u4")
    register = _after_words(words) if words.size else _ONES
    for byte in raw[words.size * 4 :].tolist():
        register ^= byte
        for _ in range(8):
            register = _times_x(register)
    return register ^ _ONES


def masked_crc32c(data: bytes | memoryview | npt.NDArray[np.uint8]) -> int:
    """Return the CRC-32C as LevelDB and TensorFlow store it: rotated, with a constant added."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & _ONES


def _after_words(words: Words) -> int:
    """Return the checksum register after at least one whole word."""
    lanes = min(_LANES, 1 << (words.size - 1).bit_length())
    # Leading zeros leave a remainder as it is, so the row that is not full goes first, padded in front.
    head = (words.size - 1) % lanes + 1
    state: Words = np.zeros(lanes, "<u4")
    state[lanes - head :] = words[:head]
    state[lanes - head] ^= _ONES  # the register's starting value
    level = lanes.bit_length() - 1
    for row in words[head:].reshape(-1, lanes):
        state = _append_zeros(state, level)
        state ^= row
    while level:
        level -= 1
        half = state.size // 2
        state = _append_zeros(state[:half], level) ^ state[half:]
    return _apply(_columns(0), int(state[0]))


def _append_zeros(remainders: Words, level: int) -> Words:
    """Return the remainders of the same messages with 2**level zero words at their ends."""
    low, high = _tables(level)
    halves = remainders.view("<u2")
    moved: Words = low.take(halves[0::2])
    moved ^= high.take(halves[1::2])
    return moved


@cache
def _tables(level: int) -> tuple[Words, Words]:
    """Return _columns(level) as lookups by the low and by the high 16 bits of a remainder."""
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
    """Return the GF(2) matrix that appends 2**level zero words: what each of the 32 bits becomes."""
    if level:
        # Doing it twice doubles the distance.
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

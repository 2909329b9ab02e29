"""Opens text files and standard input as bytes; .gz, .xz, .bz2 and .zst are detected by content and unpacked."""

import bz2
import gzip
import io
import lzma
import re
import sys
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from elmokit.errors import ElmoError, MissingExtraError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BOM = b"\xef\xbb\xbf"
PACKED_ENDINGS = (".gz", ".xz", ".bz2", ".zst")
DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError, MemoryError)
"""What reading a damaged file raises."""
LONGEST_LINE = 1 << 24
"""Bytes; a few kilobytes without line ends could unpack to more than any memory."""

_HEAD = 10
_PIECE = 1 << 10
_XZ_MEMORY = 1 << 28
"""Bytes for the window of an .xz file, which may ask for 4 GiB; the strongest preset needs a quarter of this."""
_REFUSED = (
    (re.compile(rb"PK\x03\x04"), "a zip archive", "unpack it first"),
    (re.compile(rb"\xff\xfe|\xfe\xff"), "UTF-16 text", "convert it first with iconv -f UTF-16 -t UTF-8"),
)


def open_packed(source: str | Path, stack: ExitStack, on_bytes: Callable[[int], None] | None = None) -> IO[bytes]:
    """The bytes of a text file, unpacked, or of standard input for "-"; the stack closes what was opened.

    A file that cannot be read, or is of a kind that is not UTF-8 text, is an ElmoError. `on_bytes` is called with the
    number of packed bytes of each read.
    """
    name = name_of(source)
    try:
        raw = _raw(source, stack)
        head = b""
        # No kind has a line end in its first bytes: a short first line decides without waiting for a second one.
        while len(head) < _HEAD and b"\n" not in head:
            more = raw.read1(_HEAD - len(head))  # type: ignore[attr-defined]  # typeshed's IO lacks it
            if not more:
                break
            head += more
    except OSError as error:
        raise ElmoError(
            f"cannot read the input {name} ({error.strerror or error}): give a text file, or - for standard input"
        ) from error
    for start, kind, remedy in _REFUSED:
        if start.match(head):
            raise ElmoError(
                f"the input must be UTF-8 text, plain or in .gz, .xz, .bz2 or .zst, got {kind} in {name}: {remedy}"
            )
    whole = stack.enter_context(io.BufferedReader(_RejoinedStream(head, raw, on_bytes), 1 << 18))
    for start, opener in _PACKED:
        if start.match(head):
            return stack.enter_context(opener(whole))
    return whole


def read_line(file: IO[bytes], name: str, number: int) -> bytes:
    """The next line with its end, b"" after the last; one that is too long for a sentence is an ElmoError."""
    line = file.readline(LONGEST_LINE + 1)
    if len(line) > LONGEST_LINE:
        raise ElmoError(
            f"line {number:,} of {name} must have at most {LONGEST_LINE:,} bytes, got more: write one sentence per line"
        )
    return line


def name_of(source: str | Path) -> str:
    """The name of the source in messages."""
    return "standard input" if str(source) == "-" else str(source)


def _raw(source: str | Path, stack: ExitStack) -> IO[bytes]:
    if str(source) == "-":
        if sys.stdin is None:  # closed by the shell, with `<&-`
            raise ElmoError("standard input is closed: give a file, or pipe the text into the command")
        return sys.stdin.buffer  # not ours to close
    file = Path(source).open("rb")  # noqa: SIM115 -- the stack closes it
    return stack.enter_context(file)


class _RejoinedStream(io.RawIOBase):
    """A stream whose first bytes were read already; a pipe cannot be rewound."""

    def __init__(self, head: bytes, rest: IO[bytes], on_bytes: Callable[[int], None] | None) -> None:
        self._head, self._rest, self._on_bytes = head, rest, on_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        view = memoryview(buffer).cast("B")
        if self._head:
            piece, self._head = self._head[: len(view)], self._head[len(view) :]
        else:
            # read1 returns what a pipe has by now instead of waiting for a full buffer.
            piece = self._rest.read1(len(view))  # type: ignore[attr-defined]  # typeshed's IO lacks it
        if self._on_bytes is not None:
            self._on_bytes(len(piece))
        view[: len(piece)] = piece
        return len(piece)


class _Frames(io.RawIOBase):
    """An xz or zstd file of any number of frames; an incomplete last frame is an error.

    In an `xz` file zeros may follow a frame, and anything else that is no frame is ignored, as other readers do.
    """

    def __init__(
        self, packed: IO[bytes], new: Callable[[], Any], failure: type[Exception], *, xz: bool = False
    ) -> None:
        self._packed, self._new, self._failure, self._xz = packed, new, failure, xz
        self._most = (1 << 18,) if xz else ()  # a decompressor of xz can give a piece at a time
        self._frame: Any = None
        self._frames = 0
        self._input = self._output = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        while not self._output:
            if not self._input and getattr(self._frame, "needs_input", True):
                # Little at a time, for a small piece may unpack to a great deal.
                self._input = self._packed.read1(_PIECE)  # type: ignore[attr-defined]
                if not self._input:
                    if self._frame is not None:
                        raise EOFError("the file ends inside a packed frame")
                    return 0
            if self._xz and self._frames and self._frame is None:
                self._input = self._input.lstrip(b"\0")
                if not self._input:
                    continue
            self._frame = self._frame or self._new()
            try:
                self._output = self._frame.decompress(self._input, *self._most)
            except self._failure as error:
                if self._xz and self._frames:
                    return 0
                raise OSError(str(error)) from error
            self._input = b""
            if self._frame.eof:
                self._input, self._frame = self._frame.unused_data, None
                self._frames += 1
        view = memoryview(buffer).cast("B")
        piece, self._output = self._output[: len(view)], self._output[len(view) :]
        view[: len(piece)] = piece
        return len(piece)


def _open_xz(packed: IO[bytes]) -> IO[bytes]:
    new = partial(lzma.LZMADecompressor, memlimit=_XZ_MEMORY)
    return io.BufferedReader(_Frames(packed, new, lzma.LZMAError, xz=True), 1 << 18)


def _open_zstd(packed: IO[bytes]) -> IO[bytes]:
    if sys.version_info >= (3, 14):
        zstd: Any = import_module("compression.zstd")
        return io.BufferedReader(_Frames(packed, zstd.ZstdDecompressor, zstd.ZstdError), 1 << 18)
    try:
        zstandard: Any = import_module("zstandard")
    except ImportError as error:
        raise MissingExtraError("zstandard", "zstd", "reading a .zst file") from error
    new = zstandard.ZstdDecompressor().decompressobj
    return io.BufferedReader(_Frames(packed, new, zstandard.ZstdError), 1 << 18)


# How files of a kind begin, and what opens them. "BZh9" alone could begin a text; the block mark after it cannot.
_PACKED: tuple[tuple[re.Pattern[bytes], Any], ...] = (
    (re.compile(rb"\x1f\x8b"), gzip.open),
    (re.compile(rb"\xfd7zXZ\x00"), _open_xz),
    (re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"), bz2.open),
    (re.compile(rb"\x28\xb5\x2f\xfd"), _open_zstd),
)

"""Opens text files and standard input as bytes; .gz, .xz, .bz2 and .zst are detected by content and decompressed."""

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
COMPRESSED_ENDINGS = (".gz", ".xz", ".bz2", ".zst")
READ_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError, MemoryError)
"""The errors that reading a damaged file may raise."""
LONGEST_LINE = 1 << 24
"""In bytes. Without a limit, a few compressed kilobytes without line ends could fill the memory."""

_HEAD_BYTES = 10
_PIECE_BYTES = 1 << 10
_XZ_MEMORY = 1 << 28
"""Largest window of an .xz file in bytes. A file may demand 4 GiB; the strongest preset needs a quarter of this."""
_REFUSED = (
    (re.compile(rb"PK\x03\x04"), "a zip archive", "unpack it first"),
    (re.compile(rb"\xff\xfe|\xfe\xff"), "UTF-16 text", "convert it first with iconv -f UTF-16 -t UTF-8"),
)


def open_decompressed(source: str | Path, stack: ExitStack, on_bytes: Callable[[int], None] | None = None) -> IO[bytes]:
    """The decompressed bytes of a text file, or of standard input for "-"; `stack` closes the opened files.

    A file that cannot be read or is known not to be UTF-8 text raises ElmoError. `on_bytes` is called with the number
    of compressed bytes of each read.
    """
    name = name_of(source)
    try:
        raw = _raw(source, stack)
        head = b""
        # No compressed kind has a line end in its first bytes, so a short first line needs no wait for a second one.
        while len(head) < _HEAD_BYTES and b"\n" not in head:
            more = raw.read1(_HEAD_BYTES - len(head))  # type: ignore[attr-defined]  # typeshed's IO lacks it
            if not more:
                break
            head += more
    except OSError as error:
        raise ElmoError(
            f"cannot read the input {name} ({error.strerror or error}): check the name, and give a text file"
        ) from error
    for start, kind, remedy in _REFUSED:
        if start.match(head):
            raise ElmoError(
                f"the input must be UTF-8 text, plain or in .gz, .xz, .bz2 or .zst, got {kind} in {name}: {remedy}"
            )
    whole = stack.enter_context(io.BufferedReader(_RejoinedStream(head, raw, on_bytes), 1 << 18))
    for start, opener in _COMPRESSED:
        if start.match(head):
            return stack.enter_context(opener(whole))
    return whole


def read_line(file: IO[bytes], name: str, number: int) -> bytes:
    """The next line with its line end, b"" after the last one; a line that is too long raises ElmoError."""
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
        return sys.stdin.buffer  # must stay open
    file = Path(source).open("rb")  # noqa: SIM115 -- the stack closes it
    return stack.enter_context(file)


class _RejoinedStream(io.RawIOBase):
    """A stream whose first bytes were already read: a pipe cannot be rewound."""

    def __init__(self, head: bytes, rest: IO[bytes], on_bytes: Callable[[int], None] | None) -> None:
        self._head, self._rest, self._on_bytes = head, rest, on_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        view = memoryview(buffer).cast("B")
        if self._head:
            piece, self._head = self._head[: len(view)], self._head[len(view) :]
        else:
            # read1 returns the bytes that a pipe has now instead of waiting for a full buffer.
            piece = self._rest.read1(len(view))  # type: ignore[attr-defined]  # typeshed's IO lacks it
        if self._on_bytes is not None:
            self._on_bytes(len(piece))
        view[: len(piece)] = piece
        return len(piece)


class _FrameReader(io.RawIOBase):
    """Decompresses an xz or zstd file with any number of frames; an incomplete last frame is an error.

    In an `xz` file, zeros may follow a frame, and other data after a frame is ignored, as other readers do.
    """

    def __init__(
        self, compressed: IO[bytes], new: Callable[[], Any], failure: type[Exception], *, xz: bool = False
    ) -> None:
        self._compressed, self._new, self._failure, self._xz = compressed, new, failure, xz
        self._max_length = (1 << 18,) if xz else ()  # only xz can limit the size of its output
        self._frame: Any = None
        self._frames = 0
        self._input = self._output = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        while not self._output:
            if not self._input and getattr(self._frame, "needs_input", True):
                # Read a little at a time: a small piece may decompress to a very large one.
                self._input = self._compressed.read1(_PIECE_BYTES)  # type: ignore[attr-defined]
                if not self._input:
                    if self._frame is not None:
                        raise EOFError("the file ends inside a compressed frame")
                    return 0
            if self._xz and self._frames and self._frame is None:
                self._input = self._input.lstrip(b"\0")
                if not self._input:
                    continue
            self._frame = self._frame or self._new()
            try:
                self._output = self._frame.decompress(self._input, *self._max_length)
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


def _open_xz(compressed: IO[bytes]) -> IO[bytes]:
    new = partial(lzma.LZMADecompressor, memlimit=_XZ_MEMORY)
    return io.BufferedReader(_FrameReader(compressed, new, lzma.LZMAError, xz=True), 1 << 18)


def _open_zstd(compressed: IO[bytes]) -> IO[bytes]:
    if sys.version_info >= (3, 14):
        zstd: Any = import_module("compression.zstd")
        return io.BufferedReader(_FrameReader(compressed, zstd.ZstdDecompressor, zstd.ZstdError), 1 << 18)
    try:
        zstandard: Any = import_module("zstandard")
    except ImportError as error:
        raise MissingExtraError("zstandard", "zstd", "reading a .zst file") from error
    new = zstandard.ZstdDecompressor().decompressobj
    return io.BufferedReader(_FrameReader(compressed, new, zstandard.ZstdError), 1 << 18)


# The first bytes of each kind of file, and its opener. A text may begin with "BZh9", but not with the block mark too.
_COMPRESSED: tuple[tuple[re.Pattern[bytes], Any], ...] = (
    (re.compile(rb"\x1f\x8b"), gzip.open),
    (re.compile(rb"\xfd7zXZ\x00"), _open_xz),
    (re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"), bz2.open),
    (re.compile(rb"\x28\xb5\x2f\xfd"), _open_zstd),
)

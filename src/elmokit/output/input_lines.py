"""The input of `elmo embed`: lines of a file or of standard input, one sentence each."""

import bz2
import gzip
import io
import lzma
import re
import sys
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from elmokit.errors import ElmoError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_BOM = b"\xef\xbb\xbf"
_HEAD = 10
# How files of a kind begin, and what opens them. "BZh9" alone could begin a text; the block mark after it cannot.
_COMPRESSED = (
    (re.compile(rb"\x1f\x8b"), gzip.open),
    (re.compile(rb"\xfd7zXZ\x00"), lzma.open),
    (re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"), bz2.open),
)
_REFUSED = (
    (re.compile(rb"\x28\xb5\x2f\xfd"), "zstd", "unpack it first, as in zstd -dc FILE | elmo embed --input - ..."),
    (re.compile(rb"PK\x03\x04"), "a zip archive", "unpack it first"),
    (re.compile(rb"\xff\xfe|\xfe\xff"), "UTF-16 text", "convert it first with iconv -t UTF-8"),
)
_DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError)


class InputLines(Iterator[str]):
    """The lines one after the other, read as they are asked for; a context manager that closes the file.

    Only "\\n" ends a line and one "\\r" before it is dropped, so a line here is a line for grep and wc. Bytes that are
    not UTF-8 become U+FFFD; bad_lines counts the lines that had some, first_bad_line is the first one's number from 1.
    """

    def __init__(self, source: str | Path) -> None:
        self.name = "standard input" if str(source) == "-" else str(source)
        self.bad_lines = 0
        self.first_bad_line: int | None = None
        self._open = ExitStack()
        try:
            self._lines = self._decoded(self._bytes(source))
        except BaseException:
            self._open.close()
            raise

    def _bytes(self, source: str | Path) -> IO[bytes]:
        try:
            raw = self._raw(source)
            head = b""
            # No kind has a line end in its first bytes: a short first line decides without waiting for a second one.
            while len(head) < _HEAD and b"\n" not in head:
                more = raw.read1(_HEAD - len(head))  # type: ignore[attr-defined]  # typeshed's IO lacks it
                if not more:
                    break
                head += more
        except OSError as error:
            raise ElmoError(
                f"cannot read the input {self.name} ({error.strerror or error}): "
                f"give a text file, or - for standard input"
            ) from error
        for start, kind, remedy in _REFUSED:
            if start.match(head):
                raise ElmoError(
                    f"the input must be UTF-8 text, plain or in .gz, .xz or .bz2, got {kind} in {self.name}: {remedy}"
                )
        whole = self._open.enter_context(io.BufferedReader(_Rejoined(head, raw), 1 << 18))
        for start, opener in _COMPRESSED:
            if start.match(head):
                unpacked: Any = opener(whole)
                return self._open.enter_context(unpacked)
        return whole

    def _raw(self, source: str | Path) -> IO[bytes]:
        if str(source) == "-":
            return sys.stdin.buffer  # not ours to close
        file = Path(source).open("rb")  # noqa: SIM115 -- the stack closes it
        return self._open.enter_context(file)

    def _decoded(self, file: IO[bytes]) -> Iterator[str]:
        number = 0
        while True:
            try:
                line = file.readline()
            except _DAMAGE as error:
                raise ElmoError(
                    f"the input {self.name} is damaged after line {number} ({error}): get it again, or cut it there"
                ) from error
            if not line:
                return
            number += 1
            if number == 1:
                line = line.removeprefix(_BOM)
            line = line.removesuffix(b"\n").removesuffix(b"\r")
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError:
                self.bad_lines += 1
                self.first_bad_line = self.first_bad_line or number
                yield line.decode("utf-8", "replace")

    def __next__(self) -> str:
        return next(self._lines)

    def close(self) -> None:
        """Close the file; standard input stays open."""
        self._open.close()

    def __enter__(self) -> "InputLines":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Rejoined(io.RawIOBase):
    """A stream with the bytes that were taken from its start put back; a pipe cannot be rewound."""

    def __init__(self, head: bytes, rest: IO[bytes]) -> None:
        self._head, self._rest = head, rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        view = memoryview(buffer).cast("B")
        if self._head:
            piece, self._head = self._head[: len(view)], self._head[len(view) :]
        else:
            # read1 returns what a pipe has by now instead of waiting for a full buffer.
            piece = self._rest.read1(len(view))  # type: ignore[attr-defined]  # typeshed's IO lacks it
        view[: len(piece)] = piece
        return len(piece)


def read_lines(source: str | Path) -> InputLines:
    """The lines of a file, plain or .gz, .xz, .bz2 whatever its name, or of standard input for "-".

    with read_lines("corpus.txt.gz") as lines:
        for line in lines: ...
        print(lines.bad_lines, lines.first_bad_line)
    """
    return InputLines(source)

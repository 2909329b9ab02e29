"""The lines of a text file, plain or packed, or of standard input, one at a time.

Only "\\n" ends a line, and one "\\r" before it is dropped, so a line here is a line for grep and wc.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from elmokit.errors import ElmoError
from elmokit.storage import Closing
from elmokit.text.packed import BOM, DAMAGE, name_of, open_packed, read_line


class InputLines(Closing, Iterator[str]):
    """The lines of a file, or of standard input for "-", read as they are asked for; bad bytes become U+FFFD.

    with InputLines("corpus.txt.gz") as lines:
        for line in lines: ...
        print(lines.bad_lines, lines.first_bad_line)
    """

    def __init__(self, source: str | Path) -> None:
        self.bad_lines = 0
        """Lines by now that were not UTF-8."""
        self.first_bad_line: int | None = None
        """The number of the first of them, from 1."""
        self._open = ExitStack()
        try:
            self._lines = self._decoded(open_packed(source, self._open), name_of(source))
        except BaseException:
            self._open.close()
            raise

    def _decoded(self, file: IO[bytes], name: str) -> Iterator[str]:
        for number, line in byte_lines(file, name):
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


def byte_lines(file: IO[bytes], name: str) -> Iterator[tuple[int, bytes]]:
    """The lines of an open file as bytes, each with its number from 1, without the line end and the byte order mark."""
    number = 0
    while True:
        try:
            line = read_line(file, name, number + 1)
        except DAMAGE as error:
            raise ElmoError(
                f"the input {name} is damaged after line {number} ({error}): get it again, or cut it there"
            ) from error
        if not line:
            return
        number += 1
        if number == 1:
            line = line.removeprefix(BOM)
        yield number, line.removesuffix(b"\n").removesuffix(b"\r")

"""The input of `elmo embed`: lines of a file or of standard input, one sentence each."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO

from elmokit.errors import ElmoError
from elmokit.text.packed import BOM, DAMAGE, name_of, open_packed, read_line


class InputLines(Iterator[str]):
    """The lines one after the other, read as they are asked for; a context manager that closes the file.

    Only "\\n" ends a line and one "\\r" before it is dropped, so a line here is a line for grep and wc. Bytes that are
    not UTF-8 become U+FFFD; bad_lines counts the lines that had some, first_bad_line is the first one's number from 1.
    """

    def __init__(self, source: str | Path) -> None:
        self.name = name_of(source)
        self.bad_lines = 0
        self.first_bad_line: int | None = None
        self._open = ExitStack()
        try:
            self._lines = self._decoded(open_packed(source, self._open))
        except BaseException:
            self._open.close()
            raise

    def _decoded(self, file: IO[bytes]) -> Iterator[str]:
        number = 0
        while True:
            try:
                line = read_line(file, self.name, number + 1)
            except DAMAGE as error:
                raise ElmoError(
                    f"the input {self.name} is damaged after line {number} ({error}): get it again, or cut it there"
                ) from error
            if not line:
                return
            number += 1
            if number == 1:
                line = line.removeprefix(BOM)
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


def read_lines(source: str | Path) -> InputLines:
    """The lines of a file, plain or .gz, .xz, .bz2, .zst whatever its name, or of standard input for "-".

    with read_lines("corpus.txt.gz") as lines:
        for line in lines: ...
        print(lines.bad_lines, lines.first_bad_line)
    """
    return InputLines(source)

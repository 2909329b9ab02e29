"""The lines of a text file, plain or compressed, or of standard input, one at a time.

Only "\\n" ends a line, and one "\\r" before it is dropped, so lines are the same as for grep and wc. A sentence may
also be given as words, in the input formats of ELMoForManyLangs' command:

| format | a sentence |
| --- | --- |
| `lines` | a line of text, which the model's text policy splits into words |
| `tab` | a line of words separated by tabs |
| `conll` | lines of columns (CoNLL-U, CoNLL-X), the second is the word; an empty line ends the sentence |
| `conll_char` | as `conll`, and every character is a word |
| `conll_char_vi` | as `conll`, and words are split at spaces, into Vietnamese syllables |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import IO, Literal

from elmokit.errors import ElmoError
from elmokit.storage import Closing
from elmokit.text.packed import BOM, READ_ERRORS, name_of, open_decompressed, read_line


class InputLines(Closing, Iterator[str]):
    """Iterates over the lines of a file, or of standard input for "-"; bytes that are not UTF-8 become U+FFFD.

    with InputLines("corpus.txt.gz") as lines:
        for line in lines: ...
        print(lines.bad_lines, lines.first_bad_line)
    """

    def __init__(self, source: str | Path, on_bytes: Callable[[int], None] | None = None) -> None:
        """`on_bytes` is called with the number of compressed bytes of each read."""
        self.bad_lines = 0
        """Number of lines so far that were not UTF-8."""
        self.first_bad_line: int | None = None
        """The line number of the first of them, from 1."""
        self._open = ExitStack()
        try:
            self._lines = self._decoded(open_decompressed(source, self._open, on_bytes), name_of(source))
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
    """Line numbers, from 1, and lines of an open file, without line ends and byte order mark."""
    number = 0
    while True:
        try:
            line = read_line(file, name, number + 1)
        except READ_ERRORS as error:
            raise ElmoError(
                f"the input {name} is damaged after line {number} ({error}): get it again, or cut it there"
            ) from error
        if not line:
            return
        number += 1
        if number == 1:
            line = line.removeprefix(BOM)
        yield number, line.removesuffix(b"\n").removesuffix(b"\r")


SentenceFormat = Literal["lines", "tab", "conll", "conll_char", "conll_char_vi"]


def sentence_lines(lines: Iterable[str], kind: SentenceFormat) -> Iterable[str]:
    """One line per sentence: `conll` and its variants become words separated by tabs, other lines are unchanged."""
    return _conll_sentences(lines, kind) if kind.startswith("conll") else lines


def given_words(line: str) -> list[str]:
    """The words of a line in which tabs separate them."""
    return line.split("\t") if line else []


def _conll_sentences(lines: Iterable[str], kind: SentenceFormat) -> Iterator[str]:
    words: list[str] = []
    for number, line in enumerate(chain(lines, [""]), 1):
        if not line.strip():
            if words:
                yield "\t".join(words)
            words = []
        elif not line.startswith("#"):
            columns = line.split("\t")
            if len(columns) < 2:
                raise ElmoError(
                    f"a word in input_format {kind} needs two columns separated by a tab, got line {number}: "
                    f"{line[:60]!r}",
                    "input_format",
                )
            if "-" not in columns[0] and "." not in columns[0]:  # neither a range such as 1-2 nor an empty node
                word = columns[1]
                words.extend(word if kind == "conll_char" else word.split() if kind == "conll_char_vi" else [word])

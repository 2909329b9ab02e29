"""Sentences whose words are given: the input formats of ELMoForManyLangs' command.

| format | a sentence |
| --- | --- |
| `lines` | a line of text, which the model's text policy splits into words |
| `tab` | a line of words with tabs between them |
| `conll` | lines of columns (CoNLL-U, CoNLL-X), the second of which is the word; an empty line ends it |
| `conll_char` | the same, and every character is a word |
| `conll_char_vi` | the same, and words are split at spaces, as Vietnamese syllables |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Literal

from elmokit.errors import ElmoError

SentenceFormat = Literal["lines", "tab", "conll", "conll_char", "conll_char_vi"]


def sentence_lines(lines: Iterable[str], kind: SentenceFormat) -> Iterable[str]:
    """One line per sentence: for `conll` and its variants its words with tabs between them, otherwise as it is."""
    return _conll_sentences(lines, kind) if kind.startswith("conll") else lines


def given_words(line: str) -> list[str]:
    """The words of a line with tabs between them."""
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
                    f"a word in input_format {kind} needs two columns with a tab between them, got line {number}: "
                    f"{line[:60]!r}",
                    "input_format",
                )
            if "-" not in columns[0] and "." not in columns[0]:  # neither a range such as 1-2 nor an empty node
                word = columns[1]
                words.extend(word if kind == "conll_char" else word.split() if kind == "conll_char_vi" else [word])

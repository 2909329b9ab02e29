"""What a user may pass as sentences, brought to lists of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import SupportsInt

from elmokit.errors import ElmoError

Sentence = str | Sequence[str]


def tokens_of(sentence: Sentence) -> list[str]:
    """A string is split on white space; a list is taken as tokens.

    >>> tokens_of("a river bank")
    ['a', 'river', 'bank']
    """
    if isinstance(sentence, str):
        return sentence.split()
    if not isinstance(sentence, Iterable):
        raise ElmoError(f"a sentence must be a string or a list of tokens, got {type(sentence).__name__}")
    tokens = list(sentence)
    if wrong := [token for token in tokens if not isinstance(token, str)]:
        raise ElmoError(f"a token must be a string, got {wrong[0]!r}")
    return tokens


def many(sentences: Sentence | Iterable[Sentence]) -> list[list[str]]:
    """Any number of sentences; one string is one sentence."""
    if isinstance(sentences, str):
        return [tokens_of(sentences)]
    if not isinstance(sentences, Iterable):
        raise ElmoError(f"sentences must be a list of strings or of token lists, got {type(sentences).__name__}")
    return [tokens_of(sentence) for sentence in sentences]


def padded(tokens: Sequence[Sequence[str]], sequence_len: Iterable[SupportsInt]) -> list[list[str]]:
    """Rows of tokens filled up to one length, cut to their true ones (TF-Hub's `tokens` signature)."""
    rows = [tokens_of(row) for row in tokens]
    if not isinstance(sequence_len, Iterable):
        raise ElmoError(f"sequence_len must be a list of lengths, got {sequence_len!r}")
    lengths = [int(length) for length in sequence_len]
    if len(rows) != len(lengths):
        raise ElmoError(f"sequence_len must have a length for each of the {len(rows)} sentences, got {len(lengths)}")
    for row, length in zip(rows, lengths, strict=True):
        if not 0 <= length <= len(row):
            raise ElmoError(f"sequence_len must lie between 0 and the {len(row)} tokens of its row, got {length}")
    return [row[:length] for row, length in zip(rows, lengths, strict=True)]

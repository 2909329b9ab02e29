"""What a user may pass as sentences, brought to lists of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import SupportsInt

from elmokit.errors import ElmoError
from elmokit.text.tokens import Segmenter, split_chars, split_jieba, words

Sentence = str | Sequence[str]
Splitter = Callable[[str], list[str]]
"""A string in, its tokens out."""
_WITHOUT_SPACES: dict[str, Segmenter] = {"chars": split_chars, "jieba": split_jieba}
"""Segmenters of languages that put no white space between words."""


def splitter_of(segment: str | None) -> Splitter:
    """How a model's strings become tokens: at white space; where its text has none, as that was segmented.

    >>> splitter_of("english")("a river bank."), splitter_of("chars")("河岸 ok")
    (['a', 'river', 'bank.'], ['河', '岸', 'ok'])
    """
    segmenter = _WITHOUT_SPACES.get(segment or "")
    return str.split if segmenter is None else lambda text: words(segmenter(text))


def tokens_of(sentence: Sentence, split: Splitter = str.split) -> list[str]:
    """A string is split, at white space or as `split` does; a list is taken as tokens.

    >>> tokens_of("a river bank")
    ['a', 'river', 'bank']
    """
    if isinstance(sentence, str):
        return split(sentence)
    if not isinstance(sentence, Iterable):
        raise ElmoError(f"a sentence must be a string or a list of tokens, got {type(sentence).__name__}")
    tokens = list(sentence)
    if wrong := [token for token in tokens if not isinstance(token, str)]:
        raise ElmoError(f"a token must be a string, got {wrong[0]!r}")
    return tokens


def many(sentences: Sentence | Iterable[Sentence], split: Splitter = str.split) -> list[list[str]]:
    """Any number of sentences; one string is one sentence."""
    if isinstance(sentences, str):
        return [tokens_of(sentences, split)]
    if not isinstance(sentences, Iterable):
        raise ElmoError(f"sentences must be a list of strings or of token lists, got {type(sentences).__name__}")
    return [tokens_of(sentence, split) for sentence in sentences]


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

"""From tokens to the ids that a model reads.

A byte model's raw ids are the UTF-8 bytes 0 to 255 and five markers. The model's id is the raw id + 1, because 0 is
a padded token. A symbol model has a table of code points and, often, a table of words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from elmokit.config import ElmoConfig
from elmokit.errors import ElmoError
from elmokit.text.policy import CharacterPieces
from elmokit.text.vocab import BEGIN, END, Vocabulary

SENTENCE_BEGIN, SENTENCE_END, WORD_BEGIN, WORD_END, PADDING = 256, 257, 258, 259, 260
"""Raw ids of the five markers."""

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class TokenIds:
    """The ids of U tokens; None for a kind of input that the model does not have."""

    characters: Ids | None  # [U, M]
    words: Ids | None  # [U]


class Indexer(Protocol):
    """Turns tokens into ids; `begin` and `end` are the tokens of the sentence boundaries."""

    begin: str
    end: str

    def __call__(self, tokens: Sequence[str]) -> TokenIds:
        """Ids of U tokens."""
        ...


def byte_ids(token: str, max_characters: int) -> list[int]:
    """The M model ids of a token: word begin, its first M - 2 bytes, word end, padding.

    Lone surrogates have no UTF-8 bytes and are left out, as in the original systems.
    """
    if token == BEGIN:
        raw = [WORD_BEGIN, SENTENCE_BEGIN, WORD_END]
    elif token == END:
        raw = [WORD_BEGIN, SENTENCE_END, WORD_END]
    else:
        raw = [WORD_BEGIN, *_cut_bytes(token, max_characters - 2), WORD_END]
    return [value + 1 for value in raw] + [PADDING + 1] * (max_characters - len(raw))


def word_of_byte_ids(ids: Sequence[int]) -> str:
    """The word of a row of byte ids, the inverse of `byte_ids`; empty for a boundary.

    >>> word_of_byte_ids(byte_ids("bank", 50))
    'bank'
    """
    return bytes(value - 1 for value in ids if 0 < value <= SENTENCE_BEGIN).decode("utf-8", "ignore")


def _cut_bytes(token: str, most: int) -> bytes:
    """The first `most` UTF-8 bytes of a token."""
    # Cutting the string first is fast for huge tokens. It is exact, because a character has at least one byte, except
    # for lone surrogates, which have none.
    data = token[:most].encode("utf-8", "ignore")[:most]
    if len(data) < most and len(token) > most:
        data = token.encode("utf-8", "ignore")[:most]
    return data


class ByteIndexer:
    """Tokens → [U, M] byte ids: the same as `byte_ids`, for many tokens at once."""

    begin, end = BEGIN, END

    def __init__(self, max_characters: int) -> None:
        self.max_characters = max_characters

    def __call__(self, tokens: Sequence[str]) -> TokenIds:
        """Ids of U tokens."""
        most = self.max_characters - 2
        data = [_cut_bytes(token, most) for token in tokens]
        sizes = np.fromiter(map(len, data), np.int64, len(data))
        ids = np.full((len(data), self.max_characters), PADDING + 1, np.int64)
        ids[:, 0] = WORD_BEGIN + 1
        ids[:, 1:-1][np.arange(most) < sizes[:, None]] = np.frombuffer(b"".join(data), np.uint8).astype(np.int64) + 1
        ids[np.arange(len(data)), sizes + 1] = WORD_END + 1
        for row, token in enumerate(tokens):
            if token in (BEGIN, END):
                ids[row] = byte_ids(token, self.max_characters)
        return TokenIds(ids, None)


class WordIndexer:
    """Tokens → [U] vocabulary indices + 1."""

    def __init__(self, vocab: Vocabulary) -> None:
        self.vocab = vocab
        self.begin, self.end = vocab.specials[0], vocab.specials[1]

    def __call__(self, tokens: Sequence[str]) -> TokenIds:
        """Ids of U tokens."""
        return TokenIds(None, np.array([self.vocab.index(token) + 1 for token in tokens], dtype=np.int64))


@dataclass(frozen=True)
class SymbolTable:
    """The code points of a model and their ids in its file, with the markers of the ELMoForManyLangs models."""

    ids: Mapping[str, int]

    begin, end, unknown, padding = "<bos>", "<eos>", "<oov>", "<pad>"
    # The released models were trained with these two swapped; the swap is part of the format.
    word_begin, word_end = "<eow>", "<bow>"

    def __post_init__(self) -> None:
        for marker in (self.begin, self.end, self.unknown, self.padding, self.word_begin, self.word_end):
            if marker not in self.ids:
                raise ElmoError(f"a character table needs the entry {marker}, and it is not among its {len(self.ids)}")

    def token(self, token: str, max_characters: int) -> list[int]:
        """The M model ids (file id + 1) of a token that is already cut to M - 2 code points."""
        if token in (self.begin, self.end):
            inner = [self.ids[token]]
        else:
            inner = [self.ids.get(symbol, self.ids[self.unknown]) for symbol in token]
        ids = [self.ids[self.word_begin], *inner, self.ids[self.word_end]]
        ids += [self.ids[self.padding]] * (max_characters - len(ids))
        return [value + 1 for value in ids]


class SymbolIndexer:
    """Tokens → [U, M] ids of code points and, if the model has a word table, [U] word ids."""

    begin, end = SymbolTable.begin, SymbolTable.end

    def __init__(self, symbols: SymbolTable | None, words: Vocabulary | None, max_characters: int) -> None:
        self.symbols, self.words, self.max_characters = symbols, words, max_characters

    def __call__(self, tokens: Sequence[str]) -> TokenIds:
        """Ids of U tokens; each token is cut to M - 2 code points, also for the word table."""
        cut = [t if t in (self.begin, self.end) else t[: self.max_characters - 2] for t in tokens]
        characters = words = None
        if self.symbols is not None:
            rows = [self.symbols.token(token, self.max_characters) for token in cut]
            characters = np.array(rows, dtype=np.int64).reshape(len(cut), self.max_characters)
        if self.words is not None:
            words = np.array([self.words.index(token) + 1 for token in cut], dtype=np.int64)
        return TokenIds(characters, words)


def indexer_of(config: ElmoConfig, vocab: Vocabulary | None, symbols: SymbolTable | None, where: str) -> Indexer:
    """The indexer of a model; `where` is the model's name in messages."""
    characters, words = config.characters, config.words
    if words is not None and vocab is None:
        raise ElmoError(f"{where} reads words and has no vocabulary: give its vocab.txt as vocab", "vocab")
    longest = characters.max_characters if characters else words.max_characters if words else None
    if longest is not None and (words is not None or symbols is not None):
        return SymbolIndexer(symbols, vocab if words else None, longest)
    if characters is not None:
        return ByteIndexer(characters.max_characters)
    assert vocab is not None
    return WordIndexer(vocab)


def pieces_of(segment: str | None, indexer: Indexer, vocab: Vocabulary | None) -> CharacterPieces | None:
    """The splitter of tokens into characters, if the model's training text was split so (`segment` is "chars")."""
    if segment != "chars":
        return None
    return CharacterPieces([indexer.begin, indexer.end, *(vocab.specials if vocab else ())])

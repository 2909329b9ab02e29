"""Pieces of a corpus as type ids: what a worker process does, and the process itself without workers."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elmokit.corpus.reading import PIECE_BYTES, Piece
from elmokit.corpus.report import Tally
from elmokit.corpus.sentences import Reading, sentences_of
from elmokit.text.tokens import word_splitter

_MOST_PIECES = 256


@dataclass(frozen=True)
class Encoded:
    """Sentences as ids into a list of types of their own."""

    types: list[str]
    """Distinct tokens in the order of their first appearance."""
    counts: NDArray[np.int64]
    """How often each type occurs."""
    ids: NDArray[np.uint32]
    """The tokens of all sentences end to end, as places in `types`."""
    lengths: NDArray[np.int64]
    """Tokens in each sentence."""
    tally: Tally


def chunks_of(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Pieces in lists that are worth sending to another process."""
    chunk: list[Piece] = []
    size = 0
    for piece in pieces:
        chunk.append(piece)
        size += len(piece.data)
        if size >= PIECE_BYTES // 2 or len(chunk) >= _MOST_PIECES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


class Encoder:
    """Pieces in, ids out."""

    def __init__(self, how: Reading) -> None:
        self._how = how
        self._tokenise = word_splitter(how.segment)

    def __call__(self, pieces: Sequence[Piece]) -> Encoded:
        """The sentences of some pieces."""
        tally = Tally()
        found = (tokens for piece in pieces for tokens in sentences_of(piece, self._how, self._tokenise, tally))
        return encode_sentences(found, tally)


def encode_sentences(sentences: Iterable[Sequence[str]], tally: Tally) -> Encoded:
    """Sentences of tokens as ids; the tally goes along."""
    places: defaultdict[str, int] = defaultdict()
    places.default_factory = places.__len__  # a new type gets the next place
    ids, lengths = array("I"), array("q")
    for tokens in sentences:
        ids.extend(map(places.__getitem__, tokens))
        lengths.append(len(tokens))
    places.default_factory = None  # a circle, which would keep the types of many chunks in memory
    flat = np.array(ids, dtype=np.uint32)
    counts = np.bincount(flat, minlength=len(places)).astype(np.int64)
    return Encoded(list(places), counts, flat, np.array(lengths, dtype=np.int64), tally)

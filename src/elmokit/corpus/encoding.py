"""Sentences → type ids, in this process or in worker processes; the results are in the order of the text."""

from __future__ import annotations

import os
import pickle
import sys
from array import array
from collections import defaultdict, deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elmokit.corpus.reading import PIECE_BYTES, Piece, ReadingOptions, sentences_of
from elmokit.corpus.report import Tally
from elmokit.corpus.worker_process import ParentProcess, WorkerProcess
from elmokit.errors import ElmoError
from elmokit.text.tokens import speed_up_jieba, word_splitter

_PURPOSE_AND_ADVICE = ("a worker process that prepares the corpus", "try again with fewer workers, such as workers=1")
_MOST_PIECES = 256
"""Pieces in a chunk, which may come from small files."""


@dataclass(frozen=True)
class EncodedSentences:
    """Sentences as ids into their own list of types."""

    types: list[str]
    """Distinct tokens in the order of first appearance."""
    counts: NDArray[np.int64]
    """How often each type occurs."""
    ids: NDArray[np.uint32]
    """The tokens of all sentences, one sentence after the other, as indices into `types`."""
    lengths: NDArray[np.int64]
    """The number of tokens in each sentence."""
    tally: Tally


def chunks_of(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Pieces in lists that are large enough to send to another process."""
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
    """Encodes pieces of text."""

    def __init__(self, options: ReadingOptions) -> None:
        self._options = options
        self._tokenise = word_splitter(options.segment)

    def __call__(self, pieces: Sequence[Piece]) -> EncodedSentences:
        """The sentences of some pieces as ids."""
        tally = Tally()
        found = (tokens for piece in pieces for tokens in sentences_of(piece, self._options, self._tokenise, tally))
        return encode_sentences(found, tally)


def encode_sentences(sentences: Iterable[Sequence[str]], tally: Tally) -> EncodedSentences:
    """Sentences of tokens as ids; the result contains the tally."""
    places: defaultdict[str, int] = defaultdict()
    places.default_factory = places.__len__  # a new type gets the next id
    ids, lengths = array("I"), array("q")
    for tokens in sentences:
        ids.extend(map(places.__getitem__, tokens))
        lengths.append(len(tokens))
    places.default_factory = None  # a reference cycle, which would leave the types of many chunks in memory
    flat = np.array(ids, dtype=np.uint32)
    counts = np.bincount(flat, minlength=len(places)).astype(np.int64)
    return EncodedSentences(list(places), counts, flat, np.array(lengths, dtype=np.int64), tally)


def encode_all(chunks: Iterable[list[Piece]], options: ReadingOptions, workers: int) -> Generator[EncodedSentences]:
    """Encode chunks and give the results in order; with one worker, in this process."""
    if workers < 1:
        raise ElmoError(f"workers must be at least 1, got {workers}", "workers")
    if workers == 1 or not sys.executable:  # unknown where another program embeds Python
        yield from map(Encoder(options), chunks)
        return
    waiting: deque[WorkerProcess] = deque()  # each with one chunk, in the order of the chunks
    with ExitStack() as stack:
        for chunk in chunks:
            result = None
            if len(waiting) < workers:
                worker = WorkerProcess(
                    __name__, "a worker process that prepares the corpus", "try again with workers=1"
                )
                stack.callback(worker.close)
                worker.send(pickle.dumps(options))
            else:
                worker = waiting.popleft()
                result = worker.receive()
            worker.send(pickle.dumps(chunk, protocol=5))
            waiting.append(worker)
            if result is not None:
                yield result
        while waiting:
            yield waiting.popleft().receive()


def serve() -> None:
    """Run as a worker process: for each chunk, send the encoded sentences or the error."""
    parent = ParentProcess()
    try:
        options = pickle.load(parent.messages)
        encode: Encoder | None = None
        while True:
            chunk = pickle.load(parent.messages)
            try:
                encode = encode or _encoder(options)
                parent.send(encode(chunk))
            except Exception as error:  # noqa: BLE001 -- the parent raises it again
                parent.send(error)
    except (EOFError, pickle.UnpicklingError, BrokenPipeError, KeyboardInterrupt):
        os._exit(0)  # the parent has finished or died; there is nothing to clean up


def _encoder(options: ReadingOptions) -> Encoder:
    if options.segment == "jieba":
        speed_up_jieba()
    return Encoder(options)

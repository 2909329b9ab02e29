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

from elmokit.corpus.reading import ReadingOptions, Unit, sentences_of
from elmokit.corpus.report import Report
from elmokit.corpus.worker_process import ParentProcess, WorkerProcess
from elmokit.errors import ElmoError
from elmokit.text.tokens import WordSplitter, speed_up_jieba, word_splitter

_PURPOSE_AND_ADVICE = ("a worker process that prepares the corpus", "try again with workers=1")
_CHUNK_BYTES, _CHUNK_UNITS = 1 << 19, 1 << 15
"""The largest number of bytes, and of lines or paragraphs, that a worker process gets at once."""


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
    report: Report


def chunks_of(units: Iterable[Unit]) -> Iterator[list[Unit]]:
    """Units in lists that are large enough to send to another process."""
    chunk: list[Unit] = []
    size = 0
    for unit in units:
        chunk.append(unit)
        size += len(unit.data or b"")
        if size >= _CHUNK_BYTES or len(chunk) >= _CHUNK_UNITS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def encode_units(units: Iterable[Unit], options: ReadingOptions, split_words: WordSplitter) -> EncodedSentences:
    """The sentences of some lines or paragraphs as ids."""
    report = Report()
    found = (tokens for unit in units for tokens in sentences_of(unit, options, split_words, report))
    return encode_sentences(found, report)


def encode_sentences(sentences: Iterable[Sequence[str]], report: Report) -> EncodedSentences:
    """Sentences of tokens as ids; the result contains the report, which counts them."""
    places: defaultdict[str, int] = defaultdict()
    places.default_factory = places.__len__  # a new type gets the next id
    ids, lengths = array("I"), array("q")
    for tokens in sentences:
        ids.extend(map(places.__getitem__, tokens))
        lengths.append(len(tokens))
    places.default_factory = None  # a reference cycle, which would leave the types of many chunks in memory
    flat = np.array(ids, dtype=np.uint32)
    counts = np.bincount(flat, minlength=len(places)).astype(np.int64)
    return EncodedSentences(list(places), counts, flat, np.array(lengths, dtype=np.int64), report)


def encode_all(chunks: Iterable[list[Unit]], options: ReadingOptions, workers: int) -> Generator[EncodedSentences]:
    """Encode chunks and give the results in order; with one worker, in this process."""
    if workers < 1:
        raise ElmoError(f"workers must be at least 1, got {workers}", "workers")
    if workers == 1 or not sys.executable:  # unknown where another program embeds Python
        split_words = word_splitter(options.segment)
        yield from (encode_units(chunk, options, split_words) for chunk in chunks)
        return
    waiting: deque[WorkerProcess] = deque()  # each with one chunk, in the order of the chunks
    with ExitStack() as stack:
        for chunk in chunks:
            result = None
            if len(waiting) < workers:
                worker = WorkerProcess(__name__, *_PURPOSE_AND_ADVICE)
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
        options: ReadingOptions = pickle.load(parent.messages)
        if options.segment == "jieba":
            speed_up_jieba()
        split_words = word_splitter(options.segment)
        while True:
            chunk = pickle.load(parent.messages)
            try:
                parent.send(encode_units(chunk, options, split_words))
            except Exception as error:  # noqa: BLE001 -- the parent raises it again
                parent.send(error)
    except (EOFError, pickle.UnpicklingError, BrokenPipeError, KeyboardInterrupt):
        os._exit(0)  # the parent has finished or died; there is nothing to clean up

"""From sentences to type ids, in this process or in worker processes; the results are in the order of the text."""

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
"""Largest number of bytes, and of lines or paragraphs, in one chunk for a worker process."""


@dataclass(frozen=True)
class EncodedSentences:
    """Sentences as type ids, with the list of their types."""

    types: list[str]
    """Distinct tokens in the order of first appearance."""
    counts: NDArray[np.int64]
    """Number of occurrences of each type."""
    ids: NDArray[np.uint32]
    """The tokens of all sentences, one sentence after the other, as indices into `types`."""
    lengths: NDArray[np.int64]
    """The number of tokens in each sentence."""
    report: Report


def chunks_of(units: Iterable[Unit]) -> Iterator[list[Unit]]:
    """Group units into chunks that are large enough to send to another process."""
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
    """Encode the sentences of some lines or paragraphs."""
    report = Report()
    found = (tokens for unit in units for tokens in sentences_of(unit, options, split_words, report))
    return encode_sentences(found, report)


def encode_sentences(sentences: Iterable[Sequence[str]], report: Report) -> EncodedSentences:
    """Encode sentences of tokens; the result contains the report, which the caller fills while it yields them."""
    type_ids: defaultdict[str, int] = defaultdict()
    type_ids.default_factory = type_ids.__len__  # a new type gets the next id
    ids, lengths = array("I"), array("q")
    for tokens in sentences:
        ids.extend(map(type_ids.__getitem__, tokens))
        lengths.append(len(tokens))
    type_ids.default_factory = None  # breaks a reference cycle that would keep the types of many chunks in memory
    flat = np.array(ids, dtype=np.uint32)
    counts = np.bincount(flat, minlength=len(type_ids)).astype(np.int64)
    return EncodedSentences(list(type_ids), counts, flat, np.array(lengths, dtype=np.int64), report)


def encode_all(chunks: Iterable[list[Unit]], options: ReadingOptions, workers: int) -> Generator[EncodedSentences]:
    """Encode chunks and yield the results in order; one worker means this process."""
    if workers < 1:
        raise ElmoError(f"workers must be at least 1, got {workers}", "workers")
    if workers == 1 or not sys.executable:  # sys.executable is empty if another program embeds Python
        split_words = word_splitter(options.segment)
        yield from (encode_units(chunk, options, split_words) for chunk in chunks)
        return
    waiting: deque[WorkerProcess] = deque()  # each encodes one chunk; in the order of the chunks
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
    """The main function of a worker process: for each chunk, send the encoded sentences or an error."""
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

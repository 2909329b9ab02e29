"""Sentences → type ids, in this process or in worker processes; the results are in the order of the text.

A worker is a new Python process that reads chunks from its standard input and writes results to its standard output.
Unlike a process of `multiprocessing`, it never imports the caller's main module, so a script without a main guard can
prepare a corpus, and torch is not imported. Its input ends when the parent process dies, and then the worker exits.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import traceback
from array import array
from collections import defaultdict, deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import IO

import numpy as np
from numpy.typing import NDArray

from elmokit.corpus.reading import PIECE_BYTES, Piece, ReadingOptions, sentences_of
from elmokit.corpus.report import Tally
from elmokit.errors import ElmoError
from elmokit.text.tokens import speed_up_jieba, word_splitter

_WAITING_CHUNKS = 2
"""Chunks for each worker: one that it encodes and one that is ready."""
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
        raise ElmoError(f"workers must be at least 1, got {workers}")
    if workers == 1 or not sys.executable:  # unknown where another program embeds Python
        yield from map(Encoder(options), chunks)
        return
    pool = _WorkerPool(options, workers)
    try:
        pending: deque[Future[EncodedSentences]] = deque()
        for chunk in chunks:
            pending.append(pool.submit(chunk))
            if len(pending) >= workers * _WAITING_CHUNKS:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.close()


class _WorkerPool:
    """Worker processes, and for each a thread that waits for its results."""

    def __init__(self, options: ReadingOptions, size: int) -> None:
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        self._workers: list[_Worker] = []
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="elmokit-corpus")
        try:
            for _ in range(size):
                self._workers.append(_Worker(options))
                self._idle.put(self._workers[-1])
        except BaseException:
            self.close()
            raise

    def submit(self, chunk: list[Piece]) -> Future[EncodedSentences]:
        """Encode a chunk in the next free worker."""
        return self._threads.submit(self._encode, chunk)

    def _encode(self, chunk: list[Piece]) -> EncodedSentences:
        worker = self._idle.get()
        try:
            return worker.encode(chunk)
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        """Stop the workers, busy or not."""
        for worker in self._workers:
            worker.stop()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for worker in self._workers:
            worker.close()


class _Worker:
    """One worker process."""

    def __init__(self, options: ReadingOptions) -> None:
        # The worker must import the same modules as this process, from the same places.
        code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve()"
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C reaches the parent only, which then stops its workers
            )
        except OSError as error:
            raise ElmoError(
                f"a worker process that prepares the corpus cannot be started ({error.strerror or error}): try again "
                "with workers=1"
            ) from error
        self._send(options)

    def encode(self, chunk: list[Piece]) -> EncodedSentences:
        """Send a chunk and wait for the result."""
        assert self._process.stdout is not None
        try:
            self._send(chunk)
            result = pickle.load(self._process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise ElmoError(
                f"a worker process that prepares the corpus ended with status {self._process.wait()}, perhaps "
                "because memory was full: try again with fewer workers (workers=1)"
            ) from error
        if isinstance(result, str):
            raise RuntimeError(f"a worker process that prepares the corpus failed:\n{result}")
        assert isinstance(result, EncodedSentences)
        return result

    def _send(self, message: object) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the worker has ended; reading its result reports that
            pickle.dump(message, self._process.stdin, protocol=pickle.HIGHEST_PROTOCOL)
            self._process.stdin.flush()

    def stop(self) -> None:
        """Kill the process; a thread that waits for its result gets an error."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Close the pipes of a stopped process."""
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # a full pipe to a dead process cannot be flushed
                if stream is not None:
                    stream.close()


def serve() -> None:
    """Run as a worker: for each chunk on standard input, write a result or a traceback to standard output."""
    source, target = sys.stdin.buffer, _result_stream()
    try:
        options = pickle.load(source)
        encode: Encoder | None = None
        while True:
            chunk = pickle.load(source)
            try:
                encode = encode or _encoder(options)
                result: EncodedSentences | str = encode(chunk)
            except Exception:  # noqa: BLE001 -- the parent raises it again
                result = traceback.format_exc()
            pickle.dump(result, target, protocol=pickle.HIGHEST_PROTOCOL)
            target.flush()
    except (EOFError, pickle.UnpicklingError, BrokenPipeError, KeyboardInterrupt):
        os._exit(0)  # the parent has finished or died; there is nothing to clean up


def _encoder(options: ReadingOptions) -> Encoder:
    if options.segment == "jieba":
        speed_up_jieba()
    return Encoder(options)


def _result_stream() -> IO[bytes]:
    """Standard output for results only; what a package prints goes to standard error."""
    target = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return target

"""Encoding in worker processes: chunks go out as they come, results come back in the chunks' order.

A worker is a Python of its own that reads chunks from its standard input and writes results to its standard output.
Unlike a process of `multiprocessing`, it never imports the caller's main module, so a script without a main guard may
prepare a corpus and torch stays outside; its input ends when the parent does, however that dies, and then so does it.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import traceback
from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import IO

from elmokit.corpus.encoding import Encoded, Encoder
from elmokit.corpus.reading import Piece
from elmokit.corpus.sentences import Reading
from elmokit.errors import ElmoError
from elmokit.text.fast_jieba import speed_up_jieba

_WAITING_CHUNKS = 2  # for each worker: one in work, one ready


def encode_all(chunks: Iterable[list[Piece]], how: Reading, workers: int) -> Generator[Encoded]:
    """The chunks encoded, in their order; with one worker, in this process."""
    if workers < 1:
        raise ElmoError(f"workers must be at least 1, got {workers}")
    if workers == 1 or not sys.executable:  # a program that embeds Python may not know how to start one
        yield from map(Encoder(how), chunks)
        return
    pool = _Pool(how, workers)
    try:
        pending: deque[Future[Encoded]] = deque()
        for chunk in chunks:
            pending.append(pool.submit(chunk))
            if len(pending) >= workers * _WAITING_CHUNKS:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.close()


class _Pool:
    """Worker processes, with a thread each that waits for its answers."""

    def __init__(self, how: Reading, size: int) -> None:
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        self._workers: list[_Worker] = []
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="elmokit-corpus")
        try:
            for _ in range(size):
                self._workers.append(_Worker(how))
                self._idle.put(self._workers[-1])
        except BaseException:
            self.close()
            raise

    def submit(self, chunk: list[Piece]) -> Future[Encoded]:
        """Have a chunk encoded by the next worker that is free."""
        return self._threads.submit(self._encode, chunk)

    def _encode(self, chunk: list[Piece]) -> Encoded:
        worker = self._idle.get()
        try:
            return worker.encode(chunk)
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        """End the workers, whatever they are at."""
        for worker in self._workers:
            worker.end()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for worker in self._workers:
            worker.close()


class _Worker:
    def __init__(self, how: Reading) -> None:
        # The same modules as here, wherever this process found them.
        code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve()"
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for the parent, which then ends its workers
            )
        except OSError as error:
            raise ElmoError(
                f"a worker process that prepares the corpus cannot be started ({error.strerror or error}): run the "
                "command again with --workers 1"
            ) from error
        self._send(how)

    def encode(self, chunk: list[Piece]) -> Encoded:
        """Wait for the worker's answer."""
        assert self._process.stdout is not None
        try:
            self._send(chunk)
            answer = pickle.load(self._process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise ElmoError(
                f"a worker process that prepares the corpus ended with status {self._process.wait()}, perhaps for want "
                "of memory: run the command again with fewer workers (--workers 1)"
            ) from error
        if isinstance(answer, str):
            raise RuntimeError(f"a worker process that prepares the corpus failed:\n{answer}")
        assert isinstance(answer, Encoded)
        return answer

    def _send(self, message: object) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, and the answer that does not come will show it
            pickle.dump(message, self._process.stdin, protocol=pickle.HIGHEST_PROTOCOL)
            self._process.stdin.flush()

    def end(self) -> None:
        """Make the process end; a thread that waits for its answer sees that."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Give back what is left of an ended process."""
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # what could not be sent is lost with its reader
                if stream is not None:
                    stream.close()


def serve() -> None:
    """Run as a worker: answer each chunk on standard input with a result, or a traceback, until there are no more."""
    source, target = sys.stdin.buffer, _own_stdout()
    try:
        how = pickle.load(source)
        encode: Encoder | None = None
        while True:
            chunk = pickle.load(source)
            try:
                encode = encode or _encoder(how)
                answer: Encoded | str = encode(chunk)
            except Exception:  # noqa: BLE001 -- the parent raises it
                answer = traceback.format_exc()
            pickle.dump(answer, target, protocol=pickle.HIGHEST_PROTOCOL)
            target.flush()
    except (EOFError, pickle.UnpicklingError, BrokenPipeError, KeyboardInterrupt):
        os._exit(0)  # the parent has what it wanted, or is gone; nothing here needs an orderly end


def _encoder(how: Reading) -> Encoder:
    if how.segment == "jieba":
        speed_up_jieba()
    return Encoder(how)


def _own_stdout() -> IO[bytes]:
    """Standard output for answers alone; what a package prints goes to standard error."""
    target = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return target

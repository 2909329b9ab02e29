"""The queue of the server: the texts of all requests → batches by a token budget, computed in one thread.

There is no waiting window. An idle server starts at once, and the next batch forms from the requests that arrive while
one is computed. A batch takes one text of each waiting request in turn, so that a large request does not block a small
one; half of the batch is for the oldest request. A text longer than the budget is computed alone.

A request is admitted if, by the measured speed, it should be answered within the wait limit. If the machine becomes
slower after that, a timer refuses late requests: no client gets its response after the promised time.

`Elmo` guarantees that a text has the same vectors in any batch.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Any

from elmokit.serve.errors import RequestError, not_ready, overloaded

if TYPE_CHECKING:
    from elmokit.elmo import Elmo
    from elmokit.layers import Layer, Pool, Vectors
    from elmokit.serve.metrics import Metrics

log = logging.getLogger(__name__)

BOUNDARIES = 2
"""Tokens that the model adds to each text."""
_IDLE_SECONDS = 1.0
"""After this time without work, unused memory is returned to the system."""
_BUSY_SECONDS = 10.0
"""While there is work, unused memory is returned after this time."""
_SMOOTHING = 0.2
"""Weight of the newest batch in the moving average of the speed."""
_OWN_SHARE = 0.25
"""The part of the wait limit that a request's own texts may take; a larger request gets a later limit."""
_NO_LIMIT = 1 << 40


@dataclass(eq=False)
class Work:
    """The texts of one request, computed with the same layer and pooling, or one function call."""

    rows: Sequence[Sequence[str]]
    """The tokens of each text."""
    sizes: Sequence[int]
    """The cost of each text: its tokens and the boundaries."""
    layer: Layer
    pool: Pool | None
    done: asyncio.Future[None]
    results: list[Any]
    reduce: Callable[[int, Vectors], Any] | None = None
    """Applied to the index and the vectors of each text, in the thread that computes them."""
    function: Callable[[], Any] | None = None
    next: int = 0
    """Index of the first text that is not in a batch yet."""
    left: int = 0
    """Number of texts without a result."""
    debt: int = 0
    """Tokens of a long text that were computed while others waited; the others come first until they had as many."""
    queued: float = field(default_factory=time.perf_counter)
    started: float = 0.0
    finished: float = 0.0

    @property
    def has_more(self) -> bool:
        """Whether some texts are not in a batch yet."""
        return self.next < len(self.sizes)

    @property
    def key(self) -> object:
        """Equal for works that can share a batch."""
        return (self.layer, self.pool) if self.function is None else self


Item = tuple[Work, int]
"""A work and the index of one of its texts."""


class Batcher:
    """Computes works in batches.

    The methods from `_run` on are called in the batcher's own thread, all others in the event loop's thread.
    """

    def __init__(self, metrics: Metrics, *, max_queue_tokens: int, max_wait: float) -> None:
        self.metrics = metrics
        self.max_queue_tokens, self.max_wait = max_queue_tokens, max_wait
        self.healthy = True
        """False after a batch failed, until one succeeds."""
        self.tokens = 0
        """Tokens in the queue and in the current batch."""
        self._rate = 1.0
        """Tokens per second."""
        self._queue: deque[Work] = deque()
        self._changed = threading.Condition()
        self._stopped = False
        self.thread: threading.Thread | None = None

    def start(self, elmo: Elmo, loop: asyncio.AbstractEventLoop, batch_tokens: int, rate: float) -> None:
        """Begin to compute with this model; `rate`: a first estimate of the tokens per second."""
        self._elmo, self._loop, self._budget, self._rate = elmo, loop, batch_tokens, rate
        self.thread = threading.Thread(target=self._run, name="elmokit-batches", daemon=True)
        self.thread.start()

    def close(self) -> None:
        """Refuse the queued requests and all later ones."""
        with self._changed:
            self._stopped = True
            waiting, self._queue = list(self._queue), deque()
            self._changed.notify()
        for work in waiting:
            self._fail(work, not_ready("the server is stopping"))

    def stop(self) -> None:
        """Finish the current batch, and refuse the queued requests."""
        self.close()
        if self.thread is not None:
            self.thread.join()

    async def encode(
        self,
        rows: Sequence[Sequence[str]],
        sizes: Sequence[int],
        *,
        layer: Layer,
        pool: Pool | None,
        reduce: Callable[[int, Vectors], Any] | None = None,
    ) -> Work:
        """Compute the vectors of some texts, as `Work.results`; refused if the queue is full."""
        self._admit(sum(sizes), len(sizes))
        work = Work(rows, sizes, layer, pool, self._future(), [None] * len(rows), reduce, left=len(rows))
        return await self._finish(work)

    async def call(self, function: Callable[[], Any], size: int) -> Work:
        """Call a function that uses the model; its return value is the only result. `size` is its cost in tokens."""
        self._admit(size, 1)
        work = Work([()], [size], "top", None, self._future(), [None], function=function, left=1)
        return await self._finish(work)

    def seconds_left(self) -> float:
        """The estimated time for the queue, by the speed of the last large batches."""
        return self.tokens / self._rate

    def _future(self) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()

    def _admit(self, size: int, texts: int) -> None:
        if size > self.max_queue_tokens:
            self.metrics.rejected.labels("request_tokens").inc()
            raise RequestError(
                422, f"a request may have {self.max_queue_tokens:,} tokens in all, got {size:,}: send less text"
            )
        seconds = self.seconds_left()
        if texts == 1:  # it waits for the current batch, and for one text of each other request
            with self._changed:
                turns = sum(work.sizes[work.next] for work in self._queue)
            seconds = min(seconds, (self._budget + turns) / self._rate)
        # The oldest request gets at least half of the speed, so that it ends within twice the time of the queue.
        own = min(2 * size / self._rate, _OWN_SHARE * self.max_wait)
        if self.tokens and (self.tokens + size > self.max_queue_tokens or 2 * seconds + own > self.max_wait):
            self.metrics.rejected.labels("queue").inc()
            raise overloaded(f"the queue is full, with {self.tokens:,} tokens: try again later", ceil(seconds))

    async def _finish(self, work: Work) -> Work:
        """Queue a work and wait for its results; a cancelled or late request leaves the queue."""
        size = sum(work.sizes)
        self._add_tokens(size)
        with self._changed:
            stopped = self._stopped
            if not stopped:
                self._queue.append(work)
                self._changed.notify()
        if stopped:
            self._add_tokens(-size)
            raise not_ready("the server is stopping")
        # As `_admit` promised: the wait limit, or more for a large request.
        limit = max(self.max_wait, (1 - _OWN_SHARE) * self.max_wait + 2 * size / self._rate)
        timer = self._loop.call_later(limit, self._expire, work, limit)
        try:
            await work.done
        except asyncio.CancelledError:
            self._remove(work)
            raise
        finally:
            timer.cancel()
        return work

    def _remove(self, work: Work) -> None:
        """Remove the texts of a work that are not in a batch yet."""
        with self._changed:
            if work in self._queue:
                self._queue.remove(work)
            rest, work.next = sum(work.sizes[work.next :]), len(work.sizes)
        self._add_tokens(-rest)

    def _fail(self, work: Work, error: RequestError) -> None:
        self._remove(work)
        if not work.done.done():
            work.done.set_exception(error)

    def _add_tokens(self, change: int) -> None:
        self.tokens += change
        self.metrics.queue_tokens.set(self.tokens)

    def _deliver(self, batch: list[Item], results: list[Any], seconds: float) -> None:
        """Hand the results of a batch to their requests, in the event loop's thread."""
        now = time.perf_counter()
        size = sum(work.sizes[index] for work, index in batch)
        self._add_tokens(-size)
        metrics = self.metrics
        metrics.compute_seconds.observe(seconds)
        metrics.batch_texts.observe(len(batch))
        metrics.batch_tokens.observe(size)
        metrics.texts.inc(len(batch))
        metrics.tokens.inc(size - BOUNDARIES * len(batch))
        if batch[0][0].function is None and seconds > 0 and 2 * size >= self._budget:  # small batches are slower
            rate = size / seconds
            self._rate += (rate - self._rate) * _SMOOTHING
        for (work, index), result in zip(batch, results, strict=True):
            if work.done.done():
                continue
            if isinstance(result, Exception):
                self._fail(work, _failure(result))
                continue
            work.results[index] = result
            work.left -= 1
            if index == 0:
                metrics.queue_seconds.observe(work.started - work.queued)
            if not work.left:
                work.finished = now
                work.done.set_result(None)

    def _expire(self, work: Work, limit: float) -> None:
        if not work.done.done():
            self.metrics.rejected.labels("wait").inc()
            message = f"the request waited longer than {limit:.1f} seconds"
            self._fail(work, overloaded(message, ceil(self.seconds_left())))

    # In the batcher's own thread

    def _run(self) -> None:
        with suppress(RuntimeError):  # the event loop was closed before `stop` was called
            trimmed = time.perf_counter()
            while batch := self._next_batch():
                begin = time.perf_counter()
                if begin - trimmed > _BUSY_SECONDS:
                    trim_memory()
                    trimmed = begin
                results = self._compute(batch)
                seconds = time.perf_counter() - begin
                self._loop.call_soon_threadsafe(self._deliver, batch, results, seconds)
                del batch, results  # otherwise they would stay in memory until the next batch

    def _next_batch(self) -> list[Item]:
        """Wait for work and return the next batch; an empty list means that the server stops."""
        trimmed = False
        while True:
            with self._changed:
                if not self._queue and not self._stopped:
                    self._changed.wait(None if trimmed else _IDLE_SECONDS)
                if self._stopped:
                    return []
                batch = self._take(time.perf_counter())
            if batch:
                return batch
            if not trimmed:
                trim_memory()
                trimmed = True

    def _take(self, now: float) -> list[Item]:
        """The texts of the next batch.

        Half of the budget is for the oldest request, so that a large request ends even if new ones keep coming. The
        rest is for one text of each request in turn. After a text longer than half of the budget, the oldest request
        waits until the others had as many tokens.
        """
        waiting = list(self._queue)
        if not waiting:
            return []
        batch: list[Item] = []
        budget_left, key = self._budget, waiting[0].key
        candidates = [work for work in waiting if work.key == key]

        def take(work: Work) -> None:
            nonlocal budget_left
            if not work.next:
                work.started = now
            batch.append((work, work.next))
            budget_left -= work.sizes[work.next]
            work.next += 1

        oldest, half = min(candidates, key=lambda work: work.queued), self._budget // 2
        if len(candidates) > 1 and oldest.debt > 0:
            candidates.sort(key=lambda work: work is oldest)
            take(candidates[0])
        else:
            while oldest.has_more and (not batch or oldest.sizes[oldest.next] <= budget_left - half):
                take(oldest)
            oldest.debt = max(self._budget - half - budget_left, 0) if len(candidates) > 1 else 0
        while budget_left > BOUNDARIES and (candidates := [work for work in candidates if work.has_more]):
            before = len(batch)
            for work in candidates:
                if work.sizes[work.next] <= budget_left:  # otherwise it keeps its position in the queue
                    take(work)
            if len(batch) == before:
                break
        oldest.debt -= sum(work.sizes[index] for work, index in batch if work is not oldest)
        served = {id(work) for work, _ in batch}
        unfinished = [work for work in waiting if id(work) in served and work.has_more]
        self._queue = deque([*(work for work in waiting if id(work) not in served), *unfinished])
        return batch

    def _compute(self, batch: list[Item]) -> list[Any]:
        """The result of each text, or the error that it caused."""
        try:
            results = self._results(batch)
        except Exception as error:
            log.exception("a batch of %d texts failed", len(batch))
            self.metrics.failed.inc()
            self.healthy = False
            return [error] if len(batch) == 1 else [result for item in batch for result in self._compute([item])]
        self.healthy = True
        return results

    def _results(self, batch: list[Item]) -> list[Any]:
        first = batch[0][0]
        if first.function is not None:
            return [_result_or_refusal(first.function)]
        rows = [work.rows[index] for work, index in batch]
        found = self._elmo.stream(rows, layer=first.layer, pool=first.pool, batch_tokens=_NO_LIMIT)
        return [
            vectors if work.reduce is None else work.reduce(index, vectors)
            for (work, index), vectors in zip(batch, found, strict=True)
        ]


def _result_or_refusal(function: Callable[[], Any]) -> Any:  # noqa: ANN401
    """The result of a function; a refusal is a result too, not a failure of the model."""
    try:
        return function()
    except RequestError as error:
        return error


def _failure(error: Exception) -> RequestError:
    if isinstance(error, RequestError):
        return error
    return RequestError(424, "the computation failed; the server's log says why", "Backend", code="computation_failed")


def trim_memory() -> None:
    """Return free memory to the system: glibc would keep what large responses used."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)

"""Sentences in any number → vectors in the same order: batches by token budget, sorted inside a window.

Nothing here changes a vector: the network gives each sentence the same numbers in any batch.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Generic, TypeVar

import torch

log = logging.getLogger(__name__)

BATCH_TOKENS = 2048
"""Tokens in a batch, sentence boundaries counted."""
GPU_BATCH_TOKENS = 8192
"""The same on a GPU, which wants more at a time."""
WINDOW_BATCHES = 8
"""Batches' worth of sentences that are sorted by length together."""
AHEAD = 2
"""Batches that are started before the results of one are asked for: a GPU works on them in the meantime."""

Result = TypeVar("Result")
Tokens = Sequence[str]


def encode_stream(
    sentences: Iterable[Tokens],
    run: Callable[[Sequence[Tokens]], Iterable[Result]],
    batch_tokens: int = BATCH_TOKENS,
    *,
    size: Callable[[Tokens], int] = len,
) -> Iterator[Result]:
    """Yield one result a sentence, in order, reading ahead no more than a window and a few batches.

    `run` takes the sentences of a batch and returns a result for each, or what gives them when it is gone through,
    which happens when the next batches have been started; it is called again with half a batch when memory runs out.
    `size` says how many tokens the network reads of a sentence, without its boundaries.
    """
    stream = iter(sentences)
    windows: deque[_Window[Result]] = deque()  # in order; those whose results are not all there yet
    started: deque[tuple[_Window[Result], list[int], Iterable[Result]]] = deque()
    while window_of := _window(stream, batch_tokens * WINDOW_BATCHES, size):
        sentences_here, sizes = zip(*window_of, strict=True)
        plan = list(batches(sizes, batch_tokens))
        window = _Window[Result](len(sentences_here), {})
        windows.append(window)
        for batch in plan:
            started.append((window, batch, run_halving([sentences_here[i] for i in batch], run)))
            if len(started) > AHEAD or isinstance(started[0][2], list):  # a list: there is nothing to wait for
                _finish(started)
                yield from _complete(windows)
    while started:
        _finish(started)
        yield from _complete(windows)


@dataclass
class _Window(Generic[Result]):
    """Sentences that are sorted together: how many, and the results that there are by their places."""

    size: int
    results: dict[int, Result]


def _finish(started: deque[tuple[_Window[Result], list[int], Iterable[Result]]]) -> None:
    window, batch, found = started.popleft()
    window.results.update(zip(batch, found, strict=True))


def _complete(windows: deque[_Window[Result]]) -> Iterator[Result]:
    """The results of the windows at the front that have them all."""
    while windows and len(windows[0].results) == windows[0].size:
        window = windows.popleft()
        for index in range(window.size):
            yield window.results.pop(index)  # let go of it as soon as the caller has it


def _window(stream: Iterator[Tokens], tokens: int, size: Callable[[Tokens], int]) -> list[tuple[Tokens, int]]:
    """The next sentences, each with its size, boundaries counted."""
    window: list[tuple[Tokens, int]] = []
    total = 0
    for sentence in islice(stream, tokens):
        window.append((sentence, size(sentence) + 2))
        total += window[-1][1]
        if total >= tokens:
            break
    return window


def batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Indices of sentences, like lengths together; a batch exceeds the budget only where one sentence alone does."""
    batch: list[int] = []
    total = 0
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and total + lengths[index] > batch_tokens:
            yield batch
            batch, total = [], 0
        batch.append(index)
        total += lengths[index]
    if batch:
        yield batch


def run_halving(batch: Sequence[Tokens], run: Callable[[Sequence[Tokens]], Iterable[Result]]) -> Iterable[Result]:
    """Run a batch; where memory runs out, run its halves instead, down to single sentences."""
    try:
        return run(batch)
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if len(batch) == 1 or not out_of_memory(error):
            raise
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    half = len(batch) // 2
    log.warning("memory ran out with %d sentences in a batch; going on with %d", len(batch), half)
    return chain(run_halving(batch[:half], run), run_halving(batch[half:], run))


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out; on the CPU torch says so only in words."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    words = str(error).lower()
    return "can't allocate memory" in words or "not enough memory" in words or "out of memory" in words

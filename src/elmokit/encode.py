"""Sentences in any number → vectors in the same order: batches by token budget, sorted inside a window.

Nothing here changes a vector: the network gives each sentence the same numbers in any batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import torch

log = logging.getLogger(__name__)

BATCH_TOKENS = 2048
"""Tokens in a batch, sentence boundaries counted."""
WINDOW_BATCHES = 16
"""Batches' worth of sentences that are sorted by length together."""

Result = TypeVar("Result")
Tokens = Sequence[str]


def encode_stream(
    sentences: Iterable[Tokens],
    run: Callable[[Sequence[Tokens]], list[Result]],
    batch_tokens: int = BATCH_TOKENS,
) -> Iterator[Result]:
    """Yield one result a sentence, in order, reading ahead no more than a window.

    `run` takes the sentences of a batch and returns a result for each; it is called again with half a batch when
    memory runs out.
    """
    stream = iter(sentences)
    while window := _window(stream, batch_tokens * WINDOW_BATCHES):
        results: dict[int, Result] = {}
        for batch in batches([len(tokens) + 2 for tokens in window], batch_tokens):
            for index, result in zip(batch, run_halving([window[i] for i in batch], run), strict=True):
                results[index] = result
        for index in range(len(window)):
            yield results.pop(index)  # let go of it as soon as the caller has it


def _window(stream: Iterator[Tokens], tokens: int) -> list[Tokens]:
    window: list[Tokens] = []
    total = 0
    for sentence in islice(stream, tokens):
        window.append(sentence)
        total += len(sentence) + 2
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


def run_halving(batch: Sequence[Tokens], run: Callable[[Sequence[Tokens]], list[Result]]) -> list[Result]:
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
    return run_halving(batch[:half], run) + run_halving(batch[half:], run)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out; on the CPU torch says so only in words."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    words = str(error).lower()
    return "can't allocate memory" in words or "not enough memory" in words or "out of memory" in words

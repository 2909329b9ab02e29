"""The rows of the CPU's table: systems in separate processes take turns, batch by batch."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from peers.systems import MINILM, Batch
from peers.talk import Child

from elmokit import ElmoConfig
from speed.floors import floor_seconds
from speed.machine import Peaks
from speed.table import Row

SLOW = "reference"
SLOW_SENTENCES = 3
"""Number of sentences for the reference, which is slow: it is made for correctness."""
PEER_BATCHES = (8, 16, 32, 64)
"""Batch sizes that are tried for systems without their own batches; the best result is used."""
BEFORE = 5
"""Number of warm-up calls before a sentence with known words is timed."""
IN_A_ROW = 15
"""Number of timed calls after that."""
FLOORS = ("float32", "int8")
"""Dtypes whose floor is shown."""


@dataclass(frozen=True)
class Plan:
    """The sentences and the number of measurements."""

    alone: list[list[str]]
    """Sentences of equal length that are measured one at a time; the first one right after loading."""
    many: list[list[str]]
    """Sentences of natural lengths that are measured in batches."""
    batches: Sequence[int] = (32, 64)
    turns: int = 3
    """Number of measurements of a sentence with known words, and of all sentences in one call."""


@dataclass(frozen=True)
class Limits:
    """The values from which the floors are computed."""

    config: ElmoConfig
    peaks: Peaks
    cache_bytes: float

    def of(self, batch: Batch, dtype: str, *, characters: bool = True) -> float:
        """The least seconds for a batch."""
        return floor_seconds(self.config, batch, self.peaks, dtype, cache_bytes=self.cache_bytes, characters=characters)


def rows(
    children: Mapping[str, Child],
    first: Mapping[str, float],
    plan: Plan,
    limits: Limits,
    progress: Callable[[str], None],
) -> list[Row]:
    """All rows for a model; `first` is the time of the first sentence after loading, in seconds."""
    fast = {name: child for name, child in children.items() if name != SLOW}
    progress("sentences by themselves")
    found = _alone(children, plan.alone[1:], limits, plan.turns)
    little = {name: child.megabytes() for name, child in children.items()}
    for size in plan.batches:
        progress(f"batches of {size}")
        found.append(_batches(fast, plan.many, size, limits))
    progress(f"{len(plan.many)} sentences in one call")
    found += _whole(fast, plan.many, limits, plan.turns)
    loading = {name: child.load_seconds for name, child in children.items()}
    memory = {name: child.megabytes() for name, child in children.items()}
    return [
        *found,
        Row("loading", "s", "less", loading, "load"),
        Row("loading and the first sentence", "s", "less", {n: loading[n] + first[n] for n in children}, "first"),
        Row("peak memory, one sentence at a time", "MB", "less", little, "memory, alone"),
        Row("peak memory, all of the above", "MB", "less", memory, "memory"),
    ]


def _alone(children: Mapping[str, Child], sentences: Batch, limits: Limits, turns: int) -> list[Row]:
    """A sentence by itself, first with unknown words, then with known words, as in a busy service.

    A system without a cache of words does the same work both times.
    """
    unknown: dict[str, list[float]] = {name: [] for name in children}
    known: dict[str, list[float]] = {name: [] for name in children if name != SLOW}
    for number, sentence in enumerate(sentences):
        for name, child in children.items():
            if name != SLOW or number < SLOW_SENTENCES:
                unknown[name].append(child.seconds([sentence], fresh=True))
        for _ in range(turns):
            for name, times in known.items():
                times += children[name].repeated([sentence], BEFORE + IN_A_ROW)[BEFORE:]
    length = len(sentences[0])
    floor = {f"floor {dtype}": statistics.median(limits.of([s], dtype) for s in sentences) for dtype in FLOORS}
    bare = {
        f"floor {dtype}": statistics.median(limits.of([s], dtype, characters=False) for s in sentences)
        for dtype in FLOORS
    }
    best = {name: [min(times)] for name, times in known.items()}
    return [
        Row(f"one sentence of {length} tokens, no word known", "ms", "less", _medians(unknown, floor), "alone"),
        Row("the same, its words known", "ms", "less", _medians(known, bare), "alone, words known"),
        Row("the same, the best time", "ms", "less", _medians(best, bare), "alone, best"),
    ]


def _medians(seconds: Mapping[str, Sequence[float]], floor: Mapping[str, float]) -> dict[str, float]:
    return {name: 1000 * statistics.median(times) for name, times in seconds.items()} | {
        name: 1000 * value for name, value in floor.items()
    }


def _batches(children: Mapping[str, Child], sentences: Batch, size: int, limits: Limits) -> Row:
    spent = dict.fromkeys(children, 0.0)
    spent |= {f"floor {dtype}": 0.0 for dtype in FLOORS}
    for start in range(0, len(sentences), size):
        batch = sentences[start : start + size]
        for name, child in children.items():
            spent[name] += child.seconds(batch, fresh=start == 0)
        for dtype in FLOORS:
            spent[f"floor {dtype}"] += limits.of(batch, dtype)
    return Row(f"batches of {size}", "tokens/s", "more", _speeds(sentences, spent), f"batches of {size}")


def _whole(children: Mapping[str, Child], sentences: Batch, limits: Limits, turns: int) -> list[Row]:
    """All sentences in one call, in turns: the best time of each system; for a peer also the best batch size."""
    unknown: dict[str, float] = dict.fromkeys(children, float("inf"))
    known = dict(unknown)
    best_size: dict[str, int] = {}
    for _ in range(turns):
        for name, child in children.items():
            for size in PEER_BATCHES if name in MINILM else (64,):
                first = child.seconds(sentences, fresh=True, own_batches=True, size=size)
                again = child.seconds(sentences, own_batches=True, size=size)
                if min(first, again) < min(unknown[name], known[name]):
                    best_size[name] = size
                unknown[name], known[name] = min(unknown[name], first), min(known[name], again)
    for name in MINILM:
        if name in best_size:
            children[name].facts["best batches"] = f"{best_size[name]} sentences of similar length"
            unknown[name] = known[name] = min(unknown[name], known[name])  # it has no cache of words
    for dtype in FLOORS:
        unknown[f"floor {dtype}"] = limits.of(sentences, dtype)
        known[f"floor {dtype}"] = limits.of(sentences, dtype, characters=False)
    return [
        Row("all in one call", "tokens/s", "more", _speeds(sentences, unknown), "one call"),
        Row("the same, its words known", "tokens/s", "more", _speeds(sentences, known), "one call, words known"),
    ]


def _speeds(sentences: Batch, seconds: Mapping[str, float]) -> dict[str, float]:
    """Tokens of the text per second, without the boundaries."""
    tokens = sum(map(len, sentences))
    return {name: tokens / spent for name, spent in seconds.items()}

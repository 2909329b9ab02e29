"""CUDA graphs of a model: the launches of a small batch take longer than its kernels, and a graph is one launch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import cache
from threading import Lock
from typing import Generic, Protocol, TypeVar

import torch

GRAPHS = 48
"""Graphs of a model that are stored, the last used ones."""
_recording = Lock()
"""One graph is recorded at a time, on its device's stream for that."""


class Recorded(Protocol):
    """A graph, and whatever it reads and writes."""

    graph: torch.cuda.CUDAGraph


G = TypeVar("G", bound=Recorded)
Result = TypeVar("Result")


class Graphs(Generic[G]):
    """The graphs of one model by the size of a batch, and whatever else they depend on.

    They share the memory of what is between their inputs and outputs, so they run one after the other, on any streams.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._graphs: OrderedDict[Hashable, G | None] = OrderedDict()
        self._done: torch.cuda.Event | None = None

    def run(self, key: Hashable, record: Callable[[], G], use: Callable[[G], Result]) -> Result | None:
        """`use` with the graph of a key, recorded when the key comes for the second time; None the first time."""
        with self._lock:
            if key not in self._graphs:
                self._graphs[key] = None
                while len(self._graphs) > GRAPHS:
                    self._graphs.popitem(last=False)
                return None
            graph = self._graphs[key]
            if graph is None:
                # What is made in inference mode could not be written outside of it.
                with _recording, torch.inference_mode(False), torch.no_grad():
                    graph = self._graphs[key] = record()
            self._graphs.move_to_end(key)
            if self._done is None:
                self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            torch.cuda.current_stream().wait_event(self._done)  # of the last batch, on another stream perhaps
            found = use(graph)
            self._done.record()
            return found

    def record(self, run: Callable[[], Result], device: torch.device) -> tuple[torch.cuda.CUDAGraph, Result]:
        """A graph of what `run` launches, and what it returns: memory that every replay writes again."""
        run()  # what must be compiled is compiled now
        torch.cuda.current_stream().synchronize()
        others = [graph for graph in self._graphs.values() if graph is not None]
        pool = others[0].graph.pool() if others else None
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=_recording_stream(device), capture_error_mode="thread_local"):
            found = run()
        return graph, found


@cache
def _recording_stream(device: torch.device) -> torch.cuda.Stream:
    """Torch's own belongs to whichever device recorded first."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def float32_precision() -> str:
    """How cuBLAS multiplies float32 now; who uses torch's newer name for it must not ask for the older one."""
    newer: str | None = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
    return newer or torch.get_float32_matmul_precision()

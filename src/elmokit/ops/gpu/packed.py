"""A model's LSTM weights as the GPU's kernels take them, stored until they change or go; CUDA graphs of a model.

The launches of a small batch take longer than its kernels, and a graph is one launch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from elmokit.ops.weights import AnyLstmWeights, Bounds, LstmWeights

GRAPHS = 48
"""Graphs of a model that are stored, the last used ones."""
_recording = Lock()
"""One graph is recorded at a time, on its device's stream for that."""


class RecordedGraph(Protocol):
    """A graph, and whatever it reads and writes."""

    graph: torch.cuda.CUDAGraph


G = TypeVar("G", bound=RecordedGraph)
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


@dataclass(frozen=True, eq=False)
class PackedLayer:
    """Both directions of a layer; the gates' rows in pairs, i₀ f₀ i₁ f₁ … g₀ o₀ g₁ o₁ …."""

    matrix: Tensor  # [D, 4H, K + P]: of the input and of h, side by side
    bias: Tensor  # float32 [D, 4H], the forget bias in it
    projection: Tensor  # [D, P, H]

    @classmethod
    def of(cls, directions: Sequence[LstmWeights], dtype: torch.dtype) -> PackedLayer:
        """Stack the directions of a layer."""
        matrices, biases = [], []
        for w in directions:
            bias = w.bias.detach().float().clone()
            size = len(bias) // 4
            bias[size : 2 * size] += w.forget_bias
            biases.append(paired(bias))
            matrices.append(paired(torch.cat([w.input.detach(), w.recurrent.detach()], dim=1).to(dtype)))
        projections = [w.projection.detach().to(dtype) for w in directions if w.projection is not None]
        return cls(torch.stack(matrices), torch.stack(biases), torch.stack(projections))

    @property
    def output_size(self) -> int:
        """P."""
        return self.projection.shape[1]

    @property
    def of_input(self) -> Tensor:
        """[D, 4H, K]."""
        return self.matrix[:, :, : -self.output_size]

    @property
    def of_h(self) -> Tensor:
        """[D, 4H, P]."""
        return self.matrix[:, :, -self.output_size :]


def paired(gates: Tensor) -> Tensor:
    """[4H, …] in the order i, f, g, o → in pairs."""
    return gates.view(2, 2, -1, *gates.shape[1:]).transpose(1, 2).reshape(gates.shape)


def unpaired(gates: Tensor) -> Tensor:
    """The other way round."""
    return gates.view(2, -1, 2, *gates.shape[1:]).transpose(1, 2).reshape(gates.shape)


class PackedModel:
    """A model's layers, their graphs, and what else is made of them for the persistent kernel."""

    def __init__(self, stacks: Sequence[Sequence[LstmWeights]], dtype: torch.dtype) -> None:
        first = stacks[0][0]
        self.bounds = Bounds(first.forget_bias, first.cell_clip, first.projection_clip)
        self.layers = [PackedLayer.of(directions, dtype) for directions in zip(*stacks, strict=True)]
        self.directions, self.dtype = len(stacks), dtype
        self.graphs: Graphs[Any] = Graphs()
        self.persistent_layers: dict[object, Any] = {}


def finish(device: torch.device) -> None:
    """Wait until what was made of weights is there, as other threads use it on streams of their own."""
    if device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
        torch.cuda.current_stream(device).synchronize()


_models: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
_lock = Lock()
Model = TypeVar("Model")


def cached_model(tensors: Sequence[Tensor], dtype: torch.dtype, make: Callable[[], Model]) -> Model:
    """What `make` returns for weights in a dtype, made again when one of them has changed, removed with the first."""
    state = (dtype, *((t.data_ptr(), None if t.is_inference() else t._version) for t in tensors))
    key = tensors[0]
    with _lock:
        known = _models.get(key)  # type: ignore[no-untyped-call]
        if known is None or known[0] != state:
            known = (state, make())
            finish(key.device)
            _models[key] = known
    found: Model = known[1]
    return found


def packed(stacks: Sequence[Sequence[AnyLstmWeights]], dtype: torch.dtype) -> PackedModel:
    """The model's layers in this dtype."""
    dense = [[w for w in layers if isinstance(w, LstmWeights)] for layers in stacks]
    tensors = [t for layers in dense for w in layers for t in (w.recurrent, w.input, w.bias, w.projection)]
    return cached_model([t for t in tensors if t is not None], dtype, lambda: PackedModel(dense, dtype))

"""The LSTM weights of a model in the layout of the GPU kernels, cached until they change; the CUDA graphs of a model.

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
"""The most graphs of a model that are cached; the least recently used ones are removed."""
_recording = Lock()
"""Held while a graph is recorded: only one at a time."""


class RecordedGraph(Protocol):
    """A graph, and the memory that it reads and writes."""

    graph: torch.cuda.CUDAGraph


G = TypeVar("G", bound=RecordedGraph)
Result = TypeVar("Result")


class Graphs(Generic[G]):
    """The graphs of one model, by the size of a batch and everything else that they depend on.

    They share the memory of their intermediate results, so only one runs at a time, on any stream.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._graphs: OrderedDict[Hashable, G | None] = OrderedDict()
        self._done: torch.cuda.Event | None = None

    def run(self, key: Hashable, record: Callable[[], G], use: Callable[[G], Result]) -> Result | None:
        """Call `use` with the graph of a key, recorded at the second use of the key; None at the first use."""
        with self._lock:
            if key not in self._graphs:
                self._graphs[key] = None
                while len(self._graphs) > GRAPHS:
                    self._graphs.popitem(last=False)
                return None
            graph = self._graphs[key]
            if graph is None:
                # Tensors that are made in inference mode could not be written outside of it.
                with _recording, torch.inference_mode(False), torch.no_grad():
                    graph = self._graphs[key] = record()
            self._graphs.move_to_end(key)
            if self._done is None:
                self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            torch.cuda.current_stream().wait_event(self._done)  # the last batch may be on another stream
            found = use(graph)
            self._done.record()
            return found

    def record(self, run: Callable[[], Result], device: torch.device) -> tuple[torch.cuda.CUDAGraph, Result]:
        """A graph of the kernels that `run` launches, and its result, which every replay overwrites."""
        run()  # compiles the kernels, which is not possible while recording
        torch.cuda.current_stream().synchronize()
        others = [graph for graph in self._graphs.values() if graph is not None]
        pool = others[0].graph.pool() if others else None
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=_recording_stream(device), capture_error_mode="thread_local"):
            found = run()
        return graph, found


@cache
def _recording_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream for recording on this device; torch's own stream belongs to the device that recorded first."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def float32_precision() -> str:
    """The precision of cuBLAS's float32 products; torch forbids to mix its newer setting with the older one."""
    newer: str | None = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
    return newer or torch.get_float32_matmul_precision()


@dataclass(frozen=True, eq=False)
class PackedLayer:
    """Both directions of a layer; the rows of the gates are in pairs, i₀ f₀ i₁ f₁ … g₀ o₀ g₁ o₁ …."""

    matrix: Tensor  # [D, 4H, K + P]: the weights of the input and of h, side by side
    bias: Tensor  # float32 [D, 4H], including the forget bias
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
        """[D, 4H, K]: the weights of the input."""
        return self.matrix[:, :, : -self.output_size]

    @property
    def of_h(self) -> Tensor:
        """[D, 4H, P]: the weights of h."""
        return self.matrix[:, :, -self.output_size :]


def paired(gates: Tensor) -> Tensor:
    """[4H, …] in the order i, f, g, o → the order of `PackedLayer`, in pairs."""
    return gates.view(2, 2, -1, *gates.shape[1:]).transpose(1, 2).reshape(gates.shape)


def unpaired(gates: Tensor) -> Tensor:
    """The inverse of `paired`."""
    return gates.view(2, -1, 2, *gates.shape[1:]).transpose(1, 2).reshape(gates.shape)


class PackedModel:
    """A model's layers, their graphs, and their weights in the layout of the persistent kernel."""

    def __init__(self, stacks: Sequence[Sequence[LstmWeights]], dtype: torch.dtype) -> None:
        first = stacks[0][0]
        self.bounds = Bounds(first.forget_bias, first.cell_clip, first.projection_clip)
        self.layers = [PackedLayer.of(directions, dtype) for directions in zip(*stacks, strict=True)]
        self.directions, self.dtype = len(stacks), dtype
        self.graphs: Graphs[Any] = Graphs()
        self.persistent_layers: dict[object, Any] = {}


def finish(device: torch.device) -> None:
    """Wait until packed weights are complete, because other threads use them on other streams."""
    if device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
        torch.cuda.current_stream(device).synchronize()


_models: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
_lock = Lock()
Model = TypeVar("Model")


def cached_model(tensors: Sequence[Tensor], dtype: torch.dtype, make: Callable[[], Model]) -> Model:
    """The result of `make` for weights in a dtype, made again if one has changed; removed with the first tensor."""
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

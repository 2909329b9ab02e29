"""A model's LSTM weights as the GPU's kernels take them, stored until they change or go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from elmokit.ops.gpu.graphs import Graphs
from elmokit.ops.weights import AnyLstmWeights, Bounds, LstmWeights


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


class Packed:
    """A model's layers, their graphs, and what else is made of them in `beside`."""

    def __init__(self, stacks: Sequence[Sequence[LstmWeights]], dtype: torch.dtype) -> None:
        first = stacks[0][0]
        self.bounds = Bounds(first.forget_bias, first.cell_clip, first.projection_clip)
        self.layers = [PackedLayer.of(directions, dtype) for directions in zip(*stacks, strict=True)]
        self.directions, self.dtype = len(stacks), dtype
        self.graphs: Graphs[Any] = Graphs()
        self.beside: dict[object, Any] = {}


def finish(device: torch.device) -> None:
    """Wait until what was made of weights is there, as other threads use it on streams of their own."""
    if device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
        torch.cuda.current_stream(device).synchronize()


_models: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
_lock = Lock()
Model = TypeVar("Model")


def made_once(tensors: Sequence[Tensor], dtype: torch.dtype, make: Callable[[], Model]) -> Model:
    """What `make` makes of weights in a dtype, made again when one of them has changed, and gone with the first."""
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


def packed(stacks: Sequence[Sequence[AnyLstmWeights]], dtype: torch.dtype) -> Packed:
    """The model's layers in this dtype."""
    dense = [[w for w in layers if isinstance(w, LstmWeights)] for layers in stacks]
    tensors = [t for layers in dense for w in layers for t in (w.recurrent, w.input, w.bias, w.projection)]
    return made_once([t for t in tensors if t is not None], dtype, lambda: Packed(dense, dtype))

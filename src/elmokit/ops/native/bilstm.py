"""All layers and directions of the recurrence in one call of the compiled library."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from elmokit.errors import ElmoError
from elmokit.ops.int8 import Int8Matrix
from elmokit.ops.native.binding import BiLstm, LayerArguments, Library, Matrix, library
from elmokit.ops.native.cores import most_threads
from elmokit.ops.native.packed import check_on_cpu, packed
from elmokit.ops.native.tensor_cache import TensorCache
from elmokit.ops.outputs import BiLstmOutput
from elmokit.ops.weights import AnyLstmWeights, Int8LstmWeights

LEAST_PRODUCTS = 1_000_000
"""Multiplications in a layer's recurrence; with fewer, a second thread saves no time."""
LEAST_STEP_PRODUCTS = 300_000
"""Multiplications per step that justify another thread for the same direction: every step ends with a barrier."""
FEW_ROWS = 8
"""Sentences per step; with at most this many, most of the time goes into reading the weights from memory."""
CACHED_BYTES = 32 << 20
"""Bytes of weights that fit into the caches of most machines."""


def bilstm_native(
    x: Tensor,
    lengths: Tensor,
    stacks: Sequence[Sequence[AnyLstmWeights]],
    h: Tensor,
    c: Tensor,
    *,
    skip_connections: bool,
) -> BiLstmOutput:
    """`elmokit.ops.bilstm.bilstm` on the CPU, x [B, T, P] in float32: no gradients, no dropout."""
    kernels = library()
    batch, time, _ = x.shape
    given: list[int] = lengths.tolist()
    order = sorted(range(len(given)), key=given.__getitem__, reverse=True)
    tokens = [given[row] for row in order]
    plan = _plans.of(kernels, *_tensors(stacks), lambda: _BilstmPlan(kernels, stacks))
    directions, layers, outputs, cells = len(stacks), len(stacks[0]), plan.outputs, plan.cells
    plan.check(x, tokens, h, c)
    x, h, c = x.detach(), h.detach().contiguous(), c.detach().contiguous()
    x = x if x.stride(2) == 1 else x.contiguous()
    buffer = torch.empty(layers + 1, batch, time, directions * outputs, dtype=x.dtype, device=x.device)
    wide = list(buffer[1:].unbind(0))
    last_h, last_c = torch.empty_like(h), torch.empty_like(c)
    longest = max(tokens, default=0)
    threads, separate = _threads(sum(tokens), longest, 5 * cells * outputs, plan.weight_bytes, directions)
    job = BiLstm(
        batch=batch,
        time=time,
        directions=directions,
        layers=layers,
        cells=cells,
        outputs=outputs,
        int8=plan.int8,
        skip_connections=skip_connections,
        threads=threads,
        separate_directions=separate,
        stack=plan.stack,
        x=x.data_ptr(),
        x_row=x.stride(0),
        x_token=x.stride(1),
        order=(ctypes.c_int64 * batch)(*order),
        lengths=(ctypes.c_int64 * batch)(*tokens),
        h=h.data_ptr(),
        c=c.data_ptr(),
        last_h=last_h.data_ptr(),
        last_c=last_c.data_ptr(),
        layer_outputs=(ctypes.c_void_p * layers)(*(layer.data_ptr() for layer in wide)),
    )
    if kernels.bilstm(ctypes.byref(job)):
        raise MemoryError("there is not enough memory for the recurrence of this batch")
    return BiLstmOutput(wide, last_h, last_c, buffer)


class _BilstmPlan:
    """The weights of all layers in the structures of the compiled library.

    The library trusts every size and address, so `check` must refuse everything that does not fit.
    """

    def __init__(self, kernels: Library, stacks: Sequence[Sequence[AnyLstmWeights]]) -> None:
        first = stacks[0][0]
        self.inputs, self.outputs, self.cells = first.input.shape[1], first.recurrent.shape[1], len(first.bias) // 4
        self.int8 = isinstance(first, Int8LstmWeights)
        self.states = (len(stacks), len(stacks[0]))
        self._referenced: list[object] = []  # objects that the structures point to
        self._fits = self._fit(stacks)
        layers = [self._layer(kernels, w) for stack in stacks for w in stack] if self._fits else []
        self.stack = (LayerArguments * len(layers))(*layers)
        self.weight_bytes = 1 if self.int8 else 2 if all(layer.recurrent.float16 for layer in layers) else 4

    def check(self, x: Tensor, falling: Sequence[int], h: Tensor, c: Tensor) -> None:
        """Refuse inputs that do not fit; `falling` are the lengths of the sentences, the longest first."""
        batch, time, size_in = x.shape
        if not all(given.dtype == torch.float32 and given.device.type == "cpu" for given in (x, h, c)):
            kinds = ", ".join(f"{given.dtype} on {given.device}" for given in (x, h, c))
            raise ElmoError(f"the compiled kernels take float32 on the CPU, got {kinds}")
        if len(falling) != batch or (batch and not 0 <= falling[-1] <= falling[0] <= time):
            raise ElmoError(f"lengths must be {batch} numbers from 0 to {time}, got {list(falling)}")
        fits = self._fits and size_in == self.inputs
        fits = fits and h.shape == (*self.states, batch, self.outputs) and c.shape == (*self.states, batch, self.cells)
        if not fits:
            outputs, cells = h.shape[-1], c.shape[-1]
            raise ElmoError(
                f"the weights and states of the layers do not fit inputs of {size_in}, {outputs} outputs and {cells} "
                "cells"
            )

    def _fit(self, stacks: Sequence[Sequence[AnyLstmWeights]]) -> bool:
        """Whether the sizes of all layers of all directions agree with those of the first one."""
        outputs, cells = self.outputs, self.cells
        expected = [(4 * cells, self.inputs), (4 * cells, outputs), (4 * cells,), (outputs, cells)]
        fits = True
        for layers in stacks:
            fits = fits and len(layers) == len(stacks[0])
            for number, weights in enumerate(layers):
                expected[0] = 4 * cells, outputs if number else self.inputs
                given = [weights.input, weights.recurrent, weights.bias, weights.projection]
                shapes = [tuple(part.shape) for part in given if part is not None]
                fits = fits and isinstance(weights, Int8LstmWeights) == self.int8
                fits = fits and shapes == expected[: len(shapes)]
                fits = fits and (weights.projection is not None or outputs == cells)
        return fits

    def _layer(self, kernels: Library, weights: AnyLstmWeights) -> LayerArguments:
        input_, recurrent = packed(kernels, weights.input, gates=4), packed(kernels, weights.recurrent, gates=4)
        projection = None if weights.projection is None else packed(kernels, weights.projection)
        check_on_cpu(weights.bias)
        bias = weights.bias.detach().float().contiguous()
        self._referenced += [input_, recurrent, projection, bias]
        return LayerArguments(
            input_.matrix,
            recurrent.matrix,
            Matrix() if projection is None else projection.matrix,
            bias.data_ptr(),
            weights.forget_bias,
            math.inf if weights.cell_clip is None else weights.cell_clip,
            math.inf if weights.projection_clip is None else weights.projection_clip,
        )


_plans = TensorCache[_BilstmPlan]()


def _tensors(stacks: Sequence[Sequence[AnyLstmWeights]]) -> tuple[list[Tensor], tuple[object, ...]]:
    """All tensors of the layers, and everything else that a plan depends on."""
    tensors: list[Tensor] = []
    facts: list[object] = []
    for layers in stacks:
        for weights in layers:
            facts += [len(layers), type(weights), weights.forget_bias, weights.cell_clip, weights.projection_clip]
            for matrix in (weights.input, weights.recurrent, weights.projection):
                if isinstance(matrix, Int8Matrix):
                    tensors += [matrix.values, matrix.scales]
                elif matrix is not None:
                    tensors.append(matrix)
            tensors.append(weights.bias)
            facts.append(len(tensors))
    return tensors, tuple(facts)


def _threads(tokens: int, steps: int, weights: int, weight_bytes: int, directions: int) -> tuple[int, bool]:
    """The number of threads, and whether each direction has its own, for a layer with this number of weights.

    With few rows, most of the time goes into reading the weights from memory. Then all threads compute one direction
    after the other, because the caches hold the weights of one direction from step to step, but not those of both.
    """
    most = most_threads()
    if tokens * weights < LEAST_PRODUCTS:
        return 1, False
    useful = max(1, tokens * weights // (steps * LEAST_STEP_PRODUCTS))
    memory_bound = tokens <= FEW_ROWS * steps and directions * weights * weight_bytes > CACHED_BYTES
    if directions == 1 or memory_bound:
        return min(most, useful), False
    return min(most, 2 * useful), most > 1

"""All LSTM layers of all directions on a CUDA GPU, for inference; small batches as CUDA graphs.

The launches of a small batch take longer than its kernels. So they are recorded as one graph for each bucket of sizes,
which later batches use again; the rows and steps that pad a batch to its bucket are not computed.

The layers are computed one after the other, by the strategy that is fastest for the batch:
    persistent   float16 or bfloat16, few rows: one kernel for all steps, whose blocks keep the weights
    fused        float16 or bfloat16, more rows: a kernel for product, gates and cell, and one for the projection
    products     float32, or many rows: cuBLAS's products, and small kernels between them
A layer's inputs and outputs are side by side, [D, T + 1, B, K + P]: index t has the input of step t, and the output of
the step before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from elmokit.ops.gpu import persistent
from elmokit.ops.gpu.packed import PackedLayer, PackedModel, float32_precision, packed
from elmokit.ops.optional_triton import triton
from elmokit.ops.outputs import BiLstmOutput
from elmokit.ops.weights import AnyLstmWeights, Bounds, Int8LstmWeights
from elmokit.ops.windows_cuda import bmm_float32

RECORDED_ROWS = 256
"""Batches of at most this many rows are recorded; the kernels of larger ones take longer than their launches."""
RECORDED_STEPS = 128
"""Batches with longer sentences are not recorded, because each length would need its own graph."""


def reason_against(dtype: torch.dtype, stacks: Sequence[Sequence[AnyLstmWeights]]) -> str | None:
    """Why the kernels do not support inputs of this dtype and these layers, or None."""
    if any(isinstance(weights, Int8LstmWeights) for layers in stacks for weights in layers):
        return "int8 weights are only for the CPU"
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"the kernels do not compute in {str(dtype).removeprefix('torch.')}"
    if any(weights.projection is None for layers in stacks for weights in layers):
        return "the kernels need layers with a projection"
    bounds = {Bounds(w.forget_bias, w.cell_clip, w.projection_clip) for layers in stacks for w in layers}
    return None if len(bounds) == 1 else "the kernels need the same clips in all layers"


def description(x: Tensor, stacks: Sequence[Sequence[AnyLstmWeights]]) -> str:
    """The kernels that compute inputs like x, in words."""
    texts = {
        "persistent": "one kernel for all steps, which keeps the weights",
        "fused": "a kernel for product, gates and cell of a step, and one for its projection",
        "products": "cuBLAS's products, and kernels for the gates",
    }
    recorded = "recorded as a CUDA graph" if _is_small(x) else "launched one by one"
    return f"{texts[strategy_for(packed(stacks, x.dtype), len(x), x.device)]}; both directions together, {recorded}"


def bilstm_cuda(
    x: Tensor,
    lengths: Tensor,
    stacks: Sequence[Sequence[AnyLstmWeights]],
    h: Tensor | None,
    c: Tensor | None,
    *,
    skip_connections: bool,
) -> BiLstmOutput:
    """`elmokit.ops.bilstm.bilstm` on the GPU; x has at least one token."""
    if h is not None and c is not None:
        h, c = h.to(x.dtype).contiguous(), c.to(x.dtype).contiguous()
    with torch.cuda.device(x.device), torch.no_grad(), torch.autocast("cuda", enabled=False):
        run = _run_recorded if _is_small(x) and not torch.cuda.is_current_stream_capturing() else _run
        return run(packed(stacks, x.dtype), x, lengths, h, c, skip=skip_connections)


def _is_small(x: Tensor) -> bool:
    return x.shape[0] <= RECORDED_ROWS and x.shape[1] <= RECORDED_STEPS


def _run(
    model: PackedModel, x: Tensor, lengths: Tensor, h: Tensor | None, c: Tensor | None, *, skip: bool
) -> BiLstmOutput:
    plan = Plan.of(lengths, *x.shape[:2])
    return run_steps(model, x.contiguous(), plan.to(x.device), plan.counts, h, c, skip=skip)


def _run_recorded(
    model: PackedModel, x: Tensor, lengths: Tensor, h: Tensor | None, c: Tensor | None, *, skip: bool
) -> BiLstmOutput:
    """Run a batch in the graph of its bucket, which is recorded when the bucket is used for the second time."""
    batch, time, _ = x.shape
    size = 1 << (batch - 1).bit_length(), -(-time // 4) * 4
    found = model.graphs.run(
        (*size, skip, h is None, float32_precision()),
        lambda: BilstmGraph(model, size, x, h, c, skip=skip),
        lambda graph: graph(x, Plan.of(lengths, *size), h, c),
    )
    return _run(model, x, lengths, h, c, skip=skip) if found is None else found


class BilstmGraph:
    """The steps for one size of batch, recorded as a graph, with the memory that it reads and writes."""

    def __init__(
        self, model: PackedModel, size: tuple[int, int], x: Tensor, h: Tensor | None, c: Tensor | None, *, skip: bool
    ) -> None:
        batch, time = size
        self.x = x.new_zeros(batch, time, x.shape[2])
        self.h, self.c = (None if s is None else s.new_zeros(*s.shape[:2], batch, s.shape[3]) for s in (h, c))
        self.plan = Plan.of(torch.full((batch,), time), batch, time).to(x.device)

        def run() -> BiLstmOutput:
            return run_steps(model, self.x, self.plan, [batch] * time, self.h, self.c, skip=skip)

        self.graph, self.out = model.graphs.record(run, x.device)

    def __call__(self, x: Tensor, plan: Plan, h: Tensor | None, c: Tensor | None) -> BiLstmOutput:
        """Copy a batch to the graph's memory, run the graph, and return a copy of the results."""
        batch, time, _ = x.shape
        self.plan.numbers.copy_(plan.numbers.pin_memory(), non_blocking=True)
        self.x[:batch, :time].copy_(x)
        for own, given in ((self.h, h), (self.c, c)):
            if own is not None and given is not None:
                own[:, :, :batch].copy_(given)
        self.graph.replay()
        assert self.out.buffer is not None
        buffer = self.out.buffer[:, :batch, :time].clone()
        last_h, last_c = (states[:, :, :batch].clone() for states in (self.out.h, self.out.c))
        return BiLstmOutput(list(buffer[1:].unbind(0)), last_h, last_c, buffer)


class Plan:
    """The order of the rows, by falling length; all numbers are in one tensor, so one copy moves them to the GPU."""

    def __init__(self, numbers: Tensor, batch: int, counts: list[int]) -> None:
        self.numbers, self.counts = numbers, counts
        self.order, self.lengths = (
            numbers[:batch],
            numbers[batch : 2 * batch],
        )  # the sentence and the length of each row
        self.running = numbers[2 * batch :]  # the number of rows at each step; `counts` has the same on the host

    @classmethod
    def of(cls, lengths: Tensor, batch: int, time: int) -> Plan:
        """The plan for a batch of this size; rows after the last sentence are empty."""
        numbers = np.zeros(2 * batch + time, np.int64)
        sizes = np.zeros(batch, np.int64)
        sizes[: len(lengths)] = lengths.numpy()
        order = np.argsort(-sizes, kind="stable")
        numbers[:batch], numbers[batch : 2 * batch] = order, sizes[order]
        counts = batch - np.bincount(sizes, minlength=time + 1).cumsum()[:time]
        numbers[2 * batch :] = counts
        return cls(torch.from_numpy(numbers), batch, counts.tolist())

    def to(self, device: torch.device) -> Plan:
        """The same plan on a device, without waiting for the copy."""
        return Plan(self.numbers.pin_memory().to(device, non_blocking=True), len(self.order), self.counts)


FUSED_ROWS = 128
"""The most rows for fused steps, in float16 and bfloat16."""
SEPARATE_ROWS = 64
"""The most rows for which fused steps compute the input products separately; for more rows, steps include them."""
PRODUCT_TOKENS = 2048
"""Tokens whose products with the input are in memory at once."""
SEPARATE_ROWS_FLOAT32 = 256
"""SEPARATE_ROWS for float32, where cuBLAS computes the products."""
COMPUTED_ROWS = 64
"""The number of rows in cuBLAS's products is a multiple of this."""
COLUMNS = 512

Strategy = Literal["persistent", "fused", "products"]


class Tiles(NamedTuple):
    """How a step is divided into programs."""

    rows: int
    columns: int
    block: int
    warps: int
    stages: int


GATES = {16: Tiles(16, 32, 128, 4, 4), 32: Tiles(32, 32, 64, 4, 5), 1 << 30: Tiles(64, 32, 64, 4, 4)}
PROJECTION = {32: Tiles(16, 16, 256, 4, 4), 1 << 30: Tiles(64, 16, 128, 4, 4)}


def strategy_for(packed: PackedModel, batch: int, device: torch.device) -> Strategy:
    """The strategy for a batch of this number of rows."""
    if packed.dtype == torch.float32:
        return "products"
    if persistent.supports(packed, batch, device):
        return "persistent"
    return "fused" if batch <= FUSED_ROWS else "products"


def run_steps(
    packed: PackedModel,
    x: Tensor,
    plan: Plan,
    counts: Sequence[int],
    h: Tensor | None,
    c: Tensor | None,
    *,
    skip: bool,
) -> BiLstmOutput:
    """x [B, T, P], h [D, L, B, P], c [D, L, B, H] → all layers and last states.

    Kernels are launched for `counts` rows at each step. Without h and c, all rows start from zero.
    """
    from elmokit.ops.gpu import step_kernels as kernels

    (batch, time, size_in), directions, layers = x.shape, packed.directions, len(packed.layers)
    size, output = packed.layers[0].projection.shape[2], packed.layers[0].output_size
    strategy = strategy_for(packed, batch, x.device)
    buffer = x.new_empty(layers + 1, batch, time, directions * output)
    outputs = buffer[1:]
    last_h, last_c = (x.new_empty(directions, layers, batch, n) for n in (output, size))
    rows, tokens = (batch, directions), (batch * time, directions)
    before: Tensor | None = None  # the output of the layer below, [D, T, B, P]
    for number, layer in enumerate(packed.layers):
        joined = x.new_empty(directions, time + 1, batch, size_in + output)
        states, cells = joined[..., size_in:], x.new_empty(directions, batch, size, dtype=torch.float32)
        stride, pitch = joined.stride(0), joined.stride(2)
        if before is None:
            kernels.to_steps[tokens](x, plan.order, plan.lengths, joined, stride, pitch, time, batch, size_in, COLUMNS)
        else:
            joined[:, :time, :, :size_in] = before
        kernels.begin_states[rows](
            *(states if h is None else h[:, number], cells if c is None else c[:, number], plan.order, states),
            *(stride, pitch, cells, layers, batch, size, output, h is None, COLUMNS),
        )
        if strategy == "persistent":
            _persistent_steps(packed, number, joined, states, cells, plan)
        elif strategy == "fused":
            _fused_steps(packed.bounds, layer, joined, states, cells, plan, counts)
        else:
            _product_steps(packed.bounds, layer, joined, states, cells, plan, counts)
        kernels.end_states[rows](
            *(states, stride, pitch, cells, plan.order, plan.lengths, last_h[:, number], last_c[:, number]),
            *(layers, batch, size, output, COLUMNS),
        )
        before = states[:, 1:] + joined[:, :time, :, :size_in] if number and skip else states[:, 1:]
        kernels.from_steps[tokens](
            *(before, before.stride(0), before.stride(2), plan.order, plan.lengths, outputs[number]),
            *(time, batch, output, COLUMNS),
        )
        size_in = output
    return BiLstmOutput(list(outputs.unbind(0)), last_h, last_c, buffer)


def _input_products(layer: PackedLayer, joined: Tensor, start: int, stop: int) -> Tensor:
    """The products with the inputs of the steps start to stop, float32 [D, steps, B, 4H]."""
    directions, _, batch, width = joined.shape
    x = joined[:, start:stop].flatten(1, 2)[..., : width - layer.output_size]
    return bmm_float32(x, layer.of_input.mT).view(directions, stop - start, batch, -1)


def _persistent_steps(
    packed: PackedModel, number: int, joined: Tensor, states: Tensor, cells: Tensor, plan: Plan
) -> None:
    layer, kernel = packed.layers[number], persistent.layer_of(packed, number)
    hidden = torch.empty_like(cells, dtype=joined.dtype)
    time, together = joined.shape[1] - 1, max(1, PRODUCT_TOKENS // joined.shape[2])
    for start in range(0, time, together):
        stop = min(time, start + together)
        products = _input_products(layer, joined, start, stop)
        kernel.run(products, states[:, start:], cells, hidden, plan.running[start:], packed.bounds)


def _fused_steps(
    bounds: Bounds, layer: PackedLayer, joined: Tensor, states: Tensor, cells: Tensor, plan: Plan, counts: Sequence[int]
) -> None:
    from elmokit.ops.gpu import step_kernels as kernels

    directions, _, batch, _ = joined.shape
    size, output, time = cells.shape[2], states.shape[3], len(counts)
    hidden = torch.empty_like(cells, dtype=joined.dtype)
    gates, projection = _tiles(GATES, batch), _tiles(PROJECTION, batch)
    separate = batch <= SEPARATE_ROWS and batch * time <= PRODUCT_TOKENS
    products = _input_products(layer, joined, 0, time) if separate else cells.new_empty(directions, 1, 1, 1)
    values, weight = (states, layer.of_h) if separate else (joined, layer.matrix)
    of_step, into, starts = values.unbind(1), states.unbind(1), products.unbind(1)
    for t, rows in enumerate(counts):
        kernels.gates_step[(triton.cdiv(rows, gates.rows), triton.cdiv(size, gates.columns), directions)](
            *(of_step[t], values.stride(0), values.stride(2), weight, weight.stride(0), weight.stride(1)),
            *(starts[t if separate else 0], products.stride(0), layer.bias, cells, hidden, plan.running, t),
            *(batch, size, weight.shape[2], bounds.cell_clip or 0.0, separate, weight.shape[2] % gates.block == 0),
            *gates[:3],
            num_warps=gates.warps,
            num_stages=gates.stages,
        )
        kernels.project_step[(triton.cdiv(rows, projection.rows), triton.cdiv(output, projection.columns), directions)](
            *(hidden, layer.projection, into[t + 1], states.stride(0), states.stride(2), plan.running, t),
            *(batch, size, output, bounds.projection_clip or 0.0, size % projection.block == 0, *projection[:3]),
            num_warps=projection.warps,
            num_stages=projection.stages,
        )


def _product_steps(
    bounds: Bounds, layer: PackedLayer, joined: Tensor, states: Tensor, cells: Tensor, plan: Plan, counts: Sequence[int]
) -> None:
    from elmokit.ops.gpu import step_kernels as kernels

    directions, _, batch, _ = joined.shape
    size, output, time = cells.shape[2], states.shape[3], len(counts)
    z = joined.new_empty(directions, batch, 4 * size)
    hidden, projected = joined.new_empty(directions, batch, size), joined.new_empty(directions, batch, output)
    projection = layer.projection.mT
    separate = joined.dtype == torch.float32 and batch <= SEPARATE_ROWS_FLOAT32 and batch * time <= PRODUCT_TOKENS
    products = _input_products(layer, joined, 0, time).unbind(1) if separate else ()
    matrix, of_step, into = layer.of_h.mT if separate else layer.matrix.mT, joined.unbind(1), states.unbind(1)
    for t, rows in enumerate(counts):
        n = min(batch, -(-rows // COMPUTED_ROWS) * COMPUTED_ROWS)  # cuBLAS is faster then
        if separate:
            torch.baddbmm(products[t][:, :n], into[t][:, :n], matrix, out=z[:, :n])
        else:
            torch.bmm(of_step[t][:, :n], matrix, out=z[:, :n])
        kernels.cell_step[(triton.cdiv(rows, 4), triton.cdiv(size, 128), directions)](
            *(z, layer.bias, cells, hidden, plan.running, t, batch, size, bounds.cell_clip or 0.0, 4, 128)
        )
        torch.bmm(hidden[:, :n], projection, out=projected[:, :n])
        kernels.output_step[(rows, directions)](
            *(projected, into[t + 1], states.stride(0), states.stride(2), plan.running, t, batch, output),
            *(bounds.projection_clip or 0.0, COLUMNS),
        )


def _tiles(tables: dict[int, Tiles], batch: int) -> Tiles:
    return next(tiles for most, tiles in tables.items() if batch <= most)

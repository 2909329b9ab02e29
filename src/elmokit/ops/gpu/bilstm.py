"""All LSTM layers of all directions on a CUDA GPU, for inference; small batches as CUDA graphs.

The launches of a small batch take longer than its kernels, so they are recorded as a graph for each bucket of sizes,
which later batches use again; rows and steps that a bucket has more are not computed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from elmokit.ops.gpu.graphs import float32_precision
from elmokit.ops.gpu.packed import Packed, packed
from elmokit.ops.gpu.plan import Plan
from elmokit.ops.gpu.steps import run_steps, way_of
from elmokit.ops.outputs import BiLstmOutput
from elmokit.ops.weights import AnyLstmWeights, Bounds, Int8LstmWeights

RECORDED_ROWS = 256
"""Batches of at most this many rows are recorded; the kernels of larger ones take longer than their launches."""
RECORDED_STEPS = 128
"""Longer sentences are not recorded: each length has a graph of its own."""


def reason_against(dtype: torch.dtype, stacks: Sequence[Sequence[AnyLstmWeights]]) -> str | None:
    """Why the kernels cannot take such inputs, or None."""
    if any(isinstance(weights, Int8LstmWeights) for layers in stacks for weights in layers):
        return "int8 weights are for the CPU"
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"the kernels do not compute in {str(dtype).removeprefix('torch.')}"
    if any(weights.projection is None for layers in stacks for weights in layers):
        return "the kernels want layers with a projection"
    bounds = {Bounds(w.forget_bias, w.cell_clip, w.projection_clip) for layers in stacks for w in layers}
    return None if len(bounds) == 1 else "the kernels want the same clips in all layers"


def description(x: Tensor, stacks: Sequence[Sequence[AnyLstmWeights]]) -> str:
    """What serves inputs like x."""
    ways = {
        "persistent": "one kernel for all steps, which keeps the weights",
        "fused": "a kernel for product, gates and cell of a step, and one for its projection",
        "products": "cuBLAS's products, and kernels for the gates",
    }
    recorded = "recorded as a CUDA graph" if _is_small(x) else "launched one by one"
    return f"{ways[way_of(packed(stacks, x.dtype), len(x), x.device)]}; both directions together, {recorded}"


def bilstm_cuda(
    x: Tensor,
    lengths: Tensor,
    stacks: Sequence[Sequence[AnyLstmWeights]],
    h: Tensor | None,
    c: Tensor | None,
    *,
    skip_connections: bool,
) -> BiLstmOutput:
    """`elmokit.ops.bilstm.bilstm` with the kernels; x has at least one token."""
    if h is not None and c is not None:
        h, c = h.to(x.dtype).contiguous(), c.to(x.dtype).contiguous()
    with torch.cuda.device(x.device), torch.no_grad(), torch.autocast("cuda", enabled=False):
        run = _run_recorded if _is_small(x) and not torch.cuda.is_current_stream_capturing() else _run
        return run(packed(stacks, x.dtype), x, lengths, h, c, skip=skip_connections)


def _is_small(x: Tensor) -> bool:
    return x.shape[0] <= RECORDED_ROWS and x.shape[1] <= RECORDED_STEPS


def _run(model: Packed, x: Tensor, lengths: Tensor, h: Tensor | None, c: Tensor | None, *, skip: bool) -> BiLstmOutput:
    plan = Plan.of(lengths, *x.shape[:2])
    return run_steps(model, x.contiguous(), plan.to(x.device), plan.counts, h, c, skip=skip)


def _run_recorded(
    model: Packed, x: Tensor, lengths: Tensor, h: Tensor | None, c: Tensor | None, *, skip: bool
) -> BiLstmOutput:
    """In the graph of the bucket that the batch falls into, recorded when one comes for the second time."""
    batch, time, _ = x.shape
    size = 1 << (batch - 1).bit_length(), -(-time // 4) * 4
    found = model.graphs.run(
        (*size, skip, h is None, float32_precision()),
        lambda: BilstmGraph(model, size, x, h, c, skip=skip),
        lambda graph: graph(x, Plan.of(lengths, *size), h, c),
    )
    return _run(model, x, lengths, h, c, skip=skip) if found is None else found


class BilstmGraph:
    """The steps for one size of batch, recorded; what they read and write stays where it was then."""

    def __init__(
        self, model: Packed, size: tuple[int, int], x: Tensor, h: Tensor | None, c: Tensor | None, *, skip: bool
    ) -> None:
        batch, time = size
        self.x = x.new_zeros(batch, time, x.shape[2])
        self.h, self.c = (None if s is None else s.new_zeros(*s.shape[:2], batch, s.shape[3]) for s in (h, c))
        self.plan = Plan.of(torch.full((batch,), time), batch, time).to(x.device)

        def run() -> BiLstmOutput:
            return run_steps(model, self.x, self.plan, [batch] * time, self.h, self.c, skip=skip)

        self.graph, self.out = model.graphs.record(run, x.device)

    def __call__(self, x: Tensor, plan: Plan, h: Tensor | None, c: Tensor | None) -> BiLstmOutput:
        """Bring in a batch, run, and take out what came of it."""
        batch, time, _ = x.shape
        self.plan.numbers.copy_(plan.numbers.pin_memory(), non_blocking=True)
        self.x[:batch, :time].copy_(x)
        for own, given in ((self.h, h), (self.c, c)):
            if own is not None and given is not None:
                own[:, :, :batch].copy_(given)
        self.graph.replay()
        assert self.out.room is not None
        room = self.out.room[:, :batch, :time].clone()
        last_h, last_c = (states[:, :, :batch].clone() for states in (self.out.h, self.out.c))
        return BiLstmOutput(list(room[1:].unbind(0)), last_h, last_c, room)

"""The recurrence of pre-training: windows of packed text, both directions at once, with a backward pass of its own.

Only operations that depend on the step before run step by step: the recurrent product, the gates and the projection.
The products with the inputs, and the gradients of all weights, are large products over the whole window.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from elmokit.errors import ElmoError
from elmokit.ops import kernels
from elmokit.ops.kernels import AutogradContext
from elmokit.ops.weights import Bounds, LstmWeights

SHAPES = 4
"""The most shapes of windows whose buffers are cached."""


def lstm_windows(
    x: Tensor, keep: Tensor, weights: Sequence[LstmWeights], h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """A layer over a window: x [D, T, B, P_in], keep [T, B], h [D, B, P], c [D, B, H] → y [D, T, B, P], h, c.

    `keep` is 1 where the state continues into a token and 0 where the token starts from zero; there is one LstmWeights
    per direction. The products are in x's dtype; the cell and the gates are at least float32. The last h and c are
    detached: no gradient goes through the states at the ends of the window.
    """
    directions, time, batch, _ = x.shape
    cell_size = weights[0].bias.shape[0] // 4
    bounds = {Bounds(w.forget_bias, w.cell_clip, w.projection_clip) for w in weights}
    if len(bounds) != 1 or len({w.projection is None for w in weights}) != 1:
        raise ElmoError("both directions of a layer must have the same forget bias, clips and projection")
    output_size = cell_size if weights[0].projection is None else weights[0].projection.shape[0]
    expected = {"weights": (directions,), "keep": (time, batch), "h": (directions, batch, output_size)}
    expected["c"] = (directions, batch, cell_size)
    for name, shape in (("weights", (len(weights),)), ("keep", keep.shape), ("h", h.shape), ("c", c.shape)):
        if tuple(shape) != expected[name]:
            raise ElmoError(f"{name} must have the shape {list(expected[name])} for this window, got {list(shape)}")
    if not time:
        raise ElmoError("a window must have at least one token, got none")
    flat = [tensor for w in weights for tensor in (w.input, w.recurrent, w.bias, w.projection)]
    with torch.autocast(x.device.type, enabled=False):
        found: tuple[Tensor, Tensor, Tensor] = _Windows.apply(  # type: ignore[no-untyped-call]
            x, keep, h, c, bounds.pop(), *flat
        )
    return found


class _Windows(torch.autograd.Function):
    """The window as one node of the graph; the weights are (input, recurrent, bias, projection) of each direction."""

    @staticmethod
    def forward(
        ctx: AutogradContext, x: Tensor, keep: Tensor, h: Tensor, c: Tensor, bounds: Bounds, *weights: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        if kernels.available(x.device):
            from elmokit.ops import windows_cuda

            y, last_h, last_c, ctx.saved_window = windows_cuda.forward(x, keep, h, c, bounds, weights)
        else:
            ctx.save_for_backward(x)  # so that torch detects it if x is overwritten
            y, last_h, last_c, ctx.saved_window = _forward(x, keep, h, c, bounds, weights)
        ctx.mark_non_differentiable(last_h, last_c)
        return y, last_h, last_c

    @staticmethod
    @once_differentiable
    def backward(ctx: AutogradContext, dy: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        window, ctx.saved_window = ctx.saved_window, None
        if window is None:
            raise RuntimeError(
                "a window's gradients can be computed only once: they overwrite what the forward pass saved"
            )
        with torch.autocast(dy.device.type, enabled=False):
            if kernels.available(dy.device):
                from elmokit.ops import windows_cuda

                dx, gradients = windows_cuda.backward(dy, window, want_dx=ctx.needs_input_grad[0])
            else:
                _ = ctx.saved_tensors
                dx, gradients = _backward(dy, window, want_dx=ctx.needs_input_grad[0])
        return (dx, None, None, None, None, *gradients)


class _Buffers:
    """The memory that a window's forward pass fills for its backward pass.

    The next window of the same shape uses it again: to get so much memory from the system, page by page, takes half as
    long as the computation.
    """

    def __init__(self, like: Tensor, time: int, output: int) -> None:
        directions, batch, size = like.shape
        self.gates = like.new_empty(directions, time, batch, 4 * size)  # after their activations
        self.cells = like.new_empty(directions, time, batch, size)  # before they are clipped
        self.squashed = torch.empty_like(self.cells)  # tanh of the clipped cells
        self.hidden = torch.empty_like(self.cells)  # before the projection
        self.projected = like.new_empty(directions, time, batch, output)  # before it is clipped
        self.entering = torch.empty_like(self.projected)  # the h that each step reads, 0 where a row restarts


_idle: OrderedDict[Hashable, list[_Buffers]] = OrderedDict()


@dataclass
class _SavedWindow:
    """Everything that the backward pass needs from the forward pass."""

    buffers: _Buffers
    idle: list[_Buffers]  # the list that the buffers return to
    x: Tensor  # [D, T, B, P_in]
    first_cell: Tensor  # [D, B, H] as given
    keep: Tensor  # [T, B, 1]
    continues: list[bool]  # [T] whether no row restarts at this step
    input: Tensor  # [D, 4H, P_in]
    recurrent: Tensor  # [D, 4H, P]
    projection: Tensor | None  # [D, P, H]
    bounds: Bounds
    dtypes: list[torch.dtype]  # of x, and of the weights

    def __del__(self) -> None:
        self.idle.append(self.buffers)


def _acquire(like: Tensor, time: int, output: int) -> tuple[_Buffers, list[_Buffers]]:
    """Buffers for cells like these [D, B, H], and the list that they return to after use."""
    key = (like.shape, like.dtype, like.device, time, output)
    idle = _idle.setdefault(key, [])
    _idle.move_to_end(key)
    if len(_idle) > SHAPES:
        _idle.popitem(last=False)
    return idle.pop() if idle else _Buffers(like, time, output), idle


def _forward(
    x: Tensor, keep: Tensor, h: Tensor, c: Tensor, bounds: Bounds, weights: tuple[Tensor | None, ...]
) -> tuple[Tensor, Tensor, Tensor, _SavedWindow]:
    """The forward pass in torch's operations, each for both directions; float16 and bfloat16 become float32."""
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    dtypes = [x.dtype, *(w.dtype for w in weights if w is not None)]
    time, size, output = x.shape[1], c.shape[2], h.shape[2]
    kinds = 4 if weights[3] is not None else 3
    stacks = [torch.stack([w for w in weights[n::4] if w is not None]).to(dtype) for n in range(kinds)]
    input_weight, recurrent, bias = stacks[0], stacks[1], stacks[2].unsqueeze(1)
    projection = stacks[3] if len(stacks) == 4 else None
    bias[..., size : 2 * size] += bounds.forget_bias
    x, h, c = x.to(dtype), h.to(dtype), c.to(dtype)
    flags, continues = keep.to(dtype).unsqueeze(-1), (keep != 0).all(dim=1).tolist()
    buffers, idle = _acquire(c, time, output)
    window = _SavedWindow(buffers, idle, x, c, flags, continues, input_weight, recurrent, projection, bounds, dtypes)

    torch.bmm(x.flatten(1, 2), input_weight.mT, out=buffers.gates.flatten(1, 2))
    gates, cells, squashed, hidden, projected, entering = (
        buffer.unbind(1)
        for buffer in (
            *(buffers.gates, buffers.cells, buffers.squashed),
            *(buffers.hidden, buffers.projected, buffers.entering),
        )
    )
    outputs = x.new_empty(*x.shape[:3], output)
    recurrent_t, projection_t = recurrent.mT, None if projection is None else projection.mT
    for t, y in enumerate(outputs.unbind(1)):
        torch.mul(h, flags[t], out=entering[t])
        if not continues[t]:
            c = c * flags[t]
        z = gates[t].baddbmm_(entering[t], recurrent_t).add_(bias)  # [D, B, 4H]
        i, f, g, o = z.chunk(4, dim=-1)
        # tanh(x) = 2σ(2x) − 1, and σ takes a quarter of the time of tanh.
        g.mul_(2)
        z.sigmoid_()
        g.mul_(2).sub_(1)
        torch.mul(f, c, out=cells[t]).addcmul_(i, g)
        c = cells[t] if bounds.cell_clip is None else cells[t].clamp(-bounds.cell_clip, bounds.cell_clip)
        torch.mul(c, 2, out=squashed[t]).sigmoid_().mul_(2).sub_(1)
        torch.mul(squashed[t], o, out=hidden[t])
        if projection_t is None:
            y.copy_(hidden[t])
        elif bounds.projection_clip is None:
            torch.bmm(hidden[t], projection_t, out=y)
        else:
            torch.bmm(hidden[t], projection_t, out=projected[t])
            torch.clamp(projected[t], -bounds.projection_clip, bounds.projection_clip, out=y)
        h = y
    return outputs.to(dtypes[0]), h.to(dtypes[0], copy=True), c.clone(), window


def _backward(dy: Tensor, window: _SavedWindow, *, want_dx: bool) -> tuple[Tensor | None, list[Tensor | None]]:
    """dy [D, T, B, P] → dx [D, T, B, P_in] and the gradients of the weights, in the order of the arguments."""
    bounds, projection, saved = window.bounds, window.projection, window.buffers
    directions, time, batch, size = saved.cells.shape
    bound = None if projection is None else bounds.projection_clip
    arriving = dy.to(window.x.dtype, memory_format=torch.contiguous_format, copy=True)
    dh, dc = torch.zeros_like(arriving[:, 0]), torch.zeros_like(window.first_cell)
    dhidden, scratch = torch.empty_like(dc), torch.empty_like(dc)
    gates = saved.gates.new_empty(directions, batch, 4 * size)
    one = dc.new_ones(())
    for t in reversed(range(time)):
        step = arriving[:, t].add_(dh)
        if bound is not None:
            step.masked_fill_(saved.projected[:, t].abs() > bound, 0)
        if projection is None:
            dhidden = step
        else:
            torch.bmm(step, projection, out=dhidden)
        squashed, before = saved.squashed[:, t], saved.cells[:, t - 1] if t else window.first_cell
        if t and bounds.cell_clip is not None:
            before = before.clamp(-bounds.cell_clip, bounds.cell_clip)
        dz = saved.gates[:, t]
        i, f, g, o = gates.copy_(dz).chunk(4, dim=-1)
        torch.addcmul(one, squashed, squashed, value=-1, out=scratch).mul_(o)
        dc.addcmul_(dhidden, scratch)
        if bounds.cell_clip is not None:
            dc.masked_fill_(saved.cells[:, t].abs() > bounds.cell_clip, 0)
        # Overwrite the gates: first with their own derivatives, then times the gradient that arrives at each gate.
        torch.addcmul(gates, gates, gates, value=-1, out=dz)
        di, df, dg, do = dz.chunk(4, dim=-1)
        torch.addcmul(one, g, g, value=-1, out=dg)
        di.mul_(torch.mul(dc, g, out=scratch))
        dg.mul_(torch.mul(dc, i, out=scratch))
        do.mul_(torch.mul(dhidden, squashed, out=scratch))
        torch.mul(dc, before, out=scratch)
        df.mul_(scratch if window.continues[t] else scratch.mul_(window.keep[t]))
        if t:
            dc.mul_(f)
            torch.bmm(dz, window.recurrent, out=dh)
            if not window.continues[t]:
                dc.mul_(window.keep[t])
                dh.mul_(window.keep[t])
    flat = saved.gates.flatten(1, 2)  # [D, T·B, 4H]
    of_input, of_recurrent = (torch.bmm(flat.mT, values.flatten(1, 2)) for values in (window.x, saved.entering))
    of_projection = None if projection is None else torch.bmm(arriving.flatten(1, 2).mT, saved.hidden.flatten(1, 2))
    of_bias = flat.sum(dim=1)
    dtypes = iter(window.dtypes[1:])
    gradients: list[Tensor | None] = []
    for d in range(directions):
        gradients += [each[d].to(next(dtypes)) for each in (of_input, of_recurrent, of_bias)]
        gradients.append(None if of_projection is None else of_projection[d].to(next(dtypes)))
    dx = torch.bmm(flat, window.input).view_as(window.x).to(window.dtypes[0]) if want_dx else None
    return dx, gradients

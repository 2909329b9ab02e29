"""The windowed recurrence on a CUDA GPU: cuBLAS for the products of both directions, Triton for what is between them.

A step reads x and h side by side, [B, J], so that one product makes its gates, and in the backward pass one product the
gradients of both. The gates are saved before their activations, as the product gave them, and activated again in the
backward pass: that costs less than to store and read them, and the gradients are those of exactly the numbers of the
forward pass. A shape of window that comes again and again is recorded as two CUDA graphs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from elmokit.ops.optional_triton import triton
from elmokit.ops.weights import Bounds
from elmokit.ops.windows_triton import arrive, cell_backward, cell_forward, pass_on

ROWS = 8
"""Rows of a tile."""
COLUMNS = 64
"""Cells, or outputs, of a tile."""
SUMMED_ROWS = 8
"""Rows that a program of the backward pass goes through, summing the gradient of the bias."""
SUMMED_COLUMNS = 256
"""Cells of each of them."""
UNRECORDED = 4
"""Windows of a shape that are computed launch by launch, before its steps are recorded as CUDA graphs."""
SHAPES = 4
"""Shapes of windows that are remembered; a forgotten one gives its buffers back."""


class Loop:
    """The buffers of a window's steps, and the steps themselves, which allocate nothing and never wait for the GPU."""

    def __init__(self, x: Tensor, h: Tensor, c: Tensor, bounds: Bounds, *, projects: bool) -> None:
        (directions, time, batch, size_in), size, output = x.shape, c.shape[2], h.shape[2]
        real = torch.float64 if x.dtype == torch.float64 else torch.float32
        self.sizes, self.joint, self.bounds = (directions, time, batch, size, output), size_in + output, bounds
        self.clip = (bounds.projection_clip or 0.0) if projects else 0.0
        self.keep = x.new_empty(time, batch, dtype=real)
        self.matrix = x.new_empty(directions, 4 * size, self.joint)
        self.bias = x.new_empty(directions, 4 * size, dtype=real)
        self.projection = x.new_empty(directions, output, size) if projects else None
        self.joined = x.new_empty(directions, time, batch, self.joint)
        self.z = x.new_empty(directions, time, batch, 4 * size)
        self.cells = x.new_empty(directions, time + 1, batch, size, dtype=real)
        self.hidden = x.new_empty(directions, time, batch, size)
        self.projected = x.new_empty(directions, time, batch, output) if projects else self.hidden
        self.y = torch.empty_like(self.projected) if self.clip else self.projected
        self.graphs: tuple[torch.cuda.CUDAGraph, torch.cuda.CUDAGraph] | None = None
        # Where a window and the weights go, looked up once: to find the places again takes longer than to fill them.
        self.places = [self.joined[..., :size_in], self.keep, self.cells[:, 0]]
        for d in range(directions):
            self.places += [self.matrix[d, :, :size_in], self.matrix[d, :, size_in:], self.bias[d]]
            self.places += [] if self.projection is None else [self.projection[d]]
        self.first_keep, self.first_h = self.keep[0].unsqueeze(-1), self.joined[:, 0, :, size_in:]
        self.forget = self.bias[:, size : 2 * size]

    def fill(self, x: Tensor, keep: Tensor, h: Tensor, c: Tensor, weights: tuple[Tensor | None, ...]) -> None:
        """Bring in a window and the weights, in the dtypes of the computation."""
        torch._foreach_copy_(self.places, [x, keep, c, *(w for w in weights if w is not None)])
        self.forget.add_(self.bounds.forget_bias)
        torch.mul(h, self.first_keep.to(h.dtype), out=self.first_h)

    def forward(self) -> None:
        """All steps: joined, cells[0] → z, cells, hidden, projected, y."""
        directions, time, batch, size, output = self.sizes
        over_cells, over_outputs = _grid(size, batch, directions), _grid(output, batch, directions)
        joined, z, hidden, projected = (b.unbind(1) for b in (self.joined, self.z, self.hidden, self.projected))
        matrix, projection = self.matrix.mT, None if self.projection is None else self.projection.mT
        for t in range(time):
            torch.bmm(joined[t], matrix, out=z[t])
            cell_forward[over_cells](
                *(self.z, self.bias, self.keep, self.cells, self.hidden, t, time, batch, size),
                *(self.bounds.cell_clip or 0.0, ROWS, COLUMNS),
            )
            if projection is not None:
                torch.bmm(hidden[t], projection, out=projected[t])
            pass_on[over_outputs](
                *(self.projected, self.keep, self.y, self.joined, t, time, batch, output, self.joint),
                *(self.clip, ROWS, COLUMNS),
            )

    def prepare_backward(self) -> None:
        """The buffers that only the backward pass needs."""
        directions, _, batch, size, _ = self.sizes
        self.dy = torch.empty_like(self.y)
        self.djoined = torch.empty_like(self.joined)
        self.dc = self.cells.new_empty(directions, batch, size)
        self.dhidden = self.y.new_empty(directions, batch, size)
        self.arriving = self.dhidden.unsqueeze(1) if self.projection is None else torch.empty_like(self.dy)
        self.dbias = self.dc.new_empty(directions, triton.cdiv(batch, SUMMED_ROWS), 4 * size)

    def backward(self) -> None:
        """All steps, last to first: dy → djoined, arriving, dbias, and the gradients of the gates in place of z."""
        directions, time, batch, size, output = self.sizes
        over_cells = (triton.cdiv(size, SUMMED_COLUMNS), self.dbias.shape[1], directions)
        over_outputs, slots = _grid(output, batch, directions), self.arriving.shape[1]
        arriving, z, djoined = (buffer.unbind(1) for buffer in (self.arriving, self.z, self.djoined))
        self.dbias.zero_()
        for t in reversed(range(time)):
            arrive[over_outputs](
                *(self.dy, self.djoined, self.projected, self.keep, self.arriving, t, min(t, slots - 1)),
                *(time, slots, batch, output, self.joint, self.clip, ROWS, COLUMNS),
            )
            if self.projection is not None:
                torch.bmm(arriving[t], self.projection, out=self.dhidden)
            cell_backward[over_cells](
                *(self.z, self.bias, self.keep, self.cells, self.dhidden, self.dc, self.dbias),
                *(t, time, batch, size, self.bounds.cell_clip or 0.0, SUMMED_ROWS, SUMMED_COLUMNS),
                num_warps=2,
            )
            torch.bmm(z[t], self.matrix, out=djoined[t])

    def capture(self) -> None:
        """Record both passes, to be started by one call each: a step's kernels take less time than their launches."""
        self.prepare_backward()
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # nothing may be compiled or loaded while recording
            self.forward()
            self.dy.zero_()
            self.backward()
        torch.cuda.current_stream().wait_stream(aside)
        graphs = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        for graph, steps in zip(graphs, (self.forward, self.backward), strict=True):
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                steps()
        self.graphs = graphs


class SavedLoop:
    """A loop between its forward and its backward pass; a recorded one goes back to the others when it is done with."""

    def __init__(self, loop: Loop, idle: list[Loop] | None, dtypes: list[torch.dtype]) -> None:
        self.loop, self.idle, self.dtypes = loop, idle, dtypes

    def release(self) -> None:
        """Let another window of this shape have the buffers."""
        if self.idle is not None:
            self.idle.append(self.loop)
            self.idle = None

    def __del__(self) -> None:
        self.release()


@dataclass
class _Shape:
    """The recorded loops of one shape of window that are not in use, and how many windows of it there have been."""

    windows: int = 0
    idle: list[Loop] = field(default_factory=list)


_shapes: OrderedDict[Hashable, _Shape] = OrderedDict()


def recorded() -> int:
    """How many recorded loops wait for a window."""
    return sum(len(shape.idle) for shape in _shapes.values())


def forget() -> None:
    """Give back the buffers of all recorded loops that are not in use."""
    _shapes.clear()


def _take(x: Tensor, h: Tensor, c: Tensor, bounds: Bounds, *, projects: bool) -> tuple[Loop, list[Loop] | None]:
    """A loop for such a window, and where it goes back to: shapes that come again and again are recorded."""
    key = (x.shape, h.shape, c.shape, x.dtype, x.device, bounds, projects)
    shape = _shapes.setdefault(key, _Shape())
    _shapes.move_to_end(key)
    if len(_shapes) > SHAPES:
        _shapes.popitem(last=False)
    shape.windows += 1
    if shape.windows <= UNRECORDED or torch.cuda.is_current_stream_capturing():
        return Loop(x, h, c, bounds, projects=projects), None
    return shape.idle.pop() if shape.idle else Loop(x, h, c, bounds, projects=projects), shape.idle


def forward(
    x: Tensor, keep: Tensor, h: Tensor, c: Tensor, bounds: Bounds, weights: tuple[Tensor | None, ...]
) -> tuple[Tensor, Tensor, Tensor, SavedLoop]:
    """x [D, T, B, P_in], keep [T, B], h [D, B, P], c [D, B, H] → y [D, T, B, P], the last h and c."""
    with torch.cuda.device(x.device):
        loop, idle = _take(x, h, c, bounds, projects=weights[3] is not None)
        if idle is not None and loop.graphs is None:
            loop.fill(x, keep, h.to(x.dtype), c, weights)
            loop.capture()
        loop.fill(x, keep, h.to(x.dtype), c, weights)
        if loop.graphs is None:
            loop.forward()
        else:
            loop.graphs[0].replay()
    saved = SavedLoop(loop, idle, [w.dtype for w in weights if w is not None])
    # Another tensor over the same numbers: what is saved must not refer to the output, which refers to it.
    y = loop.y.detach() if idle is None else loop.y.clone()
    return y, loop.y[:, -1].clone(), loop.cells[:, -1].clone(), saved


def backward(dy: Tensor, saved: SavedLoop, *, want_dx: bool) -> tuple[Tensor | None, list[Tensor | None]]:
    """dy [D, T, B, P] → dx [D, T, B, P_in] and the gradients of the weights in their order."""
    loop, size_in = saved.loop, saved.loop.joint - dy.shape[3]
    with torch.cuda.device(dy.device):
        if loop.graphs is None:
            loop.prepare_backward()
        loop.dy.copy_(dy)
        if loop.graphs is None:
            loop.backward()
        else:
            loop.graphs[1].replay()
    dmatrix = bmm_float32(loop.z.flatten(1, 2).mT, loop.joined.flatten(1, 2))  # [D, 4H, J]
    of_projection = None
    if loop.projection is not None:
        of_projection = bmm_float32(loop.arriving.flatten(1, 2).mT, loop.hidden.flatten(1, 2))
    parts = [*torch.split(dmatrix, [size_in, dy.shape[3]], dim=2), loop.dbias.sum(dim=1)]
    parts += [] if of_projection is None else [of_projection]
    dtypes = iter(saved.dtypes)
    gradients: list[Tensor | None] = []
    for of_direction in zip(*(part.unbind() for part in parts), strict=True):
        gradients += [part.to(next(dtypes)) for part in of_direction]
        gradients += [None] if of_projection is None else []
    dx = loop.djoined[..., :size_in].clone() if want_dx else None
    saved.release()
    return dx, gradients


def bmm_float32(one: Tensor, other: Tensor) -> Tensor:
    """[D, N, K] · [D, K, M] → [D, N, M], of float16 or bfloat16 without rounding the sums to them."""
    if one.dtype in (torch.float32, torch.float64):
        return torch.bmm(one, other)
    if not hasattr(torch.ops.aten.bmm, "dtype"):  # before torch 2.8
        return torch.bmm(one, other).float()
    return torch.bmm(one, other, out_dtype=torch.float32)


def _grid(columns: int, rows: int, directions: int) -> tuple[int, int, int]:
    return triton.cdiv(columns, COLUMNS), triton.cdiv(rows, ROWS), directions

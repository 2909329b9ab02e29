"""The windowed recurrence on a CUDA GPU: cuBLAS for the products of both directions, Triton kernels between them.

A step reads x and h side by side, [B, J], so that one product computes its gates, and in the backward pass one product
computes the gradients of both. The gates are saved before their activations, and the backward pass applies those again:
that takes less time than to store and read the results, and gives the gradients of exactly the forward pass's numbers.
The steps for a frequent shape of window are recorded as two CUDA graphs.
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
"""Cells or outputs of a tile."""
SUMMED_ROWS = 8
"""Rows over which a program of the backward pass sums the gradient of the bias."""
SUMMED_COLUMNS = 256
"""Cells in each of these rows."""
UNRECORDED = 4
"""The first windows of a shape, which are computed launch by launch; then the steps are recorded as CUDA graphs."""
SHAPES = 4
"""The most shapes of windows whose loops are cached."""


class Loop:
    """The buffers of a window's steps, and the steps, which allocate no memory and never wait for the GPU."""

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
        # The destinations of a window and of the weights; creating these views takes longer than filling them.
        self.destinations = [self.joined[..., :size_in], self.keep, self.cells[:, 0]]
        for d in range(directions):
            self.destinations += [self.matrix[d, :, :size_in], self.matrix[d, :, size_in:], self.bias[d]]
            self.destinations += [] if self.projection is None else [self.projection[d]]
        self.first_keep, self.first_h = self.keep[0].unsqueeze(-1), self.joined[:, 0, :, size_in:]
        self.forget = self.bias[:, size : 2 * size]

    def fill(self, x: Tensor, keep: Tensor, h: Tensor, c: Tensor, weights: tuple[Tensor | None, ...]) -> None:
        """Copy a window and the weights to the buffers, in the dtypes of the computation."""
        torch._foreach_copy_(self.destinations, [x, keep, c, *(w for w in weights if w is not None)])
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
        """Allocate the buffers that only the backward pass needs."""
        directions, _, batch, size, _ = self.sizes
        self.dy = torch.empty_like(self.y)
        self.djoined = torch.empty_like(self.joined)
        self.dc = self.cells.new_empty(directions, batch, size)
        self.dhidden = self.y.new_empty(directions, batch, size)
        self.arriving = self.dhidden.unsqueeze(1) if self.projection is None else torch.empty_like(self.dy)
        self.dbias = self.dc.new_empty(directions, triton.cdiv(batch, SUMMED_ROWS), 4 * size)

    def backward(self) -> None:
        """All steps, last to first: dy → djoined, arriving and dbias; the gradients of the gates overwrite z."""
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
        """Record each pass as a graph with one launch: the kernels of a step take less time than their launches."""
        self.prepare_backward()
        side_stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):  # compile and load all kernels, which is not possible while recording
            self.forward()
            self.dy.zero_()
            self.backward()
        torch.cuda.current_stream().wait_stream(side_stream)
        graphs = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        for graph, steps in zip(graphs, (self.forward, self.backward), strict=True):
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                steps()
        self.graphs = graphs


class SavedLoop:
    """A loop between its forward and its backward pass; after that, a recorded loop returns to the idle ones."""

    def __init__(self, loop: Loop, idle: list[Loop] | None, dtypes: list[torch.dtype]) -> None:
        self.loop, self.idle, self.dtypes = loop, idle, dtypes

    def release(self) -> None:
        """Return a recorded loop to the idle ones, for the next window of its shape."""
        if self.idle is not None:
            self.idle.append(self.loop)
            self.idle = None

    def __del__(self) -> None:
        self.release()


@dataclass
class _Shape:
    """The number of windows of one shape so far, and its recorded loops that are not in use."""

    windows: int = 0
    idle: list[Loop] = field(default_factory=list)


_shapes: OrderedDict[Hashable, _Shape] = OrderedDict()


def recorded() -> int:
    """The number of recorded loops that are not in use."""
    return sum(len(shape.idle) for shape in _shapes.values())


def forget() -> None:
    """Free the buffers of all recorded loops that are not in use."""
    _shapes.clear()


def _acquire(x: Tensor, h: Tensor, c: Tensor, bounds: Bounds, *, projects: bool) -> tuple[Loop, list[Loop] | None]:
    """A loop for a window of this shape, and the list that it returns to, or None if it is not to be recorded."""
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
        loop, idle = _acquire(x, h, c, bounds, projects=weights[3] is not None)
        if idle is not None and loop.graphs is None:
            loop.fill(x, keep, h.to(x.dtype), c, weights)
            loop.capture()
        loop.fill(x, keep, h.to(x.dtype), c, weights)
        if loop.graphs is None:
            loop.forward()
        else:
            loop.graphs[0].replay()
    saved = SavedLoop(loop, idle, [w.dtype for w in weights if w is not None])
    # Another tensor with the same memory: the output refers to the saved loop, so the loop must not refer to it.
    y = loop.y.detach() if idle is None else loop.y.clone()
    return y, loop.y[:, -1].clone(), loop.cells[:, -1].clone(), saved


def backward(dy: Tensor, saved: SavedLoop, *, want_dx: bool) -> tuple[Tensor | None, list[Tensor | None]]:
    """dy [D, T, B, P] → dx [D, T, B, P_in] and the gradients of the weights, in the order of the arguments."""
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
    """[D, N, K] · [D, K, M] → [D, N, M]; for float16 and bfloat16 inputs, the result is float32."""
    if one.dtype in (torch.float32, torch.float64):
        return torch.bmm(one, other)
    if not hasattr(torch.ops.aten.bmm, "dtype"):  # before torch 2.8
        return torch.bmm(one, other).float()
    return torch.bmm(one, other, out_dtype=torch.float32)


def _grid(columns: int, rows: int, directions: int) -> tuple[int, int, int]:
    return triton.cdiv(columns, COLUMNS), triton.cdiv(rows, ROWS), directions

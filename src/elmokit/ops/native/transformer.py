"""All blocks of a Transformer in one call of the compiled library."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from elmokit.errors import ElmoError
from elmokit.ops.attention import Segments, rotary
from elmokit.ops.int8 import Int8Matrix
from elmokit.ops.native.binding import Block, Library, Transformer, library
from elmokit.ops.native.cores import most_threads
from elmokit.ops.native.packed import PackedMatrix, PackedMemory, check_on_cpu, packed, packed_bytes
from elmokit.ops.native.tensor_cache import TensorCache
from elmokit.ops.weights import BlockStack, BlockWeights, HeadWeights

LEAST_PRODUCTS = 1_000_000
"""Multiplications in a block that justify another thread."""
FEW_TOKENS = 96
"""Tokens per thread; with fewer, all threads share the matrices instead of the tokens."""
MANY_TOKENS = 2048
"""Tokens that a token sees; with more, separate memory for each thread would be too large."""
MOST_PARTS = 4
"""Scales of an int8 input row of `out` or `down`: some heads, and some products with gelu, have much larger numbers
than the others."""
SMALL_COLUMN = 0.5
"""A column of `out` that is smaller than this times the median belongs to a head with large, almost constant inputs:
those inputs are rounded twice."""
MOST_REPEATED = 256
"""The most inputs that are rounded twice (MOST_REPEATS in source/matrix.h)."""
MOST_LANES = 16
"""Numbers in the widest vector register."""
MOST_HEAD_SIZE = 4096
"""Scores grow with the square root of a head's size; for larger heads, e to the score may overflow."""


def reason_against(x: Tensor, blocks: Sequence[BlockWeights]) -> str | None:
    """Why the compiled kernels do not support these sizes, or None."""
    size, heads = x.shape[1], blocks[0].n_heads if blocks else 1
    if size % (2 * heads):
        return f"the compiled kernels need heads of an even size, got {size} / {heads}"
    if size // heads > MOST_HEAD_SIZE:
        return f"the compiled kernels take heads of at most {MOST_HEAD_SIZE}, got {size // heads}"
    return None


def transformer_native(
    x: Tensor,
    segments: Segments,
    blocks: Sequence[BlockWeights],
    *,
    window: int,
    outputs: Sequence[int],
    head: HeadWeights | None = None,
) -> Tensor:
    """`elmokit.ops.transformer.transformer` on the CPU, x [N, P] in float32 → [len(outputs), N, P]: no gradients."""
    kernels = library()
    stack = blocks if isinstance(blocks, BlockStack) else BlockStack(blocks)
    plan = _plans.of(kernels, stack.tensors, stack.int8, lambda: _TransformerPlan(kernels, stack))
    plan.check(x, segments, window, outputs)
    tokens, size = x.shape
    x = x.detach().contiguous()
    distinct = sorted(set(outputs))
    y = torch.empty(len(distinct) + (head is not None), tokens, size, dtype=x.dtype)
    packed_head = (
        None if head is None else _heads.of(kernels, head.tensors(), size, lambda: _HeadPlan(kernels, head, plan))
    )
    longest = max((stop - start for start, stop in pairwise(segments.starts)), default=0)
    cos, sin = _rotations(1 << max(longest - 1, 0).bit_length(), plan.head_size)
    count = len(segments.directions)
    threads = min(most_threads(), max(1, tokens * plan.products // LEAST_PRODUCTS))
    index_of = {number: index for index, number in enumerate(distinct)}
    job = Transformer(
        size=size,
        inner=plan.inner,
        heads=plan.heads,
        window=min(window, longest),
        int8=plan.int8,
        max_parts=MOST_PARTS + 1,
        blocks=plan.blocks,
        n_blocks=len(blocks),
        x=x.data_ptr(),
        starts=(ctypes.c_int64 * (count + 1))(*segments.starts),
        directions=(ctypes.c_int64 * count)(*segments.directions),
        segments=count,
        cos=cos.data_ptr(),
        sin=sin.data_ptr(),
        output_index=(ctypes.c_int64 * (len(blocks) + 1))(*(index_of.get(n, -1) for n in range(len(blocks) + 1))),
        y=y.data_ptr(),
        head=None if packed_head is None else ctypes.pointer(packed_head.matrix.matrix),
        head_bias=None if packed_head is None else packed_head.bias.data_ptr(),
        prediction=None if packed_head is None else y[-1].data_ptr(),
        threads=threads,
        shared=tokens < FEW_TOKENS * threads or min(longest, window) > MANY_TOKENS,
    )
    if kernels.transformer(ctypes.byref(job)):
        raise MemoryError(f"there is not enough memory for {tokens} tokens")
    if distinct == list(outputs):
        return y
    return y[[*(index_of[number] for number in outputs), *range(len(distinct), len(y))]]


class _TransformerPlan:
    """The weights of all blocks in the structures of the compiled library.

    The library trusts every size and address, so `check` must refuse everything that does not fit.
    """

    def __init__(self, kernels: Library, blocks: Sequence[BlockWeights]) -> None:
        self._referenced: list[object] = []  # objects that the structures point to
        first = blocks[0] if blocks else None
        self.heads = 1 if first is None else first.n_heads
        self.size: int | None = None if first is None else first.down.shape[0]
        self.inner = 1 if first is None else first.down.shape[1]
        self.int8 = first is not None and isinstance(first.qkv, Int8Matrix)
        self._fits = all(self._fit(weights) for weights in blocks)
        packed_blocks = list(self._pack(kernels, blocks)) if self._fits and blocks else []
        self.blocks = (Block * len(packed_blocks))(*packed_blocks)
        self.products = 0 if self.size is None else self.size * (4 * self.size + 3 * self.inner)
        self.head_size = 2 if self.size is None else self.size // self.heads

    def check(self, x: Tensor, segments: Segments, window: int, outputs: Sequence[int]) -> None:
        """Refuse inputs that do not fit."""
        if x.dtype != torch.float32 or not x.is_cpu:
            raise ElmoError(f"the compiled kernels take float32 on the CPU, got {x.dtype} on {x.device}")
        if not self._fits or x.dim() != 2 or self.size not in (None, x.shape[1]) or self.head_size % 2:
            raise ElmoError(f"the blocks do not fit inputs of {list(x.shape[1:])} and {self.heads} heads of even size")
        starts = list(segments.starts)
        if not starts or starts[0] != 0 or starts[-1] != len(x) or starts != sorted(starts):
            raise ElmoError(f"the starts of segments must rise from 0 to {len(x)}, got {starts}")
        if len(segments.directions) != len(starts) - 1 or not {0, 1, 2}.issuperset(segments.directions):
            raise ElmoError(
                f"{len(starts) - 1} segments must have one direction each (0, 1 or 2), got {list(segments.directions)}"
            )
        if window < 0 or not set(range(len(self.blocks) + 1)).issuperset(outputs):
            raise ElmoError(
                f"window must be at least 0, and outputs must be from 0 to the {len(self.blocks)} blocks, "
                f"got {window} and {list(outputs)}"
            )

    def _fit(self, weights: BlockWeights) -> bool:
        """Whether a block has the same sizes and the same kind of weights as the first one."""
        size, inner = self.size, self.inner
        assert size is not None  # there is a block
        matrices = (weights.qkv, weights.out, weights.up, weights.down)
        shapes = [tuple(part.shape) for part in (*matrices, weights.gate_weight, weights.gate_bias)]
        expected = [(3 * size, size), (size, size), (2 * inner, size), (size, inner), (self.heads, size), (self.heads,)]
        for part in matrices:
            if isinstance(part, Int8Matrix) != self.int8:
                return False
            if isinstance(part, Int8Matrix) and part.columns is not None and part.columns.shape != part.shape[1:]:
                return False
        return shapes == expected

    def _pack(self, kernels: Library, blocks: Sequence[BlockWeights]) -> Iterator[Block]:
        """The packed blocks; their matrices are in memory in the order in which they are read."""
        out, down = (_part_count(inputs) if self.int8 else 1 for inputs in (self.size or 1, self.inner))
        matrices: list[list[tuple[Tensor | Int8Matrix, dict[str, Any]]]] = [
            [
                (weights.qkv, {}),
                (weights.out, {"parts": out, "repeated": _repeated(weights.out, out)}),
                (weights.up, {"gates": 2}),
                (weights.down, {"parts": down}),
            ]
            for weights in blocks
        ]
        size = sum(packed_bytes(kernels, matrix, **layout) for four in matrices for matrix, layout in four)
        memory = PackedMemory(kernels, size)
        for weights, four in zip(blocks, matrices, strict=True):
            check_on_cpu(*weights.tensors())
            packed = [PackedMatrix(kernels, matrix, **layout, memory=memory) for matrix, layout in four]
            gate = [part.detach().float().contiguous() for part in (weights.gate_weight, weights.gate_bias)]
            self._referenced += [*packed, *gate]
            yield Block(*(each.matrix for each in packed), *(part.data_ptr() for part in gate))


class _HeadPlan:
    """The weights of a head in the structures of the compiled library."""

    def __init__(self, kernels: Library, head: HeadWeights, plan: _TransformerPlan) -> None:
        outputs, inputs = head.weight.shape
        fits = plan.size in (None, inputs) and outputs <= inputs and head.bias.shape == (outputs,)
        if not fits or isinstance(head.weight, Int8Matrix) != plan.int8:
            raise ElmoError(f"a head {list(head.weight.shape)} does not fit blocks of {plan.size} numbers")
        check_on_cpu(*head.tensors())
        self.matrix = packed(kernels, head.weight, factors=True)
        self.bias = F.pad(head.bias.detach().float(), (0, -outputs % MOST_LANES))


def _part_count(inputs: int) -> int:
    """The number of parts of a row of `inputs` numbers; the size of a part is a multiple of 4."""
    size = 4 * -(-inputs // (4 * MOST_PARTS))
    return -(-inputs // size)


def _repeated(matrix: Tensor | Int8Matrix, parts: int) -> list[int]:
    """The small columns of a matrix, whose inputs are rounded twice; none if there are too many for one part."""
    if not isinstance(matrix, Int8Matrix) or matrix.columns is None or len(matrix.columns) % (4 * parts):
        return []
    found: list[int] = (matrix.columns < SMALL_COLUMN * matrix.columns.median()).nonzero()[:, 0].tolist()
    return found if len(found) <= min(MOST_REPEATED, len(matrix.columns) // parts) else []


_plans = TensorCache[_TransformerPlan]()
_heads = TensorCache[_HeadPlan]()


@cache
def _rotations(count: int, size: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [count, size / 2] of the first positions; `count` is a power of 2, so that few are cached."""
    return rotary(torch.arange(count), size, torch.float32, torch.device("cpu"))

"""All Transformer blocks on a CUDA GPU, for inference; small batches as CUDA graphs.

A block is four of cuBLAS's products and the kernels of `elmokit.ops.gpu.block_kernels` between them; the residual sum
is float32 in every dtype. The kernels compute a sentence in the same way in any batch, but cuBLAS may sum in another
order for another number of tokens. Batches of up to `RECORDED_TOKENS` tokens are padded to one of a few sizes, and each
size has its own graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from elmokit.ops.attention import Segments, rotary
from elmokit.ops.gpu.packed import Graphs, cached_model, finish, float32_precision
from elmokit.ops.int8 import Int8Matrix
from elmokit.ops.optional_triton import triton
from elmokit.ops.weights import BlockWeights

RECORDED_TOKENS = 8192
"""Batches of at most this many tokens are recorded; the kernels of larger ones take longer than their launches."""
LEAST_TOKENS, LEAST_TILES = 32, 32
"""The smallest sizes that batches are padded to."""
BLOCK = 32
"""Queries of a tile, and keys that it reads at once; most sentences are one tile."""
GATE_ROWS = 16
"""The number of gate rows, after those of the values, is a multiple of this; otherwise cuBLAS is slower."""
WIDEST = 16_384
"""The longest row that the kernels can normalise."""

FURTHEST = 1 << 30
"""A window larger than any text; its sum with a token's index is still int32."""


def reason_against(dtype: torch.dtype, blocks: Sequence[BlockWeights]) -> str | None:
    """Why the kernels do not support inputs of this dtype and these blocks, or None."""
    if any(isinstance(matrix, Int8Matrix) for weights in blocks for matrix in weights):
        return "int8 weights are only for the CPU"
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"the kernels do not compute in {str(dtype).removeprefix('torch.')}"
    size, inner = blocks[0].down.shape
    if max(size, inner) > WIDEST:
        return f"the kernels take rows of at most {WIDEST} numbers, got {max(size, inner)}"
    head = size // blocks[0].n_heads
    return None if head <= 128 else f"the kernels take at most 128 numbers per head, got {head}"


def description(x: Tensor) -> str:
    """The kernels that compute inputs like x [N, P], in words."""
    recorded = "recorded as a CUDA graph" if len(x) <= RECORDED_TOKENS else "launched one by one"
    return f"cuBLAS's products, and kernels between them, {recorded}"


def transformer_cuda(
    x: Tensor, segments: Segments, blocks: Sequence[BlockWeights], *, window: int, outputs: Sequence[int]
) -> Tensor:
    """`elmokit.ops.transformer.transformer` on the GPU; x has at least one token."""
    with torch.cuda.device(x.device), torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        model, outputs = packed_blocks(blocks, x.dtype), tuple(outputs)
        window = min(window, FURTHEST)
        count, size = len(x), bucket(len(x))
        tiles = tiles_of(segments, fill=count <= RECORDED_TOKENS)
        if count <= RECORDED_TOKENS and not torch.cuda.is_current_stream_capturing():
            found = model.graphs.run(
                (size, len(tiles), window, outputs, float32_precision()),
                lambda: TransformerGraph(model, size, len(tiles), window, outputs),
                lambda graph: graph(x, tiles),
            )
            if found is not None:
                return found
        angles = model.angles(max(RECORDED_TOKENS, segments.longest))
        on_device = tiles.pin_memory().to(x.device, non_blocking=True)
        return run_blocks(model, filled(x, size), on_device, angles, window, outputs)[:, :count].contiguous()


def bucket(tokens: int) -> int:
    """The number of tokens that a batch is padded to: four sizes from one power of 2 to the next; large sizes stay."""
    if tokens > RECORDED_TOKENS:
        return tokens
    step = max(LEAST_TOKENS, (1 << (tokens - 1).bit_length()) // 8)
    return -(-tokens // step) * step


def filled(x: Tensor, size: int) -> Tensor:
    """x [N, P] padded with rows of zeros → [size, P]; no other row depends on them."""
    if len(x) == size:
        return x.contiguous()
    whole = x.new_zeros(size, x.shape[1])
    whole[: len(x)] = x
    return whole


def tiles_of(segments: Segments, *, fill: bool) -> Tensor:
    """int32 [tiles, 4] on the CPU: the start and end of a tile's segment, its first query, its segment's direction.

    With `fill`, the number of tiles is padded to a power of 2 with empty tiles.
    """
    starts = np.asarray(segments.starts, np.int64)
    counts = -(-np.diff(starts) // BLOCK)
    before = counts.cumsum() - counts
    total = int(counts.sum())
    rows = 1 << (max(total, LEAST_TILES) - 1).bit_length() if fill else total
    tiles = np.zeros((rows, 4), np.int32)
    segment = np.repeat(np.arange(len(counts)), counts)
    tiles[:total, 0], tiles[:total, 1] = starts[segment], starts[segment + 1]
    tiles[:total, 2] = starts[segment] + (np.arange(total) - before[segment]) * BLOCK
    tiles[:total, 3] = np.asarray(segments.directions, np.int32)[segment]
    return torch.from_numpy(tiles)


@dataclass(frozen=True, eq=False)
class PackedBlock:
    """The weights of a block in one dtype; the rows of the gates follow those of the values."""

    qkv: Tensor  # [3P + gates, P]
    out: Tensor  # [P, P]
    up: Tensor  # [2I, P]
    down: Tensor  # [P, I]
    gate_bias: Tensor  # float32 [H]

    @classmethod
    def of(cls, weights: BlockWeights, dtype: torch.dtype) -> PackedBlock:
        """The weights in the layout of the kernels."""
        qkv, out, up, down, gate = (m.detach().to(dtype).contiguous() for m in weights[:5] if isinstance(m, Tensor))
        empty = gate.new_zeros(-len(gate) % GATE_ROWS, gate.shape[1])
        return cls(torch.cat([qkv, gate, empty]), out, up, down, weights.gate_bias.detach().float())


class PackedBlocks:
    """A model's blocks in one dtype, and their graphs."""

    def __init__(self, blocks: Sequence[BlockWeights], dtype: torch.dtype) -> None:
        self.blocks = [PackedBlock.of(weights, dtype) for weights in blocks]
        self.n_heads = blocks[0].n_heads
        self.dtype, self.device = dtype, self.blocks[0].qkv.device
        self.graphs: Graphs[TransformerGraph] = Graphs()

    @property
    def size(self) -> int:
        """P."""
        return self.blocks[0].down.shape[0]

    def angles(self, longest: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines for sentences of up to this many tokens."""
        return _angles(1 << (longest - 1).bit_length(), self.size // self.n_heads, self.device)


@cache
def _angles(count: int, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines [count, size / 2] at the first positions, float32."""
    found = rotary(torch.arange(count), size, torch.float32, device)
    finish(device)
    return found


def packed_blocks(blocks: Sequence[BlockWeights], dtype: torch.dtype) -> PackedBlocks:
    """The model's blocks in this dtype."""
    tensors = [m for weights in blocks for m in weights if isinstance(m, Tensor)]
    return cached_model(tensors, dtype, lambda: PackedBlocks(blocks, dtype))


def run_blocks(
    model: PackedBlocks,
    x: Tensor,
    tiles: Tensor,
    angles: tuple[Tensor, Tensor],
    window: int,
    outputs: Sequence[int],
) -> Tensor:
    """x [N, P], tiles [tiles, 4] → [len(outputs), N, P]; rows that are in no tile are arbitrary."""
    from elmokit.ops.gpu import block_kernels as kernels

    (count, size), heads = x.shape, model.n_heads
    found = x.new_empty(len(outputs), count, size)
    index_of = {number: index for index, number in enumerate(outputs)}
    total, spare = x.new_empty(count, size, dtype=torch.float32), torch.empty_like(x)
    attended = torch.empty_like(x)
    inner = x.new_empty(count, model.blocks[0].down.shape[1])
    of_size, of_inner = _rows(size), _rows(inner.shape[1])
    grid, inner_grid = (triton.cdiv(count, of_size[0]),), (triton.cdiv(count, of_inner[0]),)
    head = size // heads
    scale = math.log2(math.e) / math.sqrt(head)
    shape = (heads, head, model.blocks[0].qkv.shape[0], _power(head // 2), _power(head), BLOCK)
    y, layer = spare, found[index_of[0]] if 0 in index_of else attended
    kernels.norm_tokens[grid](x, total, layer, y, count, size, *of_size)
    for number, block in enumerate(model.blocks[: max(outputs)], start=1):
        qkv = torch.mm(y, block.qkv.mT)
        kernels.attend[(len(tiles), heads)](
            *(qkv, block.gate_bias, *angles, tiles, attended, window, scale, *shape), num_warps=4, num_stages=1
        )
        kernels.norm_rows[grid](attended, count, size, *of_size)
        kernels.add_norm[grid](total, torch.mm(attended, block.out.mT), spare, count, size, *of_size)
        kernels.gelu_norm[inner_grid](torch.mm(spare, block.up.mT), inner, count, inner.shape[1], *of_inner)
        # An output is also the input of the next block.
        y = found[index_of[number]] if number in index_of else spare
        kernels.add_norm[grid](total, torch.mm(inner, block.down.mT), y, count, size, *of_size)
    for index, number in enumerate(outputs):
        if index_of[number] != index:
            found[index] = found[index_of[number]]
    return found


def _rows(size: int) -> tuple[int, int]:
    """The number of rows that a program computes, and the power of 2 that a row of this size is padded to."""
    columns = _power(size)
    return max(1, min(4, 4096 // columns)), columns


def _power(size: int) -> int:
    """The smallest power of 2 that is at least `size` and 16; tl.dot needs at least 16."""
    return max(16, 1 << (size - 1).bit_length())


class TransformerGraph:
    """The blocks for one size of batch, recorded as a graph, with the memory that it reads and writes."""

    def __init__(self, model: PackedBlocks, size: int, tiles: int, window: int, outputs: Sequence[int]) -> None:
        device = model.device
        self.x = torch.zeros(size, model.size, dtype=model.dtype, device=device)
        self.tiles = torch.zeros(tiles, 4, dtype=torch.int32, device=device)
        self.angles = model.angles(RECORDED_TOKENS)

        def run() -> Tensor:
            return run_blocks(model, self.x, self.tiles, self.angles, window, outputs)

        self.graph, self.out = model.graphs.record(run, device)

    def __call__(self, x: Tensor, tiles: Tensor) -> Tensor:
        """Copy a batch to the graph's memory, run the graph, and return a copy of the results."""
        self.tiles.copy_(tiles.pin_memory(), non_blocking=True)
        self.x[: len(x)].copy_(x)
        self.graph.replay()
        return self.out[:, : len(x)].clone()

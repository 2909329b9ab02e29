"""All steps of a layer for a few rows as one kernel, whose blocks keep the weights: see persistent.cu."""

from __future__ import annotations

import ctypes
import logging
from functools import lru_cache
from importlib.resources import files

import torch
from torch import Tensor

from elmokit.errors import ElmoError
from elmokit.ops.gpu import nvrtc
from elmokit.ops.gpu.packed import Packed, PackedLayer, finish, unpaired
from elmokit.ops.weights import Bounds

log = logging.getLogger(__name__)

ROWS = 32
"""Rows of a batch that the kernel takes at most."""
WARPS = 8
COUNTERS = 32
"""Numbers between two directions' counters, which lie in cache lines of their own."""


class PersistentLayer:
    """A layer's weights in the order in which the kernel's threads hold them."""

    def __init__(self, layer: PackedLayer) -> None:
        directions, gates, _ = layer.matrix.shape
        size, output = gates // 4, layer.output_size
        # tile (i f | g o), low or high rows of it, group of cells, cell, step, thread of four, half, number
        split = torch.stack([unpaired(matrix) for matrix in layer.of_h])
        split = split.view(directions, 2, 2, size // 8, 8, output // 16, 4, 2, 2)
        self.gates = split.permute(0, 3, 5, 1, 4, 6, 7, 2, 8).contiguous()
        # group of outputs, output, two steps, thread of four, which of the two, half, number
        outputs = layer.projection.view(directions, output // 8, 8, size // 32, 4, 2, 2, 2)
        self.projection = outputs.permute(0, 1, 3, 5, 2, 4, 6, 7).contiguous()
        self.bias = layer.bias
        self.sizes = (directions, size, output)

    def run(
        self, products: Tensor, states: Tensor, cells: Tensor, hidden: Tensor, running: Tensor, bounds: Bounds
    ) -> None:
        """products [D, T, B, 4H], states [D, T + 1, B, P] as they lie, cells and hidden [D, B, H], running [T]."""
        directions, size, output = self.sizes
        steps, batch = products.shape[1:3]
        blocks = blocks_of(size, output)
        tiles = _tiles(batch)
        # The counters, and with one tile the pairs that blocks send each other.
        mail = 2 * directions * batch * (size + output) // 2 if tiles == 1 else 0
        zeros = torch.zeros(directions * COUNTERS + mail, dtype=torch.int32, device=products.device)
        kernel = _kernel(size, output, tiles, cells.device, states.dtype)
        kernel.launch(
            directions * blocks,
            WARPS * 32,
            (
                *(products, self.gates, self.projection, self.bias, states),
                *(ctypes.c_longlong(states.stride(0)), ctypes.c_int(states.stride(2))),
                *(cells, hidden, zeros, zeros[directions * COUNTERS :]),
                *(running, ctypes.c_int(steps), ctypes.c_int(batch)),
                *(ctypes.c_float(bounds.cell_clip or 0.0), ctypes.c_float(bounds.projection_clip or 0.0)),
            ),
        )


def layer_of(packed: Packed, number: int) -> PersistentLayer:
    """The layer's weights, laid out once for a model."""
    key = ("persistent", number)
    if key not in packed.beside:
        made = PersistentLayer(packed.layers[number])
        finish(made.gates.device)
        packed.beside[key] = made
    found: PersistentLayer = packed.beside[key]
    return found


def serves(packed: Packed, batch: int, device: torch.device) -> bool:
    """Whether the kernel takes such a model and batch on this GPU."""
    if batch > ROWS or packed.dtype not in (torch.bfloat16, torch.float16):
        return False
    layer = packed.layers[0]
    size, output = layer.projection.shape[2], layer.output_size
    return _fits(size, output, packed.directions, device) and layer.of_input.shape[2] % 8 == 0


@lru_cache
def _fits(size: int, output: int, directions: int, device: torch.device) -> bool:
    if size % 256 or output % 128 or nvrtc.reason_against() is not None:
        return False
    facts = torch.cuda.get_device_properties(device)
    enough = directions * blocks_of(size, output) <= facts.multi_processor_count
    if facts.major < 8 or not enough or not _shared_groups(size, output, 4, device):
        return False
    try:
        _kernel(size, output, 1, device, torch.bfloat16)
    except ElmoError as error:
        log.warning("%s; other kernels do its work", error)
        return False
    return True


def blocks_of(size: int, output: int) -> int:
    """Blocks a direction: 64 cells and 8 outputs each at most."""
    return max(-(-size // (8 * WARPS)), output // 8)


def _tiles(batch: int) -> int:
    """Tiles of 8 rows."""
    return next(tiles for tiles in (1, 2, 4) if batch <= 8 * tiles)


def _shared_bytes(groups: int, output: int, tiles: int) -> int:
    """Shared memory for the weights of so many groups of cells, for h and for the warps' sums."""
    state, sums = tiles * 8 * (output + 16) * 2, WARPS * (-(-tiles // 2)) * 128 * 4
    return groups * output * 64 + (state + sums if tiles == 1 else max(state, sums))


def _shared_groups(size: int, output: int, tiles: int, device: torch.device) -> int:
    """How many of a block's groups of cells have their weights in shared memory."""
    facts = torch.cuda.get_device_properties(device)
    room: int = getattr(facts, "shared_memory_per_block_optin", 0)  # an old torch does not say
    groups = -(-size // 8 // blocks_of(size, output))
    return next((n for n in range(groups, 0, -1) if _shared_bytes(n, output, tiles) <= room), 0)


@lru_cache(maxsize=32)
def _kernel(size: int, output: int, tiles: int, device: torch.device, dtype: torch.dtype) -> nvrtc.CudaKernel:
    groups = _shared_groups(size, output, tiles, device)
    defines = {"H": size, "P": output, "G": blocks_of(size, output), "TILES": tiles, "SHARED": groups}
    if dtype == torch.float16:
        defines["FLOAT16"] = 1
    source = files("elmokit.ops.gpu").joinpath("persistent.cu").read_text(encoding="utf-8")
    with torch.cuda.device(device):
        return nvrtc.CudaKernel(source, "persistent_steps", defines, shared_bytes=_shared_bytes(groups, output, tiles))

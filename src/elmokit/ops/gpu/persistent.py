"""All steps of a layer for a few rows in one kernel, whose blocks keep the weights: see persistent.cu.

The kernel is compiled at run time with the NVRTC that comes with torch, so no compiler need be installed. Its blocks
wait for each other, so the launch is cooperative: all blocks run at the same time.
"""

from __future__ import annotations

import ctypes
import logging
import sys
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elmokit.errors import ElmoError
from elmokit.ops.gpu.packed import PackedLayer, PackedModel, finish, unpaired
from elmokit.ops.weights import Bounds

log = logging.getLogger(__name__)

ROWS = 32
"""The most rows of a batch that the kernel supports."""
WARPS = 8
COUNTERS = 32
"""The distance between the counters of two directions in int32 numbers: each has its own cache line."""


class PersistentLayer:
    """A layer's weights in the order in which the kernel's threads read them."""

    def __init__(self, layer: PackedLayer) -> None:
        directions, gates, _ = layer.matrix.shape
        size, output = gates // 4, layer.output_size
        # tile (i f | g o), its low or high rows, group of cells, cell, step, one of four threads, half, number
        split = torch.stack([unpaired(matrix) for matrix in layer.of_h])
        split = split.view(directions, 2, 2, size // 8, 8, output // 16, 4, 2, 2)
        self.gates = split.permute(0, 3, 5, 1, 4, 6, 7, 2, 8).contiguous()
        # group of outputs, output, pair of steps, one of four threads, step of the pair, half, number
        outputs = layer.projection.view(directions, output // 8, 8, size // 32, 4, 2, 2, 2)
        self.projection = outputs.permute(0, 1, 3, 5, 2, 4, 6, 7).contiguous()
        self.bias = layer.bias
        self.sizes = (directions, size, output)

    def run(
        self, products: Tensor, states: Tensor, cells: Tensor, hidden: Tensor, running: Tensor, bounds: Bounds
    ) -> None:
        """All steps: products [D, T, B, 4H], states [D, T + 1, B, P], cells and hidden [D, B, H], running [T]."""
        directions, size, output = self.sizes
        steps, batch = products.shape[1:3]
        blocks = blocks_of(size, output)
        tiles = _tiles(batch)
        # The counters, and with one tile the mailboxes in which blocks exchange pairs.
        mailboxes = 2 * directions * batch * (size + output) // 2 if tiles == 1 else 0
        zeros = torch.zeros(directions * COUNTERS + mailboxes, dtype=torch.int32, device=products.device)
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


def layer_of(packed: PackedModel, number: int) -> PersistentLayer:
    """The layer's weights in the layout of the kernel, made once for a model."""
    if number not in packed.persistent_layers:
        layer = PersistentLayer(packed.layers[number])
        finish(layer.gates.device)
        packed.persistent_layers[number] = layer
    found: PersistentLayer = packed.persistent_layers[number]
    return found


def supports(packed: PackedModel, batch: int, device: torch.device) -> bool:
    """Whether the kernel supports this model and this number of rows on this GPU."""
    if batch > ROWS or packed.dtype not in (torch.bfloat16, torch.float16):
        return False
    layer = packed.layers[0]
    size, output = layer.projection.shape[2], layer.output_size
    return _fits(size, output, packed.directions, device) and layer.of_input.shape[2] % 8 == 0


@lru_cache
def _fits(size: int, output: int, directions: int, device: torch.device) -> bool:
    if size % 256 or output % 128 or reason_against_nvrtc() is not None:
        return False
    properties = torch.cuda.get_device_properties(device)
    enough = directions * blocks_of(size, output) <= properties.multi_processor_count
    if properties.major < 8 or not enough or not _shared_groups(size, output, 4, device):
        return False
    try:
        _kernel(size, output, 1, device, torch.bfloat16)
    except ElmoError as error:
        log.warning("%s; other kernels are used instead", error)
        return False
    return True


def blocks_of(size: int, output: int) -> int:
    """The number of blocks per direction: a block has at most 64 cells and 8 outputs."""
    return max(-(-size // (8 * WARPS)), output // 8)


def _tiles(batch: int) -> int:
    """The number of tiles of 8 rows."""
    return next(tiles for tiles in (1, 2, 4) if batch <= 8 * tiles)


def _shared_bytes(groups: int, output: int, tiles: int) -> int:
    """The shared memory for the weights of this number of groups of cells, for h and for the sums of the warps."""
    state, sums = tiles * 8 * (output + 16) * 2, WARPS * (-(-tiles // 2)) * 128 * 4
    return groups * output * 64 + (state + sums if tiles == 1 else max(state, sums))


def _shared_groups(size: int, output: int, tiles: int, device: torch.device) -> int:
    """The number of a block's groups of cells whose weights fit into shared memory."""
    properties = torch.cuda.get_device_properties(device)
    largest: int = getattr(properties, "shared_memory_per_block_optin", 0)  # old versions of torch do not have it
    groups = -(-size // 8 // blocks_of(size, output))
    return next((n for n in range(groups, 0, -1) if _shared_bytes(n, output, tiles) <= largest), 0)


@lru_cache(maxsize=32)
def _kernel(size: int, output: int, tiles: int, device: torch.device, dtype: torch.dtype) -> CudaKernel:
    groups = _shared_groups(size, output, tiles, device)
    defines = {"H": size, "P": output, "G": blocks_of(size, output), "TILES": tiles, "SHARED": groups}
    if dtype == torch.float16:
        defines["FLOAT16"] = 1
    source = files("elmokit.ops.gpu").joinpath("persistent.cu").read_text(encoding="utf-8")
    with torch.cuda.device(device):
        return CudaKernel(source, "persistent_steps", defines, shared_bytes=_shared_bytes(groups, output, tiles))


MAX_DYNAMIC_SHARED = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES of the CUDA driver."""


class CudaKernel:
    """A compiled kernel on one device."""

    def __init__(self, source: str, name: str, defines: dict[str, int], *, shared_bytes: int) -> None:
        """Compile `source` for the current device; `defines` become macros."""
        major, minor = torch.cuda.get_device_capability()
        binary = compile_cuda(
            source, name, [f"-D{key}={value}" for key, value in defines.items()], f"sm_{major}{minor}"
        )
        driver = _driver()
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        _check(driver.cuModuleLoadData(ctypes.byref(self._module), binary), "loading a kernel")
        found = driver.cuModuleGetFunction(ctypes.byref(self._function), self._module, name.encode())
        _check(found, f"finding the kernel {name}")
        self.shared_bytes = shared_bytes
        _check(driver.cuFuncSetAttribute(self._function, MAX_DYNAMIC_SHARED, shared_bytes), "taking shared memory")

    def launch(self, blocks: int, threads: int, arguments: Sequence[Any]) -> None:
        """Launch all blocks at once on the current stream; arguments are tensors and ctypes numbers."""
        values = [ctypes.c_void_p(a.data_ptr()) if isinstance(a, torch.Tensor) else a for a in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        code = _driver().cuLaunchCooperativeKernel(
            self._function, blocks, 1, 1, threads, 1, 1, self.shared_bytes, stream, pointers
        )
        _check(code, "starting a kernel")


def compile_cuda(source: str, name: str, options: Sequence[str], architecture: str) -> bytes:
    """Compile CUDA C++ to machine code for an architecture such as sm_90; needs no GPU."""
    nvrtc = _nvrtc()
    program = ctypes.c_void_p()
    _check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), f"{name}.cu".encode(), 0, None, None), name)
    try:
        flags = [option.encode() for option in (f"--gpu-architecture={architecture}", *options)]
        code = nvrtc.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*flags))
        if code:
            size = ctypes.c_size_t()
            nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            nvrtc.nvrtcGetProgramLog(program, log)
            raise ElmoError(f"the kernel {name} could not be compiled: {log.value.decode(errors='replace')}")
        size = ctypes.c_size_t()
        _check(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)), name)
        binary = ctypes.create_string_buffer(size.value)
        _check(nvrtc.nvrtcGetCUBIN(program, binary), name)
        return binary.raw
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


@cache
def reason_against_nvrtc() -> str | None:
    """Why kernels cannot be compiled here, or None."""
    try:
        _nvrtc()
        _driver()
    except OSError as error:
        return f"NVRTC or the CUDA driver was not found ({error})"
    return None


def _check(code: int, doing: str) -> None:
    if code:
        raise ElmoError(f"{doing} failed on the GPU with the error {code}")


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


@cache
def _nvrtc() -> ctypes.CDLL:
    """The NVRTC that comes with torch, or one that is installed."""
    name = f"libnvrtc.so.{(torch.version.cuda or '12').split('.')[0]}"
    packages = Path(torch.__file__).parents[1]
    paths = [*packages.glob(f"nvidia/*/lib/{name}"), *(packages / "torch" / "lib").glob(f"{name}*")]
    for path in paths:
        try:
            return ctypes.CDLL(str(path))
        except OSError:
            continue
    return ctypes.CDLL(name)

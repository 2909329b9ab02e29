"""CUDA C++ compiled at run time with the NVRTC that comes with torch, and launched; no compiler need be installed.

Kernels whose blocks wait for each other are launched as cooperative ones: all blocks run at once, or none.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from elmokit.errors import ElmoError

MAX_DYNAMIC_SHARED = 8
"""The number of CUfunction_attribute for it."""


class CudaKernel:
    """A kernel for one device."""

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
        """On the current stream, all blocks at once; arguments are tensors and ctypes numbers."""
        values = [ctypes.c_void_p(a.data_ptr()) if isinstance(a, torch.Tensor) else a for a in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        code = _driver().cuLaunchCooperativeKernel(
            self._function, blocks, 1, 1, threads, 1, 1, self.shared_bytes, stream, pointers
        )
        _check(code, "starting a kernel")


def compile_cuda(source: str, name: str, options: Sequence[str], architecture: str) -> bytes:
    """CUDA C++ → machine code for an architecture such as sm_90; needs no GPU."""
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
def reason_against() -> str | None:
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
    """The one that torch brings, or one that is installed."""
    name = f"libnvrtc.so.{(torch.version.cuda or '12').split('.')[0]}"
    packages = Path(torch.__file__).parents[1]
    places = [*packages.glob(f"nvidia/*/lib/{name}"), *(packages / "torch" / "lib").glob(f"{name}*")]
    for place in places:
        try:
            return ctypes.CDLL(str(place))
        except OSError:
            continue
    return ctypes.CDLL(name)

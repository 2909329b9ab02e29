"""The machine of a table: its name, the versions, and its measured peak speeds."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from elmokit import __version__


@dataclass(frozen=True)
class Peaks:
    """The measured peak speeds of a machine, from which the floors of a table are computed."""

    operations: dict[str, float]
    """By dtype, multiplications and additions per second in a large matrix product."""
    bytes_read: float
    """Bytes per second read from memory."""

    def summary(self) -> str:
        """The peaks as text."""
        products = ", ".join(f"{name} {value / 1e9:,.0f}" for name, value in self.operations.items())
        return f"measured peaks: {products} GFLOP/s (GOP/s), memory {self.bytes_read / 1e9:,.0f} GB/s"


def facts(device: str, threads: int | None = None) -> dict[str, str]:
    """The machine and the versions, by name."""
    found = {
        "date": date.today().isoformat(),
        "CPU": f"{cpu_name()}, {os.cpu_count()} cores" + (f", {threads} threads" if threads else ""),
        "elmokit": __version__,
        "torch": torch.__version__,
        "Python": platform.python_version(),
    }
    if hasattr(os, "getloadavg"):
        found["processes running when it began"] = f"{os.getloadavg()[0]:.1f}"
    if device.startswith("cuda"):
        found["GPU"] = torch.cuda.get_device_name()
        found["CUDA"] = str(torch.version.cuda)
        try:
            found["triton"] = version("triton")
        except PackageNotFoundError:
            found["triton"] = "none"
    return found


def cpu_name() -> str:
    """The name of the CPU, and the widest vector instructions that torch uses on it."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
    return f"{name or platform.processor() or platform.machine()} ({torch.backends.cpu.get_cpu_capability()})"


def cpu_cache_bytes() -> int:
    """The size of the largest cache, or 0 if it is not known."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    sizes = [file.read_text().strip() for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((int(size[:-1]) * units[size[-1]] for size in sizes if size[-1:] in units), default=0)


def peaks(device: str) -> Peaks:
    """Measure the peaks of a device."""
    return gpu_peaks() if device.startswith("cuda") else cpu_peaks()


def wait(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def cpu_peaks(size: int = 2048, floats: int = 2**27) -> Peaks:
    """Measure the peaks of the CPU with torch's number of threads."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    operations = {"float32": 2 * size**3 / _best(lambda: a @ b)}
    whole = [torch.randint(-127, 128, (size, size), dtype=torch.int8) for _ in range(2)]
    operations["int8"] = 2 * size**3 / _best(lambda: torch._int_mm(*whole))
    read = torch.ones(floats)
    return Peaks(operations, 4 * floats / _best(read.sum))


def gpu_peaks(size: int = 8192) -> Peaks:
    """Measure the peaks of the GPU: bfloat16, float32 with and without tf32."""
    operations = {}
    for name, dtype, tf32 in (
        ("bfloat16", torch.bfloat16, True),
        ("float32", torch.float32, False),
        ("tf32", torch.float32, True),
    ):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        a, b = (torch.randn(size, size, device="cuda").to(dtype) for _ in range(2))
        operations[name] = 2 * size**3 / _best(lambda a=a, b=b: a @ b, device="cuda")  # type: ignore[misc]
    source = torch.zeros(2**30, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    return Peaks(operations, 2 * source.numel() / _best(lambda: target.copy_(source), device="cuda"))


def _best(run: Callable[[], object], repeats: int = 7, device: str = "cpu") -> float:
    """The shortest time of a call in seconds; other programs only add time."""
    times = []
    for _ in range(repeats + 1):
        wait(torch.device(device))
        start = time.perf_counter()
        run()
        wait(torch.device(device))
        times.append(time.perf_counter() - start)
    return min(times[1:])

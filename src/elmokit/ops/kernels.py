"""Whether elmokit's GPU kernels can run on a device; otherwise torch's operations compute everything."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

import torch

AutogradContext = Any
"""The context that torch passes to an autograd function, which stores attributes in it."""


def available(device: torch.device) -> bool:
    """Whether the kernels can run on a device: CUDA, with Triton installed (on Linux, torch includes it)."""
    return device.type == "cuda" and _triton_is_installed()


@cache
def _triton_is_installed() -> bool:
    return find_spec("triton") is not None

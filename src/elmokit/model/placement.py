"""Which device and which number type: what was asked for, or what this machine has."""

from __future__ import annotations

import logging

import torch

from elmokit.errors import ElmoError

log = logging.getLogger(__name__)

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
}


def choose_device(device: str | torch.device | None) -> torch.device:
    """The device asked for, or a GPU where there is one."""
    if device is None:
        chosen = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        log.info(
            "device %s: none was asked for, and a GPU was %s", chosen, "found" if chosen.type == "cuda" else "not found"
        )
        return chosen
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError, ValueError, TypeError) as error:
        raise ElmoError(f"the device {str(device)!r} cannot be used here: {str(error).splitlines()[0]}") from error
    return chosen


def choose_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """The number type by its name."""
    if isinstance(dtype, str) and dtype in DTYPES:
        return DTYPES[dtype]
    if dtype in DTYPES.values():
        assert isinstance(dtype, torch.dtype)
        return dtype
    raise ElmoError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")


def choose_int8_device(device: str | torch.device | None) -> torch.device:
    """The CPU, the only device where int8 matrices are used."""
    if device is None:
        log.info("device cpu: dtype int8 is for the CPU")
        return torch.device("cpu")
    chosen = choose_device(device)
    if chosen.type != "cpu":
        raise ElmoError(f"dtype int8 is for the CPU, got the device {chosen}: give dtype='bfloat16' or 'float32' there")
    return chosen

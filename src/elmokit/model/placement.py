"""The device and the dtype of a network's weights, and networks whose weights have no memory yet."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from elmokit.errors import ElmoError

log = logging.getLogger(__name__)

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
}
_DRAWS = (Tensor.normal_, Tensor.uniform_, nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_)


def choose_device(device: str | torch.device | None) -> torch.device:
    """The given device, or by default a GPU if there is one."""
    if device is None:
        chosen = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        log.info(
            "device %s: none was given, and a GPU was %s", chosen, "found" if chosen.type == "cuda" else "not found"
        )
        return chosen
    if str(device).lower() == "gpu":
        raise ElmoError(
            f"device must be cpu, cuda, cuda:1 or mps, got {device!r}: an NVIDIA GPU is called cuda", "device"
        )
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError, ValueError, TypeError) as error:
        raise ElmoError(f"the device {str(device)!r} cannot be used here: {str(error).splitlines()[0]}") from error
    return chosen


def choose_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """The dtype with this name."""
    chosen = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if chosen is None or chosen not in DTYPES.values():
        raise ElmoError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}", "dtype")
    return chosen


def choose_int8_device(device: str | torch.device | None) -> torch.device:
    """The CPU, the only device that supports int8 matrices; refuses any other device."""
    if device is None:
        log.info("device cpu: dtype int8 is only for the CPU")
        return torch.device("cpu")
    chosen = choose_device(device)
    if chosen.type != "cpu":
        raise ElmoError(
            f"dtype int8 is only for the CPU, got the device {chosen}: choose bfloat16 or float32 there", "dtype"
        )
    return chosen


def moved(part: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device; a copy from the CPU to a GPU does not wait for the GPU's earlier work."""
    if device.type == "cuda" and part.device.type == "cpu":
        return part.pin_memory().to(device, non_blocking=True)
    return part.to(device)


@contextmanager
def shells() -> Iterator[None]:
    """Modules made inside the block have no memory: they are on torch's meta device and draw no initial weights.

    To draw weights on that device, torch would import its compiler, which takes a second and 100 MB.
    """
    with torch.device("meta"), _WithoutInitialisation():
        yield


class _WithoutInitialisation(TorchFunctionMode):
    """Skips the functions with which modules draw initial weights."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        kwargs = kwargs or {}
        if func in _DRAWS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def fill(module: nn.Module, weights: Mapping[str, Tensor], *, trainable: bool) -> None:
    """Give a network without memory its weights; float16 and bfloat16 become float32."""
    # Files use float16 and bfloat16 to save space. A model that was saved in float64 is loaded exactly.
    unchanged = (torch.float64, torch.int8)
    full = {name: value if value.dtype in unchanged else value.float() for name, value in weights.items()}
    module.load_state_dict(full, assign=True)
    module.requires_grad_(trainable)

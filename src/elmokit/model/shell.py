"""Networks without memory or numbers, to learn the names and shapes of their weights or to give them some."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_DRAWS = (Tensor.normal_, Tensor.uniform_, nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_)


@contextmanager
def shells() -> Iterator[None]:
    """Modules made inside the block lie on torch's meta device and draw no numbers.

    To draw them there would make torch import its compiler: a second, and 100 MB.
    """
    with torch.device("meta"), _NoDraws():
        yield


class _NoDraws(TorchFunctionMode):
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
    """Give a network without memory its weights, float16 and bfloat16 ones as float32."""
    # Half precision is a way to store; float64 stays, so that a model that was saved in it comes back exactly.
    as_they_are = (torch.float64, torch.int8)
    full = {name: value if value.dtype in as_they_are else value.float() for name, value in weights.items()}
    module.load_state_dict(full, assign=True)
    module.requires_grad_(trainable)

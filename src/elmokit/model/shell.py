"""Networks without memory or numbers, to learn the names and shapes of their weights or to give them some."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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

"""Triton if it is installed, otherwise None, so that modules with kernels can be imported anywhere.

Importing this module imports Triton, so code that may run without a GPU calls `elmokit.ops.kernels.available` first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _modules() -> tuple[Any, Any]:
    try:
        import triton
        import triton.language
    except ModuleNotFoundError:
        return None, None
    return triton, triton.language


triton, tl = _modules()


def jit(*varying: str) -> Callable[[Callable[..., Any]], Any]:
    """A decorator for kernels, compiled at first use; other values of the arguments `varying` do not recompile them."""

    def decorate(kernel: Callable[..., Any]) -> Any:  # noqa: ANN401
        return kernel if triton is None else triton.jit(kernel, do_not_specialize=list(varying))

    return decorate

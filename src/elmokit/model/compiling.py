"""The network inside a module that the user compiles or exports."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
Result = TypeVar("Result")

REASON = "elmokit runs kernels of its own between torch.compile's graphs: leave fullgraph=True out"


def outside_graphs(function: Callable[P, Result]) -> Callable[P, Result]:
    """The same function, which torch.compile does not compile: it is called between two graphs of the outer module.

    `torch.compiler.disable` does the same, but imports the compiler, which takes seconds. So it is called only if the
    compiler is already imported.
    """
    uncompiled: Callable[P, Result] | None = None

    @wraps(function)
    def call(*args: P.args, **named: P.kwargs) -> Result:
        nonlocal uncompiled
        if "torch._dynamo" not in sys.modules:
            return function(*args, **named)
        if torch.compiler.is_compiling():
            torch._dynamo.graph_break(msg=REASON)  # gives the reason; the graph would break anyway
        if uncompiled is None:
            uncompiled = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
        return uncompiled(*args, **named)

    return call


def is_exporting() -> bool:
    """Whether torch.export is recording."""
    return hasattr(torch.compiler, "is_exporting") and torch.compiler.is_exporting()  # torch 2.6 has no is_exporting

"""The place of the network in other people's graphs: torch.compile goes around it, torch.export refuses it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
Result = TypeVar("Result")

REASON = "elmokit computes this with its own kernels, outside of torch.compile's graphs: leave fullgraph=True out"


def outside_graphs(function: Callable[P, Result]) -> Callable[P, Result]:
    """The same function, which torch.compile calls as it is, between two graphs of the module around it.

    `torch.compiler.disable` does that, but takes seconds to import the compiler. So it waits until somebody else has.
    """
    uncompiled: Callable[P, Result] | None = None

    @wraps(function)
    def call(*args: P.args, **named: P.kwargs) -> Result:
        nonlocal uncompiled
        if uncompiled is None:
            if "torch._dynamo" not in sys.modules:
                return function(*args, **named)
            uncompiled = torch.compiler.disable(function, reason=REASON)  # type: ignore[no-untyped-call]
        return uncompiled(*args, **named)

    return call

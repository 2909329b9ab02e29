"""Kernels in C, compiled for the machine that runs them.

`reason_against` and `description` are what the dispatcher asks; `bilstm` and `linear` hold what it then calls.
"""

from __future__ import annotations

import torch

from elmokit.ops.native.binding import library
from elmokit.ops.native.build import BuildError


def reason_against(dtype: torch.dtype, *, int8: bool) -> str | None:
    """Why the compiled kernels cannot take such inputs here, or None."""
    if dtype != torch.float32:
        return f"the compiled kernels take {'activations in ' if int8 else ''}float32, not {str(dtype).split('.')[-1]}"
    try:
        library()
    except BuildError as error:
        return f"the compiled kernels are not there: {error}"
    return None


def description() -> str:
    """What was compiled, for which instructions."""
    return f"kernels compiled for this CPU, {library().instructions().decode()}"

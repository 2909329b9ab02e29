"""Kernels in C, compiled for the machine that runs them.

The dispatchers call `reason_against` and `description`, and then a function of `bilstm`, `transformer`, `characters` or
`linear`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from elmokit.ops.native.binding import library
from elmokit.ops.native.build import BuildError
from elmokit.ops.native.packed import float16_is_exact
from elmokit.ops.weights import AnyLstmWeights


def reason_against(dtype: torch.dtype, *, int8: bool) -> str | None:
    """Why the compiled kernels cannot compute inputs of this dtype here, or None."""
    if dtype != torch.float32:
        return f"the compiled kernels take {'activations in ' if int8 else ''}float32, not {str(dtype).split('.')[-1]}"
    try:
        library()
    except BuildError as error:
        return f"there are no compiled kernels: {error}"
    return None


def description(stacks: Sequence[Sequence[AnyLstmWeights]] = ()) -> str:
    """The compiled kernels in words: for which instructions, and whether the weights are in float16."""
    kernels = library()
    text = f"kernels compiled for this CPU, {kernels.instructions().decode()}"
    if kernels.note is not None:
        text += f", {kernels.note}"
    recurrent = [weights.recurrent for layers in stacks for weights in layers]
    if recurrent and all(isinstance(matrix, Tensor) and float16_is_exact(kernels, matrix) for matrix in recurrent):
        text += "; weights in float16, which stores them exactly"
    return text

"""The dtypes in which a model is stored: its network and its softmax, each in floats or int8."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor

from elmokit.errors import ElmoError
from elmokit.formats.checkpoint import Checkpoint
from elmokit.model.int8 import quantised

Numbers = Literal["float32", "float16", "int8"]
SoftmaxNumbers = Literal["float32", "float16", "int8", "none"]


def stored_in(checkpoint: Checkpoint, dtype: Numbers | None, softmax: SoftmaxNumbers | None) -> Checkpoint:
    """The same model in other numbers; None leaves them as they are, and "none" leaves the softmax out.

    Without `softmax`, one in floats follows a `dtype` in floats; int8 stays int8.
    """
    for name, value, kinds in (("dtype", dtype, Numbers), ("softmax", softmax, SoftmaxNumbers)):
        if value is not None and value not in get_args(kinds):
            raise ElmoError(f"{name} must be {' or '.join(get_args(kinds))}, got {value!r}")
    if softmax in ("float32", "float16", "int8") and not checkpoint.head:
        raise ElmoError(f"{checkpoint.where} has no softmax to store in {softmax}: leave that out")
    if dtype == "int8":
        checkpoint = checkpoint.in_int8()
    elif dtype is not None:
        checkpoint = checkpoint.in_floats(softmax=False)
        checkpoint = replace(checkpoint, weights=_floats(checkpoint.weights, dtype, checkpoint.where))
    if softmax is None and dtype != "int8" and not checkpoint.softmax_int8:
        softmax = dtype
    return checkpoint if softmax is None else _with_softmax(checkpoint, softmax)


def _with_softmax(checkpoint: Checkpoint, softmax: SoftmaxNumbers) -> Checkpoint:
    if softmax == "none":
        kept = {name: value for name, value in checkpoint.optimizer.items() if not name.startswith("head.")}
        return replace(checkpoint, head={}, optimizer=kept)
    if softmax != "int8":
        return replace(checkpoint, head=_floats(checkpoint.softmax_in_floats(), softmax, checkpoint.where))
    if checkpoint.softmax_int8 or not checkpoint.head:
        return checkpoint
    head = quantised(checkpoint.head, {"weight"})
    return replace(checkpoint, head={**head, "bias": head["bias"].float()})


def _floats(weights: Mapping[str, Tensor], dtype: Literal["float32", "float16"], where: str) -> dict[str, Tensor]:
    kind = torch.float16 if dtype == "float16" else torch.float32
    found = {name: value.to(kind) for name, value in weights.items()}
    for name, value in found.items():
        largest = float(weights[name].abs().max()) if value.numel() else 0.0
        if largest > torch.finfo(kind).max:
            raise ElmoError(
                f"{where} has numbers up to {largest:.3g} in {name}, too large for {dtype}: store it in another"
            )
    return found

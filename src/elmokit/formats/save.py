"""Writes and converts models to any writable format, in any dtype that the format can store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from elmokit.errors import ElmoError
from elmokit.formats.checkpoint import Checkpoint
from elmokit.formats.load import read_checkpoint
from elmokit.formats.registry import DEFAULT_FORMAT, Format, formats, one_of
from elmokit.formats.source import FolderSource
from elmokit.model.int8 import COLUMNS, SCALES, dense, quantised
from elmokit.storage.atomic import disk_errors

StoredDtype = Literal["float32", "float16", "int8"]
SoftmaxDtype = Literal["float32", "float16", "int8", "none"]


def write_checkpoint(
    checkpoint: Checkpoint,
    target: Path,
    format: str = DEFAULT_FORMAT,
    *,
    dtype: StoredDtype | None = None,
    softmax: SoftmaxDtype | None = None,
) -> None:
    """Write a model as files of a format; `dtype` and `softmax` as for `stored_in`."""
    chosen = format_to_write(format, target, dtype=dtype, softmax=softmax)
    kind = checkpoint.config.context.kind
    if chosen.contexts and kind not in chosen.contexts:
        raise ElmoError(
            f"the format {format} stores models with the context encoder {one_of(chosen.contexts)}, and this one has "
            f"{kind}: choose the format {DEFAULT_FORMAT}"
        )
    checkpoint = stored_in(checkpoint, dtype, softmax)
    _refuse_hidden(target, chosen)
    assert chosen.write is not None
    chosen.write(checkpoint, target)


def convert_model(
    source: str | Path,
    target: Path,
    *,
    to: str = DEFAULT_FORMAT,
    dtype: StoredDtype | None = None,
    softmax: SoftmaxDtype | None = None,
    options: str | Path | None = None,
    vocab: str | Path | None = None,
    overwrite: bool = False,
) -> Path:
    """Convert the model at `source` to the format `to` and return `target`.

    `dtype` and `softmax` as for `stored_in`.
    """
    format = format_to_write(to, target, dtype=dtype, softmax=softmax)
    with disk_errors(target):
        _check_target(target, format, overwrite=overwrite)
    checkpoint = read_checkpoint(source, options=options, vocab=vocab, int8=dtype == "int8")
    write_checkpoint(checkpoint, target, to, dtype=dtype, softmax=softmax)
    return target


def _check_target(target: Path, format: Format, *, overwrite: bool) -> None:
    if format.suffixes:
        if target.exists() and not overwrite:
            raise ElmoError(f"{target} exists: choose another name or use overwrite", "overwrite")
        if not target.parent.is_dir():
            raise ElmoError(f"the folder {target.parent} does not exist: create it first")
    elif target.is_file():
        raise ElmoError(f"target must be a folder, and {target} is a file: choose another name", "target")
    elif target.is_dir() and any(target.iterdir()) and not overwrite:
        raise ElmoError(f"the folder {target} is not empty: choose another or use overwrite", "overwrite")


def format_to_write(
    name: str, target: Path, *, dtype: StoredDtype | None = None, softmax: SoftmaxDtype | None = None
) -> Format:
    """The format of this name; an error if it cannot write to this path or in these dtypes."""
    chosen = next((format for format in formats() if format.name == name), None)
    if chosen is None or chosen.write is None:
        names = one_of([format.name for format in formats() if format.write is not None])
        raise ElmoError(f"the format to write must be {names}, got {name!r}")
    if chosen.suffixes and target.suffix not in chosen.suffixes:
        raise ElmoError(f"the format {name} is one file: let its name end in {one_of(chosen.suffixes)}, got {target}")
    for option, value in (("dtype", dtype), ("softmax", softmax)):
        if value in (None, "none") or value in chosen.dtypes:
            continue
        if suitable := [format.name for format in formats() if format.write is not None and value in format.dtypes]:
            raise ElmoError(
                f"the format {name} stores {one_of(chosen.dtypes)}, got {option} {value}: leave {option} out, or "
                f"choose the format {one_of(suitable)}",
                option,
            )
    return chosen


def _refuse_hidden(target: Path, chosen: Format) -> None:
    """Refuse a folder with a model of a format that is tried earlier: the new model would not be detected."""
    for format in takewhile(lambda format: format is not chosen, formats()):
        if main := _main_file(format, target):
            raise ElmoError(
                f"{target} contains another model ({main}), which would be found first: choose another folder"
            )


def _main_file(format: Format, folder: Path) -> str | None:
    try:
        return format.detect(FolderSource(folder), None) if folder.is_dir() else None
    except (ElmoError, OSError):  # damaged files hide no other model; the writer reports an unreadable folder
        return None


def stored_in(checkpoint: Checkpoint, dtype: StoredDtype | None, softmax: SoftmaxDtype | None) -> Checkpoint:
    """The same model in other dtypes; None keeps a dtype, and softmax "none" removes the softmax.

    With dtype int8, tensors that are not int8 matrices, such as word tables, become float16. With softmax None, a
    float softmax gets a float `dtype`, and an int8 softmax stays int8.
    """
    for name, value, kinds in (("dtype", dtype, StoredDtype), ("softmax", softmax, SoftmaxDtype)):
        if value is not None and value not in get_args(kinds):
            raise ElmoError(f"{name} must be {' or '.join(get_args(kinds))}, got {value!r}", name)
    if softmax in ("float32", "float16", "int8") and not checkpoint.head:
        raise ElmoError(f"softmax must be left out, because {checkpoint.where} has none: got {softmax}", "softmax")
    if dtype == "int8":
        checkpoint = checkpoint.in_int8()
        checkpoint = replace(checkpoint, weights={k: _compact(k, value) for k, value in checkpoint.weights.items()})
    elif dtype is not None:
        checkpoint = checkpoint.in_floats(softmax=False)
        checkpoint = replace(checkpoint, weights=_floats(checkpoint.weights, dtype, checkpoint.where))
    if softmax is None and dtype != "int8" and not checkpoint.softmax_int8:
        softmax = dtype
    return checkpoint if softmax is None else _with_softmax(checkpoint, softmax)


def _with_softmax(checkpoint: Checkpoint, softmax: SoftmaxDtype) -> Checkpoint:
    if softmax == "none":
        rest = {name: value for name, value in checkpoint.optimizer.items() if not name.startswith("head.")}
        return replace(checkpoint, head={}, optimizer=rest)
    if softmax != "int8":
        return replace(checkpoint, head=_floats(dense(checkpoint.head), softmax, checkpoint.where))
    if checkpoint.softmax_int8 or not checkpoint.head:
        return checkpoint
    head = quantised(checkpoint.head, {"weight"})
    return replace(checkpoint, head={**head, "bias": head["bias"].float()})


def _compact(name: str, value: Tensor) -> Tensor:
    """A tensor of an int8 model for storage: float16, unless it belongs to an int8 matrix or would overflow."""
    if not value.is_floating_point() or name.endswith((SCALES, COLUMNS)):
        return value
    half = value.half()
    return half if half.isfinite().all() else value


def _floats(weights: Mapping[str, Tensor], dtype: Literal["float32", "float16"], where: str) -> dict[str, Tensor]:
    kind = torch.float16 if dtype == "float16" else torch.float32
    found = {name: value.to(kind) for name, value in weights.items()}
    for name, value in found.items():
        largest = float(weights[name].abs().max()) if value.numel() else 0.0
        if largest > torch.finfo(kind).max:
            raise ElmoError(
                f"{where} has values up to {largest:.3g} in {name}, too large for {dtype}: choose another dtype",
                "dtype",
            )
    return found

"""From a checkpoint to files of any format that can be written."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

from elmokit.errors import ElmoError
from elmokit.formats.checkpoint import Checkpoint
from elmokit.formats.registry import DEFAULT_FORMAT, Format, either, formats
from elmokit.formats.source import FolderSource
from elmokit.formats.stored import Numbers, SoftmaxNumbers, stored_in


def write_checkpoint(
    checkpoint: Checkpoint,
    target: Path,
    format: str = DEFAULT_FORMAT,
    *,
    dtype: Numbers | None = None,
    softmax: SoftmaxNumbers | None = None,
) -> None:
    """Write a model as files of a format; `dtype` and `softmax` are those of `stored_in`."""
    chosen = format_to_write(format, target, dtype=dtype, softmax=softmax)
    kind = checkpoint.config.context.kind
    if chosen.contexts and kind not in chosen.contexts:
        raise ElmoError(
            f"the format {format} stores models with the context encoder {either(chosen.contexts)}, and this one has "
            f"{kind}: choose the format {DEFAULT_FORMAT}"
        )
    checkpoint = stored_in(checkpoint, dtype, softmax)
    _refuse_hidden(target, chosen)
    assert chosen.write is not None
    chosen.write(checkpoint, target)


def format_to_write(
    name: str, target: Path, *, dtype: Numbers | None = None, softmax: SoftmaxNumbers | None = None
) -> Format:
    """The format of this name, if it can write to this path and in these dtypes."""
    chosen = next((format for format in formats() if format.name == name), None)
    if chosen is None or chosen.write is None:
        names = either([format.name for format in formats() if format.write is not None])
        raise ElmoError(f"the format to write must be {names}, got {name!r}")
    if chosen.suffixes and target.suffix not in chosen.suffixes:
        raise ElmoError(f"the format {name} is one file: let its name end in {either(chosen.suffixes)}, got {target}")
    for option, value in (("dtype", dtype), ("softmax", softmax)):
        if value in (None, "none") or value in chosen.dtypes:
            continue
        if able := [format.name for format in formats() if format.write is not None and value in format.dtypes]:
            raise ElmoError(
                f"the format {name} stores {either(chosen.dtypes)}, got {option}={value!r}: leave {option} out, or "
                f"choose the format {either(able)}"
            )
    return chosen


def _refuse_hidden(target: Path, chosen: Format) -> None:
    """Refuse a folder with a model of a format that is asked first, so that the new one would not be found."""
    for format in takewhile(lambda format: format is not chosen, formats()):
        if main := _main_file(format, target):
            raise ElmoError(
                f"{target} contains another model ({main}), which would be found first: choose another folder"
            )


def _main_file(format: Format, folder: Path) -> str | None:
    try:
        return format.detect(FolderSource(folder), None) if folder.is_dir() else None
    except (ElmoError, OSError):  # damaged files hide no other model; for a folder that cannot be read, see the writer
        return None

"""From one format to another, without losing what the target format can store."""

from __future__ import annotations

from pathlib import Path

from elmokit.errors import ElmoError
from elmokit.formats.load import read_checkpoint
from elmokit.formats.registry import DEFAULT_FORMAT, Format
from elmokit.formats.save import SoftmaxDtype, StoredDtype, format_to_write, write_checkpoint
from elmokit.storage.atomic import disk_errors


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
    """Convert the model at `source` to the format `to` and return what was written.

    `dtype` and `softmax` are those of `formats.save.stored_in`.
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
        raise ElmoError(f"target must be a folder, and {target} is a file", "target")
    elif target.is_dir() and any(target.iterdir()) and not overwrite:
        raise ElmoError(f"the folder {target} is not empty: choose another or use overwrite", "overwrite")

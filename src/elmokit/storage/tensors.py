"""Safetensors files that appear whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from elmokit.storage.atomic import Errors, atomic_file, disk_errors


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
    errors: Errors = disk_errors,
) -> None:
    """Write tensors, of any device and layout, to a file."""
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    with atomic_file(path, errors) as temporary:
        try:
            save_file(plain, temporary, None if metadata is None else dict(metadata))
        except SafetensorError as error:  # how it reports a full disk
            raise OSError(str(error).removeprefix("Error while serializing: ")) from error

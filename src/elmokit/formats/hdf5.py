"""weights.hdf5 as named arrays, read with care and written whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import h5py
import numpy as np
from numpy.typing import NDArray

from elmokit.errors import ElmoError
from elmokit.formats.atomic import replacing
from elmokit.formats.source import Source

MAGIC = b"\x89HDF\r\n\x1a\n"
# What libhdf5 and h5py raise on files that are cut, flipped or lie about themselves.
_DAMAGE = (OSError, RuntimeError, ValueError, KeyError, TypeError, OverflowError, UnicodeDecodeError, MemoryError)


class Hdf5Tensors:
    """The float datasets of an HDF5 file by their full names."""

    def __init__(self, source: Source, name: str) -> None:
        self.where = source.describe(name)
        path = source.path(name)
        self._stream = None if path else source.open(name)
        try:
            self._file = h5py.File(path or self._stream, "r")
        except _DAMAGE as error:
            self._close_stream()
            raise ElmoError(f"{self.where} is not a whole HDF5 file ({_first_line(error)}); fetch it again") from error
        self._datasets: dict[str, Any] = {}
        try:
            self._collect(self._file, "", depth=0)
        except _DAMAGE as error:
            self._file.close()
            self._close_stream()
            raise ElmoError(f"{self.where} is a damaged HDF5 file ({_first_line(error)}); fetch it again") from error

    def _collect(self, group: Any, prefix: str, depth: int) -> None:  # noqa: ANN401 - h5py has no types
        # By hand, not by visititems: that shows a dataset with two names under one of them only.
        if depth > 16:
            raise ValueError("groups nested too deep")
        for name in group:
            link = group.get(name, getlink=True)
            if not isinstance(link, h5py.HardLink):
                raise ValueError(f"{prefix}{name} points outside the file")
            item = group[name]
            if isinstance(item, h5py.Group):
                self._collect(item, f"{prefix}{name}/", depth + 1)
            elif isinstance(item, h5py.Dataset):
                self._datasets[prefix + name] = item

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._close_stream()

    def _close_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()

    def names(self) -> list[str]:
        """All datasets."""
        return list(self._datasets)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a dataset; () for one that is no array of numbers."""
        dataset = self._datasets[name]
        return tuple(int(size) for size in dataset.shape or ())

    def read(self, name: str) -> NDArray[Any]:
        """The dataset in memory, in the machine's byte order."""
        dataset = self._datasets[name]
        where = f"{self.where}: {name}"
        if dataset.dtype.kind not in "fiu":
            raise ElmoError(f"{where} must hold numbers, got {dataset.dtype}")
        try:
            if dataset.chunks is None and dataset.id.get_storage_size() < dataset.nbytes:
                raise ElmoError(f"{where} is cut short: {dataset.nbytes} bytes are missing; fetch the file again")
            value = dataset[()]
        except _DAMAGE as error:
            if isinstance(error, ElmoError):
                raise
            raise ElmoError(f"{where} cannot be read ({_first_line(error)}); fetch the file again") from error
        return np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("="))


def write_datasets(path: Path, arrays: Mapping[str, NDArray[Any]], links: Mapping[str, str]) -> None:
    """Contiguous float32 datasets without attributes, as older readers expect; `links` name groups a second time."""
    with replacing(path) as temporary, h5py.File(temporary, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=np.ascontiguousarray(array, dtype=np.float32))
        for alias, target in links.items():
            file[alias] = file[target]


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]

"""Reads weights.hdf5 as named arrays, with checks, and writes it completely or not at all."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import h5py
import numpy as np
from numpy.typing import NDArray

from elmokit.errors import DamagedFileError, ElmoError
from elmokit.formats.source import Source
from elmokit.storage.atomic import atomic_file
from elmokit.storage.hostile_hdf5 import READ_ERRORS, check_numbers, find, has
from elmokit.storage.trusted import check_decompressed_size

_MOST_ITEMS = 10_000
"""Largest number of groups and datasets: groups that contain each other could be walked without end."""


class Hdf5Tensors:
    """The datasets of an HDF5 file, by their full names."""

    def __init__(self, source: Source, name: str) -> None:
        self.where = source.describe(name)
        self._file_bytes, self._read_bytes = source.stored_bytes(name), 0
        self._datasets: dict[str, Any] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._items = 0
        with ExitStack() as stack:
            file = _open(source, name, stack)
            try:
                self._collect(file, "")
            except READ_ERRORS as error:
                raise _damaged(self.where, error) from error
            self._stack = stack.pop_all()

    def _collect(self, group: Any, prefix: str) -> None:  # noqa: ANN401 - h5py has no types
        # Not visititems: it shows a dataset with two names under only one of them.
        for name in group:
            self._items += 1
            if self._items > _MOST_ITEMS or prefix.count("/") > 16:
                raise ValueError(f"more groups than a model has, at {prefix[:80]}")
            item = find(group, name)
            if isinstance(item, h5py.Group):
                self._collect(item, f"{prefix}{name}/")
            elif isinstance(item, h5py.Dataset):
                self._datasets[prefix + name] = item
                self._shapes[prefix + name] = tuple(int(size) for size in item.shape or ())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def names(self) -> list[str]:
        """The names of all datasets."""
        return list(self._datasets)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a dataset; () for a scalar or empty one."""
        return self._shapes[name]

    def read(self, name: str) -> NDArray[Any]:
        """Read a dataset into memory, in native byte order."""
        where = f"{self.where}: {name}"
        try:
            return self._read(self._datasets[name], where)
        except ElmoError:
            raise
        except READ_ERRORS as error:
            raise DamagedFileError(f"{where} cannot be read ({_first_line(error)}); fetch the file again") from error

    def _read(self, dataset: Any, where: str) -> NDArray[Any]:  # noqa: ANN401 - h5py has no types
        check_numbers(dataset, where, self._file_bytes)
        self._read_bytes += dataset.nbytes  # one dataset may have thousands of names
        check_decompressed_size(self._read_bytes, self._file_bytes, self.where)
        value = dataset[()]
        return np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("="))


def names_at_top(source: Source, name: str, wanted: Iterable[str]) -> set[str]:
    """The names among `wanted` that are at the top level of a file; the rest of the file is not read."""
    with ExitStack() as stack:
        file = _open(source, name, stack)
        try:
            return {key for key in wanted if has(file, key)}
        except READ_ERRORS as error:
            raise _damaged(source.describe(name), error) from error


def write_datasets(path: Path, arrays: Mapping[str, NDArray[Any]], links: Mapping[str, str]) -> None:
    """Write contiguous float32 datasets without attributes, for older readers; `links` are second names of groups."""
    image = io.BytesIO()  # in memory first: libhdf5 crashes the process if the disk is full
    with h5py.File(image, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=np.ascontiguousarray(array, dtype=np.float32))
        for alias, target in links.items():
            file[alias] = file[target]
    with atomic_file(path) as temporary:
        temporary.write_bytes(image.getbuffer())


def _open(source: Source, name: str, stack: ExitStack) -> Any:  # noqa: ANN401 - h5py has no types
    """Open the file until the stack closes it."""
    path = source.path(name)
    stream = None if path else stack.enter_context(source.open(name))
    try:
        return stack.enter_context(h5py.File(path or stream, "r"))
    except READ_ERRORS as error:
        reason = _first_line(error)
        raise DamagedFileError(
            f"{source.describe(name)} is not a complete HDF5 file ({reason}); fetch it again"
        ) from error


def _damaged(where: str, error: BaseException) -> ElmoError:
    return DamagedFileError(f"{where} is a damaged HDF5 file ({_first_line(error)}); fetch it again")


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]

"""The files of a model, in a folder or in a zip, which is read without unpacking it to disk.

A file that cannot be read raises an OSError, which `load.py` turns into an ElmoError.
"""

from __future__ import annotations

import io
import json
import lzma
import shutil
import struct
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from elmokit.errors import DamagedFileError, ElmoError
from elmokit.storage.trusted import check_zip

ZIP_MAGIC = b"PK\x03\x04"
_MACOS_SHADOWS = "__MACOSX/"  # macOS adds a shadow of each file to its zips
_LARGEST_JSON = 1 << 22
"""In bytes; nested lists take twenty times as much memory."""
_BLOCK = 1 << 20

# The errors of zipfile for a zip that is cut short, has flipped bits or false sizes.
_READ_ERRORS = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, OSError, EOFError, RuntimeError, NotImplementedError,
    ValueError, OverflowError, MemoryError,
)  # fmt: skip


class FolderSource:
    """The files of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def names(self) -> list[str]:
        """The names of the files, sorted."""
        return sorted(entry.name for entry in self.folder.iterdir() if entry.is_file())

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading."""
        try:
            return (self.folder / name).open("rb")
        except OSError as error:
            raise ElmoError(f"{self.describe(name)} cannot be read: {error.strerror or error}") from error

    def describe(self, name: str) -> str:
        """The path of the file."""
        return str(self.folder / name)

    def path(self, name: str) -> Path | None:
        """The path of the file."""
        return self.folder / name

    def stored_bytes(self, name: str) -> int:
        """The size of the file."""
        return (self.folder / name).stat().st_size


class ZipSource:
    """The files of a zip, one in memory at a time; a folder that contains all files is not part of their names."""

    def __init__(self, path: Path) -> None:
        self.zip_path = path
        try:
            self._stored = path.stat().st_size
            with zipfile.ZipFile(path) as archive:
                listed = archive.infolist()
                if not all(info.filename for info in listed):
                    raise ElmoError(f"{path} contains a file without a name; do not trust it")
                check_zip(archive, self._stored, str(path))
        except ElmoError:
            raise
        except _READ_ERRORS as error:
            raise DamagedFileError(f"{path} is not a complete zip file ({error}); fetch it again") from error
        infos = [info for info in listed if not info.is_dir() and not info.filename.startswith(_MACOS_SHADOWS)]
        for info in infos:
            parts = PurePosixPath(info.filename.replace("\\", "/"))
            if parts.is_absolute() or ".." in parts.parts or ":" in info.filename.split("/")[0]:
                raise ElmoError(
                    f"{path} contains a file whose path leads out of the zip: {info.filename!r}; do not trust it"
                )
        parents = {PurePosixPath(info.filename).parent for info in infos}
        prefix = "" if len(parents) != 1 else f"{parents.pop()}/".removeprefix("./")
        self._members = {info.filename.removeprefix(prefix): info for info in infos}
        self._last: tuple[str, bytes] = ("", b"")  # the last file is cached: readers open it several times in a row

    def names(self) -> list[str]:
        """The names of the files, sorted."""
        return sorted(self._members)

    def open(self, name: str) -> BinaryIO:
        """Open a file, decompressed in memory."""
        if name not in self._members:
            raise ElmoError(f"{self.describe(name)} is not in the zip")
        if self._last[0] == name:
            return io.BytesIO(self._last[1])
        try:
            unpacked = io.BytesIO()
            with zipfile.ZipFile(self.zip_path) as archive, archive.open(self._members[name]) as member:
                # In blocks: a single read would ignore the stated size.
                shutil.copyfileobj(member, unpacked, _BLOCK)
            self._last = (name, unpacked.getvalue())
            return io.BytesIO(self._last[1])
        except _READ_ERRORS as error:
            raise DamagedFileError(
                f"{self.describe(name)} cannot be unpacked ({error}); fetch the zip again"
            ) from error

    def describe(self, name: str) -> str:
        """The path of the zip and the name of the file in it."""
        return f"{self.zip_path}!{name}"

    def path(self, name: str) -> Path | None:
        """None: a file in a zip has no path of its own."""
        return None

    def stored_bytes(self, name: str) -> int:
        """The size of the whole zip, an upper bound of the file's part."""
        return self._stored


Source = FolderSource | ZipSource
"""A flat set of named files."""


def read_text(source: Source, name: str, most: int = -1) -> str:
    """The text of a UTF-8 file; a file of more than `most` bytes is refused."""
    with source.open(name) as file:
        data = file.read(most + 1 if most >= 0 else -1)
    if 0 <= most < len(data):
        raise DamagedFileError(f"{source.describe(name)} must have at most {most:,} bytes; fetch it again")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DamagedFileError(
            f"{source.describe(name)} must be UTF-8, got {error.reason} at byte {error.start}; save it as UTF-8"
        ) from error


def read_json(source: Source, name: str) -> dict[str, Any]:
    """The JSON object in a file."""
    text = read_text(source, name, _LARGEST_JSON).removeprefix("\ufeff")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(
            f"{source.describe(name)} must be JSON, got {error}; correct it or fetch it again"
        ) from error
    if not isinstance(value, dict):
        raise DamagedFileError(
            f"{source.describe(name)} must be a JSON object, got {type(value).__name__}; fetch it again"
        )
    return value

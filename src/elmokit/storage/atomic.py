"""Writes files and folders completely or not at all, and turns disk errors into one sentence."""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmokit.errors import ElmoError
from elmokit.storage.cache import remove_leftovers
from elmokit.storage.trusted import hidden_file

if TYPE_CHECKING:  # corpora are prepared without importing torch
    from torch import Tensor

Errors = Callable[[Path], AbstractContextManager[object]]
"""Turns disk errors while a path is written into messages; nullcontext leaves them to the caller."""
_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def disk_errors(
    what: str | Path, advice: str = "", *, if_full: str = "", arguments: Collection[str] = ()
) -> Iterator[None]:
    """Turn a disk error about `what` into one sentence with `advice`, or with `if_full` if the disk is full.

    `arguments` are the Python arguments that the advice names.
    """
    try:
        yield
    except OSError as error:
        if if_full and error.errno in _FULL:
            raise ElmoError(f"no space is left on the disk for {what}: {if_full}", *arguments) from error
        reason = error.strerror or (str(error) or type(error).__name__).splitlines()[0]
        problem = f"cannot be written ({reason}): {advice}" if advice else f"cannot be written: {reason}"
        raise ElmoError(f"{what} {problem}", *arguments) from error


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    if os.name == "nt" and path.is_dir():
        return  # Windows can neither open nor flush a folder
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def atomic_file(path: Path, errors: Errors = disk_errors) -> Iterator[Path]:
    """A temporary file next to `path` that replaces it when the block ends without an error."""
    with errors(path), hidden_file(path) as temporary:
        # Not mkstemp: only the owner could read the file.
        temporary.touch(exist_ok=False)
        mode = temporary.stat().st_mode
        yield temporary
        temporary.chmod(mode)  # a writer that replaced the file may have changed its mode
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)


def write_text(path: Path, text: str, errors: Errors = disk_errors) -> None:
    """Write a UTF-8 text file, completely or not at all."""
    with atomic_file(path, errors) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: dict[str, str] | None = None,
    errors: Errors = disk_errors,
) -> None:
    """Write tensors on any device and of any layout to a safetensors file, completely or not at all."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    with atomic_file(path, errors) as temporary:
        try:
            save_file(plain, temporary, metadata)
        except SafetensorError as error:  # its error for a full disk
            raise OSError(str(error).removeprefix("Error while serializing: ")) from error


@contextmanager
def update_folder(folder: Path, last: str, optional: Collection[str]) -> Iterator[Path]:
    """A temporary folder whose files move into `folder` when the block ends without an error.

    Until then nothing in `folder` changes, and a folder that this call made is removed after an error. The file `last`
    is removed first and moved last, so a folder that contains it is complete. Files in `optional` that the block did
    not write are removed.
    """
    with disk_errors(folder), _created_parents(folder):
        folder.mkdir(exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".elmokit.", suffix=".tmp", dir=folder))
        try:
            yield staging
            files = sorted(staging.iterdir(), key=lambda file: file.name == last)
            for name in (last, *(set(optional) - {file.name for file in files})):
                (folder / name).unlink(missing_ok=True)
            for file in files:
                file.replace(folder / file.name)
            sync(folder)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def new_folder(folder: Path, last: str) -> Iterator[Path]:
    """A temporary folder that becomes `folder` when the block ends without an error.

    `folder` must not exist or must be empty; the files move into an empty folder, `last` as the last one.
    """
    _refuse_nonempty(folder)
    if folder.exists():  # a mounted disk or the current folder cannot be replaced
        with update_folder(folder, last, ()) as staging:
            yield staging
            _sync_all(staging)
        return
    with disk_errors(folder), _created_parents(folder), atomic_folder(folder, nullcontext, new=True) as temporary:
        yield temporary
        _sync_all(temporary)


def check_new_folder(folder: Path) -> None:
    """Raise the errors of `new_folder` in advance, before the work whose result goes there."""
    _refuse_nonempty(folder)
    nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
    with disk_errors(folder):
        Path(tempfile.mkdtemp(prefix=".elmokit.", suffix=".tmp", dir=nearest)).rmdir()


def read_description(
    path: Path, format: str, version: int, what: str, advice: str, *, absent: str = "check the name of the folder"
) -> dict[str, Any]:
    """The JSON file of a complete folder; an error with `advice` if it does not describe `what` in this version.

    `absent` is the advice if there is no such file: the folder may contain something else, or not exist.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ElmoError(f"{path.parent} is not {what}: it has no {path.name}; {absent}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ElmoError(f"{path} is damaged or cannot be read ({error}): {advice}") from error
    if not isinstance(found, dict) or found.get("format") != format:
        raise ElmoError(f"{path} does not describe {what}: {advice}")
    if found.get("version") != version:
        raise ElmoError(f"{path} has version {found.get('version')!r}, and this elmokit reads {version}: {advice}")
    return found


@contextmanager
def atomic_folder(folder: Path, errors: Errors, *, locked: bool = False, new: bool = False) -> Iterator[Path]:
    """A temporary folder next to `folder` that replaces it when the block, which must flush its files, ends.

    With `new`, a folder that another process has filled in the meantime stays and raises an error. `errors` turns disk
    errors outside the block into messages. Temporary folders of killed writers are removed: `locked` is that of
    `cache.remove_leftovers`.
    """
    temporary = temporary_name(folder)
    with errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder.parent, folder.name, locked=locked)
        temporary.mkdir()
    try:
        yield temporary
        with errors(folder):
            if new:
                temporary.rename(folder)
                sync(folder.parent)
            else:
                _replace_folder(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _replace_folder(temporary: Path, folder: Path) -> None:
    old = temporary_name(folder)
    with suppress(FileNotFoundError):
        folder.rename(old)
    try:
        temporary.rename(folder)
    except OSError:
        with suppress(OSError):
            old.rename(folder)
        raise
    sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def temporary_name(path: Path) -> Path:
    """A hidden, random name next to `path`, which `cache.remove_leftovers` recognises."""
    return path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")


@contextmanager
def _created_parents(folder: Path) -> Iterator[None]:
    """Create the parents of a folder; after an error, remove the created ones and the folder if they are empty."""
    made = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for parent in made:
            with suppress(OSError):  # another process has put a file there
                parent.rmdir()
        raise


def _refuse_nonempty(folder: Path) -> None:
    with disk_errors(folder):
        filled = os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir()))
    if filled:
        raise ElmoError(f"{folder} is not empty: choose a new folder, or remove this one first")


def _sync_all(folder: Path) -> None:
    for path in folder.rglob("*"):
        sync(path)

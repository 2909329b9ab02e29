"""Files that appear whole or not at all, one by one or as a folder's worth."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from elmokit.durable import sync
from elmokit.errors import ElmoError
from elmokit.storage.trusted import hidden_file


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place, flushed to disk, once the block has ended well."""
    try:
        with hidden_file(path) as temporary:
            temporary.touch(exist_ok=False)
            mode = temporary.stat().st_mode
            yield temporary
            temporary.chmod(mode)  # a writer that makes the file anew may have hidden it from other users
            sync(temporary)
            temporary.replace(path)
            sync(path.parent)
    except OSError as error:
        raise _cannot_write(path, error) from error


@contextmanager
def filling(folder: Path, last: str, optional: Collection[str]) -> Iterator[Path]:
    """A temporary folder whose files move into `folder` once the block has ended well.

    Until then nothing in `folder` is touched, and after a failure a new one is gone again. The file `last` is the first
    to go and the last to come, so a folder that has it is whole; files named in `optional` that the block has not
    written are removed.
    """
    try:
        made = [parent for parent in (folder, *folder.parents) if not parent.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".elmokit.", suffix=".tmp", dir=folder))
    except OSError as error:
        raise _cannot_write(folder, error) from error
    done = False
    try:
        yield staging
        files = sorted(staging.iterdir(), key=lambda file: file.name == last)
        for name in (last, *(set(optional) - {file.name for file in files})):
            (folder / name).unlink(missing_ok=True)
        for file in files:
            file.replace(folder / file.name)
        sync(folder)
        done = True
    except OSError as error:
        raise _cannot_write(folder, error) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        if not done:
            _remove_empty(made)


@contextmanager
def making(folder: Path, last: str) -> Iterator[Path]:
    """A temporary folder that becomes `folder`, flushed to disk, once the block has ended well.

    There must be nothing at `folder`, or an empty folder, into which the files then move, the file `last` at the end.
    """
    _refuse_filled(folder)
    if folder.exists():  # may be a mounted disk or where the user stands, whose place nothing can take
        with filling(folder, last, ()) as staging:
            yield staging
            _sync_all(staging)
        return
    try:
        made = [parent for parent in folder.parents if not parent.exists()]
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = folder.with_name(f".{folder.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
        temporary.mkdir()
    except OSError as error:
        raise _cannot_write(folder, error) from error
    done = False
    try:
        yield temporary
        _sync_all(temporary)
        temporary.replace(folder)
        sync(folder.parent)
        done = True
    except OSError as error:
        raise _cannot_write(folder, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if not done:
            _remove_empty(made)


def check_making(folder: Path) -> None:
    """Refuse what `making` would refuse, before the work whose result it is to hold."""
    _refuse_filled(folder)
    nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
    try:
        Path(tempfile.mkdtemp(prefix=".elmokit.", suffix=".tmp", dir=nearest)).rmdir()
    except OSError as error:
        raise _cannot_write(folder, error) from error


def write_text(path: Path, text: str) -> None:
    """A UTF-8 text file, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def _refuse_filled(folder: Path) -> None:
    try:
        filled = os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir()))
    except OSError as error:
        raise _cannot_write(folder, error) from error
    if filled:
        raise ElmoError(f"{folder} is not empty: name a folder that is new, or remove that one first")


def _sync_all(folder: Path) -> None:
    for path in folder.rglob("*"):
        sync(path)


def _remove_empty(folders: Iterable[Path]) -> None:
    for folder in folders:
        with suppress(OSError):  # not ours any more where someone else has put a file there
            folder.rmdir()


def _cannot_write(path: Path, error: OSError) -> ElmoError:
    reason = error.strerror or (str(error) or type(error).__name__).splitlines()[0]
    return ElmoError(f"{path} cannot be written: {reason}")

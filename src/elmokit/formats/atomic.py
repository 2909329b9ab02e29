"""Files that appear whole or not at all, one by one or as a folder's worth."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from elmokit.durable import sync
from elmokit.errors import ElmoError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place, flushed to disk, once the block has ended well."""
    # Not mkstemp, whose files only their owner can read.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        temporary.touch(exist_ok=False)
        mode = temporary.stat().st_mode
    except OSError as error:
        raise _cannot_write(path, error) from error
    try:
        yield temporary
        temporary.chmod(mode)  # a writer that makes the file anew may have hidden it from other users
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


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
            for parent in made:
                with suppress(OSError):  # not ours any more where someone else has put a file there
                    parent.rmdir()


def write_text(path: Path, text: str) -> None:
    """A UTF-8 text file, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def _cannot_write(path: Path, error: OSError) -> ElmoError:
    reason = error.strerror or (str(error) or type(error).__name__).splitlines()[0]
    return ElmoError(f"{path} cannot be written: {reason}")

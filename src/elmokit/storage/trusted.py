"""Checks of untrusted files: those that other users can change, and compressed files that decompress to too much.

In a folder that others can write to, a name may be a link, a pipe or a folder that another user planted, and it may
change between two checks. So a file or folder is opened once, without following a link at the end of its path, and
checked through its descriptor. This user and root are trusted; a file with a second name (a hard link) is not. On
Windows, which has other permissions, only links are refused. A few compressed kilobytes may decompress to more than any
memory, so the stated sizes are checked before decompression.
"""

from __future__ import annotations

import os
import secrets
import stat
import zipfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from elmokit.errors import DamagedFileError, ElmoError

_HAS_OWNERS = hasattr(os, "geteuid")
# Without O_NONBLOCK, opening a planted pipe would wait for its writer.
_SAFE_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_MOST_LINKS = 40


class UntrustedError(ElmoError):
    """Another user may have created a file or folder, or can change it."""


def open_no_follow(path: str | Path, flags: int) -> int:
    """Like os.open, but a link at the end of the path is refused and a pipe is not waited for; an opener for open()."""
    return os.open(path, flags | _SAFE_FLAGS, 0o666)


def open_file(
    path: str | Path, flags: int = os.O_RDONLY, mode: int = 0o666, *, dir_fd: int | None = None, private: bool = False
) -> int:
    """Open a regular file that belongs to this user or root and has one name; returns its descriptor.

    With `private`, no other user may be able to write to it. `flags` and `mode` are those of os.open.
    """
    try:
        fd = os.open(path, flags | _SAFE_FLAGS, mode, dir_fd=dir_fd)
    except OSError:
        _refuse_link(path, dir_fd)
        raise
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode) or facts.st_nlink > 1:
            raise UntrustedError(f"{path} must be an regular file with one name: remove it")
        if _HAS_OWNERS:
            _check(facts, path, _trusted(), rights=private)
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_folder(path: Path) -> int:
    """Open a folder that only this user or root can change, and create it if missing; returns its descriptor."""
    fd = _open_folder(path)
    try:
        _check(os.fstat(fd), path, _trusted())
    except BaseException:
        os.close(fd)
        raise
    return fd


class WorkFolder:
    """A folder of this user for work that can be resumed: created if missing, refused if another user planted it.

    Open files through `path`, which stays the same folder even if another user gives its name to a different one.
    """

    def __init__(self, folder: Path) -> None:
        self.path, self._fd = folder, -1
        if not _HAS_OWNERS:
            folder.mkdir(exist_ok=True)
            return
        self._fd = _open_folder(folder)
        try:
            self._check(folder)
        except BaseException:
            self.close()
            raise
        with suppress(OSError):  # not every system has /proc
            path = Path(f"/proc/{os.getpid()}/fd/{self._fd}")  # not /proc/self: child processes may use the path too
            if os.path.samestat(path.stat(), os.fstat(self._fd)):
                self.path = path

    def _check(self, folder: Path) -> None:
        owners, rights = _trusted(), True
        facts = os.fstat(self._fd)
        if facts.st_uid == os.geteuid() and facts.st_mode & _OTHERS_WRITE:  # created with a permissive umask
            os.fchmod(self._fd, stat.S_IMODE(facts.st_mode) & ~_OTHERS_WRITE)
            facts = os.fstat(self._fd)
        if facts.st_uid not in owners or facts.st_mode & _OTHERS_WRITE:
            # On disks of Windows, FAT and NFS, all files may have the same owner and mode, which then mean nothing.
            with suppress(OSError):
                made = self._new_file()
                owners, rights = owners | {made.st_uid}, not made.st_mode & _OTHERS_WRITE
        _check(facts, folder, owners, rights=rights)
        for inner, folders, files, fd in os.fwalk(".", dir_fd=self._fd):
            for name in (*folders, *files):
                with suppress(FileNotFoundError):  # just removed by the process that worked here
                    found, path = os.lstat(name, dir_fd=fd), folder / inner / name
                    if not stat.S_ISDIR(found.st_mode) and not (stat.S_ISREG(found.st_mode) and found.st_nlink <= 1):
                        raise UntrustedError(f"{path} must be an regular file with one name: remove {folder}")
                    _check(found, path, owners, rights=False)

    def _new_file(self) -> os.stat_result:
        name = f".{secrets.token_hex(8)}.tmp"
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE_FLAGS, 0o600, dir_fd=self._fd)
        try:
            return os.fstat(fd)
        finally:
            os.close(fd)
            os.unlink(name, dir_fd=self._fd)

    def close(self) -> None:
        """Close the descriptor; closing twice is fine."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@contextmanager
def hidden_file(path: Path) -> Iterator[Path]:
    """A path for a new file near `path` that no other user can replace; it is removed at the end of the block."""
    folder = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(8)}.tmp")
    folder.mkdir(0o700)
    try:
        with closing(WorkFolder(folder)) as work:
            hidden = work.path / path.name
            try:
                yield hidden
            finally:
                hidden.unlink(missing_ok=True)
    finally:
        with suppress(OSError):  # another user may have renamed it
            folder.rmdir()


def follow_links(path: Path) -> Path:
    """Resolve all links of a path; a link at its end is refused unless this user or root created it."""
    for _ in range(_MOST_LINKS):
        path = path.parent.resolve() / path.name
        if not path.is_symlink():
            return path.resolve()
        if _HAS_OWNERS and (owner := path.lstat().st_uid) not in _trusted():
            raise UntrustedError(
                f"{path} is a link that another user made (uid {owner}): remove it, or give its target"
            )
        path = path.parent / path.readlink()
    return path.resolve()  # a loop raises the system's error


def _open_folder(path: Path) -> int:
    while True:
        with suppress(FileExistsError):
            path.mkdir(0o755)  # never writable by others, for any umask
        try:
            return os.open(path, os.O_RDONLY | os.O_DIRECTORY | _SAFE_FLAGS)
        except FileNotFoundError:
            continue  # another process has just removed it
        except OSError:
            _refuse_link(path)
            raise


def _refuse_link(path: str | Path, dir_fd: int | None = None) -> None:
    with suppress(OSError):
        if stat.S_ISLNK(os.lstat(path, dir_fd=dir_fd).st_mode):
            raise UntrustedError(f"{path} must not be a link: remove it")


def _trusted() -> set[int]:
    return {0, os.geteuid()}


def _check(facts: os.stat_result, path: str | Path, owners: set[int], *, rights: bool = True) -> None:
    if facts.st_uid not in owners:
        raise UntrustedError(
            f"{path} belongs to another user (uid {facts.st_uid}): remove it, or choose another folder"
        )
    if rights and facts.st_mode & _OTHERS_WRITE:
        raise UntrustedError(
            f"{path} can be changed by other users (mode {stat.S_IMODE(facts.st_mode):o}): remove the permission "
            "with chmod go-w, or choose another folder"
        )


# Compressed files

_MAX_RATIO = 24
"""Compression shrinks weights and vectors by a tenth, text to a quarter, and zeros in elmokit's own parquet files to a
twenty-first."""
_BASE_BYTES = 16 << 20


def max_decompressed_size(compressed: int) -> int:
    """The largest number of bytes that `compressed` bytes may decompress to."""
    return _BASE_BYTES + _MAX_RATIO * compressed


def check_decompressed_size(size: int, compressed: int, where: str) -> None:
    """Refuse a file whose stated size is far larger than that of any decompressed model or vectors."""
    if size > max_decompressed_size(compressed):
        raise DamagedFileError(
            f"{where} says that its {compressed} bytes unpack to {size}, which no model or file of vectors does; "
            "do not trust it"
        )


def check_zip(archive: zipfile.ZipFile, compressed: int, where: str) -> None:
    """Refuse a zip of `compressed` bytes if one of its files, or all together, would decompress to far too much."""
    members = archive.infolist()
    for member in members:
        check_decompressed_size(member.file_size, compressed, f"{where}!{member.filename}")
    check_decompressed_size(sum(member.file_size for member in members), compressed, where)

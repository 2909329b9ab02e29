"""What is not trusted: files in places that other users can write to, and packed files that unpack to too much.

A name in a folder of others may be a link, a pipe or a folder that another user planted, and may change from one check
to the next. So a file or folder is opened once, without following a link at its end, and checked through its
descriptor. This user and root are trusted; a file with a second name (a hard link) is not. On Windows, which has other
rights, only links are refused. A packed file of a few kilobytes may unpack to more than any memory, so its stated sizes
are checked before anything is unpacked.
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
# Without O_NONBLOCK the open of a planted pipe would wait for its writer.
_SAFELY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_MOST_LINKS = 40


class UntrustedError(ElmoError):
    """Another user could have made, or could change, what is at a path."""


def no_link(path: str | Path, flags: int) -> int:
    """Open a file as os.open does, but follow no link at its end and wait for no pipe; an opener for open()."""
    return os.open(path, flags | _SAFELY, 0o666)


def open_file(
    path: str | Path, flags: int = os.O_RDONLY, mode: int = 0o666, *, dir_fd: int | None = None, private: bool = False
) -> int:
    """The descriptor of a plain file of this user or root that has one name; with `private`, only they can write to it.

    `flags` and `mode` are those of os.open.
    """
    try:
        fd = os.open(path, flags | _SAFELY, mode, dir_fd=dir_fd)
    except OSError:
        _refuse_link(path, dir_fd)
        raise
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode) or facts.st_nlink > 1:
            raise UntrustedError(f"{path} must be an ordinary file with one name: remove it")
        if _HAS_OWNERS:
            _check(facts, path, _trusted(), rights=private)
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_folder(path: Path) -> int:
    """The descriptor of a folder, made if absent, that only this user or root can change."""
    fd = _open_folder(path)
    try:
        _check(os.fstat(fd), path, _trusted())
    except BaseException:
        os.close(fd)
        raise
    return fd


class WorkFolder:
    """A folder of this user for work that may be resumed: made if absent, refused where another user planted it.

    Files are opened in `path`, which stays with this folder when another user gives its name to a different one.
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
        with suppress(OSError):  # not every system has such paths
            path = Path(f"/proc/{os.getpid()}/fd/{self._fd}")  # not self: a program started here may use it too
            if os.path.samestat(path.stat(), os.fstat(self._fd)):
                self.path = path

    def _check(self, folder: Path) -> None:
        owners, rights = _trusted(), True
        facts = os.fstat(self._fd)
        if facts.st_uid == os.geteuid() and facts.st_mode & _BY_OTHERS:  # made with an open umask
            os.fchmod(self._fd, stat.S_IMODE(facts.st_mode) & ~_BY_OTHERS)
            facts = os.fstat(self._fd)
        if facts.st_uid not in owners or facts.st_mode & _BY_OTHERS:
            # Disks of Windows, FAT and NFS may know one owner and one mode only: then these say nothing.
            with suppress(OSError):
                made = self._new_file()
                owners, rights = owners | {made.st_uid}, not made.st_mode & _BY_OTHERS
        _check(facts, folder, owners, rights=rights)
        for inner, folders, files, fd in os.fwalk(".", dir_fd=self._fd):
            for name in (*folders, *files):
                with suppress(FileNotFoundError):  # removed at this moment by the process that worked here
                    found, path = os.lstat(name, dir_fd=fd), folder / inner / name
                    if not stat.S_ISDIR(found.st_mode) and not (stat.S_ISREG(found.st_mode) and found.st_nlink <= 1):
                        raise UntrustedError(f"{path} must be an ordinary file with one name: remove {folder}")
                    _check(found, path, owners, rights=False)

    def _new_file(self) -> os.stat_result:
        name = f".{secrets.token_hex(8)}.tmp"
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFELY, 0o600, dir_fd=self._fd)
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
    """A path for a new file near `path` that no other user can replace; what is there at the end is removed."""
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
    """The path without links; a link at its end is refused unless this user or root made it."""
    for _ in range(_MOST_LINKS):
        path = path.parent.resolve() / path.name
        if not path.is_symlink():
            return path.resolve()
        if _HAS_OWNERS and (owner := path.lstat().st_uid) not in _trusted():
            raise UntrustedError(
                f"{path} is a link that another user made (uid {owner}): remove it, or name its target"
            )
        path = path.parent / path.readlink()
    return path.resolve()  # raises the system's error for a loop


def _open_folder(path: Path) -> int:
    while True:
        with suppress(FileExistsError):
            path.mkdir(0o755)  # never writable by others, whatever the umask
        try:
            return os.open(path, os.O_RDONLY | os.O_DIRECTORY | _SAFELY)
        except FileNotFoundError:
            continue  # another process has removed it just now
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
        raise UntrustedError(f"{path} belongs to another user (uid {facts.st_uid}): remove it, or name another place")
    if rights and facts.st_mode & _BY_OTHERS:
        raise UntrustedError(
            f"{path} can be changed by other users (mode {stat.S_IMODE(facts.st_mode):o}): take that right from them "
            "with chmod go-w, or name another place"
        )


# Packed files

_TIMES = 24
"""Weights and vectors shrink by a tenth when they are packed, and text to a quarter; zeros in the packing of our own
parquet files shrink to a twenty-first."""
_ALWAYS = 16 << 20


def most_unpacked(packed: int) -> int:
    """The most bytes that `packed` bytes may unpack to."""
    return _ALWAYS + _TIMES * packed


def check_unpacked(unpacked: int, packed: int, where: str) -> None:
    """Refuse a file whose stated size is far more than models and vectors unpack to."""
    if unpacked > most_unpacked(packed):
        raise DamagedFileError(
            f"{where} says that its {packed} bytes unpack to {unpacked}, which no model or file of vectors does; "
            "do not trust it"
        )


def check_zip(archive: zipfile.ZipFile, packed: int, where: str) -> None:
    """Refuse a zip of `packed` bytes whose files, one of them or all, would unpack to far too much."""
    members = archive.infolist()
    for member in members:
        check_unpacked(member.file_size, packed, f"{where}!{member.filename}")
    check_unpacked(sum(member.file_size for member in members), packed, where)

"""Locks between processes: one at a time, none that outlives its process, and work where there are no locks."""

import errno
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from elmokit.errors import ElmoError
from elmokit.storage import locks
from elmokit.storage.atomic import disk_errors
from elmokit.storage.locks import folder_lock, try_lock, wait_for_lock


def test_one_at_a_time(tmp_path):
    lock = try_lock(tmp_path / "lock")
    with pytest.raises(BlockingIOError):
        try_lock(tmp_path / "lock")
    lock.release()
    try_lock(tmp_path / "lock").release()


@pytest.mark.parametrize("moment", [1, 2])
def test_a_file_that_is_removed_after_it_was_locked(tmp_path, monkeypatch, moment):
    plain, looks = Path.stat, []

    def stat(path, **options):
        looks.append(path)
        if len(looks) == moment:
            path.unlink()
        return plain(path, **options)

    monkeypatch.setattr(Path, "stat", stat)
    lock = try_lock(tmp_path / "lock")
    monkeypatch.undo()
    assert os.path.samestat(os.fstat(lock._fd), (tmp_path / "lock").stat())
    lock.release()


def test_a_folder_that_is_gone(tmp_path):
    with pytest.raises(FileNotFoundError):
        try_lock(tmp_path / "gone" / "lock")


def test_a_lock_ends_with_its_process(tmp_path):
    code = f"""
import time
from pathlib import Path
from elmokit.storage.locks import try_lock
lock = try_lock(Path({str(tmp_path / "lock")!r}))
print("locked", flush=True)
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"locked\n"
    with pytest.raises(BlockingIOError):
        try_lock(tmp_path / "lock")
    process.kill()
    process.wait()
    process.stdout.close()
    try_lock(tmp_path / "lock").release()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_worked_on_without(tmp_path, monkeypatch, code):
    def refuse(fd, blocking):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(locks, "lock_descriptor", refuse)
    with try_lock(tmp_path / "lock") as first, try_lock(tmp_path / "lock") as second:
        assert not first.supported
        assert not second.supported
    with folder_lock(tmp_path / "folder", "", disk_errors) as lock:
        assert not lock.supported


def test_other_errors_are_not_swallowed(tmp_path, monkeypatch):
    def refuse(fd, blocking):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(locks, "lock_descriptor", refuse)
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0  # noqa: PTH208
    with pytest.raises(OSError, match="Input/output error"):
        try_lock(tmp_path / "lock")
    with (
        pytest.raises(ElmoError, match=r"folder cannot be written: Input/output error"),
        folder_lock(tmp_path / "folder", "", disk_errors),
    ):
        pass
    assert not before or len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "thesis").write_text("mine")
    (tmp_path / "lock").symlink_to(tmp_path / "thesis")
    with pytest.raises(OSError, match="lock"):
        try_lock(tmp_path / "lock")


def test_a_wait_is_logged_once_and_ends(tmp_path, caplog):
    caplog.set_level("INFO")
    first = try_lock(tmp_path / "lock")
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(wait_for_lock, tmp_path / "lock", "another process is at work")
        while "at work" not in caplog.text:
            time.sleep(0.01)
        time.sleep(3 * locks._WAIT_SECONDS)
        assert not second.done()
        first.release()
        second.result(timeout=60).release()
    assert caplog.text.count("another process is at work: waiting for it") == 1


def test_a_folders_lock_is_next_to_it_and_leaves_nothing(tmp_path):
    with folder_lock(tmp_path / "new" / "corpus", "", disk_errors) as lock:
        assert lock.supported
        assert [path.name for path in (tmp_path / "new").iterdir()] == [".corpus.lock"]
        with pytest.raises(BlockingIOError):
            try_lock(lock.path)
    assert not list((tmp_path / "new").iterdir())


def test_a_lock_file_that_its_process_removes_lets_only_one_in(tmp_path):
    """Many threads, each of which removes the file at its end, and counts those that are in."""
    inside, most = [], []

    def work(number):
        with folder_lock(tmp_path / "folder", "", disk_errors):
            inside.append(number)
            most.append(len(inside))
            time.sleep(0.001)
            inside.remove(number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(24)))
    assert max(most) == 1


def test_releasing_twice_is_fine(tmp_path):
    lock = try_lock(tmp_path / "lock")
    lock.release(remove=True)
    lock.release(remove=True)
    assert not list(tmp_path.iterdir())

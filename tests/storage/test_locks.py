"""A lock is taken or refused, and a file that is removed at the wrong moment is made anew."""

import os
from pathlib import Path

import pytest

from elmokit.storage.locks import try_lock


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

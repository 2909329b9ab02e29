"""What another user planted is refused; what this user made is opened, and stays the same whatever its name becomes."""

import os
import stat
from contextlib import closing
from pathlib import Path

import pytest

from elmokit.errors import ElmoError
from elmokit.storage.trusted import (
    UntrustedError,
    WorkFolder,
    follow_links,
    hidden_file,
    open_file,
    open_folder,
    open_no_follow,
)

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has other rights")


def test_an_own_file_and_folder_are_opened(tmp_path):
    folder = open_folder(tmp_path / "folder")
    os.close(open_file("file", os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=folder))
    os.close(open_file("file", dir_fd=folder, private=True))
    os.close(folder)
    os.close(open_folder(tmp_path / "folder"))
    os.close(open_file(tmp_path / "folder" / "file"))


def test_a_new_folder_is_never_writable_by_others(tmp_path):
    before = os.umask(0)
    try:
        os.close(open_folder(tmp_path / "folder"))
        WorkFolder(tmp_path / "work").close()
    finally:
        os.umask(before)
    for name in ("folder", "work"):
        assert not (tmp_path / name).stat().st_mode & 0o022


@pytest.mark.parametrize("plant", ["link", "dangling link", "hard link", "pipe", "folder"])
def test_a_file_that_is_none(tmp_path, plant):
    target, path = tmp_path / "target", tmp_path / "file"
    target.write_text("precious")
    match plant:
        case "link":
            path.symlink_to(target)
        case "dangling link":
            path.symlink_to(tmp_path / "new")
        case "hard link":
            path.hardlink_to(target)
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
    with pytest.raises(UntrustedError, match=str(path)):
        open_file(path)
    with pytest.raises((UntrustedError, IsADirectoryError), match=str(path)):
        open_file(path, os.O_RDWR | os.O_CREAT)
    assert not (tmp_path / "new").exists()
    assert target.read_text() == "precious"


def test_what_belongs_to_another_user(tmp_path, give_away):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir(mode=0o755)
    give_away(tmp_path / "file", tmp_path / "folder")
    for attempt in (
        lambda: open_file(tmp_path / "file"),
        lambda: open_folder(tmp_path / "folder"),
        lambda: WorkFolder(tmp_path / "folder"),
    ):
        with pytest.raises(UntrustedError, match="belongs to another user"):
            attempt()


def test_what_others_can_write_to(tmp_path):
    path, folder = tmp_path / "file", tmp_path / "folder"
    path.touch()
    folder.mkdir()
    for mode in (0o620, 0o602, 0o666):
        path.chmod(mode)
        os.close(open_file(path))
        with pytest.raises(UntrustedError, match=f"mode {mode:o}"):
            open_file(path, private=True)
    for mode in (0o770, 0o707, 0o1777):
        folder.chmod(mode)
        with pytest.raises(UntrustedError, match=f"mode {mode:o}"):
            open_folder(folder)


def test_a_link_in_the_place_of_a_folder(tmp_path):
    (tmp_path / "target").mkdir()
    (tmp_path / "folder").symlink_to(tmp_path / "target")
    for attempt in (open_folder, WorkFolder):
        with pytest.raises(UntrustedError, match="must not be a link"):
            attempt(tmp_path / "folder")


def test_a_file_in_the_place_of_a_folder(tmp_path):
    (tmp_path / "folder").touch()
    for attempt in (open_folder, WorkFolder):
        with pytest.raises(NotADirectoryError):
            attempt(tmp_path / "folder")


@pytest.mark.parametrize("plant", ["link", "hard link", "pipe", "deep link", "foreign"])
def test_work_is_not_resumed_where_something_was_planted(tmp_path, plant, give_away):
    folder = tmp_path / "work"
    (folder / "inner").mkdir(parents=True)
    (tmp_path / "target").touch()
    (folder / "mine").touch()
    WorkFolder(folder).close()
    match plant:
        case "link":
            (folder / "file").symlink_to(tmp_path / "target")
        case "hard link":
            (folder / "file").hardlink_to(tmp_path / "target")
        case "pipe":
            os.mkfifo(folder / "file")
        case "deep link":
            (folder / "inner" / "file").symlink_to(tmp_path / "target")
        case "foreign":
            (folder / "file").touch()
            give_away(folder / "file")
    with pytest.raises(ElmoError, match="file" if plant != "foreign" else "belongs to another user"):
        WorkFolder(folder)


def test_an_own_folder_made_with_an_open_umask_is_closed_to_others(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    folder.chmod(0o2777)
    WorkFolder(folder).close()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o2755


def test_a_file_system_that_knows_one_owner_only(tmp_path, monkeypatch):
    """As on NFS for root, on FAT, and on the disks of Windows, where all files have one owner and all rights."""
    plain = os.fstat

    def squashed(fd):
        facts = list(plain(fd))
        facts[0] |= 0o777
        facts[4] = 65533
        return os.stat_result(facts)

    monkeypatch.setattr(os, "fstat", squashed)
    with closing(WorkFolder(tmp_path / "work")) as work:
        (work.path / "file").write_text("x")
    assert (tmp_path / "work" / "file").read_text() == "x"
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["file"]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs paths to descriptors")
def test_a_folder_that_is_swapped_while_work_goes_on(tmp_path):
    with closing(WorkFolder(tmp_path / "work")) as work:
        (tmp_path / "work").rename(tmp_path / "aside")
        (tmp_path / "work").mkdir()
        (tmp_path / "work" / "file").symlink_to(tmp_path / "target")
        (work.path / "file").write_text("x")
    assert not (tmp_path / "target").exists()
    assert (tmp_path / "aside" / "file").read_text() == "x"


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs paths to descriptors")
def test_a_hidden_file_that_is_swapped(tmp_path):
    with hidden_file(tmp_path / "out") as hidden:
        [folder] = tmp_path.iterdir()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        folder.rename(tmp_path / "aside")
        folder.mkdir()
        (folder / "out").symlink_to(tmp_path / "target")
        hidden.write_text("x")
        hidden.replace(tmp_path / "out")
    assert (tmp_path / "out").read_text() == "x"
    assert not (tmp_path / "target").exists()


def test_a_hidden_file_leaves_nothing(tmp_path):
    with hidden_file(tmp_path / "out") as hidden:
        hidden.write_text("x")
    assert not list(tmp_path.iterdir())


def test_an_opener_that_follows_no_link(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="link"):
        open_no_follow(tmp_path / "link", os.O_RDWR | os.O_CREAT)
    assert not (tmp_path / "target").exists()


def test_links_are_followed_where_this_user_made_them(tmp_path, give_away):
    (tmp_path / "folder").mkdir()
    (tmp_path / "one").symlink_to("folder/two")
    (tmp_path / "folder" / "two").symlink_to(tmp_path / "target")
    assert follow_links(tmp_path / "one") == tmp_path / "target"
    assert follow_links(tmp_path / "target") == tmp_path / "target"
    give_away(tmp_path / "folder" / "two")
    with pytest.raises(UntrustedError, match="another user"):
        follow_links(tmp_path / "one")

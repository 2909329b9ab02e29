"""What killed processes left is removed, what others use is not, and the oldest goes first."""

import os

import pytest

from elmokit.storage.atomic import disk_errors
from elmokit.storage.cache import cache_folder, key_of, name_of, remove_abandoned, remove_leftovers, remove_oldest
from elmokit.storage.locks import folder_lock, try_lock


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ELMOKIT_CACHE")
    assert cache_folder() == tmp_path / "home" / ".cache" / "elmokit"
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # what it does for a user who is not known
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert cache_folder() == tmp_path / f"elmokit-{os.getuid()}"


@pytest.mark.parametrize("name", ["", "corpus", "a[b]*"])
def test_leftovers_go_where_nobody_can_be_writing_them(tmp_path, name):
    (tmp_path / f".{name or 'x'}.1.ab.tmp").mkdir()
    (tmp_path / f".{name or 'x'}.1.ab.tmp" / "file").touch()
    (tmp_path / f".{name or 'x'}.2.cd.tmp").touch()
    stored = ["file.tmp", ".hidden", ".other.1.ab.tmp"] if name else ["file.tmp", ".hidden"]
    for other in stored:
        (tmp_path / other).touch()
    remove_leftovers(tmp_path, name, locked=False)
    assert len(names(tmp_path)) == len(stored) + 2, "they may be of a process that is alive"
    os.utime(tmp_path / f".{name or 'x'}.2.cd.tmp", (0, 0))
    remove_leftovers(tmp_path, name, locked=False)
    assert len(names(tmp_path)) == len(stored) + 1
    remove_leftovers(tmp_path, name, locked=True)
    assert names(tmp_path) == sorted(stored)


def test_a_link_is_removed_and_not_followed(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis").touch()
    (tmp_path / ".x.1.ab.tmp").symlink_to(tmp_path / "mine")
    remove_leftovers(tmp_path, locked=True)
    assert names(tmp_path) == ["mine"]
    assert names(tmp_path / "mine") == ["thesis"]


def test_what_killed_builders_left_goes_and_what_living_ones_write_stays(tmp_path):
    (tmp_path / ".dead.1.ff.tmp").mkdir()
    (tmp_path / ".b.lock").touch()
    for name in "abc":
        (tmp_path / f".{name}.1.ff.tmp").mkdir()
    with folder_lock(tmp_path / "a", "", disk_errors), try_lock(tmp_path / ".c.lock"):
        remove_abandoned(tmp_path / "a", "[a-c]")
        assert names(tmp_path) == [".a.1.ff.tmp", ".a.lock", ".c.1.ff.tmp", ".c.lock", ".dead.1.ff.tmp"]


def test_the_oldest_are_removed_first(tmp_path):
    paths = [tmp_path / name for name in "abcd"]
    for path, age in zip(paths, (3, 1, 4, 2), strict=True):
        path.write_bytes(b"\0" * 10)
        os.utime(path, (1e9 - age, 1e9 - age))
    remove_oldest([*paths, tmp_path / "gone"], 40)
    assert names(tmp_path) == ["a", "b", "c", "d"]
    remove_oldest(paths, 25)
    assert names(tmp_path) == ["b", "d"]
    remove_oldest(paths, 0, keep={paths[1]})
    assert names(tmp_path) == ["b"]


def test_keys_are_the_same_in_every_release():
    assert name_of({"b": 1, "a": ["x", None]}) == name_of({"a": ["x", None], "b": 1})
    assert name_of(["the", "bank"]) == name_of(("the", "bank")) == "a3768b3d9ab7913313c556a9999f4f9e"
    assert key_of(["the", "bank"]).hex() == name_of(["the", "bank"])


def test_keys_of_different_words_differ():
    sentences = [["a b"], ["a", "b"], ["a\0b"], ["\ud800"], ['a", "b'], ["a"], [], [""]]
    assert len({key_of(sentence) for sentence in sentences}) == len(sentences)

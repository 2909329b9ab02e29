"""Files and folders are whole or absent whatever happens, and errors of the disk are one sentence."""

import errno
import os
import stat
from contextlib import ExitStack, nullcontext
from pathlib import Path

import pytest

from elmokit.errors import ElmoError
from elmokit.storage.array_file import OffsetFile
from elmokit.storage.atomic import atomic_file, atomic_folder, disk_errors, new_folder, update_folder, write_text


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def broken_off(context, name, error):
    """Write half of it, and fail."""
    with context as place:
        (place / name if name else place).write_text("half")
        raise error


def test_a_file_is_replaced_at_the_end_and_not_before(tmp_path):
    path = tmp_path / "file"
    for text in ("one", "two"):
        with atomic_file(path) as temporary:
            temporary.write_text(text)
            assert not path.exists() or path.read_text() != text
        assert path.read_text() == text
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ElmoError("a mistake"), OSError(errno.EIO, "Input/output error")])
def test_an_error_leaves_the_file_as_it_was(tmp_path, error):
    path = tmp_path / "file"
    path.write_text("before")
    with pytest.raises((KeyboardInterrupt, ElmoError)):
        broken_off(atomic_file(path), "", error)
    assert path.read_text() == "before"
    assert names(tmp_path) == ["file"]


def test_it_has_the_rights_of_any_new_file(tmp_path):
    (tmp_path / "plain").touch()
    with atomic_file(tmp_path / "file") as temporary:
        temporary.unlink()
        temporary.touch(0o600)  # as some libraries do
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "file")}
    assert len(modes) == 1


def test_a_link_at_the_name_is_replaced_not_followed(tmp_path):
    (tmp_path / "target").write_text("precious")
    (tmp_path / "file").symlink_to(tmp_path / "target")
    write_text(tmp_path / "file", "new")
    assert (tmp_path / "target").read_text() == "precious"
    assert (tmp_path / "file").read_text() == "new"
    assert not (tmp_path / "file").is_symlink()


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs paths to descriptors")
def test_what_is_put_in_the_place_of_the_temporary_file_is_not_followed(tmp_path):
    """A figure is drawn for a second before it is written, time enough for whoever may rename in the folder."""
    (tmp_path / "target").write_text("precious")
    with atomic_file(tmp_path / "file") as temporary:
        for planted in [path for path in tmp_path.iterdir() if path.name.endswith(".tmp")]:
            planted.rename(tmp_path / "aside")
            planted.mkdir()
            (planted / "file").symlink_to(tmp_path / "target")
        temporary.write_text("new")
    assert (tmp_path / "target").read_text() == "precious"
    assert (tmp_path / "file").read_text() == "new"


def test_text_is_the_same_on_every_system(tmp_path):
    write_text(tmp_path / "file", "é\n日本\n")
    assert (tmp_path / "file").read_bytes() == "é\n日本\n".encode()


def test_who_explains_errors_is_the_callers_choice(tmp_path):
    gone = tmp_path / "gone" / "file"
    with pytest.raises(ElmoError, match=r"file cannot be written: No such file or directory$"):
        write_text(gone, "")
    with pytest.raises(FileNotFoundError):
        write_text(gone, "", errors=nullcontext)
    with pytest.raises(ElmoError, match=r"^the index cannot be written \(No such file or directory\): name another$"):
        write_text(gone, "", errors=lambda _: disk_errors("the index", "name another"))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk_has_advice_of_its_own(code):
    with (
        pytest.raises(ElmoError, match="name another" if code == errno.EIO else "no space .* the index: free some"),
        disk_errors("the index", "name another", if_full="free some"),
    ):
        raise OSError(code, os.strerror(code))


def test_a_folder_is_updated_file_by_file_with_one_that_says_it_is_whole(tmp_path, monkeypatch):
    folder = tmp_path / "a" / "model"
    with update_folder(folder, "config", ("card",)) as staging:
        for name in ("config", "card", "weights"):
            (staging / name).write_text("1")
    (folder / "mine").touch()
    moved, plain = [], Path.replace

    def replace(self, target):
        moved.append((target.name, (folder / "config").exists()))
        return plain(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    with update_folder(folder, "config", ("card",)) as staging:
        for name in ("config", "weights"):
            (staging / name).write_text("2")
        assert (folder / "weights").read_text() == "1"
    assert moved == [("weights", False), ("config", False)]
    assert names(folder) == ["config", "mine", "weights"]


def test_folders_that_were_made_in_vain_go_again(tmp_path):
    for make in (lambda: update_folder(tmp_path / "a" / "b", "x", ()), lambda: new_folder(tmp_path / "a" / "b", "x")):
        with pytest.raises(ZeroDivisionError):
            broken_off(make(), "x", ZeroDivisionError)
        assert not names(tmp_path)


def test_a_new_folder_takes_the_place_of_nothing_but_an_empty_one(tmp_path):
    for name in ("absent", "empty"):
        if name == "empty":
            (tmp_path / name).mkdir()
        with new_folder(tmp_path / name, "last") as staging:
            (staging / "last").touch()
        assert names(tmp_path / name) == ["last"]
        with pytest.raises(ElmoError, match="is not empty"), new_folder(tmp_path / name, "last"):
            pass


def test_a_new_folder_leaves_what_another_process_has_put_there(tmp_path):
    with ExitStack() as stack:
        stack.enter_context(new_folder(tmp_path / "model", "last"))
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "theirs").touch()
        with pytest.raises(ElmoError, match="model cannot be written"):
            stack.close()
    assert names(tmp_path) == ["model"]
    assert names(tmp_path / "model") == ["theirs"]


def test_a_folder_is_replaced_as_a_whole(tmp_path):
    folder = tmp_path / "corpus"
    for name in ("one", "two"):
        (tmp_path / ".corpus.1.ab.tmp").mkdir()
        with atomic_folder(folder, disk_errors, locked=True) as temporary:
            (temporary / name).touch()
        assert names(folder) == [name]
    with pytest.raises(ZeroDivisionError):
        broken_off(atomic_folder(folder, disk_errors), "three", ZeroDivisionError)
    assert names(folder) == ["two"]
    assert names(tmp_path) == ["corpus"]


def test_a_file_written_at_offsets(tmp_path):
    file = OffsetFile(tmp_path / "file")
    assert file.write(4, b"efgh") == 8
    assert file.write(0, memoryview(b"abcd")) == 4
    file.truncate(6)
    assert file.size() == 6
    file.sync()
    file.close()
    file.close()
    assert (tmp_path / "file").read_bytes() == b"abcdef"
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with pytest.raises(OSError, match="link"):
        OffsetFile(tmp_path / "link")

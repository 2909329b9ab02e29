"""Files that appear whole or not at all, also where another user is at work in the same folder."""

import stat
from pathlib import Path

import pytest

from elmokit.errors import ElmoError
from elmokit.formats.atomic import replacing


def test_the_file_gets_the_usual_rights_and_nothing_is_left(tmp_path):
    (tmp_path / "usual").touch()
    with replacing(tmp_path / "file") as temporary:
        temporary.unlink()
        temporary.touch(mode=0o600)
    rights = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert rights == {stat.S_IMODE((tmp_path / "usual").stat().st_mode)}
    assert len(list(tmp_path.iterdir())) == 2


def test_a_link_at_the_name_is_replaced_not_followed(tmp_path):
    (tmp_path / "target").write_text("precious")
    (tmp_path / "file").symlink_to(tmp_path / "target")
    with replacing(tmp_path / "file") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "target").read_text() == "precious"
    assert (tmp_path / "file").read_text() == "new"
    assert not (tmp_path / "file").is_symlink()


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs paths to descriptors")
def test_what_is_put_in_the_place_of_the_temporary_file_is_not_followed(tmp_path):
    """A figure is drawn for a second before it is written, time enough for whoever may rename in the folder."""
    (tmp_path / "target").write_text("precious")
    with replacing(tmp_path / "file") as temporary:
        for planted in [path for path in tmp_path.iterdir() if path.name.endswith(".tmp")]:
            planted.rename(tmp_path / "aside")
            planted.mkdir()
            (planted / "file").symlink_to(tmp_path / "target")
        temporary.write_text("new")
    assert (tmp_path / "target").read_text() == "precious"
    assert (tmp_path / "file").read_text() == "new"


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(ElmoError, match="file cannot be written: No such file"), replacing(tmp_path / "no" / "file"):
        pytest.fail("there is nowhere to write")

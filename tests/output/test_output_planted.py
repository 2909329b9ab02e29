"""An output where other users can write: what they planted is neither followed, written to nor waited for."""

import json
import os
import threading

import pytest
from tests.output.test_output_spool import fill, same

from elmokit.errors import ElmoError
from elmokit.output.embed_lines import FILES, FORMAT, VERSION
from support.output_samples import SETTINGS, embed, numbered_lines

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has other rights")
LINES = numbered_lines(8)


@pytest.fixture
def precious(tmp_path):
    """A file of the user that must stay as it is, and a name in the same folder that must stay free."""
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "file").write_text("precious")
    yield folder
    assert [path.name for path in folder.iterdir()] == ["file"]
    assert (folder / "file").read_text() == "precious"


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("plant", ["link", "dangling link", "hard link", "pipe"])
@pytest.mark.parametrize("name", FILES)
def test_a_planted_file(tmp_path, precious, name, plant, resume):
    partial = tmp_path / "out.npz.partial"
    partial.mkdir()
    described = {"format": FORMAT, "version": VERSION, "pooled": False, "settings": SETTINGS, "done": {}}
    (partial / "state.json").write_text(json.dumps(described))
    planted = partial / name
    planted.unlink(missing_ok=True)
    match plant:
        case "link":
            planted.symlink_to(precious / "file")
        case "dangling link":
            planted.symlink_to(precious / "new")
        case "hard link":
            planted.hardlink_to(precious / "file")
        case "pipe":
            os.mkfifo(planted)
    with pytest.raises(ElmoError, match=str(planted)):
        embed(LINES, tmp_path / "out.npz", resume=resume)
    assert not (tmp_path / "out.npz").exists()


def test_a_link_to_a_folder(tmp_path, precious):
    (tmp_path / "out.npz.partial").symlink_to(precious)
    with pytest.raises(ElmoError, match="must not be a link"):
        embed(LINES, tmp_path / "out.npz")


@pytest.mark.parametrize("resume", [False, True])
def test_the_work_of_another_user(tmp_path, give_away, resume):
    give_away(fill(tmp_path / "out.npz"))
    with pytest.raises(ElmoError, match="belongs to another user"):
        embed(LINES, tmp_path / "out.npz", resume=resume)


def test_a_file_of_another_user_in_own_work(tmp_path, give_away):
    give_away(fill(tmp_path / "out.npz") / "vectors.bin")
    with pytest.raises(ElmoError, match=r"vectors\.bin belongs to another user"):
        embed(LINES, tmp_path / "out.npz", resume=True)


def test_an_output_that_is_a_link_of_another_user(tmp_path, precious, give_away):
    (tmp_path / "out.npz").symlink_to(precious / "new.npz")
    give_away(tmp_path / "out.npz")
    with pytest.raises(ElmoError, match="another user"):
        embed(LINES, tmp_path / "out.npz")


def test_own_work_made_with_an_open_umask_is_resumed(tmp_path):
    fill(tmp_path / "out.npz").chmod(0o777)
    embed(LINES, tmp_path / "out.npz", resume=True)
    assert same(tmp_path / "out.npz", LINES)


@pytest.mark.parametrize("name", ["out.h5", "out.npz", "out.npy", "out.jsonl", "out.csv", "out.parquet"])
def test_folders_that_are_swapped_all_the_time(tmp_path, precious, name):
    """Whoever may rename in the folder puts one with links in the place of ours, again and again."""
    done = threading.Event()

    def swap() -> None:
        partial, count = tmp_path / f"{name}.partial", 0
        while not done.is_set():
            count += 1
            if partial.is_dir():
                try:
                    partial.rename(tmp_path / f"aside{count}")
                    partial.mkdir()
                    for file in FILES:
                        (partial / file).symlink_to(precious / "file")
                except OSError:
                    continue

    attacker = threading.Thread(target=swap)
    attacker.start()
    try:
        for _ in range(20):
            try:
                embed(LINES, tmp_path / name)
            except ElmoError:
                continue
            assert same(tmp_path / name, LINES)
    finally:
        done.set()
        attacker.join()

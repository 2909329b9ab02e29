"""`elmo embed FOLDER`: one file of vectors per text, several processes, shards, and runs that are killed."""

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from elmokit.cli.embed import _device_of
from elmokit.errors import ElmoError
from elmokit.output import embed_folder as module
from elmokit.output import read_vectors
from elmokit.output.embed_folder import find_texts, select_shard
from support.command_line import call
from support.folder_worker import START


def lines_of(number: int, count: int) -> list[str]:
    return [f"the bank {n} of river {n * 7919 % (100 + number)} ." for n in range(count)]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Five files of different sizes, one in a folder and one packed."""
    folder = tmp_path / "texts"
    (folder / "sub").mkdir(parents=True)
    for number, name in enumerate(["a.txt", "b.txt", "sub/c.txt", "d"]):
        (folder / name).write_text("\n".join(lines_of(number, 30 * (4 - number))) + "\n", encoding="utf-8")
    (folder / "e.txt.gz").write_bytes(gzip.compress("\n".join(lines_of(9, 20)).encode()))
    (folder / ".hidden").write_bytes(b"\xff")
    return folder


def outputs(folder: Path) -> dict[str, bytes]:
    """The finished files; what belongs to an unfinished one must be in its folder."""
    found = [path for path in folder.rglob("*") if path.is_file() and ".elmokit" not in path.parts]
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in found if ".partial" not in path.parent.name
    }


def expected(capsys, texts: Path, model: Path, ending: str, *options: object) -> dict[str, bytes]:
    """What `elmo embed --input FILE` writes for each file."""
    found, single = {}, texts.parent / f"single.{ending}"
    for file in find_texts(texts):
        assert call(capsys, "embed", "--model", model, "--input", file.path, "--output", single, *options)[0] == 0
        found[f"{file.name}.{ending}"] = single.read_bytes()
        single.unlink()
    return found


def test_every_text_has_the_vectors_of_its_own_run(capsys, tmp_path, texts, model_folder):
    wanted = expected(capsys, texts, model_folder, "npy", "--layer", "all")
    bad = texts / "bad.txt"
    bad.write_bytes(b"the bank\n\xe9t\xe9\n")
    (texts / "cut.gz").write_bytes((texts / "e.txt.gz").read_bytes()[:40])
    (texts / "gone.txt").symlink_to(tmp_path / "nowhere")
    os.mkfifo(texts / "pipe")
    output = tmp_path / "new" / "out"
    command = ("embed", texts, "--model", model_folder, "--output", output, "--layer", "all", "--to", "npy")
    status, out, err = call(capsys, *command, "--workers", 2, "--json")
    assert status == 2
    assert outputs(output) == wanted
    assert "bad.txt: a text must be UTF-8, got other bytes in line 2" in err
    assert "cut.gz: the text is damaged" in err
    report = json.loads(out)
    assert (report["files"], report["skipped"], report["sentences"]) == (5, 0, 320)
    assert report["failed"].keys() == {"bad.txt", "cut.gz", "gone.txt", "pipe"}
    assert "cannot be read" in report["failed"]["gone.txt"]
    assert "regular file" in report["failed"]["pipe"]

    # The same command again: finished files stay, what was wrong is repaired, a changed text is reported.
    before = {name: (output / name).stat().st_mtime_ns for name in wanted}
    bad.write_text("the bank\nété\n", encoding="utf-8")
    for name in ("cut.gz", "gone.txt", "pipe"):
        (texts / name).unlink()
    os.utime(texts / "b.txt")  # touched only
    (texts / "a.txt").write_text("another bank\n", encoding="utf-8")
    status, _, err = call(capsys, *command)
    assert status == 2
    assert f"elmo: a.txt: the text has changed since {output / 'a.txt.npy'} was written: delete that file" in err
    assert "wrote 1 file" in err
    assert "4 files of an earlier run" in err
    assert len(list(read_vectors(output / "bad.txt.npy"))) == 2
    assert {name: (output / name).stat().st_mtime_ns for name in wanted} == before

    (output / "a.txt.npy").unlink()
    assert call(capsys, *command)[0] == 0
    assert len(list(read_vectors(output / "a.txt.npy"))) == 1

    status, _, err = call(capsys, *command, "--pool", "mean")
    assert status == 2
    assert 'which were pool "none", got pool "mean"' in err


def test_shards_are_parts_of_the_whole(texts):
    files = find_texts(texts)
    assert [file.name for file in files] == ["a.txt", "b.txt", "d", "e.txt.gz", "sub/c.txt"]
    for count in (1, 2, 3, 7):
        shards = [select_shard(files, f"{part}/{count}") for part in range(1, count + 1)]
        assert sorted((file for shard in shards for file in shard), key=lambda file: file.name) == files
        assert max(map(len, shards)) - min(map(len, shards)) <= 1
    for wrong in ("0/3", "4/3", "1", "a/b", "1/0", "-1/2", "1/2/3", "²/3"):
        with pytest.raises(ElmoError, match="shard must be from 1/N"):
            select_shard(files, wrong)


def test_two_shards_make_one_folder(capsys, tmp_path, texts, model_folder):
    command = ("embed", "--input", texts, "--model", model_folder, "--output", tmp_path / "out", "--to", "jsonl")
    assert call(capsys, *command, "--shard", "2/2")[0] == 0
    assert outputs(tmp_path / "out").keys() == {"b.txt.jsonl", "e.txt.gz.jsonl"}
    assert call(capsys, *command, "--shard", "1/2", "--quiet")[2] == ""
    assert outputs(tmp_path / "out") == expected(capsys, texts, model_folder, "jsonl")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "is a folder: --output FOLDER writes"),
        (["--output", "all.h5"], "--output must be a folder"),
        (["--output", "texts/out"], "--output must be outside"),
        (["--output", "texts"], "--output must be outside"),
        (["--output", "."], "--output must be outside"),
        (["--output", "out", "--to", "xyz"], "must end in one of"),
        (["--output", "out", "--format", "bilm", "--to", "npz"], "for the layout bilm"),
        (["--output", "out", "--shard", "0/4"], "--shard must be from 1/N to N/N, such as 3/10, got '0/4'"),
        (["--output", "out", "--model", "no/such/model"], "no/such/model"),
        (["--output", "out", "--input-format", "tab", "--split", "line"], "excludes --split"),
        (["another sentence", "--output", "out.h5"], "is a folder, which must be given alone"),
    ],
)
def test_mistakes(capsys, monkeypatch, tmp_path, texts, options, message):
    monkeypatch.chdir(tmp_path)
    status, _, err = call(capsys, "embed", "texts", *options)
    assert status == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_options_for_folders_alone(capsys, tmp_path, model_folder):
    for option in (["--workers", 2], ["--shard", "1/2"], ["--to", "h5"]):
        status, _, err = call(capsys, "embed", "the bank", "--model", model_folder, *option)
        assert status == 2
        assert f"{option[0]} is for a folder of texts" in err
    (tmp_path / "empty").mkdir()
    status, _, err = call(capsys, "embed", tmp_path / "empty", "--output", tmp_path / "out")
    assert status == 2
    assert "got none in" in err


def test_a_full_stop_and_an_empty_text_are_sentences(capsys, model_folder):
    assert call(capsys, "embed", ".", "--model", model_folder)[1].startswith("[1 x 12]")
    assert call(capsys, "embed", "", "--model", model_folder)[1].startswith("[0 x 12]")


def test_workers_share_the_gpus(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert [_device_of(number, None) for number in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    assert _device_of(1, "cuda:0") == "cuda:0"
    assert _device_of(1, "cpu") == "cpu"
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    assert _device_of(1, None) is None


def test_a_text_that_changes_while_it_is_read_is_not_finished(tmp_path, texts):
    output = tmp_path / "out"

    def embed(path, target, progress):
        path.write_text("longer than before " * 999, encoding="utf-8")
        target.write_bytes(b"vectors")
        return module.Summary(1, 1, 0)

    answer = module._embed_one(output, texts / "a.txt", output / "a.txt.h5", embed, lambda message: None)
    assert answer[0] == "failed"
    assert "changed while it was read" in answer[1]
    assert not (output / ".elmokit" / "a.txt.h5.json").exists()


@pytest.fixture
def processes(tmp_path):
    """Start `elmo` in a process of its own, whose workers can send signals, and say which workers are alive."""
    folder = tmp_path / "workers"
    folder.mkdir()

    class Runs:
        def __call__(self, *arguments: object, signal: str = "") -> subprocess.CompletedProcess:
            named = {"ELMOKIT_TEST_WORKERS": str(folder), "ELMOKIT_TEST_SIGNAL": signal}
            path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
            return subprocess.run(
                [sys.executable, "-c", START, *map(str, arguments)],
                env={**os.environ, **named, "PYTHONPATH": path},
                capture_output=True,
                text=True,
            )

        def wait_for_workers(self) -> None:
            """Return when no worker of an earlier run is alive; one that stays alive fails the test."""
            deadline = time.monotonic() + 120
            while [path for path in folder.iterdir() if _is_alive(int(path.name))]:
                assert time.monotonic() < deadline, "a worker process has outlived its parent"
                time.sleep(0.05)

    return Runs()


def _is_alive(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the workers are looked up in /proc")
def test_killed_runs_leave_whole_files_and_no_processes(capsys, tmp_path, texts, model_folder, processes):
    wanted = expected(capsys, texts, model_folder, "npz")
    output = tmp_path / "out"
    command = ("embed", texts, "--model", model_folder, "--output", output, "--to", "npz", "--batch-tokens", 64)

    def check_whole() -> None:
        processes.wait_for_workers()
        assert outputs(output).items() <= wanted.items()

    # A worker is killed: its file is reported, the others are done.
    killed = processes(*command, "--workers", 2, signal="worker SIGKILL a.txt.npz 70")
    assert killed.returncode == 2, killed.stderr
    assert "elmo: a.txt: a process that embeds files ended with status -9" in killed.stderr
    check_whole()
    assert outputs(output).keys() == wanted.keys() - {"a.txt.npz"}
    assert (output / "a.txt.npz.partial").is_dir()
    # The command itself is killed, and its worker ends too.
    assert processes(*command, signal="parent SIGKILL a.txt.npz 90").returncode == -signal.SIGKILL
    check_whole()
    # Ctrl-C: the worker stores what it has.
    stopped = processes(*command, signal="parent SIGINT a.txt.npz 110")
    assert stopped.returncode == 130, stopped.stderr
    assert stopped.stderr.endswith("elmo: interrupted; the same command continues\n")
    check_whole()
    state = json.loads((output / "a.txt.npz.partial" / "state.json").read_text())
    assert state["done"]["sentences"] == 110
    done = processes(*command)
    assert done.returncode == 0, done.stderr
    assert "4 files of an earlier run" in done.stderr
    assert outputs(output) == wanted
    assert not list(output.rglob("*.partial"))
    record = json.loads((output / ".elmokit" / "a.txt.npz.json").read_text())
    assert record["resumed_from"] == 110


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the workers are looked up in /proc")
def test_killed_at_random_moments(capsys, tmp_path, texts, model_folder, processes):
    """The command or one of its two workers, in any file and at any sentence, until everything is done."""
    wanted = expected(capsys, texts, model_folder, "h5")
    output, dice = tmp_path / "out", random.Random(5)
    command = ("embed", texts, "--model", model_folder, "--output", output, "--workers", 2, "--batch-tokens", 64)
    for _ in range(12):
        file, who = dice.choice(sorted(wanted)).rpartition("/")[2], dice.choice(["worker", "parent"])
        stopped = processes(*command, signal=f"{who} SIGKILL {file} {dice.randrange(1, 21)}")
        assert stopped.returncode in (0, 2, -signal.SIGKILL), stopped.stderr
        processes.wait_for_workers()
        assert outputs(output).items() <= wanted.items()
    assert processes(*command).returncode == 0
    assert outputs(output) == wanted

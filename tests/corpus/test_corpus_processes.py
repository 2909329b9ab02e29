"""Several processes: workers that change nothing, builders that are killed, and many that ask at the same time."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from elmokit.corpus import encoding
from elmokit.corpus.encoding import chunks_of
from elmokit.corpus.prepare import prepare
from elmokit.corpus.prepared import PreparedCorpus
from elmokit.corpus.reading import ReadingOptions, Unit
from elmokit.errors import ElmoError

SCRIPT = """
import sys
from pathlib import Path
from elmokit.corpus.prepare import prepare
def reported(progress):
    if not progress.tokens:
        return
    print("building", flush=True)
    if sys.argv[3] == "slow":
        import time; time.sleep(0.3)
if sys.argv[3] == "lockless":
    import errno
    from elmokit.storage import locks
    def refused(fd, blocking):
        raise OSError(errno.ENOLCK, "No locks available")
    locks.lock_descriptor = refused
corpus = prepare([sys.argv[1]], folder=Path(sys.argv[2]), workers=2, on_progress=reported)
print("done", corpus.content, "torch" in sys.modules, flush=True)
"""


@pytest.fixture
def source(tmp_path):
    """Three pieces of text with some of everything."""
    chance = random.Random(0)
    words = [f"w{number}" for number in range(5000)] + ["日本", "é", "<UNK>", "\x01"]
    lines = [" ".join(chance.choices(words, k=chance.randrange(30))).encode() for _ in range(30_000)]
    for number in (3, 17_000, 29_999):
        lines[number] = b"\xff"
    path = tmp_path / "text.txt"
    path.write_bytes(b"\n".join(lines))
    return path


def start(source, folder, pace="fast"):
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(source), str(folder), pace], stdout=subprocess.PIPE, text=True
    )


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("split", ["none", "paragraph"])
def test_the_same_for_any_number_of_workers_and_any_chunks(tmp_path, source, split, monkeypatch):
    one = prepare([str(source)], folder=tmp_path / "one", workers=1, split=split, max_types=4000)
    two = prepare([str(source)], folder=tmp_path / "two", workers=2, split=split, max_types=4000)
    monkeypatch.setattr("elmokit.corpus.encoding._CHUNK_BYTES", 50_000)
    many = prepare([str(source)], folder=tmp_path / "many", workers=3, split=split, max_types=4000)
    assert files(one.folder) == files(two.folder) == files(many.folder)
    assert one.report.unlisted > 0
    bad = one.report.skipped["not_utf8"]
    assert bad == (3, f"{source}:{4 if split == 'none' else paragraph_of(source, 4)}")


@pytest.mark.parametrize("next_on", ["the same text", "another text"])
def test_what_a_killed_builder_left_is_removed_by_the_next(tmp_path, source, next_on):
    folder = tmp_path / "out"
    kill_a_builder(source, folder)
    kill_a_builder(source, folder)
    assert sorted(path.suffix for path in folder.iterdir()) == [".lock", ".tmp"], "the second removed the first's"
    (folder / ".mine.lock").touch()
    (folder / ".mine.1.tmp").mkdir()
    if next_on == "the same text":
        whole = prepare([str(source)], folder=folder)
        assert files(whole.folder) == files(prepare([str(source)], folder=tmp_path / "other").folder)
        assert whole.n_sentences > 28_000
    else:
        (tmp_path / "other.txt").write_text("a b\n")
        whole = prepare([str(tmp_path / "other.txt")], folder=folder)
    assert sorted(path.name for path in folder.iterdir()) == [".mine.1.tmp", ".mine.lock", whole.folder.name]


def test_a_builder_at_work_loses_nothing_to_another_corpus(tmp_path, source):
    builder = start(source, tmp_path / "out", "slow")
    assert builder.stdout.readline() == "building\n"
    (tmp_path / "other.txt").write_text("a b\n")
    other = prepare([str(tmp_path / "other.txt")], folder=tmp_path / "out")
    assert [path.suffix for path in (tmp_path / "out").iterdir() if path != other.folder].count(".tmp") == 1
    said = builder.communicate()[0]
    assert builder.returncode == 0
    whole = prepare([str(source)], folder=tmp_path / "out")
    assert said.splitlines()[-1] == f"done {whole.content} False"
    assert sorted((tmp_path / "out").iterdir()) == sorted([other.folder, whole.folder])


def test_many_ask_and_one_builds(tmp_path, source):
    folder = tmp_path / "out"
    processes = [start(source, folder, "slow") for _ in range(3)]
    outputs = [process.communicate()[0] for process in processes]
    assert sorted("building" in output for output in outputs) == [False, False, True]
    (only,) = folder.iterdir()
    assert {output.splitlines()[-1] for output in outputs} == {f"done {PreparedCorpus.open(only).content} False"}


def test_many_build_where_there_are_no_locks_and_all_end_well(tmp_path, source):
    processes = [start(source, tmp_path / "out", "lockless") for _ in range(3)]
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    (only,) = (path for path in (tmp_path / "out").iterdir() if path.suffix != ".lock")
    assert {output.splitlines()[-1] for output in outputs} == {f"done {PreparedCorpus.open(only).content} False"}
    assert files(only) == files(prepare([str(source)], folder=tmp_path / "other").folder)


def kill_a_builder(source, folder):
    builder = start(source, folder, "slow")
    assert builder.stdout.readline() == "building\n"
    builder.send_signal(signal.SIGKILL)
    builder.communicate()


def test_ctrl_c_ends_the_workers(tmp_path, source):
    builder = start(source, tmp_path / "out", "slow")
    builder.stdout.readline()
    children = [int(pid) for pid in children_of(builder.pid)]
    assert len(children) == 2
    builder.send_signal(signal.SIGINT)
    builder.communicate()
    assert builder.returncode != 0
    assert not any(is_alive(child) for child in children)
    assert list((tmp_path / "out").iterdir()) == []


def test_workers_end_with_a_parent_that_was_killed(tmp_path, source):
    builder = start(source, tmp_path / "out", "slow")
    builder.stdout.readline()
    children = [int(pid) for pid in children_of(builder.pid)]
    assert len(children) == 2
    builder.kill()
    builder.communicate()
    for _ in range(12_000):
        if not any(is_alive(child) for child in children):
            return
        time.sleep(0.05)
    pytest.fail("a worker outlived its parent")


def paragraph_of(path, line):
    """The first line of the paragraph that a line is in."""
    lines = path.read_bytes().split(b"\n")
    return max(number for number in range(1, line + 1) if number == 1 or not lines[number - 2].strip())


def children_of(pid):
    result = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return result.stdout.split()


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
        return file.read().rpartition(")")[2].split()[0] != "Z"


def chunk(number):
    return [Unit("text", number, b"some words\n", 11, 1)]


def test_a_worker_that_dies_is_an_error_and_not_a_hang(monkeypatch):
    made = []

    class Remembered(encoding.WorkerProcess):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self.process)

    monkeypatch.setattr(encoding, "WorkerProcess", Remembered)
    results = encoding.encode_all((chunk(number) for number in range(1000)), ReadingOptions(), 2)
    assert next(results).types == ["some", "words"]
    made[0].kill()
    with pytest.raises(ElmoError, match=r"a worker process .* ended with status -9.*workers=1"):
        list(results)
    assert all(process.poll() is not None for process in made)


def test_an_error_in_a_worker_comes_with_its_traceback():
    with pytest.raises(AttributeError) as caught:
        list(encoding.encode_all(iter([[("not", "a piece")]]), ReadingOptions(), 2))
    assert "sentences_of" in caught.value.__notes__[0]


def test_too_few_workers():
    with pytest.raises(ElmoError, match="workers must be at least 1, got 0"):
        list(encoding.encode_all(iter([]), ReadingOptions(), 0))


def test_lines_travel_together(monkeypatch):
    monkeypatch.setattr(encoding, "_CHUNK_UNITS", 256)
    chunks = list(chunks_of(chunk(number)[0] for number in range(600)))
    assert [len(each) for each in chunks] == [256, 256, 88]


def test_jieba_gives_the_same_in_workers_and_in_this_process(tmp_path):
    pytest.importorskip("jieba", reason="jieba is an extra")
    path = tmp_path / "text.txt"
    text = "小明硕士毕业于中国科学院计算所，后在日本京都大学深造！李小福是创新办主任 iPhone 3.5%。"
    path.write_text("".join(f"{text[start:]}{text[:start]}\n" for start in range(len(text))), encoding="utf-8")
    contents = {
        prepare([str(path)], segment="jieba", split="line", folder=tmp_path / str(count), workers=count).content
        for count in (1, 2)
    }
    assert len(contents) == 1

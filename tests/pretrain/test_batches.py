import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from elmokit.errors import ElmoError
from elmokit.pretrain import batches as module
from elmokit.pretrain.batches import batches_ahead, batches_from_process, can_use_process, prefetched
from elmokit.pretrain.sentences import Sentences, TypeTable
from elmokit.pretrain.windows import WindowBatches, WindowReader
from elmokit.text.chars import ByteIndexer, SymbolIndexer, TokenIds, WordIndexer
from elmokit.text.vocab import Vocabulary
from support.training_models import corpus_of, random_sentences
from support.training_runs import python

needs_process = pytest.mark.skipif(not can_use_process(), reason="needs anonymous files, which Linux has")
VOCAB = Vocabulary(["<S>", "</S>", "<UNK>", "the", "bank", "river", "日本語"])
PARTS = ("characters", "words", "inputs", "targets", "keep")


@pytest.fixture
def corpus(tmp_path):
    # The longest words come late: later batches are larger than those before.
    early = random_sentences([3, 1, 17, 2, 40, 5, 6], seed=1) * 3
    return corpus_of(
        [*early, *([f"{number}" * 45 for number in range(k, k + 30)] for k in range(0, 300, 30))], tmp_path
    )


def batches_of(corpus, indexer=None, *, rows=6, shares=((0, 6),), window=5, position=None, directions=2):
    types = TypeTable(corpus, VOCAB, indexer or ByteIndexer(50), widest_filter=3, directions=directions)
    sentences = Sentences(corpus, (4, 0), shuffle=indexer is not None, seed=3)
    given = tuple(range(*share) for share in shares)
    return WindowBatches(types, WindowReader(sentences, rows, window, 0.5, 7, position=position), given)


def assert_same(one, other):
    for (ours, position), (theirs, expected) in zip(one, other, strict=True):
        assert position.next_index == expected.next_index
        np.testing.assert_array_equal(position.row_index, expected.row_index)
        np.testing.assert_array_equal(position.row_offset, expected.row_offset)
        assert len(ours) == len(theirs)
        for left, right in zip(ours, theirs, strict=True):
            for name in PARTS:
                a, b = getattr(left, name), getattr(right, name)
                assert (a is None) == (b is None), name
                assert a is None or (a.dtype == b.dtype and torch.equal(a, b)), name


def elsewhere(batches, count):
    with closing(batches_from_process(batches, pinned=False)) as found:
        return list(islice(found, count))


@pytest.fixture
def started(monkeypatch):
    """The processes that were started."""
    found, plain = [], subprocess.Popen

    def start(*arguments, **named):
        found.append(plain(*arguments, **named))
        return found[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    return found


@needs_process
@pytest.mark.parametrize(
    "changes",
    [{}, {"rows": 33, "shares": ((0, 11), (22, 33))}, {"rows": 1, "shares": ((0, 1),), "window": 63, "directions": 1}],
    ids=["one", "several", "single row"],
)
@pytest.mark.parametrize(
    "indexer", [None, WordIndexer(VOCAB), SymbolIndexer(None, VOCAB, 9)], ids=["bytes", "words", "symbols"]
)
def test_the_same_batches_as_here(corpus, indexer, changes):
    batches = batches_of(corpus, indexer, **changes)
    expected = list(islice(batches.tensors(), 40))
    assert len({sum(part.inputs.numel() for part in parts) for parts, _ in expected}) == 1
    assert_same(elsewhere(batches, 40), expected)


@needs_process
def test_later_batches_may_be_larger(corpus):
    batches = batches_of(corpus, window=20)
    expected = list(islice(batches.tensors(), 20))
    sizes = [parts[0].characters.numel() for parts, _ in expected]
    assert max(sizes) > 4 * sizes[0]
    assert_same(elsewhere(batches, 20), expected)


@needs_process
def test_reading_goes_on_from_a_position(corpus):
    batches = batches_of(corpus)
    whole = elsewhere(batches, 20)
    assert_same(elsewhere(replace(batches, reader=replace(batches.reader, position=whole[11][1])), 8), whole[12:])


@needs_process
def test_a_batch_stays_as_it_was_while_others_are_made(corpus):
    with closing(batches_from_process(batches_of(corpus), pinned=False)) as found:
        first = next(found)
        for _ in range(3 * module.AHEAD):
            next(found)
        assert_same([first], islice(batches_of(corpus).tensors(), 1))


@needs_process
def test_only_a_few_are_made_ahead(corpus, tmp_path):
    with closing(batches_from_process(batches_of(corpus, CountingIndexer(tmp_path / "made")), pinned=False)) as found:
        next(found)
        until(lambda: made(tmp_path) > module.AHEAD)
        time.sleep(0.3)
        assert made(tmp_path) <= module.AHEAD + 2


class CountingIndexer:
    """Appends a byte to a file for every batch, so that a test can count them."""

    begin, end = "<S>", "</S>"

    def __init__(self, path):
        self.path = path

    def __call__(self, tokens):
        with self.path.open("ab") as file:
            file.write(b".")
        return TokenIds(None, np.ones(len(tokens), np.int64))


def made(folder):
    return (folder / "made").stat().st_size if (folder / "made").exists() else 0


def until(reached, seconds=600):
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.01)


class OddError(Exception):
    """Cannot be unpickled."""

    def __init__(self, one, other):
        super().__init__(f"{one} {other}")


class FailingIndexer(CountingIndexer):
    """Fails at the third batch."""

    def __init__(self, path, error):
        super().__init__(path)
        self.error = error

    def __call__(self, tokens):
        found = super().__call__(tokens)
        if self.path.stat().st_size >= 3:
            raise eval(self.error)
        return found


@needs_process
@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        ("ElmoError('the rule')", ElmoError, "the rule"),
        ("OSError(28, 'No space left')", OSError, "No space left"),
        ("KeyboardInterrupt()", KeyboardInterrupt, None),
        ("OddError('a', 'b')", RuntimeError, "OddError: a b"),
    ],
)
def test_an_error_comes_through_in_its_place(corpus, tmp_path, started, error, kind, said):
    found = batches_from_process(batches_of(corpus, FailingIndexer(tmp_path / "made", error)), pinned=False)
    assert len(list(islice(found, 2))) == 2
    with pytest.raises(kind, match=said) as caught:
        next(found)
    notes = "".join(getattr(caught.value, "__notes__", [])) + str(caught.value)
    assert ("test_batches" in notes) == (kind is not ElmoError)
    assert started[0].poll() is not None


@needs_process
def test_a_corpus_without_sentences_is_refused(tmp_path):
    with pytest.raises(ElmoError, match="no sentence to read"):
        elsewhere(batches_of(corpus_of([], tmp_path)), 1)


@needs_process
def test_a_corpus_that_has_become_another_is_refused(corpus, tmp_path):
    batches = batches_of(corpus)
    other = corpus_of([["another", "text"]], tmp_path / "other")
    corpus.folder.rename(tmp_path / "away")
    other.folder.rename(corpus.folder)
    with pytest.raises(ElmoError, match="prepared again"):
        elsewhere(batches, 1)


def test_the_corpus_is_not_sent(corpus):
    assert corpus.tokens.tobytes() not in pickle.dumps(batches_of(corpus))
    assert pickle.loads(pickle.dumps(corpus)).tokens.tolist() == corpus.tokens.tolist()


@needs_process
def test_a_process_that_is_killed_is_reported(corpus, started):
    found = batches_from_process(batches_of(corpus), pinned=False)
    next(found)
    started[0].kill()
    with pytest.raises(ElmoError, match=r"ended with status -9.*resume"):
        list(islice(found, 100))


@needs_process
def test_a_process_that_cannot_be_started_is_reported(corpus, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(ElmoError, match="cannot be started"):
        elsewhere(batches_of(corpus), 1)


@needs_process
def test_a_path_that_is_no_text_does_not_reach_the_process(corpus, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])
    assert len(elsewhere(batches_of(corpus), 1)) == 1


def test_a_program_packed_into_one_file_starts_no_copy_of_itself(monkeypatch):
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert not can_use_process()


@needs_process
@pytest.mark.parametrize("count", [0, 1, 30])
def test_closing_ends_the_process_and_gives_everything_back(corpus, started, count):
    before = set(Path("/proc/self/fd").iterdir())
    found = batches_from_process(batches_of(corpus), pinned=False)
    list(islice(found, count))
    found.close()
    assert [process.poll() for process in started] == [-signal.SIGKILL] * bool(count)
    assert set(Path("/proc/self/fd").iterdir()) <= before


@needs_process
def test_keys_pressed_are_for_the_parent(corpus, started):
    with closing(batches_from_process(batches_of(corpus), pinned=False)) as found:
        next(found)
        assert os.getsid(started[0].pid) != os.getsid(0)


PARENT = """
import sys
from pathlib import Path
from elmokit.pretrain import batches
from elmokit.corpus.prepared import PreparedCorpus
from tests.pretrain.test_batches import batches_of
class Printed(batches.WorkerProcess):
    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        print(self.process.pid, flush=True)
batches.WorkerProcess = Printed
found = batches.batches_from_process(batches_of(PreparedCorpus.open(Path(sys.argv[1]))), pinned=False)
if sys.argv[2] == "reading":
    next(found)
    print("ready", flush=True)
    sys.stdin.read()
else:
    next(found)
"""


@needs_process
@pytest.mark.parametrize("when", ["reading", "starting"])
def test_no_process_outlives_a_parent_that_is_killed(corpus, when):
    path = os.pathsep.join(sys.path)
    parent = python("-c", PARENT, corpus.folder, when, env={"PYTHONPATH": path}, stdin=subprocess.PIPE)
    with parent:
        pid = int(parent.stdout.readline())
        if when == "reading":
            assert parent.stdout.readline() == "ready\n"
            assert running(pid)
        parent.kill()
    until(lambda: not running(pid))


def running(pid):
    """Whether there is such a process, and no mere record of how it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_process_has_no_torch():
    code = "import sys, elmokit.pretrain.segments, elmokit.pretrain.windows; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_gpu_is_served_by_a_process_and_a_cpu_by_a_thread(corpus, monkeypatch):
    monkeypatch.setattr(module, "batches_from_process", lambda batches, *, pinned: ("process", pinned))
    monkeypatch.setattr(module, "prefetched", lambda items: ("thread", items))
    batches = batches_of(corpus)
    assert batches_ahead(batches, torch.device("cuda")) == ("process", True)
    assert batches_ahead(batches, torch.device("cpu"))[0] == "thread"
    monkeypatch.setattr(module, "can_use_process", lambda: False)
    assert batches_ahead(batches, torch.device("cuda"))[0] == "thread"


def test_a_thread_gives_the_same_batches(corpus):
    batches = batches_of(corpus)
    with closing(batches_ahead(batches, torch.device("cpu"))) as found:
        assert_same(list(islice(found, 12)), islice(batches.tensors(), 12))


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "elmokit-prefetch"]


def test_items_keep_their_order_and_their_thread_ends():
    before = threads()
    made_in = set()

    def items():
        for number in range(1000):
            made_in.add(threading.current_thread())
            yield number

    assert list(prefetched(items())) == list(range(1000))
    assert made_in != {threading.current_thread()}
    assert threads() == before


@pytest.mark.parametrize("values", [[], [None], [0, None, False]])
def test_items_may_be_none_or_nothing(values):
    assert list(prefetched(iter(values))) == values


@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt(), OSError(28, "No space left")])
def test_an_error_of_the_thread_comes_through_in_its_place(error):
    before = threads()

    def items():
        yield from (1, 2, 3)
        raise error

    found = prefetched(items())
    got = [next(found) for _ in range(3)]
    with pytest.raises(type(error)) as caught:
        next(found)
    assert got == [1, 2, 3]
    assert caught.value is error
    assert threads() == before


def test_only_a_few_items_are_made_ahead_by_the_thread():
    made = []
    several = threading.Event()

    def items():
        for number in range(100):
            made.append(number)
            if number == 3:
                several.set()
            yield number

    with closing(prefetched(items())) as found:
        assert next(found) == 0
        assert several.wait(30)  # it does run ahead
        for number in range(1, 20):
            assert next(found) == number
            assert len(made) <= number + 8
    assert len(made) < 40


def test_closing_early_ends_the_thread_and_the_items():
    before, ended = threads(), []

    def endless():
        try:
            while True:
                yield 1
        finally:
            ended.append(True)

    found = prefetched(endless())
    next(found)
    assert len(threads()) == len(before) + 1
    found.close()
    assert threads() == before
    del found
    assert ended == [True]


def test_an_error_of_the_consumer_ends_the_thread():
    before = threads()

    def use():
        with closing(prefetched(iter(int, 1))) as found:
            next(found)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        use()
    assert threads() == before

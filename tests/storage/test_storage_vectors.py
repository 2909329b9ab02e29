"""The one store of vectors: computed once, whole after any accident, bounded, few files, for many processes."""

import errno
import os
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import numpy as np
import pytest
import torch

from elmokit.errors import ElmoError
from elmokit.storage import locks, vectors
from elmokit.storage.atomic import write_tensors
from elmokit.storage.cache import key_of
from elmokit.storage.vectors import RecentVectors, StoredLayers, VectorBlock, VectorSpan, VectorStore
from support.vector_samples import SHAPE, block_of, check, layers_of, length, store


def files(folder):
    return sorted(folder.glob("*.safetensors"))


def test_each_sentence_is_computed_once(tmp_path):
    computed, noted = [], []
    check(store(tmp_path, range(9), computed=computed, progress=lambda *given: noted.append(given)), range(9))
    assert computed == list(range(9))
    assert noted == [(9, 9)]
    check(store(tmp_path, [12, *reversed(range(9)), 3, 10], computed=computed), [12, *reversed(range(9)), 3, 10])
    assert computed == [*range(9), 12, 10]
    assert store(tmp_path, []).batch([])[0].shape == (4, 0, 0, 4)


def test_progress_counts_all_files(tmp_path):
    noted = []
    store(tmp_path, [1])
    store(tmp_path, range(7), most_sentences=2, progress=lambda *given: noted.append(given))
    assert noted == [(2, 6), (4, 6), (6, 6)]


def test_rows_are_read_across_files(tmp_path):
    numbers = [3, 9, 1, 2, 7, 3, 4, 6]
    store(tmp_path, numbers, most_sentences=2)
    stored = store(tmp_path, numbers)
    expected = torch.cat([layers_of(number) for number in numbers])  # [N, L, D]
    words = torch.cat([torch.full((length(number), 4), float(number % 2)) for number in numbers])
    for start, end in ((0, len(expected)), (2, 7), (5, 6), (0, 0)):
        assert torch.equal(stored.rows(0, start, end), words[start:end])
        for layer in range(3):
            assert torch.equal(stored.rows(1 + layer, start, end), expected[start:end, layer])


def test_without_words(tmp_path):
    rows = {key_of(number): 1 for number in range(5)}

    def compute(keys, note):
        numbers = [list(rows).index(key) for key in keys]
        return VectorBlock.of(dict.fromkeys(keys, 1), torch.tensor(numbers).float().reshape(-1, 1, 1).expand(-1, 1, 6))

    for _ in range(2):
        found = VectorStore(tmp_path, (0, 1, 6)).complete(rows, compute, dtype=torch.float32)
    stored = StoredLayers([found[key] for key in rows], layers=1, width=6)
    assert stored.rows(0, 1, 4)[:, 0].tolist() == [1, 2, 3]
    assert stored.batch([2, 4])[0][0, :, 0, 5].tolist() == [2, 4]


def test_many_small_additions_make_few_files(tmp_path):
    computed = []
    for number in range(300):
        store(tmp_path, [number], computed=computed)
    assert computed == list(range(300))
    assert len(files(tmp_path)) < 30
    check(store(tmp_path, range(300), computed=computed), range(300))
    assert len(computed) == 300


def test_keys_with_equal_beginnings_stay_separate(tmp_path):
    keys = [bytes(8) + bytes([number]) * 8 for number in range(4)]
    block = VectorBlock.of(dict.fromkeys(keys[:2], 1), torch.tensor([[[1.0]], [[2.0]]]))
    here = VectorStore(tmp_path, (0, 1, 1))
    here.complete(dict.fromkeys(keys[:2], 1), lambda *_: block, dtype=torch.float32)
    found = here.find([*keys[1:], bytes(16)])
    assert found.keys() == {keys[1], bytes(16)}
    assert found[keys[1]].start == 1


@pytest.mark.parametrize("damage", [b"", b"no such file", "cut", "other"])
def test_a_damaged_file_is_computed_again(tmp_path, damage, caplog):
    store(tmp_path, range(5))
    (path,) = files(tmp_path)
    if damage == "other":
        write_tensors(path, vars(VectorBlock.of({key_of(1): 1}, torch.zeros(1, 1, 1))))
    else:
        path.write_bytes(path.read_bytes()[:-10] if damage == "cut" else damage)
    computed = []
    check(store(tmp_path, range(5), computed=computed), range(5))
    assert computed == list(range(5))
    assert (path.name in caplog.text) == (damage != "other")


def test_a_full_disk_ends_in_one_sentence(tmp_path, monkeypatch):
    def full(tensors, path, metadata):
        Path(path).write_bytes(b"half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(ElmoError, match=r"no space is left .*: free some space .*ELMOKIT_CACHE"):
        store(tmp_path, range(5))
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_what_cannot_fit_is_refused_before_it_is_computed(tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 100})
    monkeypatch.setattr(vectors.shutil, "disk_usage", lambda path: usage)
    computed = []
    with pytest.raises(ElmoError, match=r"need 0.0 GB in .*0.0 GB are free"):
        store(tmp_path, range(5), computed=computed)
    assert not computed


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ElmoError, match=r"file.store cannot be written .*ELMOKIT_CACHE"):
        store(tmp_path / "file" / "store", range(5))


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_cache_that_may_only_be_read_is_read(tmp_path):
    store(tmp_path / "store", range(5))
    (tmp_path / "store").chmod(0o500)
    try:
        check(store(tmp_path / "store", range(5)), range(5))
    finally:
        (tmp_path / "store").chmod(0o700)


def test_the_oldest_are_removed_where_the_root_grows_too_large(tmp_path, monkeypatch):
    here, other = tmp_path / "here", tmp_path / "other"
    for age, number in ((300, 1), (100, 2), (200, 3)):
        known = set(files(here))
        store(here, [number])
        (path,) = set(files(here)) - known
        os.utime(path, (1e9 - age, 1e9 - age))
    size = path.stat().st_size
    in_use = store(here, [1])  # the oldest, now the newest
    monkeypatch.setattr(vectors, "MOST_BYTES", 3 * size + 10)
    store(other, [4])  # no vectors, no space
    assert len(files(here)) == 3
    monkeypatch.setattr(vectors, "MOST_BYTES", 2 * size + 600)
    store(other, [5])
    found = VectorStore(here, SHAPE).find([key_of(number) for number in (1, 2, 3)])
    assert [key_of(number) in found for number in (1, 2, 3)] == [True, True, False]
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").write_bytes(b"the user's own")
    monkeypatch.setattr(vectors, "MOST_BYTES", 1)
    store(other, [6])
    assert not files(here)
    assert files(tmp_path / "model"), "a file that is not ours stays"
    check(in_use, [1])  # mapped, though its file is gone


@pytest.mark.parametrize("moment", ["written", "mapped"])
def test_a_file_that_another_process_removes_at_once_is_used_all_the_same(tmp_path, monkeypatch, moment):
    plain = VectorStore._block if moment == "written" else VectorStore._add

    def removing(self, given):
        if moment == "written":
            given.unlink(missing_ok=True)
            return plain(self, given)
        plain(self, given)
        return [path.unlink() for path in files(tmp_path)]

    monkeypatch.setattr(VectorStore, "_block" if moment == "written" else "_add", removing)
    check(store(tmp_path, range(9), most_sentences=2), range(9))


def test_two_at_once_compute_once(tmp_path, monkeypatch):
    """A lock is between open files, so that two threads are to it what two processes are."""
    waiting, computed = Event(), []
    monkeypatch.setattr(locks.log, "info", lambda *_: waiting.set())

    def first():
        return store(tmp_path, range(20), computed=computed, progress=lambda *_: waiting.wait(timeout=60))

    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(first)
        while not computed:
            time.sleep(0.001)
        two = pool.submit(store, tmp_path, range(5, 25), computed=computed)
        check(one.result(), range(20))
        check(two.result(), range(5, 25))
    assert sorted(computed) == list(range(25))


def test_two_share_the_work(tmp_path):
    """Neither waits until the other has finished all of its files."""
    computed = [[], []]

    def work(number):
        wanted = range(40) if number else reversed(range(40))
        return store(tmp_path, wanted, computed=computed[number], pause=0.002, most_sentences=1)

    with ThreadPoolExecutor(2) as pool:
        backwards, forwards = pool.map(work, range(2))
    check(backwards, reversed(range(40)))
    check(forwards, range(40))
    assert sorted(computed[0] + computed[1]) == list(range(40))


def test_where_there_are_no_locks_nothing_is_lost(tmp_path, monkeypatch):
    def refuse(fd, blocking):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locks, "lock_descriptor", refuse)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda first: store(tmp_path, range(first, first + 30), most_sentences=3), range(4)))
    for first, stored in enumerate(results):
        check(stored, range(first, first + 30))


@pytest.mark.parametrize("seed", range(3))
def test_a_kill_at_any_moment_leaves_whole_files(tmp_path, seed):
    """Two runs at a time, killed again and again; what they have stored is right, and at the end all is there."""
    dice, folder = random.Random(seed), tmp_path / "store"
    runner = Path(__file__).parents[1] / "support" / "vector_samples.py"

    def start():
        command = [sys.executable, runner, folder, "120", "0.002"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"begun\n"
        return process

    for _ in range(4):
        runs = [start(), start()]
        time.sleep(dice.uniform(0, 0.3))
        for run in runs:
            run.kill()
            run.wait()
            run.stdout.close()
        found = VectorStore(folder, SHAPE).find([key_of(number) for number in range(120)])
        known = [number for number in range(120) if key_of(number) in found]
        check(StoredLayers([found[key_of(number)] for number in known], layers=3, width=4, words=True), known)
    computed = []
    check(store(folder, range(120), computed=computed), range(120))
    assert not set(computed) & set(known)
    assert not [path for path in folder.iterdir() if path.name.endswith(".tmp")]


def test_memory_is_bounded_and_the_longest_unused_go_first():
    recent = RecentVectors(most_bytes=3 * 8)
    pairs = {bytes([number]): np.full(2, number, np.float32) for number in range(4)}
    recent.add({key: pairs[key] for key in (b"\0", b"\1", b"\2")})
    recent.add({b"\0": pairs[b"\0"]})
    recent.add({b"\3": pairs[b"\3"]})
    assert recent.find(pairs).keys() == {b"\0", b"\2", b"\3"}
    recent.clear()
    assert not recent.find(pairs)
    recent.add(pairs)
    assert len(recent.find(pairs)) == 3


def test_joined_blocks_have_the_sentences_of_all():
    blocks = [block_of([1, 2]), block_of([0]), block_of([7, 3])]
    joined = VectorBlock.joined(blocks)
    assert joined.is_valid(*SHAPE)
    numbers = (1, 2, 0, 7, 3)
    places = [VectorSpan(joined, end - length(n), end) for n, end in zip(numbers, joined.ends.tolist(), strict=True)]
    check(StoredLayers(places, layers=3, width=4, words=True), numbers)

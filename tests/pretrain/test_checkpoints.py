import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from elmokit.errors import ElmoError
from elmokit.pretrain.checkpoints import RunFolder, Snapshot, read_snapshot, state_dict_of, write_snapshot
from support.refusals import refusal


def snapshot(step):
    """A snapshot all of whose values show its step."""
    weights = {
        "network.bias": torch.full((3,), float(step)),
        "network.a.b": torch.full((2, 2), step, dtype=torch.int64),
    }
    return Snapshot(weights, {"progressed": {"step": step, "loss": 0.1 + step}, "text": "naïve"})


def step_of(found):
    return None if found is None else found.facts["progressed"]["step"]


@pytest.fixture
def folder(tmp_path):
    run = RunFolder(tmp_path / "run")
    with run.locked():
        yield run


def save(run, *steps, keep=2, best=()):
    for step in steps:
        run.save(snapshot(step), step=step, keep=keep, best=step in best)


def names(run):
    return sorted(path.name for path in run.checkpoints.iterdir())


def test_a_snapshot_comes_back_bit_by_bit(tmp_path):
    tensors = {
        "network.w": torch.randn(3, 4).T,  # not contiguous
        "network.wide.w": torch.randn(2).double(),
        "data.row": torch.arange(5),
        "state.h": torch.randn(2, 3).bfloat16(),
        "optimizer.step": torch.tensor(3.0),
        "optimizer.odd": torch.tensor([float("inf"), -0.0, float("nan")]),
    }
    given = Snapshot(tensors, {"x": 0.1 + 0.2, "none": None, "list": [1, "é"]})
    write_snapshot(tmp_path / "a.safetensors", given)
    found = read_snapshot(tmp_path / "a.safetensors")
    assert found.tensors.keys() == tensors.keys()
    for name, value in tensors.items():
        assert found.tensors[name].dtype == value.dtype
        assert found.tensors[name].shape == value.shape
        bits = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (found.tensors[name], value)]
        assert torch.equal(*bits)
    assert {name: found.facts[name] for name in given.facts} == given.facts
    assert found.part("network").keys() == {"w", "wide.w"}
    assert found.part("net") == {}


def test_weights_are_copied_by_name():
    layer = torch.nn.Linear(2, 3)
    assert state_dict_of(layer, "network").keys() == {"network.weight", "network.bias"}


def test_the_last_checkpoints_stay(folder):
    assert folder.latest() is None
    assert folder.best() is None
    assert folder.steps() == []
    save(folder, 5, 10, 200, 1000, keep=3)
    assert folder.steps() == [10, 200, 1000]
    assert step_of(folder.latest()) == 1000
    save(folder, 1001, keep=1)
    assert folder.steps() == [1001]
    assert folder.best() is None
    save(folder, 1001, keep=1)  # the same once more
    assert folder.steps() == [1001]


def test_the_best_stays_however_old(folder):
    save(folder, 1, 2, 3, 4, 5, best=(2,))
    assert folder.steps() == [4, 5]
    assert step_of(folder.best()) == 2
    save(folder, 6, 7, best=(7,))
    assert (step_of(folder.best()), step_of(folder.latest()), folder.steps()) == (7, 7, [6, 7])
    assert names(folder) == ["best.safetensors", "step-0000000006.safetensors", "step-0000000007.safetensors"]


@pytest.mark.parametrize("keep", [1, 2, 9])
def test_a_run_that_went_back_keeps_where_it_is(folder, keep):
    save(folder, 2, 4, 6, 8, keep=keep, best=(4,))
    save(folder, 4, keep=keep)
    assert step_of(folder.latest()) == 4
    assert folder.steps() == ([2, 4] if keep == 9 else [4])
    assert step_of(folder.best()) == 4


def test_the_best_and_the_newest_are_two_files(folder):
    save(folder, 1, 2, best=(2,))
    best, newest = (folder.checkpoints / name for name in ("best.safetensors", "step-0000000002.safetensors"))
    assert best.stat().st_ino != newest.stat().st_ino
    assert best.read_bytes() == newest.read_bytes()


class KilledError(BaseException):
    """The process is gone: from here on nothing that it does takes effect."""


@pytest.fixture
def killed_at(monkeypatch):
    """Kill at the n-th operation that changes files; operations are counted."""
    counted = {"done": 0, "last": 0}

    def patch(owner, name):
        plain = getattr(owner, name)

        def counting(*arguments, **named):
            if counted["last"] and counted["done"] >= counted["last"] - 1:
                raise KilledError
            counted["done"] += 1
            return plain(*arguments, **named)

        monkeypatch.setattr(owner, name, counting)

    for name in ("replace", "unlink", "fsync", "chmod"):
        patch(os, name)
    patch(sys.modules["safetensors.torch"], "save_file")

    def arm(last):
        counted.update(done=0, last=last)

    return arm


@pytest.mark.parametrize("best", [True, False])
def test_a_kill_at_any_moment_leaves_whole_checkpoints(tmp_path, killed_at, best):
    moments, finished = 0, False
    while not finished:
        killed_at(0)
        run = RunFolder(tmp_path / f"run-{moments}")
        with run.locked():
            save(run, 1, 2, best=(1,))
        moments += 1
        killed_at(moments)
        try:
            save(run, 3, best=(3,) if best else ())
            finished = True
        except KilledError:
            pass
        killed_at(0)
        last = step_of(run.latest())
        assert last in (2, 3)
        assert run.steps()[-2:] in ([1, 2], [2, 3])
        assert step_of(run.best()) in ((1, 3) if best else (1,))
        # A checkpoint that says it was the best really has its weights stored as the best.
        assert step_of(run.best()) == 3 or last == 2 or not best
        with run.locked():
            assert not [name for name in names(run) if name.endswith(".tmp")]
            save(run, 3, best=(3,) if best else ())
        assert run.steps() == [2, 3]
        assert step_of(run.best()) == (3 if best else 1)
    assert moments > 5


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        SafetensorError("I/O error: No space left on device (os error 28)"),
    ],
    ids=["OSError", "SafetensorError"],
)
@pytest.mark.parametrize("best", [True, False])
def test_a_full_disk_loses_no_earlier_checkpoint(folder, monkeypatch, error, best):
    save(folder, 1, 2, best=(1,))
    before = names(folder)

    def half(tensors, path, metadata):
        Path(path).write_bytes(b"\0" * 50)
        raise error

    monkeypatch.setattr("safetensors.torch.save_file", half)
    refusal(
        lambda: save(folder, 3, best=(3,) if best else ()),
        "cannot be written",
        "No space left",
        str(folder.checkpoints),
    )
    assert names(folder) == before
    assert (step_of(folder.latest()), step_of(folder.best()), folder.steps()) == (2, 1, [1, 2])


def test_a_disk_that_is_full_only_when_flushed_loses_nothing_either(folder, monkeypatch):
    save(folder, 1, 2, best=(2,))
    before = names(folder)

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    refusal(lambda: save(folder, 3, best=(3,)), "cannot be written", "No space left on device")
    assert names(folder) == before
    assert (step_of(folder.latest()), step_of(folder.best())) == (2, 2)


def test_what_a_killed_run_left_half_written_is_removed(tmp_path):
    run = RunFolder(tmp_path / "run")
    with run.locked():
        save(run, 1)
    left = run.checkpoints / ".step-0000000002.safetensors.4711.abcd.tmp"
    left.write_bytes(b"half")
    assert run.steps() == [1]
    assert step_of(run.latest()) == 1
    with run.locked():
        assert not left.exists()
        assert step_of(run.latest()) == 1


@pytest.mark.parametrize("size", [0, 7, 100, -1])
def test_after_a_truncated_checkpoint_the_run_continues_from_the_one_before(folder, size):
    save(folder, 1, 2)
    path = folder.checkpoints / "step-0000000002.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    said = []
    assert step_of(folder.latest(said.append)) == 1
    (sentence,) = said
    assert str(path) in sentence
    assert "step 1" in sentence
    (folder.checkpoints / "step-0000000001.safetensors").write_bytes(b"")
    refusal(folder.latest, str(path), "no other checkpoint is intact")


def test_one_flipped_bit_anywhere_is_detected(folder):
    save(folder, 1, 2)
    path = folder.checkpoints / "step-0000000002.safetensors"
    whole = path.read_bytes()
    for place in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(ElmoError):
            read_snapshot(path)
    assert step_of(folder.latest()) == 1


def test_a_damaged_newest_checkpoint_that_is_also_the_best_is_read_there(folder):
    save(folder, 1, 2, best=(2,))
    path = folder.checkpoints / "step-0000000002.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    said = []
    assert step_of(folder.latest(said.append)) == 2
    assert len(said) == 1


def test_a_checkpoint_that_is_none_is_named(folder):
    path = folder.checkpoints / "step-0000000007.safetensors"
    foreign = [
        lambda: save_file({"w": torch.ones(2)}, path),
        lambda: save_file({"w": torch.ones(2)}, path, {"elmokit": json.dumps({"format": "else", "version": 1})}),
        lambda: save_file(
            {"w": torch.ones(2)}, path, {"elmokit": json.dumps({"format": "elmokit-training", "version": 99})}
        ),
        lambda: save_file({"w": torch.ones(2)}, path, {"elmokit": "[]"}),
    ]
    for write in foreign:
        write()
        refusal(folder.latest, str(path), "not a training checkpoint of this version")
    save_file({"w": torch.ones(2)}, path, {"elmokit": "{"})
    refusal(folder.latest, str(path), "damaged")
    path.write_text("no tensors at all")
    refusal(folder.latest, str(path), "damaged")


def test_other_files_next_to_the_checkpoints_are_no_steps(folder):
    save(folder, 3)
    for name in ("step-x.safetensors", "step-5.safetensors.bak", "vocab.txt", ".step-9.safetensors.1.tmp"):
        (folder.checkpoints / name).write_text("x")
    assert folder.steps() == [3]


def test_the_request_comes_back(folder):
    assert not folder.started
    folder.write_request({"version": 1, "corpus": ["日本語.txt"]})
    assert folder.started
    assert folder.read_request() == {"version": 1, "corpus": ["日本語.txt"]}
    for text in ("", "{", "[]", '{"version": 99}', "\udcff"):
        (folder.folder / "run.json").write_text(text, errors="surrogateescape")
        refusal(folder.read_request, "run.json", "another folder")


def test_a_second_run_in_a_folder_is_refused(folder):
    def again():
        with RunFolder(folder.folder).locked():
            pass

    refusal(again, "another process is training in", str(folder.folder))
    code = "import sys; from pathlib import Path; from elmokit.pretrain.checkpoints import RunFolder\n"
    code += "with RunFolder(Path(sys.argv[1])).locked(): print('locked')"
    found = subprocess.run(
        [sys.executable, "-c", code, str(folder.folder)], capture_output=True, text=True, check=False
    )
    assert found.returncode == 1
    assert "another process is training" in found.stderr


def test_a_run_that_ended_gives_the_folder_back(tmp_path):
    run = RunFolder(tmp_path / "run")
    for _ in range(2):
        with pytest.raises(ValueError, match="anything"), run.locked():
            raise ValueError("anything")
    with run.locked():
        assert run.checkpoints.is_dir()


def test_a_folder_that_cannot_be_made_is_reported(tmp_path):
    (tmp_path / "file").write_text("x")

    def lock():
        with RunFolder(tmp_path / "file" / "run").locked():
            pass

    refusal(lock, "cannot be written", "file")

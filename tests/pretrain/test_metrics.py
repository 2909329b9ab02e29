"""metrics.jsonl has whole lines only, and after a resume no line of a step that is to come again."""

import errno
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

from elmokit.errors import ElmoError
from elmokit.pretrain.metrics import MetricsLog, read_metrics


def write_steps(log, steps):
    for step in steps:
        log.write({"step": step, "loss": 1 / step})


def steps_in(path):
    return [line["step"] for line in read_metrics(path)]


def test_a_line_is_in_the_file_when_write_returns(tmp_path):
    with MetricsLog(tmp_path / "metrics.jsonl") as log:
        log.write({"step": 1, "loss": 2.5, "epoch": 0})
        log.write({"step": 1, "event": "saved « café »"})
        text = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8")
    assert [json.loads(line) for line in text.splitlines()] == [
        {"step": 1, "loss": 2.5, "epoch": 0},
        {"step": 1, "event": "saved « café »"},
    ]
    assert "café" in text


def test_numbers_that_json_lacks_are_null_and_those_of_arrays_are_plain(tmp_path):
    with MetricsLog(tmp_path / "m") as log:
        log.write({"step": 1, "a": float("nan"), "b": float("inf"), "c": -np.float32("inf"), "d": torch.tensor(0.5)})
        log.write({"step": 2, "a": np.float32(0.5), "b": np.int64(3), "c": None, "d": torch.tensor(float("nan"))})
    assert read_metrics(tmp_path / "m") == [
        {"step": 1, "a": None, "b": None, "c": None, "d": 0.5},
        {"step": 2, "a": 0.5, "b": 3, "c": None, "d": None},
    ]


def test_a_new_run_replaces_the_file(tmp_path):
    for _ in range(2):
        with MetricsLog(tmp_path / "m") as log:
            write_steps(log, [1, 2])
    assert steps_in(tmp_path / "m") == [1, 2]


@pytest.mark.parametrize(
    "torn", [b"", b'{"step": 6, "lo', b'{"step": 3}', b'{"step": 3\n', b"\0\0\0\0\n", b"[3]\n", b"{}\n"]
)
def test_resume_drops_later_steps_and_torn_lines(tmp_path, torn):
    path = tmp_path / "m"
    with MetricsLog(path) as log:
        write_steps(log, [1, 2, 3, 3, 4, 5])
    with path.open("ab") as file:
        file.write(torn)
    with MetricsLog(path, resume_step=3) as log:
        assert steps_in(path) == [1, 2, 3, 3]
        write_steps(log, [4, 5])
    assert steps_in(path) == [1, 2, 3, 3, 4, 5]


def test_resume_without_a_file_begins_one(tmp_path):
    with MetricsLog(tmp_path / "m", resume_step=7) as log:
        write_steps(log, [8])
    assert steps_in(tmp_path / "m") == [8]


def test_a_failure_while_resuming_leaves_the_old_file(tmp_path, monkeypatch):
    with MetricsLog(tmp_path / "m") as log:
        write_steps(log, [1, 2])
    before = (tmp_path / "m").read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("elmokit.storage.atomic.sync", full)
    with pytest.raises(ElmoError, match="cannot be written: No space left"):
        MetricsLog(tmp_path / "m", resume_step=1)
    assert (tmp_path / "m").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_full_disk_raises_and_leaves_whole_lines(tmp_path, monkeypatch):
    room = 60
    plain = os.write

    def write(handle, data):
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = plain(handle, data[:room])
        room -= taken
        return taken

    log = MetricsLog(tmp_path / "m")
    monkeypatch.setattr(os, "write", write)
    write_steps(log, [1, 2])
    for step in (3, 4):
        with pytest.raises(ElmoError, match=r"metrics .*m cannot be written .No space left on device.: .*resume"):
            write_steps(log, [step])
    assert steps_in(tmp_path / "m") == [1, 2]
    assert (tmp_path / "m").read_bytes().endswith(b"\n")
    room = 1000
    write_steps(log, [5])
    assert steps_in(tmp_path / "m") == [1, 2, 5]
    log.close()


def test_no_place_to_write(tmp_path):
    with pytest.raises(ElmoError, match="cannot be written"):
        MetricsLog(tmp_path / "absent" / "m")
    with pytest.raises(ElmoError, match="cannot be"):
        MetricsLog(tmp_path, resume_step=3)


def test_reading_a_run_that_goes_on_and_a_damaged_one(tmp_path):
    path = tmp_path / "m"
    path.write_bytes(b'{"step": 1}\n{"step": 2')
    assert read_metrics(path) == [{"step": 1}]
    path.write_bytes(b'{"step": 1}\nhello\n{"step": 2}\n')
    with pytest.raises(ElmoError, match="line 2 must be a JSON object with a step, got b'hello"):
        read_metrics(path)
    with pytest.raises(ElmoError, match="cannot be read: No such file"):
        read_metrics(tmp_path / "absent")


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs a signal that cannot be caught")
def test_a_killed_run_keeps_every_line_it_wrote(tmp_path):
    code = """
import itertools, sys
from pathlib import Path
from elmokit.pretrain.metrics import MetricsLog
log = MetricsLog(Path(sys.argv[1]))
for step in itertools.count(1):
    log.write({"step": step, "event": "x" * 1000})
    print(step, flush=True)
"""
    path = tmp_path / "m"
    with subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE) as run:
        for _ in range(20):
            run.stdout.readline()
        run.kill()
        reported = 20 + len(run.stdout.read().splitlines())
    steps = steps_in(path)
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) in (reported, reported + 1)
    with MetricsLog(path, resume_step=10) as log:
        write_steps(log, [11])
    assert steps_in(path) == list(range(1, 12))


@pytest.mark.parametrize("resume_step", [None, 5])
def test_a_planted_link_is_not_written_through(tmp_path, resume_step):
    (tmp_path / "target").touch()
    (tmp_path / "metrics.jsonl").symlink_to(tmp_path / "target")
    with pytest.raises(ElmoError, match=r"metrics\.jsonl cannot be written"):
        MetricsLog(tmp_path / "metrics.jsonl", resume_step)
    assert (tmp_path / "target").read_bytes() == b""

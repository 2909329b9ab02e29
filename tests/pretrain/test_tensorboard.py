"""TensorBoard gets each number once, also from a run that was resumed."""

import errno
import logging
import os
import sys

import pytest

from elmokit.errors import ElmoError, MissingExtraError
from elmokit.pretrain.metrics import TensorBoardLog


@pytest.fixture
def events():
    pytest.importorskip("tensorboard", reason="needs the extra train")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def read(folder):
        logging.getLogger("tensorboard").setLevel(logging.ERROR)
        accumulator = EventAccumulator(str(folder))
        accumulator.Reload()
        return accumulator

    return read


def test_curves_do_not_double_after_a_resume(tmp_path, events):
    with TensorBoardLog(tmp_path) as log:
        for step in range(1, 11):
            log.write({"step": step, "tokens": step, "loss": float(step), "heldout_perplexity": 2.0})
    with TensorBoardLog(tmp_path, resume_step=5) as log:
        for step in range(6, 8):
            log.write({"step": step, "loss": -float(step)})
    read = events(tmp_path)
    points = [(event.step, event.value) for event in read.Scalars("training/loss")]
    assert points == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, -6), (7, -7)]
    assert [event.step for event in read.Scalars("perplexity/heldout")] == [1, 2, 3, 4, 5]


def test_a_new_run_hides_an_old_one_in_its_folder(tmp_path, events):
    for value in (1.0, 2.0):
        with TensorBoardLog(tmp_path) as log:
            for step in range(4):
                log.write({"step": step, "loss": value})
    assert [(event.step, event.value) for event in events(tmp_path).Scalars("training/loss")] == [
        (0, 2), (1, 2), (2, 2), (3, 2),
    ]  # fmt: skip


def test_numbers_that_are_missing_or_not_finite_are_left_out(tmp_path, events):
    with TensorBoardLog(tmp_path) as log:
        log.write({"step": 1, "loss": None, "perplexity": float("nan"), "gradient_norm": float("inf")})
        log.write({"step": 2, "perplexity": 3.5, "event": "saved"})
    read = events(tmp_path)
    assert read.Tags()["scalars"] == ["perplexity/training"]
    assert read.Tags()["tensors"] == ["events/text_summary"]


def test_a_failure_raises_once(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard", reason="needs the extra train")
    log = TensorBoardLog(tmp_path)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(log._writer, "write", full)
    with pytest.raises(
        ElmoError, match=r"TensorBoard log .* cannot be written \(No space left on device\): resume without"
    ):
        log.write({"step": 1, "loss": 1.0})
    log.write({"step": 2, "loss": 1.0})
    log.close()


def test_a_folder_that_cannot_be_made(tmp_path):
    pytest.importorskip("tensorboard", reason="needs the extra train")
    (tmp_path / "file").touch()
    with pytest.raises(ElmoError, match="cannot be written"):
        TensorBoardLog(tmp_path / "file" / "log")


def test_without_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.record_writer", None)
    with pytest.raises(MissingExtraError, match=r"needs the package tensorboard: pip install 'elmokit\[train\]'"):
        TensorBoardLog(tmp_path)

"""How far a run is, in the shared progress display: total, rate, time left and the last numbers."""

import doctest
import io

import pytest

from elmokit import messages
from elmokit.pretrain.checkpoints import RunFolder, RunProgress
from elmokit.pretrain.metrics import RunRecorder, read_metrics
from elmokit.progress import ProgressDisplay

NUMBERS = {
    "perplexity": 200.0,
    "forward_perplexity": 61.234,
    "backward_perplexity": 1234.5,
    "learning_rate": 0.00123,
    "gradient_norm": 2.5,
}


@pytest.fixture
def run(tmp_path, clock):
    """A recorder whose run has had updates of 500 tokens, one per second, and the stream it writes to."""
    streams = []

    def record(since=0, total=100):
        stream = io.StringIO()
        streams.append(stream)
        display = ProgressDisplay("training", "tokens", stream=stream, clock=clock)
        recorder = RunRecorder(RunFolder(tmp_path), at(since), display=display)

        def advance(step, **numbers):
            clock.now = float(step - since)
            if numbers:
                recorder.record_training({"step": step, "tokens": 500 * step, "seconds": float(step), **numbers})
            recorder.show_progress(at(step), step / total)

        return recorder, advance, stream

    return record


def at(step):
    return RunProgress(step=step, predictions=500 * step, seconds=float(step))


def test_examples_in_the_docstrings():
    assert doctest.testmod(messages).attempted >= 3
    assert doctest.testmod(messages).failed == 0


def test_a_log_has_total_rate_time_left_and_the_last_numbers(run, tmp_path):
    recorder, advance, stream = run()
    with recorder:
        advance(1, **NUMBERS)
        for step in range(2, 16):
            advance(step)
    lines = stream.getvalue().splitlines()
    assert lines[0] == (
        "training: 2 %, 1,000 of 50,000 tokens, 500 tokens/s, 1 min 38 s left, step 2, perplexity forward 61.23, "
        "backward 1,234, rate 0.00123, gradient 2.5"
    )
    assert [line.split(", ")[3] for line in lines] == ["1 min 38 s left", "1 min 28 s left", "1 min 25 s left"]
    assert [line["tokens_per_second"] for line in read_metrics(tmp_path / "metrics.jsonl")] == [500.0]


def test_a_resumed_run_counts_its_own_time_only(run):
    recorder, advance, stream = run(since=50)
    with recorder:
        advance(51)
        advance(60)
    assert (
        stream.getvalue().splitlines()[-1]
        == "training: 60 %, 30,000 of 50,000 tokens, 500 tokens/s, 40 s left, step 60"
    )


def test_a_held_out_perplexity_is_a_line_and_stays_in_those_after_it(run):
    recorder, advance, stream = run()
    with recorder:
        advance(3)
        recorder.record_held_out(
            {"step": 3, "tokens": 1500, "seconds": 3.0, "heldout_perplexity": 80.0, "heldout_forward": 80.0}, best=True
        )
        advance(20)
    assert "step 3: held-out perplexity 80.00 (forward 80.00), the best so far" in stream.getvalue()
    assert stream.getvalue().splitlines()[-1].endswith("step 20, held-out 80.00")


def test_the_last_amount_is_one_line(run):
    recorder, advance, stream = run(total=20)
    with recorder:
        advance(3)
        advance(20)
        recorder.record_held_out(
            {"step": 20, "tokens": 10_000, "seconds": 20.0, "heldout_perplexity": 80.0, "heldout_forward": 80.0},
            best=True,
        )
        advance(20)
    assert stream.getvalue().count("10,000 of 10,000 tokens") == 1


def test_without_a_folder_nothing_is_shown_and_nothing_written(capsys):
    with RunRecorder() as recorder:
        recorder.record_training({"step": 1, "tokens": 1, "seconds": 1.0, **NUMBERS})
        recorder.show_progress(at(1), 0.5)
        recorder.note(1, "n")
    assert capsys.readouterr().err == ""


def test_numbers_that_are_not_finite_show(run):
    recorder, advance, stream = run()
    with recorder:
        numbers = {**NUMBERS, "forward_perplexity": float("nan"), "gradient_norm": float("inf")}
        advance(1, **numbers)
        advance(4)
    assert "perplexity forward nan, backward 1,234, rate 0.00123, gradient inf" in stream.getvalue()

"""TrainingProgress is one line on a terminal, log lines elsewhere, and never a reason for a run to stop."""

import doctest
import io
import os

import pytest
from elmokit.pretrain.progress import TrainingProgress

from elmokit import messages
from elmokit import progress as progress_module

NUMBERS = {
    "forward_perplexity": 61.234,
    "backward_perplexity": 1234.5,
    "learning_rate": 0.00123,
    "gradient_norm": 2.5,
}


class Terminal(io.StringIO):
    """A stream that says it is a terminal, of so many columns."""

    def isatty(self):
        return True

    def screen(self):
        """What stands on it: each line as the last carriage return left it."""
        lines = []
        for line in self.getvalue().split("\n"):
            cells = ""
            for piece in line.split("\r"):
                cells = piece + cells[len(piece) :]
            lines.append(cells.rstrip())
        return lines


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_examples_in_the_docstrings():
    assert doctest.testmod(messages).attempted >= 2
    assert doctest.testmod(messages).failed == 0


def test_log_lines_at_intervals_the_first_and_the_last():
    stream, clock = io.StringIO(), Clock()
    with TrainingProgress(stream=stream, clock=clock, every=10) as progress:
        for step in range(1, 26):
            clock.now = step
            progress.update(step, step / 100, step, step * 500, NUMBERS)
    assert stream.getvalue().splitlines() == [
        f"{step} %, step {step}, 500 tokens/s, {left} left, perplexity 61.23 forward 1,234 backward, rate 0.00123, "
        "gradient 2.5"
        for step, left in ((1, "1 min 39 s"), (11, "1 min 29 s"), (21, "1 min 19 s"), (25, "1 min 15 s"))
    ]


def test_a_resumed_run_counts_its_own_time_only():
    stream = io.StringIO()
    progress = TrainingProgress(stream=stream, start_fraction=0.5, start_seconds=7200, start_tokens=10**9)
    progress.update(1000, 0.5, 7200, 10**9, {})
    progress.update(1100, 0.6, 7260, 10**9 + 12_345 * 60, {})
    progress.close()
    assert stream.getvalue().splitlines() == ["50 %, step 1,000", "60 %, step 1,100, 12.3k tokens/s, 4 min 00 s left"]


def test_heldout_perplexity_stays_until_the_next():
    stream, clock = io.StringIO(), Clock()
    progress = TrainingProgress(stream=stream, clock=clock, every=0)
    for step, metrics in enumerate(
        ({}, {"heldout_perplexity": 80.0}, {"heldout_perplexity": None}, {"perplexity": 7.0})
    ):
        progress.update(step, 0.0, 0.0, 0, metrics)
    assert [line.split(", ")[2:] for line in stream.getvalue().splitlines()] == [
        [], ["held-out 80.00"], ["held-out 80.00"], ["perplexity 7.00", "held-out 80.00"],
    ]  # fmt: skip


def test_a_terminal_has_one_line_in_place_and_notes_above(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    stream, clock = Terminal(), Clock()
    with TrainingProgress(stream=stream, clock=clock) as progress:
        progress.update(1, 0.01, 1, 1000, {"perplexity": 50_000.0, "gradient_norm": 1.0})
        progress.note("step 1: saved")
        clock.now = 1
        progress.update(2, 0.02, 2, 2000, {"perplexity": 7.0, "forward_perplexity": 6.5, "backward_perplexity": 7.5})
        progress.update(3, 0.03, 3, 3000, {"perplexity": 6.0})
        assert stream.screen()[-1] == "  2 %, step 2, 1k tokens/s, 1 min 38 s left, perplexity 6.50/7.50"
    assert stream.screen() == ["step 1: saved", "  3 %, step 3, 1k tokens/s, 1 min 37 s left, perplexity 6.00", ""]


@pytest.mark.parametrize("columns", [10, 40, 79])
def test_a_narrow_terminal_does_not_wrap(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = Terminal()
    with TrainingProgress(stream=stream) as progress:
        progress.update(123_456, 0.5, 100, 10_000, NUMBERS)
        progress.note("n")
    assert stream.screen()[0] == "n"
    assert stream.screen()[1].startswith(" 50 %, st")
    assert all(len(piece) < columns for line in stream.getvalue().split("\n") for piece in line.split("\r"))


def test_the_width_is_that_of_the_terminal_itself(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    stream = Terminal()
    stream.fileno = lambda: 2
    monkeypatch.setattr(progress_module.os, "get_terminal_size", lambda handle: os.terminal_size((20, handle)))
    with TrainingProgress(stream=stream) as progress:
        progress.update(123_456, 0.5, 100, 10_000, NUMBERS)
    assert stream.screen() == [" 50 %, step 123,456", ""]


def test_after_an_exception_the_cursor_is_on_a_new_line():
    stream = Terminal()
    progress = TrainingProgress(stream=stream)
    progress.update(1, 0.5, 1, 10, {})
    with pytest.raises(KeyboardInterrupt), progress:
        raise KeyboardInterrupt
    assert stream.screen() == [" 50 %, step 1, 10.0 tokens/s, 1 s left", ""]
    progress.close()
    progress.update(2, 0.5, 1, 10, {})
    progress.note("late")
    assert len(stream.screen()) == 2


def test_nothing_before_the_first_numbers_and_nothing_when_quiet():
    stream = Terminal()
    TrainingProgress(stream=stream).close()
    with TrainingProgress(stream=stream, quiet=True) as progress:
        progress.update(1, 0.5, 1, 10, NUMBERS)
        progress.note("n")
    assert stream.getvalue() == ""


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_a_stream_that_breaks_does_not_stop_the_run(kind):
    stream, clock = kind(), Clock()
    with TrainingProgress(stream=stream, clock=clock, every=0) as progress:
        progress.update(1, 0.5, 1, 10, NUMBERS)
        stream.close()
        for step in (2, 3):
            clock.now += 1
            progress.update(step, 0.5, step, 20, NUMBERS)
            progress.note("n")
    TrainingProgress(stream=stream).close()


def test_numbers_that_are_not_finite_show():
    stream = io.StringIO()
    TrainingProgress(stream=stream).update(
        1, 2.0, 1, 10, {"forward_perplexity": float("nan"), "gradient_norm": float("inf")}
    )
    assert stream.getvalue() == "100 %, step 1, 10.0 tokens/s, 0 s left, perplexity nan forward, gradient inf\n"

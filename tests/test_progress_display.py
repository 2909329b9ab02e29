"""Progress is one line on a terminal and a line now and then in a log, with total, rate and time left."""

import io
import re
import time
from itertools import count

from elmokit.progress import ProgressDisplay


class Terminal(io.StringIO):
    def isatty(self):
        return True


def updates(display, clock, seconds, each=1):
    for second in range(1, seconds + 1):
        clock.now = second
        display.update(second * each)


def test_a_log_has_a_line_within_five_seconds_and_then_every_ten(clock):
    stream = io.StringIO()
    with ProgressDisplay("embedding", "sentences", total=50_000, stream=stream, clock=clock) as display:
        updates(display, clock, 25, each=2000)
    assert stream.getvalue().splitlines() == [
        "embedding: 8 %, 4,000 of 50,000 sentences, 2k sentences/s, 23 s left",
        "embedding: 48 %, 24,000 of 50,000 sentences, 2k sentences/s, 13 s left",
        "embedding: 88 %, 44,000 of 50,000 sentences, 2k sentences/s, 3 s left",
        "embedding: 100 %, 50,000 of 50,000 sentences, 2k sentences/s, 0 s left",
    ]


def test_slow_work_is_shown_as_begun(monkeypatch):
    monkeypatch.setattr("elmokit.progress._SLOW_SECONDS", 0)
    monkeypatch.setattr("elmokit.progress._LOG_SECONDS", 0.01)
    stream, times = io.StringIO(), count(0, 5)
    with ProgressDisplay("embedding", "sentences", total=5, stream=stream, clock=lambda: next(times)):
        while stream.getvalue().count("\n") < 2:
            time.sleep(0.01)
    lines = stream.getvalue().splitlines()
    assert all(re.fullmatch(r"embedding: 0 of 5 sentences, .* so far", line) for line in lines)
    assert lines[0] != lines[1]


def test_short_work_shows_nothing(clock):
    for stream in (io.StringIO(), Terminal()):
        with ProgressDisplay("embedding", "sentences", stream=stream, clock=clock) as display:
            display.update(10)
        assert stream.getvalue() == ""


def test_without_a_total_and_in_bytes(clock):
    stream = io.StringIO()
    with ProgressDisplay("reading", "B", stream=stream, clock=clock) as display:
        updates(display, clock, 3, each=1_000_000)
    assert stream.getvalue().splitlines()[-1] == "reading: 3MB, 1MB/s"


def test_one_item_is_singular(clock):
    stream = io.StringIO()
    with ProgressDisplay("predicting", "examples", stream=stream, clock=clock) as display:
        clock.now = 5
        display.update(1)
    assert stream.getvalue() == "predicting: 1 example\n"


def test_what_an_earlier_run_did_does_not_count_as_speed(clock):
    stream = io.StringIO()
    with ProgressDisplay("embedding", "sentences", total=1200, stream=stream, clock=clock) as display:
        display.update(1000)
        clock.now = 2
        display.update(1020, extra="7 tokens")
    assert stream.getvalue() == "embedding: 85 %, 1,020 of 1,200 sentences, 10.0 sentences/s, 18 s left, 7 tokens\n"


def test_a_terminal_has_one_line_that_goes_away_and_notes_that_stay(monkeypatch, clock):
    monkeypatch.setenv("COLUMNS", "60")
    stream = Terminal()
    with ProgressDisplay("epoch 1", "batches", total=10, stream=stream, clock=clock) as display:
        updates(display, clock, 3)
        display.note("a note")
        display.start("epoch 2", "batches", 10)
        clock.now = 4
        display.update(1)
    shown = stream.getvalue()
    assert "\repoch 1: 30 %, 3 of 10 batches, 1.0 batches/s, 7 s left" in shown
    assert "\ra note\n\repoch 1: 30 %" in shown
    assert shown.endswith("\r")
    assert "epoch 2" not in shown, "it began less than two seconds ago"
    assert all(len(piece) < 60 for line in shown.split("\n") for piece in line.split("\r"))


def test_counting_and_a_stream_that_is_closed(clock):
    stream = io.StringIO()
    stream.close()
    with ProgressDisplay("predicting", "examples", stream=stream, clock=clock) as display:
        assert list(display.count("abc")) == ["a", "b", "c"]


def test_the_same_work_with_another_total_begins_anew(clock):
    stream = io.StringIO()
    with ProgressDisplay(stream=stream, clock=clock) as display:
        for total in (890, 900):
            for done in range(1, total + 1):
                clock.now += 0.1
                display.start("vectors", "sentences", total)
                display.update(done)
    last = [line for line in stream.getvalue().splitlines() if "100 %" in line]
    assert [line.split(", ")[1] for line in last] == ["890 of 890 sentences", "900 of 900 sentences"]

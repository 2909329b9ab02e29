"""The progress of a training run: one line that changes on a terminal, otherwise log lines."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from typing import TextIO

_REDRAW_SECONDS = 0.1
_PLAIN_COLUMNS = 80


class TrainingProgress:
    """Shows how far a run is; numbers come in as often as the loop has them, and lines go to stderr.

    A resumed run gives the fraction, seconds and tokens it starts from, so that the speed and the time left are its
    own. A terminal shows one line that is rewritten in place; elsewhere a line appears every `every` seconds, and
    always for the first and the last numbers. A stream that can no longer be written never stops the run.

        with TrainingProgress(start_fraction=0.25, start_seconds=600, start_tokens=10_000_000) as progress:
            progress.update(step, fraction, seconds, tokens, {"forward_perplexity": 61.2, "learning_rate": 1e-3})
            progress.note("step 2,000: held-out perplexity 58.31")
    """

    def __init__(
        self,
        *,
        start_fraction: float = 0.0,
        start_seconds: float = 0.0,
        start_tokens: int = 0,
        every: float = 10.0,
        stream: TextIO | None = None,
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._start = (start_fraction, start_seconds)
        self._last = (start_seconds, start_tokens)
        self._rate: float | None = None
        self._stream: TextIO | None = None if quiet else stream or sys.stderr
        self._terminal = self._is_terminal()
        self._interval = _REDRAW_SECONDS if self._terminal else every
        self._clock = clock
        self._drawn_at: float | None = None
        self._drawn = 0
        self._waiting = False
        self._line = ""
        self._heldout: float | None = None

    def update(
        self, step: int, fraction: float, seconds: float, tokens: int, metrics: Mapping[str, float | None]
    ) -> None:
        """Take the numbers of a step: share of the run done (0 to 1), seconds and tokens since the run first began."""
        heldout = metrics.get("heldout_perplexity")
        self._heldout = self._heldout if heldout is None else heldout
        self._line = ", ".join(self._parts(step, fraction, seconds, tokens, metrics))
        self._waiting = True
        now = self._clock()
        if self._drawn_at is None or now - self._drawn_at >= self._interval:
            self._drawn_at = now
            self._draw()

    def note(self, text: str) -> None:
        """Write a line that stays: a held-out result, a checkpoint, a skipped step."""
        if self._terminal:
            self._write(self._cleared() + text + "\n")
            self._drawn = 0
            if self._line:
                self._draw()
        else:
            self._write(text + "\n")

    def close(self) -> None:
        """Show the last numbers and leave the cursor on a new line; a second call does nothing."""
        if self._waiting:
            self._draw()
        if self._drawn:
            self._write("\n")
        self._stream, self._drawn = None, 0

    def _parts(
        self, step: int, fraction: float, seconds: float, tokens: int, metrics: Mapping[str, float | None]
    ) -> list[str]:
        """The pieces of the line; what matters most comes first, for a narrow terminal cuts the rest.

        A terminal's line gives the perplexities of the ways as 61.2/62.8, to be shorter: masked words if there are any,
        forward, backward.
        """
        parts = [f"{int(100 * min(1.0, max(0.0, fraction))):3d} %", f"step {step:,}"]
        rate = metrics.get("tokens_per_second")
        if rate is None:
            if seconds > self._last[0]:
                self._rate = (tokens - self._last[1]) / (seconds - self._last[0])
                self._last = (seconds, tokens)
            rate = self._rate
        if rate is not None:
            parts.append(f"{quantity(rate)} tokens/s")
        done, spent = fraction - self._start[0], seconds - self._start[1]
        if done > 0 and spent > 0:
            parts.append(f"{duration(spent / done * max(0.0, 1 - fraction))} left")
        ways = {
            way: perplexity(value)
            for way in ("masked", "forward", "backward")
            if (value := metrics.get(f"{way}_perplexity")) is not None
        }
        if ways and self._terminal:
            parts.append(f"perplexity {'/'.join(ways.values())}")
        elif ways:
            parts.append("perplexity " + " ".join(f"{value} {way}" for way, value in ways.items()))
        elif (value := metrics.get("perplexity")) is not None:
            parts.append(f"perplexity {perplexity(value)}")
        if self._heldout is not None:
            parts.append(f"held-out {perplexity(self._heldout)}")
        for name, label in (("learning_rate", "rate"), ("gradient_norm", "gradient")):
            if (value := metrics.get(name)) is not None:
                parts.append(f"{label} {value:.3g}")
        return parts

    def _draw(self) -> None:
        self._waiting = False
        if self._terminal:
            # A character in the last column would make some terminals go to the next line.
            line = self._line[: self._columns() - 1]
            self._write("\r" + line.ljust(min(self._drawn, self._columns() - 1)))
            self._drawn = len(line)
        else:
            self._write(self._line.lstrip() + "\n")

    def _cleared(self) -> str:
        return "\r" + " " * min(self._drawn, self._columns() - 1) + "\r" if self._drawn else ""

    def _is_terminal(self) -> bool:
        try:
            return self._stream is not None and self._stream.isatty()
        except ValueError:  # closed, as by a shell's 2>&-
            return False

    def _columns(self) -> int:
        try:
            # Of stderr itself: shutil asks stdout, which may be a file of another width, or of none.
            columns = os.get_terminal_size(self._stream.fileno()).columns if self._stream else 0
        except (OSError, ValueError):
            columns = shutil.get_terminal_size((_PLAIN_COLUMNS, 24)).columns
        return columns or _PLAIN_COLUMNS

    def _write(self, text: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # a closed terminal or pipe
            self._stream, self._drawn = None, 0

    def __enter__(self) -> TrainingProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def duration(seconds: float) -> str:
    """A length of time for people.

    >>> [duration(seconds) for seconds in (7.6, 200, 3780, 100_000)]
    ['8 s', '3 min 20 s', '1 h 03 min', '1 d 03 h']
    """
    whole = round(seconds)
    for size, unit, part, part_unit in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // part:02d} {part_unit}"
    return f"{whole} s"


def quantity(value: float) -> str:
    """A large number in three figures or so.

    >>> [quantity(value) for value in (7.25, 999.7, 12_345, 999_960, 2_500_000, 1e10)]
    ['7.2', '1k', '12.3k', '1M', '2.5M', '10G']
    """
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * size:
            digits = max(0, 2 - len(str(int(value / size + 0.0005))) + 1)
            return f"{float(f'{value / size:.{digits}f}'):g}{unit}"
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}"


def perplexity(value: float) -> str:
    """A perplexity in four figures.

    >>> [perplexity(value) for value in (12.3456, 281.04, 50_002.7, 3.2e7, float("nan"))]
    ['12.35', '281.0', '50,003', '3.2e+07', 'nan']
    """
    if value >= 1e6:
        return f"{value:.3g}"
    return f"{value:.2f}" if value < 100 else f"{value:.1f}" if value < 1000 else f"{value:,.0f}"

"""The progress of a long command with total, rate and time left: one line on a terminal, many lines in a log."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TextIO, TypeVar

from elmokit.messages import duration, printable, quantity
from elmokit.storage import Closing

T = TypeVar("T")
silent = False
"""Whether this process shows no progress, as `elmo --quiet` asks."""
_REDRAW_SECONDS = 0.1
_LOG_SECONDS = 10.0
_FIRST_SECONDS = 2.0
"""A command that ends sooner shows no progress."""
_SLOW_SECONDS = 3.0
"""After this time without a first result, the elapsed time is shown."""
_PLAIN_COLUMNS = 80


class StatusLine:
    """A line on stderr that is rewritten in place on a terminal; in a log, a new line every `every` seconds.

    A stream that can no longer be written to never stops the command.
    """

    def __init__(
        self,
        *,
        first: float = 0.0,
        every: float = _LOG_SECONDS,
        stay: bool = True,
        stream: TextIO | None = None,
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`first`: seconds before the first line appears; `stay`: the last line stays on a terminal."""
        self._stream: TextIO | None = None if quiet or silent else stream or sys.stderr
        self.terminal = self._is_terminal()
        self._interval = _REDRAW_SECONDS if self.terminal else every
        self._clock, self._stay = clock, stay
        self._next = clock() + first
        self._begun = not first
        self._text, self._waiting, self._drawn = "", False, 0
        self._state: object = None
        self._drawn_state: object = None

    def show(self, text: str, state: object = None) -> None:
        """Replace the line if the interval has passed; `close` does not repeat a line that shows the same `state`."""
        self._text, self._state = printable(text), state
        self._waiting = state is None or state != self._drawn_state
        if (now := self._clock()) >= self._next:
            self._next, self._begun = now + self._interval, True
            self._draw()

    def note(self, text: str) -> None:
        """Write a line that stays, above the line that changes."""
        text = printable(text)
        if not self.terminal:
            self._write(text + "\n")
            return
        self._write(self._cleared() + text + "\n")
        self._drawn = 0
        if self._text and self._begun:
            self._draw()

    def close(self) -> None:
        """Show the last text if any was shown, and leave the cursor at the start of a line."""
        if self._stay or not self.terminal:
            if self._waiting and self._begun:
                self._draw()
            if self._drawn:
                self._write("\n")
        else:
            self._write(self._cleared())
        self._stream, self._drawn = None, 0

    def _draw(self) -> None:
        self._waiting, self._drawn_state = False, self._state
        if self.terminal:
            # A character in the last column would make some terminals go to the next line.
            line = self._text[: self._columns() - 1]
            self._write("\r" + line.ljust(min(self._drawn, self._columns() - 1)))
            self._drawn = len(line)
        else:
            self._write(self._text.lstrip() + "\n")

    def _cleared(self) -> str:
        return "\r" + " " * min(self._drawn, self._columns() - 1) + "\r" if self._drawn else ""

    def _is_terminal(self) -> bool:
        try:
            return self._stream is not None and self._stream.isatty()
        except ValueError:  # closed, as by a shell's 2>&-
            return False

    def _columns(self) -> int:
        try:
            # Ask stderr itself: shutil asks stdout, which may be redirected.
            columns = os.get_terminal_size(self._stream.fileno()).columns if self._stream else 0
        except (OSError, ValueError):
            columns = shutil.get_terminal_size((_PLAIN_COLUMNS, 24)).columns
        return columns or _PLAIN_COLUMNS

    def _write(self, text: str) -> None:
        if self._stream is None or not text:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # a closed terminal or pipe
            self._stream, self._drawn = None, 0


class ProgressDisplay(Closing):
    """Shows the number of items done, the rate and the time left; a context manager.

    with ProgressDisplay("embedding", "sentences", total=1000) as display:
        display.update(100)
    """

    def __init__(
        self,
        doing: str = "",
        unit: str = "",
        *,
        total: int | None = None,
        quiet: bool = False,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        first, every = _FIRST_SECONDS, _LOG_SECONDS
        self._new_line = partial(
            StatusLine, first=first, every=every, stay=False, stream=stream, quiet=quiet, clock=clock
        )
        self._begin(doing, unit, total)

    def _begin(self, doing: str, unit: str, total: int | None) -> None:
        self._doing, self._unit, self.total = doing, unit, total
        self._line, self._begun = self._new_line(), self._clock()
        self._since: tuple[float, int] | None = None
        self._stopped = threading.Event()
        if doing:
            threading.Thread(target=self._show_waiting, args=(self._line, self._stopped), daemon=True).start()

    def _show_waiting(self, line: StatusLine, stopped: threading.Event) -> None:
        """Show the time since the start until the first item, such as a very long sentence, is done."""
        seconds = _SLOW_SECONDS
        while not stopped.wait(seconds) and self._since is None:
            line.show(f"{self._doing}: {self._amount(0)}, {duration(self._clock() - self._begun)} so far")
            seconds = _LOG_SECONDS

    def start(self, doing: str, unit: str, total: int | None = None) -> None:
        """Begin to show another task, unless it is the one that is shown already."""
        if (doing, unit) != (self._doing, self._unit) or total not in (None, self.total):
            self.close()
            self._begin(doing, unit, total)

    def update(self, done: int, total: int | None = None, extra: str = "") -> None:
        """Show that `done` items are done, including those of an earlier run; `extra` is shown after the numbers."""
        self.total = total if total is not None else self.total
        now = self._clock()
        if self._since is None:  # items done before the first call say nothing about the rate
            self._since = (now, done)
        parts = [self._amount(done)]
        if self.total:
            parts.insert(0, f"{int(100 * min(1.0, done / self.total)):3d} %")
        seconds, count = now - self._since[0], done - self._since[1]
        if seconds > 0 and count > 0:
            parts.append(f"{quantity(count / seconds)}{'' if self._unit == 'B' else ' '}{self._unit}/s")
            if self.total:
                parts.append(f"{duration(seconds / count * max(0, self.total - done))} left")
        if extra:
            parts.append(extra)
        self._line.show(f"{self._doing}: {', '.join(parts).lstrip()}", done)

    def count(self, items: Iterable[T]) -> Iterator[T]:
        """The items, counted as they are yielded."""
        for done, item in enumerate(items, start=1):
            self.update(done)
            yield item

    def note(self, text: str) -> None:
        """Write a line that stays."""
        self._line.note(text)

    def close(self) -> None:
        """Remove the line from a terminal."""
        self._stopped.set()
        self._line.close()

    def _amount(self, done: int) -> str:
        if self._unit == "B":
            return f"{quantity(done)}B" + ("" if self.total is None else f" of {quantity(self.total)}B")
        unit = self._unit.removesuffix("s") if (done if self.total is None else self.total) == 1 else self._unit
        return f"{done:,}{'' if self.total is None else f' of {self.total:,}'} {unit}"

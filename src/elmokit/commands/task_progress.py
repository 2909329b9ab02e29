"""How `elmo task` shows what it is doing: bars on a terminal, lines without one, all on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from tqdm import tqdm

Counted = TypeVar("Counted")
_LOG_SECONDS = 15.0
"""Without a terminal, so long between two lines."""


def say(text: str) -> None:
    """Print a line that is no result."""
    print(text, file=sys.stderr)


class AnswerBar:
    """Shows how far an answering is: a bar on a terminal, a line now and then without one."""

    def __init__(self, total: int | None) -> None:
        """`total`: how many there will be, where that is known."""
        self._bar = tqdm(total=total, desc="predicting", unit=" examples", disable=None, leave=False)

    def counted(self, answers: Iterable[Counted]) -> Iterator[Counted]:
        """The answers, counted."""
        said = time.monotonic()
        for done, answer in enumerate(answers, start=1):
            self._bar.update()
            if self._bar.disable and time.monotonic() - said > _LOG_SECONDS:
                said = time.monotonic()
                of_all = "" if self._bar.total is None else f" of {self._bar.total:,}"
                say(f"predicting: {done:,}{of_all} examples")
            yield answer

    def __enter__(self) -> AnswerBar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()


class TrainingShown:
    """Shows a training: a bar on a terminal, a line for each epoch in any case."""

    def __init__(self, name: str, *, quiet: bool) -> None:
        """`quiet`: without notes, which were shown before."""
        self._before, self._quiet = f"{name}: " if name else "", quiet
        self._bar: tqdm[Any] | None = None
        self._doing = ""
        self._said = time.monotonic()

    def note(self, text: str) -> None:
        """Say something."""
        if not self._quiet:
            self._write(text)

    def features(self, done: int, total: int) -> None:
        """Show how many sentences have their vectors."""
        self._advance("ELMo vectors", done, total, "sentences")

    def batch(self, epoch: int, done: int, total: int) -> None:
        """Show how far an epoch is."""
        self._advance(f"epoch {epoch}", done, total, "batches")

    def epoch(self, line: dict[str, Any], *, best: bool) -> None:
        """Show what an epoch brought."""
        self._close()
        self._write(
            f"{self._before}epoch {line['epoch']}: loss {line['loss']:.4f}, dev {line['name']} {line['score']:.4f}"
            f"{', the best so far' if best else ''} ({line['seconds']:.1f} s)"
        )

    def _advance(self, doing: str, done: int, total: int, unit: str) -> None:
        if doing != self._doing:
            self._close()
            self._bar = tqdm(total=total, desc=self._before + doing, unit=f" {unit}", disable=None, leave=False)
            self._doing, self._said = doing, time.monotonic()
        assert self._bar is not None
        self._bar.update(done - self._bar.n)
        if self._bar.disable:  # no terminal: a line now and then
            self._bar.n = done
            if time.monotonic() - self._said > _LOG_SECONDS:
                self._said = time.monotonic()
                self._write(f"{self._before}{doing}: {done:,} of {total:,} {unit}")

    def _write(self, text: str) -> None:
        if self._bar is not None and not self._bar.disable:
            self._bar.clear()
        say(text)

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._bar, self._doing = None, ""

    def __enter__(self) -> TrainingShown:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

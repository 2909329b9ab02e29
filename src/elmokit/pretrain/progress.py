"""The progress of a training run: one line that changes on a terminal, otherwise log lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TextIO

from elmokit.messages import duration, quantity
from elmokit.progress import StatusLine

__all__ = ["TrainingProgress", "duration", "perplexity", "quantity"]


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
        self._line = StatusLine(every=every, stream=stream, quiet=quiet, clock=clock)
        self._heldout: float | None = None

    def update(
        self, step: int, fraction: float, seconds: float, tokens: int, metrics: Mapping[str, float | None]
    ) -> None:
        """Take the numbers of a step: share of the run done (0 to 1), seconds and tokens since the run first began."""
        heldout = metrics.get("heldout_perplexity")
        self._heldout = self._heldout if heldout is None else heldout
        self._line.show(", ".join(self._parts(step, fraction, seconds, tokens, metrics)))

    def note(self, text: str) -> None:
        """Write a line that stays: a held-out result, a checkpoint, a skipped step."""
        self._line.note(text)

    def close(self) -> None:
        """Show the last numbers and leave the cursor on a new line; a second call does nothing."""
        self._line.close()

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
        if ways and self._line.terminal:
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

    def __enter__(self) -> TrainingProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def perplexity(value: float) -> str:
    """A perplexity in four figures.

    >>> [perplexity(value) for value in (12.3456, 281.04, 50_002.7, 3.2e7, float("nan"))]
    ['12.35', '281.0', '50,003', '3.2e+07', 'nan']
    """
    if value >= 1e6:
        return f"{value:.3g}"
    return f"{value:.2f}" if value < 100 else f"{value:.1f}" if value < 1000 else f"{value:,.0f}"

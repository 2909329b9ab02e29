"""What a person sees while a corpus is prepared."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

from elmokit.corpus.prepare import Progress
from elmokit.messages import counted

_LOG_SECONDS, _BAR_AFTER_SECONDS = 10.0, 1.0


@contextmanager
def preparing(name: str, *, quiet: bool = False) -> Iterator[Callable[[Progress], None]]:
    """A bar on a terminal, a log line now and then elsewhere, on stderr; for `prepare`'s on_progress."""
    if quiet:
        yield lambda progress: None
        return
    if sys.stderr.isatty():
        shown = f"preparing the {name}"
        with tqdm(unit="B", unit_scale=True, desc=shown, delay=_BAR_AFTER_SECONDS, file=sys.stderr) as bar:

            def show(progress: Progress) -> None:
                bar.total = progress.total
                bar.set_postfix_str(counted(progress.tokens, "token"), refresh=False)
                bar.update(progress.read - bar.n)

            yield show
        return
    last = time.monotonic()

    def log(progress: Progress) -> None:
        nonlocal last
        if time.monotonic() - last < _LOG_SECONDS:
            return
        last = time.monotonic()
        share = f" ({progress.read / progress.total:.0%})" if progress.total else ""
        done = f"{counted(progress.sentences, 'sentence')}, {counted(progress.tokens, 'token')}"
        print(f"preparing the {name}: {done}{share}", file=sys.stderr, flush=True)

    yield log

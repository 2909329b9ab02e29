"""What the terminal shows while an index is found or built."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from tqdm import tqdm

from elmokit.analyse.index import OccurrenceIndex
from elmokit.analyse.index_builder import BuildProgress
from elmokit.analyse.index_cache import IndexOptions, find_index
from elmokit.corpus.report import progress_display
from elmokit.elmo import Elmo
from elmokit.messages import counted

_LOG_SECONDS, _BAR_AFTER_SECONDS = 10.0, 1.0
_NARROW = 40


def terminal_width() -> int | None:
    """The columns of the terminal; None if the output is not a terminal, and nothing is to be cut."""
    return max(shutil.get_terminal_size().columns, _NARROW) if sys.stdout.isatty() else None


def find_index_with_progress(
    options: IndexOptions, elmo: Elmo, *, words: Sequence[str] | None, ignore_case: bool = False
) -> OccurrenceIndex:
    """`find_index` with progress and a report of a new index on stderr."""

    def built(index: OccurrenceIndex) -> None:
        size = sum(file.stat().st_size for file in index.folder.rglob("*.bin"))
        chosen = index.description["choice"]["words"]
        shown = "all words" if chosen is None else ", ".join(chosen[:3]) + (" …" if len(chosen) > 3 else "")
        found = f"{counted(len(index), 'occurrence')} in {counted(index.text.n_sentences, 'sentence')}"
        space = f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
        print(f"built an index of {shown}: {found}, {space} in {index.folder}", file=sys.stderr)
        unknown = elmo.unknown_tokens()
        for text, (_, rows) in zip(index.text.type_texts(), index.words.tolist(), strict=True):
            if rows:
                unknown.add([text], rows)
        if message := unknown.message():
            print(f"elmo: {message}", file=sys.stderr)

    with progress_display("corpus") as on_corpus, _build_progress() as on_build:
        return find_index(
            options, elmo, words=words, ignore_case=ignore_case, on_corpus=on_corpus, on_build=on_build, on_built=built
        )


@contextmanager
def _build_progress() -> Iterator[Callable[[BuildProgress], None]]:
    """A bar on a terminal, otherwise a log line every 10 s, on stderr."""
    if sys.stderr.isatty():
        with ExitStack() as stack:
            bars: list[tqdm] = []

            def show(progress: BuildProgress) -> None:
                if not bars:  # not earlier: until then the corpus is prepared, which has a bar of its own
                    bar = tqdm(unit=" sentences", desc="building the index", delay=_BAR_AFTER_SECONDS, file=sys.stderr)
                    bars.append(stack.enter_context(bar))
                bars[0].total = progress.total
                bars[0].update(progress.sentences - bars[0].n)

            yield show
        return
    last = time.monotonic()

    def log(progress: BuildProgress) -> None:
        nonlocal last
        if time.monotonic() - last >= _LOG_SECONDS:
            last = time.monotonic()
            done = f"{progress.sentences:,} of {counted(progress.total, 'sentence')}"
            print(f"building the index: {done}", file=sys.stderr, flush=True)

    yield log

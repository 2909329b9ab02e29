"""What `elmo vocab` does: a corpus is read and counted, and its vocabulary written."""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from elmokit.corpus.prepare import prepare
from elmokit.corpus.prepared import build_vocabulary, coverage, write_vocabulary
from elmokit.corpus.report import progress_display
from elmokit.errors import ElmoError
from elmokit.messages import counted


@dataclass(frozen=True)
class VocabRequest:
    """The options of `elmo vocab`."""

    corpus: list[str]
    output: Path
    max_size: int | None = None
    """Words in the vocabulary, `<S>`, `</S>` and `<UNK>` among them."""
    min_count: int = 1
    segment: str = "none"
    split: str = "none"
    max_tokens: int = 1000
    workers: int | None = None
    cache: Path | None = None
    """Where prepared corpora are kept, each in a folder of its own."""


def run_vocab(request: VocabRequest) -> None:
    """Prepare the corpus, or find it prepared, and write the vocabulary; what was done is told on stderr."""
    _check_output(request)
    with ExitStack() as stack:
        if "-" in request.corpus and request.cache is None:  # nothing by which to find it again
            temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="elmo-vocab-"))
            request = replace(request, cache=Path(temporary) / "corpus")
        _count(request)


def _count(request: VocabRequest) -> None:
    with progress_display("corpus") as on_progress:
        corpus = prepare(
            request.corpus,
            segment=request.segment,
            split=request.split,
            max_tokens=request.max_tokens,
            folder=request.cache,
            workers=request.workers,
            on_progress=on_progress,
        )
    for line in corpus.report.lines():
        print(line, file=sys.stderr)
    vocabulary = build_vocabulary(corpus, max_size=request.max_size, min_count=request.min_count)
    write_vocabulary(vocabulary, request.output)
    print(
        f"wrote {request.output}: {counted(len(vocabulary), 'word')}, which cover "
        f"{coverage(corpus, vocabulary):.2%} of the tokens",
        file=sys.stderr,
    )


def _check_output(request: VocabRequest) -> None:
    """What would fail at the end should fail before the corpus is read."""
    if request.output.is_dir():
        raise ElmoError(f"--output must be a file, and {request.output} is a folder: name a file in it, as vocab.txt")
    if not request.output.absolute().parent.is_dir():
        raise ElmoError(f"--output must lie in a folder that exists, got {request.output}: make the folder first")
    if request.max_size is not None and request.max_size <= 3:
        raise ElmoError(f"--max-size must be more than 3, the special words that it counts, got {request.max_size}")
    for source in request.corpus:
        if source != "-" and request.output.exists() and Path(source).exists() and request.output.samefile(source):
            raise ElmoError(f"--output must not be a file of the corpus, got {source}: it would be written over")

"""A corpus prepared for training: found in the cache, or built there once for all processes that ask."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple, cast

from elmokit.corpus.building import CorpusBuilder, corpus_errors
from elmokit.corpus.encoding import chunks_of
from elmokit.corpus.files import DESCRIPTION, STANDARD_INPUT, Input, find_inputs, listed
from elmokit.corpus.prepared import PreparedCorpus, read_description
from elmokit.corpus.reading import read_pieces
from elmokit.corpus.report import Tally
from elmokit.corpus.sentences import Reading, SplitMode
from elmokit.corpus.shelf import (
    NAMES,
    fingerprint_of,
    name_after_reading,
    origin_of,
    prepared_among,
    told_of_earlier,
    usual_shelf,
)
from elmokit.corpus.workers import encode_all
from elmokit.errors import ElmoError
from elmokit.storage.atomic import atomic_folder, sync
from elmokit.storage.cache import remove_abandoned
from elmokit.storage.locks import folder_lock
from elmokit.text.tokens import SegmenterName

log = logging.getLogger(__name__)
_BUSY = "another process is preparing this corpus"
_WORTH_WORKERS = 2_000_000
"""Bytes on disk; with fewer, other processes would take longer to start than they save."""
_MOST_WORKERS = 32
"""More could not be fed by the one process that reads."""


class Progress(NamedTuple):
    """How far the preparation has come."""

    read: int
    """Bytes taken from the disk."""
    total: int | None
    """Bytes there are; unknown for standard input."""
    sentences: int
    tokens: int


def prepare(
    sources: Sequence[str],
    *,
    segment: str = "none",
    split: str = "none",
    max_tokens: int = 1000,
    max_types: int = 5_000_000,
    folder: Path | None = None,
    workers: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> PreparedCorpus:
    """The prepared corpus of some files, opened at once where it has been prepared before.

    `folder` is where prepared corpora lie, each in a folder of its own: by default corpora/ of the cache folder
    (ELMOKIT_CACHE, or ~/.cache/elmokit). A corpus is the same whatever the number of workers, which are processes; by
    default as many as there are processors. Words added to jieba in this process are known to it alone: prepare with
    workers=1 where they matter. A single source that is the folder of a prepared corpus, or a folder with one of these
    and nothing else, is opened as it is, whatever the other arguments say.

        corpus = prepare(["texts/", "more.txt.xz"], segment="english", split="line")
        print(*corpus.report.lines(), sep="\\n")
    """
    if prepared := prepared_among(sources):
        return PreparedCorpus.open(prepared)
    how = Reading(cast(SegmenterName, segment), cast(SplitMode, split), max_tokens)
    settings = {**asdict(how), "max_types": max_types}
    tally = Tally()
    tally.max_tokens = max_tokens
    inputs = find_inputs(sources, tally)
    tally.files = len(inputs)
    fingerprint, origin = fingerprint_of(inputs, settings), origin_of(sources, settings)
    if folder is None and fingerprint is None:
        raise ElmoError("a corpus from standard input needs a folder to be prepared in: name one (--cache DIR)")
    shelf = (usual_shelf() if folder is None else Path(folder)).expanduser().resolve()
    place = shelf / (fingerprint or secrets.token_hex(16))
    if corpus := _whole(place, fingerprint):
        return corpus
    with folder_lock(place, _BUSY, corpus_errors) as lock:
        if corpus := _whole(place, fingerprint):  # another process has built it while this one waited
            return corpus
        remove_abandoned(place, NAMES)
        try:
            with (
                atomic_folder(place, corpus_errors, alone=lock.supported) as temporary,
                CorpusBuilder(temporary, shown=place, max_types=max_types) as builder,
            ):
                _build(inputs, how, builder, tally, workers, on_progress)
                _refuse_empty(sources, tally)
                _refuse_changed(inputs)
                builder.finish(tally.report(types=builder.n_types), settings, fingerprint, origin)
            corpus = PreparedCorpus.open(place if fingerprint else _named_after_reading(place))
        except ElmoError:
            # Where there are no locks, another process may have put the same corpus there at the same moment.
            if corpus := _whole(place, fingerprint):
                return corpus
            raise
    if told := told_of_earlier(corpus.folder, origin, sources):
        log.warning("%s", told)
    return corpus


def _build(
    inputs: Sequence[Input],
    how: Reading,
    builder: CorpusBuilder,
    tally: Tally,
    workers: int | None,
    on_progress: Callable[[Progress], None] | None,
) -> None:
    read = 0

    def taken(count: int) -> None:
        nonlocal read
        read += count

    known = all(each.name != STANDARD_INPUT for each in inputs)
    total = sum(each.size for each in inputs) if known else None
    if workers is None:
        workers = 1 if total is not None and total < _WORTH_WORKERS else _processors()
    chunks = chunks_of(read_pieces(inputs, paragraphs=how.paragraphs, on_bytes=taken))
    # Closed at once, not when an error's traceback is forgotten: workers are processes.
    with closing(encode_all(chunks, how, workers)) as parts:
        for part in parts:
            builder.add(part, tally)
            if on_progress is not None:
                on_progress(Progress(read, total, tally.sentences, tally.tokens))


def _processors() -> int:
    """As many as this process may run on, which in a container or a batch job are fewer than there are."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(allowed, _MOST_WORKERS)


def _whole(folder: Path, fingerprint: str | None) -> PreparedCorpus | None:
    """The corpus of the folder, if it is whole and of these sources."""
    if fingerprint is None or not (folder / DESCRIPTION).is_file():
        return None
    try:
        corpus = PreparedCorpus.open(folder)
    except ElmoError:
        return None  # damaged, or of another version: it is built anew
    return corpus if corpus.fingerprint == fingerprint else None


def _named_after_reading(place: Path) -> Path:
    """Give a corpus from standard input its name; where the same has been read before, that one stays."""
    description = read_description(place)
    named = place.with_name(name_after_reading(description))
    with folder_lock(named, _BUSY, corpus_errors), corpus_errors(named):
        if _whole(named, description["content"]):
            shutil.rmtree(place)
        else:
            shutil.rmtree(named, ignore_errors=True)
            place.rename(named)
            sync(named.parent)
    return named


def _refuse_empty(sources: Sequence[str], tally: Tally) -> None:
    if not tally.sentences:
        skipped = "; ".join(tally.report().lines()[2:])
        raise ElmoError(f"the corpus {listed(sources)} has no sentence to read" + (f" ({skipped})" if skipped else ""))


def _refuse_changed(inputs: Sequence[Input]) -> None:
    for each in inputs:
        if each.name != STANDARD_INPUT and not each.is_unchanged():
            raise ElmoError(f"{each.name} was changed while it was read: run the command again once it stays as it is")

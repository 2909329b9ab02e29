"""From sources to a prepared corpus: found in the cache, or built there once for all processes that request it.

The cache folder has a subfolder for each prepared corpus, named after its fingerprint.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

from elmokit.corpus.encoding import chunks_of, encode_all
from elmokit.corpus.prepared import VERSION, CorpusBuilder, PreparedCorpus, corpus_errors, read_description
from elmokit.corpus.reading import (
    DESCRIPTION,
    STANDARD_INPUT,
    Input,
    ReadingOptions,
    SplitMode,
    find_inputs,
    first_few,
    is_prepared,
    read_units,
)
from elmokit.corpus.report import Progress, Report
from elmokit.corpus.worker_process import available_cores
from elmokit.errors import ElmoError
from elmokit.messages import counted
from elmokit.storage.atomic import atomic_folder, sync
from elmokit.storage.cache import cache_folder, name_of, remove_abandoned
from elmokit.storage.locks import folder_lock
from elmokit.text.tokens import SegmenterName

log = logging.getLogger(__name__)
FOLDER_NAMES = "[0-9a-f]" * 32
"""A pattern that matches the names of prepared corpora in the cache folder and nothing else."""
_BUSY = "another process is preparing this corpus"
_WORTH_WORKERS = 2_000_000
"""Bytes on disk: for less text, starting worker processes takes longer than they save."""
_MOST_WORKERS = 32
"""The single process that reads the text cannot keep more workers busy."""


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
    """The prepared corpus of some text files; a corpus that was prepared before is opened at once.

    `folder` contains prepared corpora, each in a subfolder; the default is corpora/ in the cache folder (ELMOKIT_CACHE,
    or ~/.cache/elmokit). `workers` is the number of processes, by default one per core. The result does not depend on
    it, with one exception: words added to jieba are known only in this process, so use workers=1 if they matter. If the
    only source is the folder of a prepared corpus, or a folder that contains only such a folder, it is opened and the
    other arguments are ignored.

        corpus = prepare(["texts/", "more.txt.xz"], segment="english", split="line")
        print(*corpus.report.lines(), sep="\\n")
    """
    if prepared := find_prepared(sources):
        return PreparedCorpus.open(prepared)
    options = ReadingOptions(cast(SegmenterName, segment), cast(SplitMode, split), max_tokens)
    settings = {**asdict(options), "max_types": max_types}
    report = Report(max_tokens=max_tokens)
    inputs = find_inputs(sources, report)
    report.files = len(inputs)
    fingerprint, origin = _fingerprint(inputs, settings), _origin(sources, settings)
    if folder is None and fingerprint is None:
        raise ElmoError("a corpus from standard input needs a folder to be prepared in: give folder", "folder")
    shared = (cache_folder() / "corpora" if folder is None else Path(folder)).expanduser().resolve()
    target = shared / (fingerprint or secrets.token_hex(16))
    with corpus_errors(target):  # the cache may be another user's and not readable
        corpus = _open_complete(target, fingerprint)
    if corpus:
        return corpus
    with folder_lock(target, _BUSY, corpus_errors) as lock:
        if corpus := _open_complete(target, fingerprint):  # another process has built it while this one waited
            return corpus
        remove_abandoned(target, FOLDER_NAMES)
        try:
            with (
                atomic_folder(target, corpus_errors, locked=lock.supported) as temporary,
                CorpusBuilder(temporary, shown=target, max_types=max_types, report=report) as builder,
            ):
                _build(inputs, options, builder, workers, on_progress)
                _refuse_empty(sources, report)
                _refuse_changed(inputs)
                builder.finish(settings, fingerprint, origin)
            corpus = PreparedCorpus.open(target if fingerprint else _name_after_content(target))
        except ElmoError:
            # Without locks, another process may have built the same corpus at the same time.
            if corpus := _open_complete(target, fingerprint):
                return corpus
            raise
    if message := _earlier_versions(corpus.folder, origin, sources):
        log.warning("%s", message)
    return corpus


def find_prepared(sources: Sequence[str]) -> Path | None:
    """The folder of the prepared corpus that a single source names, directly or as its only contents."""
    if len(sources) != 1 or sources[0] == STANDARD_INPUT:
        return None
    if is_prepared(sources[0]):
        return Path(sources[0]).expanduser()
    try:
        inside = [path for path in Path(sources[0]).expanduser().iterdir() if not path.name.startswith(".")]
    except (OSError, ValueError, RuntimeError):
        return None  # a file, a pattern, or a name that find_inputs refuses
    if not inside or not all(fnmatchcase(path.name, FOLDER_NAMES) and is_prepared(path) for path in inside):
        return None
    if len(inside) > 1:
        raise ElmoError(
            f"{sources[0]} contains {len(inside)} prepared corpora: give the folder of one, such as {min(inside)}, or "
            "the text that it was prepared from"
        )
    return inside[0]


def _build(
    inputs: Sequence[Input],
    options: ReadingOptions,
    builder: CorpusBuilder,
    workers: int | None,
    on_progress: Callable[[Progress], None] | None,
) -> None:
    read = 0

    def count_bytes(count: int) -> None:
        nonlocal read
        read += count

    known = all(each.name != STANDARD_INPUT for each in inputs)
    total = sum(each.size for each in inputs) if known else None
    if workers is None:
        workers = 1 if total is not None and total < _WORTH_WORKERS else min(available_cores(), _MOST_WORKERS)
    chunks = chunks_of(read_units(inputs, paragraphs=options.paragraphs, on_bytes=count_bytes))
    if on_progress is not None:
        on_progress(Progress(0, total, 0, 0))
    # Closing stops the worker processes at once, not when the traceback of an error is garbage-collected.
    with closing(encode_all(chunks, options, workers)) as parts:
        for part in parts:
            builder.add(part)
            if on_progress is not None:
                on_progress(Progress(read, total, builder.report.sentences, builder.report.tokens))


def _open_complete(folder: Path, fingerprint: str | None) -> PreparedCorpus | None:
    """The corpus in the folder, if it is complete and has the fingerprint."""
    if fingerprint is None or not (folder / DESCRIPTION).is_file():
        return None
    try:
        corpus = PreparedCorpus.open(folder)
    except ElmoError:
        return None  # damaged or of another version: build it again
    return corpus if corpus.fingerprint == fingerprint else None


def _name_after_content(target: Path) -> Path:
    """Rename the folder of a corpus from standard input after its content, unless that folder exists already."""
    description = read_description(target)
    named = target.with_name(name_of([description[name] for name in ("version", "content", "settings", "report")]))
    with folder_lock(named, _BUSY, corpus_errors), corpus_errors(named):
        if _open_complete(named, description["content"]):
            shutil.rmtree(target)
        else:
            shutil.rmtree(named, ignore_errors=True)
            target.rename(named)
            sync(named.parent)
    return named


def _refuse_empty(sources: Sequence[str], report: Report) -> None:
    if not report.sentences:
        skipped = "; ".join(report.lines()[2:])
        raise ElmoError(
            f"the corpus {first_few(sources)} has no sentence to read" + (f" ({skipped})" if skipped else "")
        )


def _refuse_changed(inputs: Sequence[Input]) -> None:
    for each in inputs:
        if each.name != STANDARD_INPUT and not each.is_unchanged():
            raise ElmoError(f"{each.name} changed while it was read: try again when no program writes to it")


def _fingerprint(inputs: Sequence[Input], settings: Mapping[str, Any]) -> str | None:
    """A hash of the files and the settings; None for standard input, whose content is not known yet."""
    if any(each.name == STANDARD_INPUT for each in inputs):
        return None
    return name_of({"version": VERSION, "files": [each.identity for each in inputs], "settings": settings})


def _origin(sources: Sequence[str], settings: Mapping[str, Any]) -> str:
    """A hash of the sources' names and the settings, which stays the same when the files change."""
    named = [source if source == STANDARD_INPUT else os.path.realpath(Path(source).expanduser()) for source in sources]
    return name_of({"sources": named, "settings": settings})


def _earlier_versions(folder: Path, origin: str, sources: Sequence[str]) -> str | None:
    """A message about older corpora of the same origin next to a new one; None if there are none.

    They are not removed: a run that began with one may be resumed later, and only the user knows that.
    """
    earlier, size = [], 0
    for other in sorted(folder.parent.glob(FOLDER_NAMES)):
        with suppress(OSError, ValueError, AttributeError):  # another program's folder, or one that was just removed
            if other != folder and json.loads((other / DESCRIPTION).read_bytes()).get("origin") == origin:
                size += sum(file.stat().st_size for file in other.iterdir())
                earlier.append(other.name)
    if not earlier:
        return None
    named = first_few(["standard input" if source == STANDARD_INPUT else source for source in sources])
    return (
        f"{named} has changed since it was prepared before; {folder.parent} still contains the earlier version, "
        f"{counted(len(earlier), 'folder')} with {size / 1e6:,.1f} MB in all, for the runs that began with it: remove "
        f"{first_few(earlier)} once no run needs it"
    )

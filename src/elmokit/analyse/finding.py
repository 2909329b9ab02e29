"""The index that a command asks: one that the user names, or one in the cache, built there the first time."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from elmokit.analyse.building import build_index, opened, plan_of
from elmokit.analyse.choosing import MAX_OCCURRENCES, Choice
from elmokit.analyse.index import DESCRIPTION, OccurrenceIndex
from elmokit.corpus.prepare import prepare
from elmokit.corpus.prepared import PreparedCorpus
from elmokit.corpus.report import progress_display
from elmokit.elmo import Elmo
from elmokit.errors import ElmoError
from elmokit.fingerprint import former_fingerprint
from elmokit.messages import counted
from elmokit.progress import ProgressDisplay
from elmokit.storage.cache import cache_folder
from elmokit.storage.checksum import name_of
from elmokit.text.tokens import SegmenterName


@dataclass(frozen=True)
class IndexRequest:
    """The options by which `elmo neighbours`, `elmo senses` and `elmo plot words` find their index."""

    corpus: Sequence[str] = ()
    index: Path | None = None
    """The folder of the index; None: one in the cache."""
    layer: str | None = None
    """mix, top or a number; None: that of an index that is there, top for a new one."""
    segment: SegmenterName | None = None
    """None: as the model's training text was read, or at white space where that is not known."""
    split: str | None = None
    max_tokens: int = 1000
    words: Sequence[str] | None = None
    """The words that a new index of its own folder, or of all words, holds; None: all."""
    min_count: int = 1
    max_occurrences: int = MAX_OCCURRENCES
    batch_tokens: int | None = None
    workers: int | None = None


def _layer(request: IndexRequest, elmo: Elmo) -> Literal["mix"] | int:
    """The layer as an index has it: the top one by its number."""
    layer = request.layer or "top"
    last = elmo.config.n_outputs - 1
    if layer == "mix":
        return "mix"
    if layer == "top":
        return last
    if layer.isascii() and layer.isdigit() and int(layer) <= last:
        return int(layer)
    raise ElmoError(f"--layer must be mix, top or a number from 0 to {last}, got {layer!r}")


def find_index(
    request: IndexRequest, elmo: Elmo, *, words: Sequence[str] | None, ignore_case: bool = False
) -> OccurrenceIndex:
    """The index in which some words, or with None all words, are to be found.

    An index that the user names holds all words, or those of `request.words`; without a name, one of the words that
    are asked for is enough, and the one of all words serves where it is there.
    """
    _layer(request, elmo)  # a mistake has to show before the corpus is read
    named = request.index
    if named is not None and not request.corpus:
        return _checked(OccurrenceIndex.open(named), request, elmo)
    if not request.corpus:
        raise ElmoError("--corpus is needed, the text in which to look, or --index, an index that has been built")
    general = Choice(
        None if request.words is None else tuple(request.words),
        min_count=request.min_count,
        max_occurrences=request.max_occurrences,
    )
    with ExitStack() as stack:
        corpus = _corpus(request, elmo, stack)
        if named is not None:
            return _build(request, elmo, corpus, general, Path(named))
        if words is None:
            return _build(request, elmo, corpus, general, _cached(request, elmo, corpus, general))
        general_folder = _cached(request, elmo, corpus, general)
        index = opened(general_folder, _plan(request, elmo, corpus, general))
        if index is not None and all(len(index.rows_of(word, ignore_case=ignore_case)) for word in words):
            return index
        choice = Choice(tuple(words), ignore_case, max_occurrences=request.max_occurrences)
        return _build(request, elmo, corpus, choice, _cached(request, elmo, corpus, choice))


def _checked(index: OccurrenceIndex, request: IndexRequest, elmo: Elmo) -> OccurrenceIndex:
    model, layer = index.description["model"], index.description["layer"]
    if model != elmo.fingerprint(mixes=layer == "mix") and model != former_fingerprint(elmo.checkpoint()):
        raise ElmoError(
            f"the index {index.folder} was built with another model, whose vectors do not compare with those of "
            f"{elmo.where}: name that model, or build an index with this one (--corpus)"
        )
    if request.layer is not None and layer != _layer(request, elmo):
        raise ElmoError(
            f"the index {index.folder} is of layer {layer}, got --layer {request.layer}: leave "
            "--layer out, or build another index (--corpus)"
        )
    return index


def _corpus(request: IndexRequest, elmo: Elmo, stack: ExitStack) -> PreparedCorpus:
    folder = None
    if "-" in request.corpus:  # nothing by which to find it again
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="elmo-index-"))) / "corpus"
    with progress_display("corpus") as on_progress:
        return prepare(
            request.corpus,
            segment=elmo.text_policy.override(request.segment).name_in_files,
            split=request.split or elmo.text.get("split", "none"),
            max_tokens=request.max_tokens,
            folder=folder,
            workers=request.workers,
            on_progress=on_progress,
        )


def _plan(request: IndexRequest, elmo: Elmo, corpus: PreparedCorpus, choice: Choice) -> dict[str, object]:
    return plan_of(elmo, corpus, layer=_layer(request, elmo), choice=choice)


def _cached(request: IndexRequest, elmo: Elmo, corpus: PreparedCorpus, choice: Choice) -> Path:
    return cache_folder() / "indexes" / name_of(_plan(request, elmo, corpus, choice))


def _build(request: IndexRequest, elmo: Elmo, corpus: PreparedCorpus, choice: Choice, folder: Path) -> OccurrenceIndex:
    new = not (folder / DESCRIPTION).is_file()
    with ProgressDisplay("building the index", "sentences") as display:
        index = build_index(
            elmo,
            corpus,
            folder,
            layer=_layer(request, elmo),
            choice=choice,
            batch_tokens=request.batch_tokens,
            on_progress=lambda done: display.update(done.sentences, done.total),
        )
    if new:
        size = sum(file.stat().st_size for file in index.folder.rglob("*.bin"))
        shown = "all words" if choice.words is None else ", ".join(choice.words[:3])
        more = " …" if choice.words is not None and len(choice.words) > 3 else ""
        print(
            f"built an index of {shown}{more}: {counted(len(index), 'occurrence')} in "
            f"{counted(index.text.n_sentences, 'sentence')}, {_megabytes(size)} in {index.folder}",
            file=sys.stderr,
        )
        _report_unknown(elmo, index)
    return index


def _report_unknown(elmo: Elmo, index: OccurrenceIndex) -> None:
    """Which words of the index the model cannot tell from each other."""
    unknown = elmo.unknown_tokens()
    for text, (_, rows) in zip(index.text.type_texts(), index.words.tolist(), strict=True):
        if rows:
            unknown.add([text], rows)
    if message := unknown.message():
        print(f"elmo: {message}", file=sys.stderr)


def _megabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"

"""The index that answers a question: one that the user names, or one in the cache, built there the first time."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmokit.analyse.choice import MAX_OCCURRENCES, Choice
from elmokit.analyse.index import DESCRIPTION, OccurrenceIndex
from elmokit.analyse.index_builder import BuildProgress, build_index, index_plan, open_if_same, stored_layer
from elmokit.corpus.prepare import prepare
from elmokit.corpus.prepared import PreparedCorpus
from elmokit.elmo import Elmo
from elmokit.errors import ElmoError
from elmokit.storage.cache import cache_folder, name_of
from elmokit.text.tokens import SegmenterName

if TYPE_CHECKING:
    from elmokit.corpus.report import Progress


@dataclass(frozen=True)
class IndexOptions:
    """Which index is used, and how a new one is built."""

    corpus: Sequence[str] = ()
    """Files, folders or patterns of text; "-" is standard input."""
    index: Path | None = None
    """The folder of the index; None: one in the cache."""
    layer: str | None = None
    """mix, top or a number; None: the layer of an existing index, top for a new one."""
    segment: SegmenterName | None = None
    """None: as the model's training text was tokenised, or at white space if that is not known."""
    split: str | None = None
    """How raw text is split into sentences; None: as the model's training text was."""
    max_tokens: int = 1000
    """Longer sentences are cut."""
    words: Sequence[str] | None = None
    """The words of a new index in a folder of its own, or of all words; None: all."""
    min_count: int = 1
    max_occurrences: int = MAX_OCCURRENCES
    batch_tokens: int | None = None
    workers: int | None = None


def find_index(
    options: IndexOptions,
    elmo: Elmo,
    *,
    words: Sequence[str] | None,
    ignore_case: bool = False,
    on_corpus: Callable[[Progress], None] | None = None,
    on_build: Callable[[BuildProgress], None] | None = None,
    on_built: Callable[[OccurrenceIndex], None] | None = None,
) -> OccurrenceIndex:
    """The index in which some words, or with None all words, are searched.

    An index that the user names contains all words, or `options.words`. In the cache an index of the words that are
    searched is enough, and the index of all words is used if it exists. `on_corpus` and `on_build` report progress;
    `on_built` gets an index that did not exist before.
    """
    layer = stored_layer(elmo, options.layer or "top")  # a mistake must be reported before the corpus is read
    if not options.corpus:
        if options.index is None:
            raise ElmoError("corpus must name the text to search, or index a folder built before", "corpus", "index")
        return _check_same(OccurrenceIndex.open(options.index), options, elmo)

    def build(choice: Choice, folder: Path) -> OccurrenceIndex:
        new = not (folder / DESCRIPTION).is_file()
        index = build_index(
            elmo, corpus, folder, layer=layer, choice=choice, batch_tokens=options.batch_tokens, on_progress=on_build
        )
        if new and on_built is not None:
            on_built(index)
        return index

    def plan(choice: Choice) -> dict[str, Any]:
        return index_plan(elmo, corpus, layer=layer, choice=choice)

    def cached(choice: Choice) -> Path:
        return cache_folder() / "indexes" / name_of(plan(choice))

    most, chosen = options.max_occurrences, None if options.words is None else tuple(options.words)
    general = Choice(chosen, min_count=options.min_count, max_occurrences=most)
    with ExitStack() as stack:
        corpus = _prepared(options, elmo, stack, on_corpus)
        if options.index is not None or words is None:
            return build(general, options.index or cached(general))
        index = open_if_same(cached(general), plan(general))
        if index is not None and all(len(index.rows_of(word, ignore_case=ignore_case)) for word in words):
            return index
        own = Choice(tuple(words), ignore_case, max_occurrences=most)
        return build(own, cached(own))


def _check_same(index: OccurrenceIndex, options: IndexOptions, elmo: Elmo) -> OccurrenceIndex:
    """The index, refused if it was built with another model or layer."""
    model, layer = index.description["model"], index.description["layer"]
    if model != elmo.fingerprint(mixes=layer == "mix"):
        raise ElmoError(
            f"{index.folder} was built with another model, whose vectors cannot be compared with those of "
            f"{elmo.where}: use that model, or give corpus to build an index with this one",
            "corpus",
        )
    if options.layer is not None and layer != stored_layer(elmo, options.layer):
        raise ElmoError(
            f"layer must be {layer}, that of the index {index.folder}, got {options.layer}: leave it out, or build "
            "another index",
            "layer",
        )
    return index


def _prepared(
    options: IndexOptions, elmo: Elmo, stack: ExitStack, on_progress: Callable[[Progress], None] | None
) -> PreparedCorpus:
    folder = None
    if "-" in options.corpus:  # standard input cannot be found in the cache again
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="elmo-index-"))) / "corpus"
    return prepare(
        options.corpus,
        segment=elmo.text_policy.override(options.segment).name_in_files,
        split=options.split or elmo.text.get("split", "none"),
        max_tokens=options.max_tokens,
        folder=folder,
        workers=options.workers,
        on_progress=on_progress,
    )

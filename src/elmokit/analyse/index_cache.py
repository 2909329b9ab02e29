"""Finds the index for a search: one that the user names, or one in the cache, which is built the first time."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from elmokit.analyse.choice import MAX_OCCURRENCES, Choice
from elmokit.analyse.index import DESCRIPTION, OccurrenceIndex
from elmokit.analyse.index_builder import build_index, index_plan, open_if_same, stored_layer
from elmokit.corpus.prepare import prepare
from elmokit.elmo import Elmo
from elmokit.errors import ElmoError
from elmokit.storage.cache import cache_folder, name_of
from elmokit.text.tokens import SegmenterName

if TYPE_CHECKING:
    from elmokit.corpus.report import Progress

log = logging.getLogger(__name__)


def find_index(
    elmo: Elmo,
    searched: Sequence[str] | None,
    *,
    corpus: Sequence[str] = (),
    index: Path | None = None,
    layer: str | None = None,
    segment: SegmenterName | None = None,
    split: str | None = None,
    words: Sequence[str] | None = None,
    min_count: int = 1,
    max_occurrences: int = MAX_OCCURRENCES,
    ignore_case: bool = False,
    workers: int | None = None,
    on_corpus: Callable[[Progress], None] | None = None,
    on_build: Callable[[int, int], None] | None = None,
    on_built: Callable[[OccurrenceIndex], None] | None = None,
) -> OccurrenceIndex:
    """The index to search for the words `searched`, or for all words if it is None; built if it does not exist.

    `corpus` names files, folders or patterns of text, and "-" is standard input. `segment` and `split` are by default
    those of the model. `index` is the folder of an index, which contains `words` or all words. Without it, the index is
    in the cache: the index of all words if it exists, otherwise one of the words `searched`. `layer` is mix, top or a
    number, by default the layer of an existing index and top for a new one. `on_corpus` and `on_build` receive
    progress; `on_built` receives a new index.
    """
    number = stored_layer(elmo, layer or "top")  # checked before the corpus is read, which may take long
    if not corpus:
        if index is None:
            raise ElmoError(
                "corpus must name the text to search, or index a folder built earlier, got neither", "corpus", "index"
            )
        return _open(index, layer, elmo)
    general = Choice(None if words is None else tuple(words), min_count=min_count, max_occurrences=max_occurrences)
    # A corpus from standard input is not stored in the cache, because no later call could find it.
    with tempfile.TemporaryDirectory(prefix="elmo-index-") if "-" in corpus else nullcontext() as temporary:
        prepared = prepare(
            corpus,
            segment=elmo.text_policy.override(segment).name_in_files,
            split=split or elmo.text.get("split", "none"),
            folder=None if temporary is None else Path(temporary) / "corpus",
            workers=workers,
            on_progress=on_corpus,
        )
        folder, choice = index, general
        if index is None:
            plan = index_plan(elmo, prepared, layer=number, choice=general)
            folder = cache_folder() / "indexes" / name_of(plan)
            found = None if searched is None else open_if_same(folder, plan)
            if found is not None and all(len(found.rows_of(word, ignore_case=ignore_case)) for word in searched or ()):
                return found
            if searched is not None:
                choice = Choice(tuple(searched), ignore_case, max_occurrences=max_occurrences)
                plan = index_plan(elmo, prepared, layer=number, choice=choice)
                folder = cache_folder() / "indexes" / name_of(plan)
        assert folder is not None
        new = not (folder / DESCRIPTION).is_file()
        if new and (missed := choice.missed_spellings(prepared)):
            shown = ", ".join(f"{word} ({count:,})" for word, count in missed.items())
            log.warning("not searched: %s; to include other spellings, ignore upper and lower case", shown)
        built = build_index(elmo, prepared, folder, layer=number, choice=choice, on_progress=on_build)
    if new and on_built is not None:
        on_built(built)
    return built


def _open(folder: Path, layer: str | None, elmo: Elmo) -> OccurrenceIndex:
    """Open an existing index; refuse one that was built with another model or layer."""
    index = OccurrenceIndex.open(folder)
    found = index.description["layer"]
    if index.description["model"] != elmo.fingerprint(mixes=found == "mix"):
        raise ElmoError(
            f"{folder} was built with another model, whose vectors cannot be compared with those of {elmo.where}: "
            "use that model, or give corpus to build an index with this one",
            "corpus",
        )
    if layer is not None and found != stored_layer(elmo, layer):
        advice = "leave layer out, or build another index"
        raise ElmoError(f"layer must be {found}, as in the index {folder}, got {layer}: {advice}", "layer")
    return index

"""Nearest contexts: where a word is used as it is used in a given sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from elmokit.analyse.index import OccurrenceIndex, Rows, check_stateless
from elmokit.analyse.vectors import Floats
from elmokit.errors import ElmoError

if TYPE_CHECKING:
    from elmokit.elmo import Elmo


class Neighbour(NamedTuple):
    """An occurrence and its cosine with the one that was asked for."""

    similarity: float
    tokens: tuple[str, ...]
    position: int
    """Which of the tokens, from 0."""

    @property
    def word(self) -> str:
        """The token itself."""
        return self.tokens[self.position]


def neighbours(
    elmo: Elmo,
    index: OccurrenceIndex,
    tokens: Sequence[str],
    position: int,
    k: int = 10,
    *,
    any_word: bool = False,
    ignore_case: bool = False,
) -> list[Neighbour]:
    """The k sentences of an index in which a word is used most like token `position` of a sentence, best first.

    Only occurrences of the same word count, or with `any_word` those of all words. A sentence that is in the
    corpus several times comes once.
    """
    if not -len(tokens) <= position < len(tokens):
        raise ElmoError(f"position must name one of the {len(tokens)} tokens, got {position}")
    if k < 1:
        raise ElmoError(f"k must be at least 1, got {k}")
    check_stateless(elmo)
    rows = None
    if not any_word:
        rows = index.rows_of(tokens[position], ignore_case=ignore_case)
        if not len(rows):
            raise ElmoError(
                f"{tokens[position]!r} is not in the index {index.folder}: build one that has it "
                f"(--words {tokens[position]})"
            )
    (vectors,) = elmo.stream([list(tokens)], layer=index.description["layer"])
    return nearest(index, vectors[position], k, rows=rows)


def nearest(index: OccurrenceIndex, query: Floats, k: int, *, rows: Rows | None = None) -> list[Neighbour]:
    """The k distinct sentences nearest to a vector [D], among the given rows or all."""
    most = len(index) if rows is None else len(rows)
    wanted = k
    while True:
        # Sentences that are there twice leave room, so more are looked for until there are enough.
        wanted = min(wanted * 4, most)
        found = _distinct(index, *index.search(query, wanted, rows=rows), k)
        if len(found) >= k or wanted >= most:
            return found


def _distinct(index: OccurrenceIndex, rows: Rows, cosines: Floats, k: int) -> list[Neighbour]:
    known: set[bytes] = set()
    found: list[Neighbour] = []
    for row, sentence, cosine in zip(rows.tolist(), index.sentences_of(rows).tolist(), cosines.tolist(), strict=True):
        content = np.asarray(index.sentence_types(sentence)).tobytes()
        if content in known:
            continue
        known.add(content)
        occurrence = index.occurrence(row)
        found.append(Neighbour(cosine, occurrence.tokens, occurrence.position))
        if len(found) == k:
            break
    return found

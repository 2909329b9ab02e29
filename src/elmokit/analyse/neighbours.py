"""Nearest contexts: where a word is used as it is used in a given sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from elmokit.analyse.index import Floats, OccurrenceIndex, Rows, check_stateless
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

    Only occurrences of the same word count, or with `any_word` those of all words. A sentence that is in the corpus
    several times is returned once.
    """
    if not -len(tokens) <= position < len(tokens):
        raise ElmoError(f"position must be the number of one of the {len(tokens)} tokens, got {position}", "position")
    if k < 1:
        raise ElmoError(f"k must be at least 1, got {k}", "k")
    check_stateless(elmo)
    rows = None
    if not any_word:
        rows = index.rows_of(tokens[position], ignore_case=ignore_case)
        if not len(rows):
            word = tokens[position]
            raise ElmoError(f"{word!r} is not in the index {index.folder}: build one with words {word}", "words")
    (vectors,) = elmo.stream([list(tokens)], layer=index.description["layer"])
    return nearest_sentences(index, vectors[position], k, rows=rows)


def nearest_sentences(index: OccurrenceIndex, query: Floats, k: int, *, rows: Rows | None = None) -> list[Neighbour]:
    """The k distinct sentences nearest to a vector [D], among the given rows or all."""
    most, wanted = len(index) if rows is None else len(rows), k
    while True:
        # Equal sentences count once, so more rows are searched until enough sentences differ.
        wanted = min(wanted * 4, most)
        nearest, cosines = index.search(query, wanted, rows=rows)
        distinct = index.distinct_sentences(nearest)[:k]
        if len(distinct) >= k or wanted >= most:
            break
    found = [index.occurrence(int(nearest[place])) for place in distinct]
    return [
        Neighbour(float(cosines[place]), occurrence.tokens, occurrence.position)
        for place, occurrence in zip(distinct, found, strict=True)
    ]

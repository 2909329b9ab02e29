"""Nearest contexts: the sentences of an index in which a word is used most like in a given sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from elmokit.analyse.index import Floats, OccurrenceIndex, Rows, check_stateless
from elmokit.errors import ElmoError

if TYPE_CHECKING:
    from elmokit.elmo import Elmo


class Neighbour(NamedTuple):
    """An occurrence and its cosine with the query."""

    similarity: float
    tokens: tuple[str, ...]
    position: int
    """The index of the occurrence in `tokens`, from 0."""

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
    """The k nearest contexts of token `position` of a sentence, best first.

    Only occurrences of the same word are searched, or with `any_word` those of all words. A sentence that is in the
    corpus several times is returned once.
    """
    if isinstance(tokens, str):
        raise ElmoError(f"tokens must be a list, got the string {tokens!r}: elmo.tokenize splits it", "tokens")
    if not -len(tokens) <= position < len(tokens):
        raise ElmoError(f"position must be an index of one of the {len(tokens)} tokens, got {position}", "position")
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
    n_rows, wanted = len(index) if rows is None else len(rows), k
    while True:
        # Equal sentences count once, so the search takes more rows until enough sentences are distinct.
        wanted = min(wanted * 4, n_rows)
        nearest, cosines = index.search(query, wanted, rows=rows)
        distinct = index.distinct_sentences(nearest)[:k]
        if len(distinct) >= k or wanted >= n_rows:
            break
    found = [index.occurrence(int(nearest[rank])) for rank in distinct]
    return [
        Neighbour(float(cosines[rank]), occurrence.tokens, occurrence.position)
        for rank, occurrence in zip(distinct, found, strict=True)
    ]

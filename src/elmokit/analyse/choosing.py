"""Which occurrences of a corpus an index keeps, and the row of each: one word's rows lie side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elmokit.corpus.prepared import SPECIALS, PreparedCorpus
from elmokit.errors import ElmoError

MAX_OCCURRENCES = 1000
_TOKENS_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Choice:
    """The occurrences that an index keeps."""

    words: tuple[str, ...] | None = None
    """Only these words; None: all words."""
    ignore_case: bool = False
    """Whether upper and lower case of `words` count as the same."""
    min_count: int = 1
    """Words that occur less often are left out."""
    max_occurrences: int = MAX_OCCURRENCES
    """Of a word that occurs more often so many are kept, spread evenly over the corpus; 0: all."""

    def __post_init__(self) -> None:
        if self.words is not None:
            if not self.words or not all(self.words):
                raise ElmoError(f"words must be words, at least one, got {self.words!r}")
            object.__setattr__(self, "words", tuple(sorted(set(self.words))))
        for name, least in (("min_count", 1), ("max_occurrences", 0)):
            if getattr(self, name) < least:
                raise ElmoError(f"{name} must be at least {least}, got {getattr(self, name)!r}")

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def matches(self, text: str) -> bool:
        """Whether a word is among `words`."""
        return matches(text, self.words, self.ignore_case)

    def kept(self, corpus: PreparedCorpus) -> NDArray[np.int64]:
        """How many occurrences of each type are kept, [V]."""
        counts = np.array(corpus.counts)
        counts[counts < self.min_count] = 0
        if self.words is not None:
            wanted = _folded(self.words, self.ignore_case)
            chosen = (_fold(text, self.ignore_case) in wanted for text in corpus.type_texts())
            counts[~np.fromiter(chosen, dtype=bool, count=corpus.n_types)] = 0
        else:
            counts[: len(SPECIALS)] = 0
        return np.minimum(counts, self.max_occurrences) if self.max_occurrences else counts


def matches(text: str, words: tuple[str, ...] | None, ignore_case: bool) -> bool:
    """Whether a word is one of the words, or there is no list of them."""
    return words is None or _fold(text, ignore_case) in _folded(words, ignore_case)


def _folded(words: tuple[str, ...], ignore_case: bool) -> set[str]:
    return {_fold(word, ignore_case) for word in words}


def _fold(text: str, ignore_case: bool) -> str:
    return text.casefold() if ignore_case else text


class Part(NamedTuple):
    """Some sentences that follow each other in a corpus."""

    tokens: NDArray[np.uint32]
    """[T] their type ids."""
    ends: NDArray[np.int64]
    """[S] where in `tokens` each ends."""
    rows: NDArray[np.int64]
    """[T] the row of each token in the index, -1 for one that is not kept."""


def chosen_parts(corpus: PreparedCorpus, kept: NDArray[np.int64]) -> Iterator[Part]:
    """The whole corpus part by part, with the rows of its tokens; rows go by type, then by place in the corpus."""
    starts = np.cumsum(kept) - kept
    seen = np.zeros(corpus.n_types, dtype=np.int64)
    first, begin = 0, 0
    while first < corpus.n_sentences:
        last = int(np.searchsorted(corpus.ends, begin + _TOKENS_AT_ONCE, side="right"))
        last = min(max(last, first + 1), corpus.n_sentences)
        end = int(corpus.ends[last - 1])
        tokens = np.array(corpus.tokens[begin:end])
        rank = seen[tokens] + _ranks(tokens)
        seen += np.bincount(tokens, minlength=corpus.n_types)
        have, want = corpus.counts[tokens], kept[tokens]
        # The places at which rank x want / have passes a whole number are spread evenly over the corpus.
        number = rank * want // np.maximum(have, 1)
        taken = (rank + 1) * want // np.maximum(have, 1) > number
        yield Part(tokens, np.array(corpus.ends[first:last]) - begin, np.where(taken, starts[tokens] + number, -1))
        first, begin = last, end


def _ranks(tokens: NDArray[np.uint32]) -> NDArray[np.int64]:
    """For each token, how often its type has come before it."""
    order = np.argsort(tokens, kind="stable")
    ordered = tokens[order]
    new = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    places = np.arange(len(tokens))
    ranks = np.empty(len(tokens), dtype=np.int64)
    ranks[order] = places - np.maximum.accumulate(np.where(new, places, 0))
    return ranks

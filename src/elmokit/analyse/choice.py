"""Selects the occurrences that an index contains and assigns their rows; joins words of several tokens into one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elmokit.corpus.prepared import SPECIALS, PreparedCorpus
from elmokit.errors import ElmoError

if TYPE_CHECKING:
    from elmokit.elmo import Elmo

MAX_OCCURRENCES = 1000
_TOKENS_AT_ONCE = 1 << 20
_MIN_SPELLING_SHARE = 0.2
"""Another spelling of a word is reported if it has this share of the word's number of occurrences."""


@dataclass(frozen=True)
class Choice:
    """The occurrences that an index contains."""

    words: tuple[str, ...] | None = None
    """Only occurrences of these words; None: of all words."""
    ignore_case: bool = False
    """Whether `words` also match other upper and lower case."""
    min_count: int = 1
    """Words that occur less often are left out."""
    max_occurrences: int = MAX_OCCURRENCES
    """Maximum number of occurrences of each word, spread evenly over the corpus; 0: all."""

    def __post_init__(self) -> None:
        given: object = self.words
        if isinstance(given, str):  # would be read as its letters
            raise ElmoError(f"words must be a tuple of words, got the string {given!r}: write ({given!r},)", "words")
        if self.words is not None:
            if not self.words or not all(self.words):
                raise ElmoError(f"words must contain at least one word and no empty one, got {self.words!r}", "words")
            object.__setattr__(self, "words", tuple(sorted(set(self.words))))
        for name, least in (("min_count", 1), ("max_occurrences", 0)):
            if getattr(self, name) < least:
                raise ElmoError(f"{name} must be at least {least}, got {getattr(self, name)!r}", name)

    def counts(self, corpus: PreparedCorpus) -> NDArray[np.int64]:
        """The number of occurrences of each type in the index, [V]."""
        counts = np.array(corpus.counts)
        counts[counts < self.min_count] = 0
        if self.words is not None:
            chosen = map(word_test(self.words, self.ignore_case), corpus.type_texts())
            counts[~np.fromiter(chosen, dtype=bool, count=corpus.n_types)] = 0
        else:
            counts[: len(SPECIALS)] = 0
        return np.minimum(counts, self.max_occurrences) if self.max_occurrences else counts

    def missed_spellings(self, corpus: PreparedCorpus) -> dict[str, int]:
        """Frequent words that differ from `words` only in case and are therefore left out, with their counts."""
        if self.words is None or self.ignore_case:
            return {}
        same = word_test(self.words, True)
        counts = {text: int(corpus.counts[number]) for number, text in enumerate(corpus.type_texts()) if same(text)}
        chosen = sum(counts.pop(word, 0) for word in self.words)
        return {text: count for text, count in counts.items() if count >= _MIN_SPELLING_SHARE * chosen}


def word_test(words: Iterable[str], ignore_case: bool) -> Callable[[str], bool]:
    """A function that tests whether a word is one of `words`."""
    fold = str.casefold if ignore_case else str
    wanted = set(map(fold, words))
    return lambda text: fold(text) in wanted


class CorpusPart(NamedTuple):
    """Consecutive sentences of a corpus."""

    tokens: NDArray[np.uint32]
    """[T] the type ids of the tokens."""
    ends: NDArray[np.int64]
    """[S] the end of each sentence in `tokens`."""
    rows: NDArray[np.int64]
    """[T] the row of each token in the index, -1 for a token without a row."""


def corpus_parts(corpus: PreparedCorpus, counts: NDArray[np.int64]) -> Iterator[CorpusPart]:
    """The corpus in parts, with the rows of its tokens, which are ordered by type and then by position.

    `counts` [V] is the result of `Choice.counts`.
    """
    starts = np.cumsum(counts) - counts
    seen = np.zeros(corpus.n_types, dtype=np.int64)
    first, begin = 0, 0
    while first < corpus.n_sentences:
        last = int(np.searchsorted(corpus.ends, begin + _TOKENS_AT_ONCE, side="right"))
        last = min(max(last, first + 1), corpus.n_sentences)
        end = int(corpus.ends[last - 1])
        tokens = np.array(corpus.tokens[begin:end])
        rank = seen[tokens] + _ranks(tokens)
        seen += np.bincount(tokens, minlength=corpus.n_types)
        have, want = corpus.counts[tokens], counts[tokens]
        # The tokens at which rank x want / have reaches the next whole number are spread evenly over the corpus.
        number = rank * want // np.maximum(have, 1)
        taken = (rank + 1) * want // np.maximum(have, 1) > number
        rows = np.where(taken, starts[tokens] + number, -1)
        yield CorpusPart(tokens, np.array(corpus.ends[first:last]) - begin, rows)
        first, begin = last, end


def _ranks(tokens: NDArray[np.uint32]) -> NDArray[np.int64]:
    """For each token, the number of earlier tokens of the same type."""
    order = np.argsort(tokens, kind="stable")
    ordered = tokens[order]
    new_type = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    positions = np.arange(len(tokens))
    ranks = np.empty(len(tokens), dtype=np.int64)
    ranks[order] = positions - np.maximum.accumulate(np.where(new_type, positions, 0))
    return ranks


class WordJoiner:
    """Joins the tokens of words that consist of several tokens, the longest word first; false if there are none.

    This is for text that was tokenised into characters. A character model gives the joined token the mean vector of
    its characters, so that an index can have a row for it.
    """

    def __init__(self, elmo: Elmo, segment: str | None, words: Sequence[str] | None, *, ignore_case: bool) -> None:
        """`segment` says how the text was tokenised; tokens are only joined if it is "chars"."""
        self._fold = str.casefold if ignore_case else str
        self._words: list[tuple[str, ...]] = []
        if segment == "chars" and (pieces := elmo.character_pieces) is not None:
            apart = [tuple(map(self._fold, pieces.of(word))) for word in words or () if len(word.split()) == 1]
            self._words = sorted((word for word in apart if len(word) > 1), key=len, reverse=True)

    def __bool__(self) -> bool:
        return bool(self._words)

    def join(self, tokens: Sequence[str]) -> list[str]:
        """The tokens of a sentence with each of the words as one token."""
        folded, joined, start = tuple(map(self._fold, tokens)), list[str](), 0
        while start < len(tokens):
            size = next((len(word) for word in self._words if folded[start : start + len(word)] == word), 1)
            joined.append("".join(tokens[start : start + size]))
            start += size
        return joined

    def joined_corpus(self, corpus: PreparedCorpus, choice: Choice, folder: Path) -> PreparedCorpus:
        """A new corpus in `folder`: the sentences that contain a word of the choice, with each word as one token."""
        types = list(corpus.type_texts())
        chosen = word_test(choice.words or (), choice.ignore_case)

        def sentences() -> Iterator[list[str]]:
            for number in self._candidates(corpus, types, chosen).tolist():
                start = int(corpus.ends[number - 1]) if number else 0
                tokens = self.join([types[each] for each in corpus.tokens[start : int(corpus.ends[number])].tolist()])
                if any(map(chosen, tokens)):
                    yield tokens

        return replace(PreparedCorpus.from_sentences(sentences(), folder), settings=corpus.settings)

    def _candidates(self, corpus: PreparedCorpus, types: list[str], chosen: Callable[[str], bool]) -> NDArray[np.int64]:
        """Numbers of sentences that contain the first two tokens of a word next to each other, or a one-token word."""
        folded = np.array([self._fold(text) for text in types], dtype=object)
        whole = np.fromiter(map(chosen, types), bool, len(types))
        pairs = [(folded == word[0], folded == word[1]) for word in self._words]
        found = [np.empty(0, np.int64)]
        for start in range(0, corpus.n_tokens, _TOKENS_AT_ONCE):
            tokens = corpus.tokens[start : start + _TOKENS_AT_ONCE + 1]
            hits = whole[tokens]
            for first, second in pairs:
                hits[:-1] |= first[tokens[:-1]] & second[tokens[1:]]
            found.append(np.searchsorted(corpus.ends, start + np.flatnonzero(hits), side="right"))
        return np.unique(np.concatenate(found))

"""Which occurrences of a corpus an index contains, and the row of each; words of several tokens joined to one."""

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
_NOT_RARE = 0.2
"""The share of a word's occurrences that another spelling of it needs to be mentioned."""


@dataclass(frozen=True)
class Choice:
    """The occurrences that an index contains."""

    words: tuple[str, ...] | None = None
    """Only these words; None: all words."""
    ignore_case: bool = False
    """Whether upper and lower case of `words` count as the same."""
    min_count: int = 1
    """Words that occur less often are left out."""
    max_occurrences: int = MAX_OCCURRENCES
    """The most occurrences of a word, taken evenly from the whole corpus; 0: all."""

    def __post_init__(self) -> None:
        if self.words is not None:
            if not self.words or not all(self.words):
                raise ElmoError(f"words must contain at least one word and no empty one, got {self.words!r}", "words")
            object.__setattr__(self, "words", tuple(sorted(set(self.words))))
        for name, least in (("min_count", 1), ("max_occurrences", 0)):
            if getattr(self, name) < least:
                raise ElmoError(f"{name} must be at least {least}, got {getattr(self, name)!r}", name)

    def counts(self, corpus: PreparedCorpus) -> NDArray[np.int64]:
        """How many occurrences of each type the index contains, [V]."""
        counts = np.array(corpus.counts)
        counts[counts < self.min_count] = 0
        if self.words is not None:
            chosen = map(word_test(self.words, self.ignore_case), corpus.type_texts())
            counts[~np.fromiter(chosen, dtype=bool, count=corpus.n_types)] = 0
        else:
            counts[: len(SPECIALS)] = 0
        return np.minimum(counts, self.max_occurrences) if self.max_occurrences else counts

    def missed_spellings(self, corpus: PreparedCorpus) -> dict[str, int]:
        """Words that are left out for their upper or lower case and are not rare next to `words`, with their counts."""
        if self.words is None or self.ignore_case:
            return {}
        same = word_test(self.words, True)
        counts = {text: int(corpus.counts[number]) for number, text in enumerate(corpus.type_texts()) if same(text)}
        chosen = sum(counts.pop(word, 0) for word in self.words)
        return {text: count for text, count in counts.items() if count >= _NOT_RARE * chosen}


def word_test(words: Iterable[str], ignore_case: bool) -> Callable[[str], bool]:
    """A function that says whether a word is one of these."""
    fold = str.casefold if ignore_case else str
    wanted = set(map(fold, words))
    return lambda text: fold(text) in wanted


class CorpusPart(NamedTuple):
    """Some sentences that follow each other in a corpus."""

    tokens: NDArray[np.uint32]
    """[T] their type ids."""
    ends: NDArray[np.int64]
    """[S] the end of each in `tokens`."""
    rows: NDArray[np.int64]
    """[T] the row of each token in the index, -1 for one that has none."""


def corpus_parts(corpus: PreparedCorpus, counts: NDArray[np.int64]) -> Iterator[CorpusPart]:
    """The whole corpus part by part with the rows of its tokens, which are ordered by type, then by place.

    `counts` [V] is what `Choice.counts` returned.
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
        # The places at which rank x want / have passes a whole number are spread evenly over the corpus.
        number = rank * want // np.maximum(have, 1)
        taken = (rank + 1) * want // np.maximum(have, 1) > number
        rows = np.where(taken, starts[tokens] + number, -1)
        yield CorpusPart(tokens, np.array(corpus.ends[first:last]) - begin, rows)
        first, begin = last, end


def _ranks(tokens: NDArray[np.uint32]) -> NDArray[np.int64]:
    """For each token the number of tokens of its type before it."""
    order = np.argsort(tokens, kind="stable")
    ordered = tokens[order]
    new = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    places = np.arange(len(tokens))
    ranks = np.empty(len(tokens), dtype=np.int64)
    ranks[order] = places - np.maximum.accumulate(np.where(new, places, 0))
    return ranks


class WordJoiner:
    """Joins the tokens of words that have several, the longest word first; false if there are no such words.

    In text that was tokenised by character, a model of characters gives the joined token the mean vector of its
    characters, so that an index can have a row for it.
    """

    def __init__(self, elmo: Elmo, segment: str | None, words: Sequence[str] | None, *, ignore_case: bool) -> None:
        """`segment` says how the text was tokenised: only text of single characters has tokens to join."""
        self._fold = str.casefold if ignore_case else str
        self._words: list[tuple[str, ...]] = []
        if segment == "chars" and (pieces := elmo.character_pieces) is not None:
            apart = [tuple(map(self._fold, pieces.of(word))) for word in words or () if len(word.split()) == 1]
            self._words = sorted((word for word in apart if len(word) > 1), key=len, reverse=True)

    def __bool__(self) -> bool:
        return bool(self._words)

    def join(self, tokens: Sequence[str]) -> list[str]:
        """The tokens of a sentence with each of the words as one token."""
        folded, joined, place = tuple(map(self._fold, tokens)), list[str](), 0
        while place < len(tokens):
            size = next((len(word) for word in self._words if folded[place : place + len(word)] == word), 1)
            joined.append("".join(tokens[place : place + size]))
            place += size
        return joined

    def joined_corpus(self, corpus: PreparedCorpus, choice: Choice, folder: Path) -> PreparedCorpus:
        """The sentences that contain a word of the choice, with each of the words as one token, in a new folder."""
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
        """The sentences that contain the first two tokens of a word next to each other, or a word of one token."""
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

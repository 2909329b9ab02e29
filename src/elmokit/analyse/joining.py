"""Words of several characters in text that was tokenised by character: the characters of such a word become one token.

A model of characters gives that token the mean vector of its characters, so that an index can have a row for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from elmokit.analyse.choosing import Choice
from elmokit.corpus.prepared import PreparedCorpus

if TYPE_CHECKING:
    from elmokit.elmo import Elmo

_TOKENS_AT_ONCE = 1 << 20


class WordJoiner:
    """Joins the tokens of the given words, the longest word first; false if none of the words has several tokens."""

    def __init__(self, elmo: Elmo, segment: str | None, words: Sequence[str] | None, *, ignore_case: bool) -> None:
        """`segment`: how the text was tokenised; only the text of a model of characters has tokens to join."""
        self._fold = str.casefold if ignore_case else str
        self._words: list[tuple[str, ...]] = []
        if segment == "chars" and (pieces := elmo.character_pieces) is not None:
            apart = [tuple(map(self._fold, pieces.of(word))) for word in words or () if len(word.split()) == 1]
            self._words = sorted((word for word in apart if len(word) > 1), key=len, reverse=True)

    def __bool__(self) -> bool:
        return bool(self._words)

    def join(self, tokens: Sequence[str]) -> list[str]:
        """The tokens of a sentence, each of the words as one token."""
        folded, joined, place = tuple(map(self._fold, tokens)), list[str](), 0
        while place < len(tokens):
            size = next((len(word) for word in self._words if folded[place : place + len(word)] == word), 1)
            joined.append("".join(tokens[place : place + size]))
            place += size
        return joined

    def joined_corpus(self, corpus: PreparedCorpus, choice: Choice, folder: Path) -> PreparedCorpus:
        """The sentences of a corpus that have a word of the choice, each of the words as one token, in a new folder."""
        types = list(corpus.type_texts())

        def sentences() -> Iterator[list[str]]:
            for number in self._candidates(corpus, choice, types).tolist():
                start = int(corpus.ends[number - 1]) if number else 0
                tokens = self.join([types[each] for each in corpus.tokens[start : int(corpus.ends[number])].tolist()])
                if any(map(choice.matches, tokens)):
                    yield tokens

        return replace(PreparedCorpus.from_sentences(sentences(), folder), settings=corpus.settings)

    def _candidates(self, corpus: PreparedCorpus, choice: Choice, types: list[str]) -> NDArray[np.int64]:
        """The sentences that have the first two tokens of a word next to each other, or a word that is one token."""
        folded = [self._fold(text) for text in types]
        whole = np.fromiter(map(choice.matches, types), bool, len(types))
        pairs = [[np.fromiter((text == part for text in folded), bool) for part in word[:2]] for word in self._words]
        found = [np.empty(0, np.int64)]
        for start in range(0, corpus.n_tokens, _TOKENS_AT_ONCE):
            tokens = corpus.tokens[start : start + _TOKENS_AT_ONCE + 1]
            hits = whole[tokens]
            for first, second in pairs:
                hits[:-1] |= first[tokens[:-1]] & second[tokens[1:]]
            places = start + np.flatnonzero(hits)
            found.append(np.unique(np.searchsorted(corpus.ends, places, side="right")))
        return np.unique(np.concatenate(found))

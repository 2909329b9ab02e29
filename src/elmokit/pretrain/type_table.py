"""What the network needs to know of each distinct token: its characters or its word, and its place in the softmax."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmokit.corpus.prepared import PreparedCorpus
from elmokit.pretrain.batches import Arrays, Ints
from elmokit.pretrain.windows import BEGIN_TYPE, END_TYPE, Sentences
from elmokit.text.chars import PADDING, SENTENCE_BEGIN, WORD_BEGIN, WORD_END, ByteIndexer, Indexer
from elmokit.text.vocab import Vocabulary


@dataclass(frozen=True, eq=False)
class ScoringBatch:
    """Whole sentences with their boundaries, as arrays: distinct tokens once, and where each occurs."""

    characters: NDArray[np.int32 | np.int64] | None  # [U, M]
    words: Ints | None  # [U]
    inputs: Ints  # [B, T] which of the U; past a sentence's end any
    vocab_index: Ints  # [B, T] rows of the softmax
    lengths: Ints  # [B] tokens with both boundaries


class TypeTable:
    """Types of a prepared corpus → ids of a model and indices of its vocabulary."""

    def __init__(
        self, corpus: PreparedCorpus, vocab: Vocabulary, indexer: Indexer, *, widest_filter: int, directions: int = 2
    ) -> None:
        self.corpus, self.indexer, self.directions = corpus, indexer, directions
        self.widest_filter = widest_filter
        """Columns of padding that the convolutions must see after the longest word."""
        self.vocab_index: Ints = np.fromiter(map(vocab.index, corpus.type_texts()), np.int64, corpus.n_types)
        self.vocab_index[BEGIN_TYPE], self.vocab_index[END_TYPE] = vocab.begin, vocab.end
        self._unknown = vocab.unknown
        self._prepare_slots()

    def _prepare_slots(self) -> None:
        self._slot: Ints = np.zeros(self.corpus.n_types, np.int64)
        self._slot_in_use = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """All but the table that `_distinct` works with."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_slot")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._prepare_slots()

    def arrays(self, inputs: Ints) -> Arrays:
        """Types of any shape → the ids of the distinct ones, and in `inputs` which of them each is."""
        types, places = self._distinct(inputs)
        characters, words = self.ids(types)
        parts = {"characters": characters, "words": words, "inputs": places}
        return {name: part for name, part in parts.items() if part is not None}

    def sentences(self, sentences: Sentences, places: Ints) -> ScoringBatch:
        """The sentences at some places of a reading."""
        begins, lengths = sentences.spans(sentences.at(places))
        column = np.arange(int(lengths.max(initial=0)) + 2)
        tokens = np.asarray(self.corpus.tokens)
        found = tokens.take(begins[:, None] + column - 1, mode="clip").astype(np.int64)  # [B, T]
        found[:, 0] = BEGIN_TYPE
        found[column > lengths[:, None]] = END_TYPE
        types, inputs = self._distinct(found)
        return ScoringBatch(*self.ids(types), inputs, self.vocab_index[found], lengths + 2)

    def unknown_rate(self, sentences: Sentences | None = None) -> float:
        """The share of the corpus's tokens, or of those of some sentences, that the vocabulary does not have."""
        if sentences is not None and sentences.chosen is not None:
            return self._unknown_rate_of(sentences)
        unknown = self.vocab_index == self._unknown
        return float(self.corpus.counts[unknown].sum() / max(1, self.corpus.counts.sum()))

    def _unknown_rate_of(self, sentences: Sentences) -> float:
        begins, lengths = sentences.spans(Sentences(sentences.corpus, sentences.chosen).at(np.arange(len(sentences))))
        tokens = np.asarray(self.corpus.tokens)
        unknown = sum(
            int((self.vocab_index[tokens[begin : begin + length]] == self._unknown).sum())
            for begin, length in zip(begins.tolist(), lengths.tolist(), strict=True)
        )
        return unknown / max(1, int(lengths.sum()))

    def _distinct(self, inputs: Ints) -> tuple[Ints, Ints]:
        """Inputs of any shape → their distinct types [U] and, in the inputs' shape, which of them each is.

        By way of a table over all types: a batch has too many tokens to sort each time. One thread at a time: a run
        makes its next windows while those of its held-out sentences are made.
        """
        flat = inputs.ravel()
        numbers = np.arange(len(flat))
        with self._slot_in_use:
            self._slot[flat] = numbers  # of equal types the last one stays
            types = flat[self._slot[flat] == numbers]
            self._slot[types] = np.arange(len(types))
            return types, self._slot[inputs]

    def ids(self, types: Ints) -> tuple[NDArray[np.int32 | np.int64] | None, Ints | None]:
        """Characters [U, M] and words [U] of distinct types."""
        if isinstance(self.indexer, ByteIndexer):
            return self._byte_ids(types, self.indexer.max_characters), None
        texts = [self._text(index) for index in types.tolist()]
        ids = self.indexer(texts)
        return ids.characters, ids.words

    def _text(self, index: int) -> str:
        if index == BEGIN_TYPE:
            return self.indexer.begin
        return self.indexer.end if index == END_TYPE else self.corpus.type_text(index)

    def _byte_ids(self, types: Ints, max_characters: int) -> NDArray[np.int32]:
        """As `byte_ids` for each type, all at once."""
        ends, data = np.asarray(self.corpus.type_ends), np.asarray(self.corpus.type_bytes)
        start = np.where(types > 0, ends[np.maximum(types, 1) - 1], 0)
        length = np.minimum(ends[types] - start, max_characters - 2)
        boundary = types <= END_TYPE
        length[boundary] = 1
        width = min(max_characters, int(length.max(initial=1)) + 2 + self.widest_filter)
        columns = np.arange(width) - 1  # of the word's bytes
        at = start[:, None] + columns
        raw = data.take(at, mode="clip").astype(np.int32)
        raw[columns >= length[:, None]] = PADDING
        raw[boundary, 1] = types[boundary] + SENTENCE_BEGIN
        raw[:, 0] = WORD_BEGIN
        raw[np.arange(len(types)), length + 1] = WORD_END
        raw += 1
        return raw

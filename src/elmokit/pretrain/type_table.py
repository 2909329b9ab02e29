"""What the network needs to know of each distinct token: its characters or its word, and its place in the softmax."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from elmokit.corpus.prepared import PreparedCorpus
from elmokit.pretrain.windows import BEGIN_TYPE, END_TYPE, NO_TARGET, Sentences, Windows
from elmokit.text.chars import PADDING, SENTENCE_BEGIN, WORD_BEGIN, WORD_END, ByteIndexer, Indexer
from elmokit.text.vocab import Vocabulary

if TYPE_CHECKING:  # a process that only makes batches has no need of torch, which takes seconds to start
    import torch
    from torch import Tensor

Ints = NDArray[np.int64]
Arrays = dict[str, NDArray[Any]]
"""The parts of a batch by name, those that the model has."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Windows as the network takes them: distinct tokens once, and where each stands."""

    characters: Tensor | None  # [U, M] ids of the distinct tokens, as many columns as their longest needs
    words: Tensor | None  # [U]
    inputs: Tensor  # [D, T, B] which of the U
    targets: Tensor  # [D, T, B] rows of the softmax, NO_TARGET where there is none
    keep: Tensor  # [T, B]

    @classmethod
    def of(cls, parts: Mapping[str, Tensor]) -> Batch:
        """A batch of the parts that there are, by name."""
        return cls(parts.get("characters"), parts.get("words"), parts["inputs"], parts["targets"], parts["keep"])

    @classmethod
    def of_arrays(cls, arrays: Arrays) -> Batch:
        """The same numbers as tensors."""
        import torch

        return cls.of({name: torch.from_numpy(part) for name, part in arrays.items()})

    def to(self, device: torch.device) -> Batch:
        """The same on a device, without waiting for the copy."""
        return self if device.type == "cpu" else self._with(lambda part: part.to(device, non_blocking=True))

    def pinned(self) -> Batch:
        """The same in memory that a GPU can copy from while the program goes on."""
        return self._with(lambda part: part.pin_memory())

    def _with(self, change: Callable[[Tensor], Tensor]) -> Batch:
        characters, words = (None if part is None else change(part) for part in (self.characters, self.words))
        return Batch(characters, words, change(self.inputs), change(self.targets), change(self.keep))


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

    def batch(self, windows: Windows) -> Batch:
        """Windows → what the network takes."""
        return Batch.of_arrays(self.arrays(windows))

    def arrays(self, windows: Windows) -> Arrays:
        """The same as arrays, for which torch need not be there."""
        inputs, targets = windows.inputs[: self.directions], windows.targets[: self.directions]
        types, places = self._distinct(inputs)
        characters, words = self.ids(types)
        wanted = np.where(targets == NO_TARGET, NO_TARGET, self.vocab_index[targets])
        parts = {"characters": characters, "words": words, "inputs": places, "targets": wanted, "keep": windows.keep}
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

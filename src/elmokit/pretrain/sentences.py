"""The sentences of a corpus in the order in which training reads them, and the network's ids of their tokens.

The reading order is endless, epoch after epoch; a sentence's index in it counts from 0. Random orders and random
numbers are computed from a seed and an index and need not be stored: an order of a billion sentences would not fit in
memory, and a run can resume at any index.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmokit.corpus.prepared import PreparedCorpus
from elmokit.errors import ElmoError
from elmokit.text.chars import PADDING, SENTENCE_BEGIN, WORD_BEGIN, WORD_END, ByteIndexer, Indexer
from elmokit.text.vocab import Vocabulary

Ints = NDArray[np.int64]
Arrays = dict[str, NDArray[Any]]
"""The parts of a batch by name, without those that the model does not use."""
BEGIN_TYPE, END_TYPE = 0, 1
"""The type numbers of the sentence boundaries in a prepared corpus."""
_BLOCK = 1 << 20
_ROUNDS = 6


@dataclass(frozen=True)
class Sentences:
    """The sentences of a corpus for training or for held-out text, and their order in each epoch."""

    corpus: PreparedCorpus
    chosen: tuple[int, int] | None = None
    """(n, part): the last of every n sentences is held out; part 0 reads the others, part 1 the held-out ones."""
    shuffle: bool = False
    seed: int = 0

    def __len__(self) -> int:
        total = self.corpus.n_sentences
        if self.chosen is None:
            return total
        n, part = self.chosen
        return total // n if part else total - total // n

    def refuse_empty(self) -> None:
        """Raise an error if there are no sentences."""
        if not len(self):
            raise ElmoError("the corpus has no sentence to read: every line was empty or left out")

    def at(self, indices: Ints) -> Ints:
        """The numbers in the corpus of the sentences at these indices of the reading order."""
        count = len(self)
        epochs, index = np.divmod(indices, count)
        if self.shuffle:
            index = permuted(index, count, epochs, self.seed)
        if self.chosen is None:
            return index
        n, part = self.chosen
        return index * n + (n - 1) if part else index + index // (n - 1)

    def spans(self, sentences: Ints) -> tuple[Ints, Ints]:
        """The positions of the sentences' first tokens in the corpus, and their lengths."""
        ends = np.asarray(self.corpus.ends)
        begins = np.where(sentences > 0, ends[np.maximum(sentences, 1) - 1], 0)
        return begins, ends[sentences] - begins

    def last_of_run(self, sentences: Ints) -> Ints:
        """For each sentence, the last one that follows it in the corpus without a gap of unread sentences."""
        end = self.corpus.n_sentences - 1
        if self.chosen is None:
            return np.full_like(sentences, end)
        n, part = self.chosen
        return sentences if part else np.minimum(end, sentences // n * n + n - 2)

    @cached_property
    def n_predictions(self) -> int:
        """Number of predictions of one direction in an epoch: every token and one boundary per sentence."""
        if self.chosen is None:
            return self.corpus.n_tokens + self.corpus.n_sentences
        in_order, total = Sentences(self.corpus, self.chosen), 0
        for start in range(0, len(self), _BLOCK):
            _, lengths = self.spans(in_order.at(np.arange(start, min(len(self), start + _BLOCK))))
            total += int(lengths.sum()) + len(lengths)
        return total


class TypeTable:
    """Maps the types of a prepared corpus to a model's input ids and to the indices of its vocabulary."""

    def __init__(
        self, corpus: PreparedCorpus, vocab: Vocabulary, indexer: Indexer, *, widest_filter: int, directions: int = 2
    ) -> None:
        self.corpus, self.indexer, self.directions = corpus, indexer, directions
        self.widest_filter = widest_filter
        """Number of padding columns after the longest word, for the widest convolution."""
        self.vocab_index: Ints = np.fromiter(map(vocab.index, corpus.type_texts()), np.int64, corpus.n_types)
        self.vocab_index[BEGIN_TYPE], self.vocab_index[END_TYPE] = vocab.begin, vocab.end
        self._unknown = vocab.unknown
        self._allocate_scratch()

    def _allocate_scratch(self) -> None:
        self._scratch: Ints = np.zeros(self.corpus.n_types, np.int64)
        self._scratch_lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Everything except the scratch table of `_distinct`."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_scratch")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._allocate_scratch()

    def arrays(self, inputs: Ints) -> Arrays:
        """Types of any shape → the ids of the distinct types and, in `inputs`, the index of each among them."""
        types, indices = self._distinct(inputs)
        characters, words = self.ids(types)
        parts = {"characters": characters, "words": words, "inputs": indices}
        return {name: part for name, part in parts.items() if part is not None}

    def sentences(self, sentences: Sentences, indices: Ints) -> tuple[Arrays, Ints, Ints]:
        """Whole sentences by index in the reading order: `arrays` of [B, T], rows of the softmax [B, T], lengths [B].

        The lengths count both boundaries. Values after the end of a sentence have no meaning.
        """
        begins, lengths = sentences.spans(sentences.at(indices))
        column = np.arange(int(lengths.max(initial=0)) + 2)
        tokens = np.asarray(self.corpus.tokens)
        found = tokens.take(begins[:, None] + column - 1, mode="clip").astype(np.int64)  # [B, T]
        found[:, 0] = BEGIN_TYPE
        found[column > lengths[:, None]] = END_TYPE
        return self.arrays(found), self.vocab_index[found], lengths + 2

    def unknown_rate(self, sentences: Sentences | None = None) -> float:
        """The share of the tokens of the corpus, or of some sentences, that are not in the vocabulary."""
        counts = self.corpus.counts
        if sentences is not None and sentences.chosen is not None:
            begins, lengths = sentences.spans(sentences.at(np.arange(len(sentences))))
            inside = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            counts = np.bincount(self.corpus.tokens[np.repeat(begins, lengths) + inside], minlength=len(counts))
        return float(counts[self.vocab_index == self._unknown].sum() / max(1, counts.sum()))

    def _distinct(self, inputs: Ints) -> tuple[Ints, Ints]:
        """Types of any shape → the distinct types [U] and, in the same shape, the index of each among them.

        A scratch table over all types is faster than sorting the many tokens of a batch. A lock protects it: one
        thread prepares training batches while another prepares held-out ones.
        """
        flat = inputs.ravel()
        numbers = np.arange(len(flat))
        with self._scratch_lock:
            self._scratch[flat] = numbers  # the last of equal types remains
            types = flat[self._scratch[flat] == numbers]
            self._scratch[types] = np.arange(len(types))
            return types, self._scratch[inputs]

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
        """The result of `byte_ids` for each type, computed for all types at once."""
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


def permuted(index: Ints, count: int, epochs: Ints, seed: int) -> Ints:
    """A random permutation for each epoch: indices [N] below `count` → permuted indices.

    A Feistel network permutes the numbers below the next power of two, repeatedly until the result is below `count`.
    """
    if count <= 1:
        return index
    bits = max(2, int(count - 1).bit_length())
    keys = [hashed(epochs.astype(np.uint64) * np.uint64(_ROUNDS) + np.uint64(r), seed) for r in range(_ROUNDS)]
    result = index.astype(np.uint64)
    outside = np.ones(len(index), dtype=bool)
    while outside.any():
        result[outside] = _feistel(result[outside], bits, [key[outside] for key in keys])
        outside = result >= count
    return result.astype(np.int64)


def uniform(numbers: Ints, seed: int) -> NDArray[np.float64]:
    """A random number in [0, 1) for each number [N]; the same seed always gives the same."""
    return (hashed(numbers.astype(np.uint64), seed) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def hashed(values: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """64-bit hashes of values (the finaliser of splitmix64, over a sequence that depends on the seed)."""
    with np.errstate(over="ignore"):
        z = (values + np.uint64(seed % 2**63 + 1)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed % 2**31)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def _feistel(values: NDArray[np.uint64], bits: int, keys: list[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """A Feistel network: change each half of a number in turn by the other, which keeps the map one-to-one."""
    low = np.uint64(bits // 2)
    low_mask, high_mask = np.uint64((1 << bits // 2) - 1), np.uint64((1 << bits - bits // 2) - 1)
    high, rest = values >> low, values & low_mask
    for number, key in enumerate(keys):
        if number % 2:
            rest = rest ^ (hashed(high ^ key, 1) & low_mask)
        else:
            high = high ^ (hashed(rest ^ key, 0) & high_mask)
    return (high << low) | rest

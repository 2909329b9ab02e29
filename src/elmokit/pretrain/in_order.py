"""A text read in its own order: each row has a stretch of the sentences to itself, and reads it to its end.

A state that a row carries then comes from the sentence before in the text. The rows of training take sentences in turn
instead, as bilm-tf's do, so that theirs comes from a sentence some way before.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from elmokit.pretrain.windows import Ints, Plan, Position, Sentences, WindowReader


class InOrderReader(WindowReader):
    """Reads windows of `rows` x `window` tokens to the end of the sentences, which must be in the text's order."""

    def __init__(self, sentences: Sentences, *, rows: int, window: int, reset: float = 0.0) -> None:
        assert not sentences.shuffle
        super().__init__(sentences, rows=rows, window=window, reset=reset, endless=False)
        cuts = _cuts(sentences, rows)
        self._stop = cuts[1:]
        self.position = Position(len(sentences), cuts[:-1], np.zeros(rows, np.int64))

    def read(self) -> Plan | None:
        """The next window, or None where all rows have ended."""
        place, offset = self.position.row_place, self.position.row_offset
        # Sentences of a row in a window: each has two inputs or more, but for the rest of the first.
        most = self.window // 2 + 2
        places = place[:, None] + np.arange(most)
        there = places < self._stop[:, None]
        sentences = self.sentences.at(np.minimum(places, len(self.sentences) - 1))
        begins, lengths = self.sentences.spans(sentences)
        offsets = np.zeros_like(places)
        offsets[:, 0] = offset
        left = np.where(there, lengths + 1 - offsets, 0)
        columns = np.cumsum(left, axis=1) - left
        taken = np.clip(self.window - columns, 0, left)
        if not taken.any():
            return None
        row = np.broadcast_to(np.arange(self.rows)[:, None], places.shape)
        pieces = np.stack([row, columns, taken, places, offsets, begins, lengths], axis=-1)[taken > 0]
        ended = (there & (taken == left)).sum(axis=1)
        reached = (offsets + taken)[np.arange(self.rows), ended]
        self.position = Position(len(self.sentences), place + ended, reached)
        return Plan(pieces, self.position)


def _cuts(sentences: Sentences, rows: int) -> Ints:
    """[rows + 1]: where stretches of about the same number of tokens begin and end, in sentences."""
    count = len(sentences)

    def inputs_to(place: int) -> int:
        sentence = int(sentences.at(np.array([place]))[0])
        return int(sentences.corpus.ends[sentence]) + sentence + 1

    total = inputs_to(count - 1)
    inside = [bisect_left(range(count), total * row // rows, key=inputs_to) for row in range(1, rows)]
    return np.array([0, *inside, count], np.int64)

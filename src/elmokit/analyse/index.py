"""An index of occurrences: the vector of every chosen token and its sentence, memory-mapped.

The files of its folder, for R rows of D numbers; the rows of a word follow each other in the order of the corpus:

index.json      what it was made from; a folder that has this file is complete
vectors.bin     [R, D] int8, and scales.bin [R] float32: vectors of length 1
tokens.bin      [R] int64: the token of the text that the row belongs to
words.bin       [V, 2] int64: for each type of the text its first row and its number of rows
text/           the sentences, a prepared corpus
coarse.bin      [R, C] int8, directions.bin [D, C] and steps.bin [C] float32, for an index of many rows
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elmokit.analyse.choice import word_test
from elmokit.corpus.prepared import PreparedCorpus
from elmokit.errors import ElmoError
from elmokit.storage import atomic
from elmokit.storage.array_file import map_array

if TYPE_CHECKING:
    from elmokit.elmo import Elmo

Floats = NDArray[np.float32]
Codes = NDArray[np.int8]
Rows = NDArray[np.int64]

DESCRIPTION = "index.json"
FORMAT = "elmokit-index"
VERSION = 1
COARSE_FROM_ROWS = 200_000
"""Smaller indexes are searched exactly."""
COARSE_SIZE = 96
"""Numbers per row in coarse.bin."""
CANDIDATES, CANDIDATE_SHARE = 2000, 0.001
"""How many of the best rows by coarse.bin are compared exactly: at least this number, and this share of all rows."""
BLOCK_NUMBERS = 1 << 18
"""How many numbers are converted to float32 at a time: they fit in the processor's cache, and are too few for BLAS to
start threads, which on a busy machine cost many times what they save."""
_ADVICE = "remove the folder and build the index again from its corpus"
_SIZES, _FACTS = ("rows", "vector_size", "coarse_size"), {"model", "layer"}
"""What a description must contain."""
_SAMPLE = 20_000
_LARGEST = 127


class Int8Vectors(NamedTuple):
    """N vectors of length 1: `codes` times `scales`."""

    codes: Codes
    """[N, D]"""
    scales: Floats
    """[N]"""

    @classmethod
    def quantise(cls, vectors: Floats) -> Int8Vectors:
        """Vectors of any length [N, D] as int8; a vector of zeros stays zero."""
        largest = np.abs(vectors).max(axis=1, initial=0.0)
        safe = np.where(largest > 0, largest, 1.0)
        codes = np.rint(vectors * (_LARGEST / safe)[:, None]).astype(np.int8)
        # Not the largest number over 127, but what makes the length 1, so that a product is a cosine.
        lengths = np.sqrt(np.square(codes.astype(np.float32)).sum(axis=1))
        scales = np.where(lengths > 0, 1.0 / np.maximum(lengths, 1.0), 0.0)
        return cls(codes, scales.astype(np.float32))

    def floats(self) -> Floats:
        """The vectors as float32, [N, D]."""
        return np.asarray(self.codes.astype(np.float32) * self.scales[:, None], dtype=np.float32)


@dataclass(frozen=True, eq=False)
class Projection:
    """The C directions in which the vectors differ most, and the size of an int8 step in each."""

    directions: Floats
    """[D, C]"""
    steps: Floats
    """[C]"""

    @classmethod
    def fit(cls, vectors: Int8Vectors, seed: int = 0) -> Projection:
        """The directions that preserve the products among a sample of the vectors best."""
        rows = len(vectors.codes)
        chosen = np.sort(np.random.default_rng(seed).choice(rows, min(rows, _SAMPLE), replace=False))
        sample = Int8Vectors(vectors.codes[chosen], vectors.scales[chosen]).floats()
        # Not centred: products have to be preserved, not distances from the mean.
        _, axes = np.linalg.eigh((sample.T @ sample).astype(np.float64))
        directions = np.ascontiguousarray(axes[:, ::-1][:, :COARSE_SIZE]).astype(np.float32)
        reach = np.abs(sample @ directions).max(axis=0, initial=0.0)
        return cls(directions, np.maximum(reach, 1e-6).astype(np.float32) / _LARGEST)

    def project(self, vectors: Int8Vectors) -> Codes:
        """Vectors as int8 in these directions, [N, C]."""
        steps = np.rint(vectors.floats() @ self.directions / self.steps)
        return np.asarray(np.clip(steps, -_LARGEST, _LARGEST), dtype=np.int8)

    def scores(self, codes: Codes, query: Floats) -> Floats:
        """The approximate cosine of a query [D] of length 1 with each projected vector, [N]."""
        return products(codes, (query @ self.directions * self.steps).astype(np.float32))


def normalised(vectors: Floats) -> Floats:
    """The vectors with length 1 along the last axis; zeros stay zeros."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1.0), dtype=np.float32)


def products(codes: Codes, query: Floats) -> Floats:
    """Codes [N, D] times a query [D] → [N], block by block, so that a memory map of any size can be read."""
    scores = np.empty(len(codes), dtype=np.float32)
    rows = max(BLOCK_NUMBERS // max(codes.shape[1], 1), 1)
    for start in range(0, len(codes), rows):
        block = codes[start : start + rows].astype(np.float32)
        np.dot(block, query, out=scores[start : start + len(block)])
    return scores


def largest_scores(scores: Floats, k: int) -> Rows:
    """The positions of the k largest scores, best first; equal ones in their order."""
    if k < len(scores):
        bar = np.partition(scores, len(scores) - k)[len(scores) - k]
        places = np.flatnonzero(scores >= bar)
    else:
        places = np.arange(len(scores))
    return places[np.argsort(-scores[places], kind="stable")][:k]


class Occurrence(NamedTuple):
    """A token in its sentence."""

    sentence: int
    """The number of the sentence in the index, from 0."""
    position: int
    """The number of the token in the sentence, from 0."""
    tokens: tuple[str, ...]

    @property
    def word(self) -> str:
        """The token itself."""
        return self.tokens[self.position]


@dataclass(frozen=True, eq=False)
class OccurrenceIndex:
    """R occurrences of the words of a corpus with their vectors of D numbers."""

    folder: Path
    description: dict[str, Any]
    """What it was made from: model, corpus, layer, choice."""
    vectors: Int8Vectors
    """[R, D]"""
    tokens: NDArray[np.int64]
    """[R] the token of `text` that each row belongs to."""
    words: NDArray[np.int64]
    """[V, 2] the first row and the number of rows of each type of `text`."""
    text: PreparedCorpus
    """The sentences that have an occurrence in the index."""
    coarse: tuple[Projection, Codes] | None
    """Small vectors for a first search among all rows, if there are many."""

    @classmethod
    def open(cls, folder: str | Path) -> OccurrenceIndex:
        """The index of a folder; its files are mapped, not read."""
        folder = Path(folder).expanduser()
        path = folder / DESCRIPTION
        description = atomic.read_description(path, FORMAT, VERSION, "an index of occurrences", _ADVICE)
        if not all(isinstance(description.get(name), int) for name in _SIZES) or not description.keys() >= _FACTS:
            raise ElmoError(f"{path} is damaged: {_ADVICE}")
        text = PreparedCorpus.open(folder / "text")
        rows, size, coarse_size = (description[name] for name in _SIZES)

        def mapped(name: str, dtype: str, *shape: int) -> NDArray[Any]:
            return map_array(folder / f"{name}.bin", dtype, shape, _ADVICE)

        coarse = None
        if coarse_size:
            projection = Projection(mapped("directions", "<f4", size, coarse_size), mapped("steps", "<f4", coarse_size))
            coarse = projection, mapped("coarse", "i1", rows, coarse_size)
        return cls(
            folder=folder,
            description=description,
            vectors=Int8Vectors(mapped("vectors", "i1", rows, size), mapped("scales", "<f4", rows)),
            tokens=mapped("tokens", "<i8", rows),
            words=mapped("words", "<i8", text.n_types, 2),
            text=text,
            coarse=coarse,
        )

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def vector_size(self) -> int:
        """D."""
        return int(self.vectors.codes.shape[1])

    @cached_property
    def types(self) -> list[str]:
        """The types of `text` by their ids, [V]."""
        return list(self.text.type_texts())

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {text: number for number, text in enumerate(self.types)}

    def rows_of(self, word: str, *, ignore_case: bool = False) -> Rows:
        """The rows of a word, [N]; none for a word that is not in the index."""
        if ignore_case:
            types = [number for number, same in enumerate(map(word_test([word], True), self.types)) if same]
        else:
            types = [self._numbers[word]] if word in self._numbers else []
        spans = self.words[types].tolist()
        if not all(first >= 0 and 0 <= count <= len(self) - first for first, count in spans):
            raise ElmoError(f"{self.folder}: words.bin is damaged: {_ADVICE}")
        return np.concatenate([np.empty(0, dtype=np.int64), *(first + np.arange(count) for first, count in spans)])

    def vectors_of(self, rows: Rows) -> Floats:
        """The vectors of some rows with length 1, [N, D]."""
        return Int8Vectors(self.vectors.codes[rows], self.vectors.scales[rows]).floats()

    def sentences_of(self, rows: Rows) -> NDArray[np.int64]:
        """The number of each row's sentence, [N]."""
        return np.searchsorted(self.text.ends, self.tokens[rows], side="right").astype(np.int64)

    def sentence_start(self, sentence: int) -> int:
        """The number of a sentence's first token in the text."""
        return int(self.text.ends[sentence - 1]) if sentence else 0

    def sentence_types(self, sentence: int) -> NDArray[np.uint32]:
        """The tokens of a sentence as type ids of `text`, [T]."""
        return self.text.tokens[self.sentence_start(sentence) : int(self.text.ends[sentence])]

    def distinct_sentences(self, rows: Rows) -> list[int]:
        """The places in `rows` at which a sentence comes for the first time, equal sentences counted as one."""
        known: dict[bytes, int] = {}
        for place, sentence in enumerate(self.sentences_of(rows).tolist()):
            known.setdefault(np.asarray(self.sentence_types(sentence)).tobytes(), place)
        return list(known.values())

    def occurrence(self, row: int) -> Occurrence:
        """The token of a row in its sentence."""
        sentence = int(self.sentences_of(np.array([row]))[0])
        try:
            tokens = tuple(self.types[number] for number in self.sentence_types(sentence).tolist())
            return Occurrence(sentence, int(self.tokens[row]) - self.sentence_start(sentence), tokens)
        except IndexError as error:
            raise ElmoError(f"{self.folder}: tokens.bin or a file in text/ is damaged: {_ADVICE}") from error

    def search(
        self, query: Floats | Sequence[float], k: int = 10, *, rows: Rows | None = None, exact: bool = False
    ) -> tuple[Rows, Floats]:
        """The k rows nearest to a vector [D] by cosine, best first, with their cosines.

        The search is exact among the given rows, in a small index, and with `exact`. Otherwise the best rows by
        coarse.bin are compared exactly: one row in 1,000, but at least 2,000 and 10 k of them.
        """
        unit = normalised(np.asarray(query, dtype=np.float32))
        if unit.shape != (self.vector_size,):
            raise ElmoError(
                f"the index {self.folder} contains vectors of {self.vector_size} numbers, got {unit.shape}: "
                "use the model and the layer that it was built with"
            )
        if rows is None and self.coarse is not None and not exact:
            projection, codes = self.coarse
            candidates = max(CANDIDATES, 10 * k, int(CANDIDATE_SHARE * len(self)))
            rows = largest_scores(projection.scores(codes, unit), candidates)
        if rows is None:
            scores = products(self.vectors.codes, unit) * self.vectors.scales
        else:
            rows = np.sort(rows)  # a memory map is fastest from its beginning to its end
            scores = products(self.vectors.codes[rows], unit) * self.vectors.scales[rows]
        places = largest_scores(scores, k)
        return (places if rows is None else rows[places]), scores[places]


def check_stateless(elmo: Elmo, purpose: str = "an index") -> None:
    """Refuse a model that does not give every token one vector, or not always the same."""
    if elmo.boundaries or elmo.state != "zero":
        raise ElmoError(
            f"{purpose} needs a model without boundaries that starts every sentence from zero, got "
            f"boundaries={elmo.boundaries}, state={elmo.state!r}: load it without them"
        )

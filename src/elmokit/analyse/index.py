"""An index of occurrences: the vectors of chosen tokens with their sentences, memory-mapped.

The folder has these files, for R rows with vectors of size D. The rows of a word are consecutive, in corpus order.

index.json      the description: model, corpus, layer, choice; a folder that has this file is complete
vectors.bin     [R, D] int8, and scales.bin [R] float32: vectors of length 1
tokens.bin      [R] int64: the index in the text of the token of each row
words.bin       [V, 2] int64: the first row and the number of rows of each type of the text
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
"""Number of rows from which an index has coarse vectors; smaller indexes are searched exactly."""
COARSE_SIZE = 96
"""Size of the vectors in coarse.bin."""
CANDIDATES, CANDIDATE_SHARE = 2000, 0.001
"""Minimum number and minimum share of the rows, the best by coarse.bin, that are compared exactly."""
BLOCK_VALUES = 1 << 18
"""Number of values that are converted to float32 at a time: they fit in the processor's cache, and are too few for BLAS
to start threads, which would be much slower on a busy machine."""
_ADVICE = "remove the folder and build the index again from its corpus"
_SIZES, _FACTS = ("rows", "vector_size", "coarse_size"), {"model", "layer"}
"""The fields that a description must have."""
_SAMPLE_SIZE = 20_000
_MAX_CODE = 127


class Int8Vectors(NamedTuple):
    """N vectors of length 1 as int8 codes; a vector is its code times its scale."""

    codes: Codes
    """[N, D]"""
    scales: Floats
    """[N]"""

    @classmethod
    def quantise(cls, vectors: Floats) -> Int8Vectors:
        """Vectors of any length [N, D], normalised and quantised; a vector of zeros stays zero."""
        largest = np.abs(vectors).max(axis=1, initial=0.0)
        safe = np.where(largest > 0, largest, 1.0)
        codes = np.rint(vectors * (_MAX_CODE / safe)[:, None]).astype(np.int8)
        # The scale makes the length of the codes 1, so that the product of two vectors is their cosine.
        lengths = np.sqrt(np.square(codes.astype(np.float32)).sum(axis=1))
        scales = np.where(lengths > 0, 1.0 / np.maximum(lengths, 1.0), 0.0)
        return cls(codes, scales.astype(np.float32))

    def floats(self) -> Floats:
        """The vectors as float32, [N, D]."""
        return np.asarray(self.codes.astype(np.float32) * self.scales[:, None], dtype=np.float32)


@dataclass(frozen=True, eq=False)
class Projection:
    """A projection to int8 vectors of a smaller size C, for a fast approximate search."""

    directions: Floats
    """[D, C]"""
    steps: Floats
    """[C]"""

    @classmethod
    def fit(cls, vectors: Int8Vectors, seed: int = 0) -> Projection:
        """The projection that best preserves the products of a sample of the vectors."""
        rows = len(vectors.codes)
        chosen = np.sort(np.random.default_rng(seed).choice(rows, min(rows, _SAMPLE_SIZE), replace=False))
        sample = Int8Vectors(vectors.codes[chosen], vectors.scales[chosen]).floats()
        # The sample is not centred, because products have to be preserved, not distances from the mean.
        _, axes = np.linalg.eigh((sample.T @ sample).astype(np.float64))
        directions = np.ascontiguousarray(axes[:, ::-1][:, :COARSE_SIZE]).astype(np.float32)
        reach = np.abs(sample @ directions).max(axis=0, initial=0.0)
        return cls(directions, np.maximum(reach, 1e-6).astype(np.float32) / _MAX_CODE)

    def project(self, vectors: Int8Vectors) -> Codes:
        """The projected vectors as int8, [N, C]."""
        steps = np.rint(vectors.floats() @ self.directions / self.steps)
        return np.asarray(np.clip(steps, -_MAX_CODE, _MAX_CODE), dtype=np.int8)

    def scores(self, codes: Codes, query: Floats) -> Floats:
        """The approximate cosine of a query [D] of length 1 with each projected vector, [N]."""
        return products(codes, (query @ self.directions * self.steps).astype(np.float32))


def normalised(vectors: Floats) -> Floats:
    """The vectors, scaled to length 1 along the last axis; vectors of zeros stay zero."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1.0), dtype=np.float32)


def products(codes: Codes, query: Floats) -> Floats:
    """The products [N] of codes [N, D] and a query [D], computed in blocks so that a memory map can have any size."""
    scores = np.empty(len(codes), dtype=np.float32)
    rows = max(BLOCK_VALUES // max(codes.shape[1], 1), 1)
    for start in range(0, len(codes), rows):
        block = codes[start : start + rows].astype(np.float32)
        np.dot(block, query, out=scores[start : start + len(block)])
    return scores


def largest_scores(scores: Floats, k: int) -> Rows:
    """The positions of the k largest scores, best first; equal scores in their order."""
    if k < len(scores):
        threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
        positions = np.flatnonzero(scores >= threshold)
    else:
        positions = np.arange(len(scores))
    return positions[np.argsort(-scores[positions], kind="stable")][:k]


class Occurrence(NamedTuple):
    """A token in its sentence."""

    sentence: int
    """The number of the sentence in the index, from 0."""
    position: int
    """The index of the token in the sentence, from 0."""
    tokens: tuple[str, ...]

    @property
    def word(self) -> str:
        """The token itself."""
        return self.tokens[self.position]


@dataclass(frozen=True, eq=False)
class OccurrenceIndex:
    """R occurrences of words of a corpus with their vectors of size D."""

    folder: Path
    description: dict[str, Any]
    """The contents of index.json: model, corpus, layer, choice and sizes."""
    vectors: Int8Vectors
    """[R, D]"""
    tokens: NDArray[np.int64]
    """[R] the index in `text` of the token of each row."""
    words: NDArray[np.int64]
    """[V, 2] the first row and the number of rows of each type of `text`."""
    text: PreparedCorpus
    """The sentences that have an occurrence in the index."""
    coarse: tuple[Projection, Codes] | None
    """Projected vectors [R, C] for a first search among all rows; None for a small index."""

    @classmethod
    def open(cls, folder: str | Path) -> OccurrenceIndex:
        """Open the index in a folder; its files are mapped, not read."""
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
        """The size of the vectors, D."""
        return int(self.vectors.codes.shape[1])

    @cached_property
    def types(self) -> list[str]:
        """The types of `text` in the order of their ids, [V]."""
        return list(self.text.type_texts())

    @cached_property
    def _type_ids(self) -> dict[str, int]:
        return {text: number for number, text in enumerate(self.types)}

    def rows_of(self, word: str, *, ignore_case: bool = False) -> Rows:
        """The rows of a word, [N]; empty for a word that is not in the index."""
        if ignore_case:
            types = [number for number, same in enumerate(map(word_test([word], True), self.types)) if same]
        else:
            types = [self._type_ids[word]] if word in self._type_ids else []
        spans = self.words[types].tolist()
        if not all(first >= 0 and 0 <= count <= len(self) - first for first, count in spans):
            raise ElmoError(f"{self.folder}: words.bin is damaged: {_ADVICE}")
        return np.concatenate([np.empty(0, dtype=np.int64), *(first + np.arange(count) for first, count in spans)])

    def vectors_of(self, rows: Rows) -> Floats:
        """The vectors of some rows, of length 1, [N, D]."""
        return Int8Vectors(self.vectors.codes[rows], self.vectors.scales[rows]).floats()

    def sentences_of(self, rows: Rows) -> NDArray[np.int64]:
        """The number of the sentence of each row, [N]."""
        return np.searchsorted(self.text.ends, self.tokens[rows], side="right").astype(np.int64)

    def sentence_start(self, sentence: int) -> int:
        """The index in `text` of the first token of a sentence."""
        return int(self.text.ends[sentence - 1]) if sentence else 0

    def sentence_types(self, sentence: int) -> NDArray[np.uint32]:
        """The tokens of a sentence as type ids of `text`, [T]."""
        return self.text.tokens[self.sentence_start(sentence) : int(self.text.ends[sentence])]

    def distinct_sentences(self, rows: Rows) -> list[int]:
        """The positions in `rows` of the first occurrence of each distinct sentence."""
        first: dict[bytes, int] = {}
        for position, sentence in enumerate(self.sentences_of(rows).tolist()):
            first.setdefault(np.asarray(self.sentence_types(sentence)).tobytes(), position)
        return list(first.values())

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
        """The k rows nearest to a vector [D] by cosine, best first, and their cosines.

        The search is exact among the given `rows`, in a small index, and with `exact`. Otherwise only the best rows by
        coarse.bin are compared exactly: one row in 1,000, but at least 2,000 rows and at least 10 k rows.
        """
        unit = normalised(np.asarray(query, dtype=np.float32))
        if unit.shape != (self.vector_size,):
            raise ElmoError(
                f"the index {self.folder} contains vectors of {self.vector_size} numbers, got the shape {unit.shape}: "
                "use the model and the layer that the index was built with"
            )
        if rows is None and self.coarse is not None and not exact:
            projection, codes = self.coarse
            candidates = max(CANDIDATES, 10 * k, int(CANDIDATE_SHARE * len(self)))
            rows = largest_scores(projection.scores(codes, unit), candidates)
        if rows is None:
            scores = products(self.vectors.codes, unit) * self.vectors.scales
        else:
            rows = np.sort(rows)  # reading a memory map in order is fastest
            scores = products(self.vectors.codes[rows], unit) * self.vectors.scales[rows]
        best = largest_scores(scores, k)
        return (best if rows is None else rows[best]), scores[best]


def check_stateless(elmo: Elmo, purpose: str = "an index") -> None:
    """Refuse a model with boundary tokens or a carried state: each token must have one vector, always the same."""
    if not hasattr(elmo, "boundaries"):
        raise ElmoError(f"elmo must be an Elmo, got {elmo!r}: open a model with Elmo.load", "elmo")
    if elmo.boundaries or elmo.state != "zero":
        raise ElmoError(
            f"{purpose} needs a model without boundaries that starts every sentence from zero, got "
            f"boundaries={elmo.boundaries}, state={elmo.state!r}: load the model without these options"
        )

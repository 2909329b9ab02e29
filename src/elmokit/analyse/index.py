"""An index of occurrences: the vector of every chosen token and its sentence, memory-mapped.

The files of its folder, R rows of D numbers, a word's rows side by side in the order of the corpus:

index.json      what it was made from; a folder that has it is whole
vectors.bin     [R, D] int8, and scales.bin [R] float32: vectors of length 1
tokens.bin      [R] int64: which token of the text the row stands for
words.bin       [V, 2] int64: for each type of the text its first row and its number of rows
text/           the sentences, a prepared corpus
coarse.bin      [R, C] int8, directions.bin [D, C] and steps.bin [C] float32, where there are many rows
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elmokit.analyse.choosing import matches
from elmokit.analyse.coarse import CANDIDATE_SHARE, CANDIDATES, Projection
from elmokit.analyse.vectors import Codes, Floats, Packed, best, normalised, products
from elmokit.corpus.prepared import PreparedCorpus
from elmokit.errors import ElmoError
from elmokit.storage import atomic
from elmokit.storage.array_file import map_array

if TYPE_CHECKING:
    from elmokit.elmo import Elmo

DESCRIPTION = "index.json"
FORMAT = "elmokit-index"
VERSION = 1
_ADVICE = "remove the folder and build the index again (--corpus)"
_NUMBERS, _FACTS = ("rows", "vector_size", "coarse_size"), {"model", "layer"}
"""What a description has to have."""
Rows = NDArray[np.int64]


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
    vectors: Packed
    """[R, D]"""
    tokens: NDArray[np.int64]
    """[R] which token of `text` each row stands for."""
    words: NDArray[np.int64]
    """[V, 2] the first row and the number of rows of each type of `text`."""
    text: PreparedCorpus
    """The sentences that have an occurrence in the index."""
    coarse: tuple[Projection, Codes] | None
    """For a first look at all rows, where there are many."""

    @classmethod
    def open(cls, folder: str | Path) -> OccurrenceIndex:
        """The index of a folder; its files are mapped, not read."""
        folder = Path(folder).expanduser()
        description = read_description(folder)
        text = PreparedCorpus.open(folder / "text")
        rows, size, coarse_size = (description[name] for name in _NUMBERS)
        coarse = None
        if coarse_size:
            directions = mapped(folder / "directions.bin", "<f4", (size, coarse_size))
            steps = mapped(folder / "steps.bin", "<f4", (coarse_size,))
            coarse = Projection(directions, steps), mapped(folder / "coarse.bin", "i1", (rows, coarse_size))
        return cls(
            folder=folder,
            description=description,
            vectors=Packed(
                mapped(folder / "vectors.bin", "i1", (rows, size)), mapped(folder / "scales.bin", "<f4", (rows,))
            ),
            tokens=mapped(folder / "tokens.bin", "<i8", (rows,)),
            words=mapped(folder / "words.bin", "<i8", (text.n_types, 2)),
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
    def _types(self) -> list[str]:
        return list(self.text.type_texts())

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {text: number for number, text in enumerate(self._types)}

    def rows_of(self, word: str, *, ignore_case: bool = False) -> Rows:
        """The rows of a word, [N]; none where it was not kept."""
        if ignore_case:
            types = [number for number, text in enumerate(self._types) if matches(text, (word,), True)]
        else:
            types = [self._numbers[word]] if word in self._numbers else []
        spans = self.words[types].tolist()
        if not all(first >= 0 and 0 <= count <= len(self) - first for first, count in spans):
            raise self._damaged("words.bin")
        return np.concatenate([np.empty(0, dtype=np.int64), *(first + np.arange(count) for first, count in spans)])

    def unpacked(self, rows: Rows) -> Floats:
        """The vectors of some rows with length 1, [N, D]."""
        return Packed(self.vectors.codes[rows], self.vectors.scales[rows]).unpack()

    def sentences_of(self, rows: Rows) -> NDArray[np.int64]:
        """The number of each row's sentence, [N]."""
        return np.searchsorted(self.text.ends, self.tokens[rows], side="right").astype(np.int64)

    def sentence_types(self, sentence: int) -> NDArray[np.uint32]:
        """The tokens of a sentence as type ids of `text`, [T]."""
        start = int(self.text.ends[sentence - 1]) if sentence else 0
        return self.text.tokens[start : int(self.text.ends[sentence])]

    def occurrence(self, row: int) -> Occurrence:
        """The token of a row in its sentence."""
        sentence = int(self.sentences_of(np.array([row]))[0])
        try:
            start = int(self.text.ends[sentence - 1]) if sentence else 0
            tokens = tuple(self._types[number] for number in self.sentence_types(sentence).tolist())
        except IndexError as error:
            raise self._damaged("tokens.bin, or one in text/,") from error
        return Occurrence(sentence, int(self.tokens[row]) - start, tokens)

    def _damaged(self, name: str) -> ElmoError:
        return ElmoError(f"{self.folder}: {name} is damaged: remove the folder and build the index again")

    def type_texts(self, numbers: Iterable[int]) -> list[str]:
        """The words that type ids stand for."""
        return [self._types[number] for number in numbers]

    def search(
        self, query: Floats | Sequence[float], k: int = 10, *, rows: Rows | None = None, exact: bool = False
    ) -> tuple[Rows, Floats]:
        """The k rows nearest to a vector [D] by cosine, best first, with their cosines.

        Among the given rows the search is exact, and among all rows of a small index or with `exact`; else the best
        by the small picture of all rows are compared exactly, one row in 1,000, and at least 2,000 and 10 k of them.
        """
        unit = normalised(np.asarray(query, dtype=np.float32))
        if unit.shape != (self.vector_size,):
            raise ElmoError(
                f"the index {self.folder} holds vectors of {self.vector_size} numbers, got {unit.shape}: "
                "ask it with the model and the layer that it was built with"
            )
        if rows is None and self.coarse is not None and not exact:
            projection, codes = self.coarse
            candidates = max(CANDIDATES, 10 * k, int(CANDIDATE_SHARE * len(self)))
            rows = best(projection.scores(codes, unit), candidates)
        if rows is None:
            scores = products(self.vectors.codes, unit) * self.vectors.scales
        else:
            # In order, so that a memory map is read from its beginning to its end.
            rows = np.sort(rows)
            scores = products(self.vectors.codes[rows], unit) * self.vectors.scales[rows]
        places = best(scores, k)
        return (places if rows is None else rows[places]), scores[places]


def check_stateless(elmo: Elmo) -> None:
    """Refuse a model whose arrays do not have one vector a token, or not always the same."""
    if elmo.boundaries or elmo.state != "zero":
        raise ElmoError(
            "an index is built and asked with a model that keeps no boundaries and carries no state, got "
            f"boundaries={elmo.boundaries}, state={elmo.state!r}: load it without them"
        )


def read_description(folder: Path) -> dict[str, Any]:
    """What index.json says, refused in one sentence where it is not that of an index of this version."""
    path = folder / DESCRIPTION
    description = atomic.read_description(path, FORMAT, VERSION, "an index of occurrences", _ADVICE)
    if not all(isinstance(description.get(name), int) for name in _NUMBERS) or not description.keys() >= _FACTS:
        raise ElmoError(f"{path} is damaged: {_ADVICE}")
    return description


def mapped(path: Path, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """A file of an index as an array."""
    return map_array(path, dtype, shape, _ADVICE)

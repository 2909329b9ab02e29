"""A prepared corpus: memory-mapped arrays of type ids, with the list of types and their counts beside them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import ElmoError
from elmokit.pretrain.corpus.building import FORMAT, VERSION, CorpusBuilder
from elmokit.pretrain.corpus.encoding import encode_sentences
from elmokit.pretrain.corpus.files import DESCRIPTION
from elmokit.pretrain.corpus.report import Report, Tally
from elmokit.pretrain.corpus.storing import storing

_TYPES_AT_ONCE = 1 << 16


@dataclass(frozen=True, eq=False)
class PreparedCorpus:
    """S sentences of N tokens in all, of V types: `<S>`, `</S>`, `<UNK>`, then in the order of first appearance."""

    folder: Path
    report: Report
    settings: dict[str, Any]
    """How the text was read: segment, split, max_tokens, max_types."""
    fingerprint: str
    """Of the sources (paths, sizes, times) and the settings; of the content where there are no files to look at."""
    content: str
    """Of the sentences themselves: equal for equal sentences, wherever they came from."""
    tokens: NDArray[np.uint32]
    """[N] type ids, the sentences end to end."""
    ends: NDArray[np.int64]
    """[S] where in `tokens` each sentence ends."""
    counts: NDArray[np.int64]
    """[V] how often each type occurs."""
    type_bytes: NDArray[np.uint8]
    """UTF-8 of all types end to end."""
    type_ends: NDArray[np.int64]
    """[V] where in `type_bytes` each type ends."""

    @property
    def n_sentences(self) -> int:
        """S."""
        return len(self.ends)

    @property
    def n_tokens(self) -> int:
        """N."""
        return len(self.tokens)

    @property
    def n_types(self) -> int:
        """V, the three special types among them."""
        return len(self.type_ends)

    def type_text(self, index: int) -> str:
        """The token that a type id stands for."""
        if not 0 <= index < self.n_types:
            raise IndexError(f"type {index} of {self.n_types}")
        start = int(self.type_ends[index - 1]) if index else 0
        return self._text(self.type_bytes[start : int(self.type_ends[index])].tobytes())

    def type_texts(self) -> Iterator[str]:
        """All types in order."""
        start = 0
        for first in range(0, self.n_types, _TYPES_AT_ONCE):
            ends = self.type_ends[first : first + _TYPES_AT_ONCE].tolist()
            data, base = self.type_bytes[start : ends[-1]].tobytes(), start
            for end in ends:
                yield self._text(data[start - base : end - base])
                start = end

    def _text(self, data: bytes) -> str:
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ElmoError(f"{self.folder / 'types.bin'} is damaged ({error}): prepare the corpus again") from error

    @classmethod
    def open(cls, folder: Path) -> PreparedCorpus:
        """The corpus of a folder that `prepare` or `from_sentences` made; its files are mapped, not read."""
        folder = Path(folder)
        description = read_description(folder)
        try:
            return cls._opened(folder, description)
        except ElmoError:
            raise
        except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError) as error:
            path = folder / DESCRIPTION
            raise ElmoError(f"{path} is damaged ({error!r}): remove the folder and prepare the corpus again") from error

    @classmethod
    def _opened(cls, folder: Path, description: dict[str, Any]) -> PreparedCorpus:
        sentences, tokens, types = (description[name] for name in ("sentences", "tokens", "types"))
        return cls(
            folder=folder,
            report=Report.from_dict(description["report"]),
            settings=description["settings"],
            fingerprint=description["fingerprint"],
            content=description["content"],
            tokens=_mapped(folder / "tokens.bin", np.dtype("<u4"), tokens),
            ends=_mapped(folder / "ends.bin", np.dtype("<i8"), sentences),
            counts=_mapped(folder / "counts.bin", np.dtype("<i8"), types),
            type_bytes=_mapped(folder / "types.bin", np.dtype("u1"), description["type_bytes"]),
            type_ends=_mapped(folder / "type_ends.bin", np.dtype("<i8"), types),
        )

    @classmethod
    def from_sentences(cls, sentences: Iterable[Sequence[str]], folder: Path) -> PreparedCorpus:
        """A corpus of sentences that are at hand, written to the folder; empty ones are left out.

        corpus = PreparedCorpus.from_sentences([["a", "river", "bank"]], Path("corpus"))
        """
        tally = Tally()

        def noted() -> Iterator[Sequence[str]]:
            for number, tokens in enumerate(sentences, 1):
                if not tokens:
                    tally.skip("empty", f"sentence {number}")
                    continue
                tally.sentences += 1
                tally.tokens += len(tokens)
                yield tokens

        folder = Path(folder).resolve()
        total = Tally()
        with storing(folder) as temporary, CorpusBuilder(temporary, shown=folder, max_types=1 << 32) as builder:
            builder.add(encode_sentences(noted(), tally), total)
            builder.finish(total.report(types=builder.n_types), {}, None)
        return cls.open(folder)


def read_description(folder: Path) -> dict[str, Any]:
    """What corpus.json says, refused in one sentence where it is not that of a prepared corpus of this version."""
    path = folder / DESCRIPTION
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ElmoError(f"{folder} is not a prepared corpus: it has no {DESCRIPTION}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ElmoError(f"{path} cannot be read ({error}): prepare the corpus again") from error
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise ElmoError(f"{path} does not describe a prepared corpus: prepare one in a folder of its own")
    if description.get("version") != VERSION:
        raise ElmoError(
            f"{folder} was prepared by another version of elmokit (format {description.get('version')}, this one reads "
            f"{VERSION}): remove the folder and prepare the corpus again"
        )
    return description


def _mapped(path: Path, dtype: np.dtype[Any], length: int) -> NDArray[Any]:
    try:
        size = path.stat().st_size
        if size != length * dtype.itemsize:
            raise ElmoError(
                f"{path} must have {length * dtype.itemsize:,} bytes, got {size:,}: remove the folder and prepare the "
                "corpus again"
            )
        # An empty file cannot be mapped.
        return np.memmap(path, dtype=dtype, mode="r") if length else np.empty(0, dtype=dtype)
    except OSError as error:
        raise ElmoError(f"{path} cannot be read ({error.strerror or error}): prepare the corpus again") from error

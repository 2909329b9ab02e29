"""The files of a prepared corpus: writing them, opening them memory-mapped, and building a vocabulary from them.

tokens.bin      uint32 [N]   type ids, one sentence after the other
ends.bin        int64 [S]    the end of each sentence in tokens.bin
counts.bin      int64 [V]    number of occurrences of each type
types.bin       bytes        UTF-8 of all types, one after the other
type_ends.bin   int64 [V]    the end of each type in types.bin
corpus.json     everything else; written last, so a folder that has it is complete
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmokit.corpus.encoding import EncodedSentences, encode_sentences
from elmokit.corpus.reading import DESCRIPTION
from elmokit.corpus.report import Report
from elmokit.errors import ElmoError
from elmokit.storage import Closing, atomic
from elmokit.storage.array_file import OffsetFile, map_array
from elmokit.storage.atomic import atomic_folder, disk_errors, sync, write_text
from elmokit.text.vocab import BEGIN, END, SKIPPED_LINE, UNKNOWN, Vocabulary

FORMAT = "elmokit-corpus"
VERSION = 1
"""Increases when the file format changes, or when a splitter or tokeniser gives other sentences for the same text."""
SPECIALS = (BEGIN, END, UNKNOWN)
_TYPES_AT_ONCE = 1 << 16
_ADVICE = "remove the folder and prepare the corpus again"
_UNKNOWN_ID = SPECIALS.index(UNKNOWN)


@dataclass(frozen=True, eq=False)
class PreparedCorpus:
    """S sentences with N tokens and V types: `<S>`, `</S>`, `<UNK>`, then the others by first appearance."""

    folder: Path
    report: Report
    settings: dict[str, Any]
    """The options of `prepare`: segment, split, max_tokens, max_types."""
    fingerprint: str
    """A hash of the sources (paths, sizes, times) and the settings; without files, equal to `content`."""
    content: str
    """A hash of the sentences, which is equal for equal sentences from any source."""
    tokens: NDArray[np.uint32]
    """[N] type ids, one sentence after the other."""
    ends: NDArray[np.int64]
    """[S] the end of each sentence in `tokens`."""
    counts: NDArray[np.int64]
    """[V] number of occurrences of each type."""
    type_bytes: NDArray[np.uint8]
    """UTF-8 of all types, one after the other."""
    type_ends: NDArray[np.int64]
    """[V] the end of each type in `type_bytes`."""

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
        """V, including the three special types."""
        return len(self.type_ends)

    def type_text(self, index: int) -> str:
        """The token of a type id."""
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

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the folder and content hash: another process maps the files itself."""
        return PreparedCorpus.open, (self.folder, self.content)

    @classmethod
    def open(cls, folder: Path, content: str | None = None) -> PreparedCorpus:
        """Open a folder that `prepare` or `from_sentences` made; its files are memory-mapped.

        With `content`, the corpus must have this hash.
        """
        folder = Path(folder)
        description = read_description(folder)
        if content not in (None, description.get("content")):
            raise ElmoError(f"{folder} was prepared again from another text while it was read: start again")

        def mapped(name: str, dtype: str, length: str) -> NDArray[Any]:
            return map_array(folder / name, dtype, (description[length],), _ADVICE)

        try:
            return cls(
                folder=folder,
                report=Report.from_dict(description["report"]),
                settings=description["settings"],
                fingerprint=description["fingerprint"],
                content=description["content"],
                tokens=mapped("tokens.bin", "<u4", "tokens"),
                ends=mapped("ends.bin", "<i8", "sentences"),
                counts=mapped("counts.bin", "<i8", "types"),
                type_bytes=mapped("types.bin", "u1", "type_bytes"),
                type_ends=mapped("type_ends.bin", "<i8", "types"),
            )
        except ElmoError:
            raise
        except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError) as error:
            raise ElmoError(f"{folder / DESCRIPTION} is damaged ({error!r}): {_ADVICE}") from error

    @classmethod
    def from_sentences(cls, sentences: Iterable[Sequence[str]], folder: Path) -> PreparedCorpus:
        """Write sentences from memory to a folder and open it; empty sentences are left out.

        corpus = PreparedCorpus.from_sentences([["a", "river", "bank"]], Path("corpus"))
        """
        report = Report()

        def counted_sentences() -> Iterator[Sequence[str]]:
            for number, tokens in enumerate(sentences, 1):
                if not tokens:
                    report.skip("empty", f"sentence {number}")
                    continue
                report.sentences += 1
                report.tokens += len(tokens)
                yield tokens

        folder = Path(folder).resolve()
        with (
            atomic_folder(folder, corpus_errors) as temporary,
            CorpusBuilder(temporary, shown=folder) as builder,
        ):
            builder.add(encode_sentences(counted_sentences(), report))
            builder.finish({}, None)
        return cls.open(folder)


def read_description(folder: Path) -> dict[str, Any]:
    """The contents of corpus.json, which must describe a prepared corpus of this version."""
    return atomic.read_description(folder / DESCRIPTION, FORMAT, VERSION, "a prepared corpus", _ADVICE)


def corpus_errors(folder: Path) -> AbstractContextManager[None]:
    """Turn disk errors while a prepared corpus is written into an ElmoError."""
    return disk_errors(
        f"the prepared corpus {folder}", "name another folder", if_full="free some, or name another folder"
    )


class CorpusBuilder(Closing):
    """Appends encoded sentences to the files of a new folder; only the list of types is in memory.

    Error messages name `shown`, the final path of the folder. `report` counts the sentences that are added.
    """

    def __init__(self, folder: Path, *, shown: Path, max_types: int = 1 << 32, report: Report | None = None) -> None:
        if max_types < len(SPECIALS):
            rule = f"at least {len(SPECIALS)}, the number of special types"
            raise ElmoError(f"max_types must be {rule}, got {max_types}", "max_types")
        self._folder, self._shown, self._max_types = folder, shown, max_types
        self.report = report or Report()
        self._types = {special: number for number, special in enumerate(SPECIALS)}
        self._counts = np.zeros(1 << 16, dtype=np.int64)
        self._n_tokens = self._n_sentences = 0
        self._files: dict[str, _AppendedFile] = {}

    def add(self, part: EncodedSentences) -> None:
        """Append encoded sentences."""
        ids = self._type_ids(part)
        if len(self._types) > len(self._counts):
            self._counts = np.concatenate([self._counts, np.zeros(len(self._types), dtype=np.int64)])
        np.add.at(self._counts, ids, part.counts)
        self._append("tokens.bin", ids[part.ids])
        self._append("ends.bin", (self._n_tokens + np.cumsum(part.lengths)).astype("<i8"))
        self._n_tokens += len(part.ids)
        self._n_sentences += len(part.lengths)
        self.report.add(part.report)

    def _type_ids(self, part: EncodedSentences) -> NDArray[np.uint32]:
        """The ids in the whole corpus of the types of a part."""
        known, limit = self._types, self._max_types
        ids = np.empty(len(part.types), dtype="<u4")
        for number, word in enumerate(part.types):
            type_id = known.get(word)
            if type_id is None:
                if len(known) < limit:
                    type_id = known[word] = len(known)
                else:
                    type_id = _UNKNOWN_ID
                    part.report.unlisted += int(part.counts[number])
            ids[number] = type_id
        return ids

    def finish(self, settings: dict[str, Any], fingerprint: str | None, origin: str | None = None) -> None:
        """Write the types and counts, flush all files to the disk, then write corpus.json.

        The arguments become entries of corpus.json with the same names; prepare.py defines fingerprint and origin.
        """
        # A corpus without sentences has all files too.
        self.report.types = len(self._types)
        self._append("tokens.bin", np.empty(0, dtype="<u4"))
        self._append("ends.bin", np.empty(0, dtype="<i8"))
        self._append("counts.bin", self._counts[: len(self._types)].astype("<i8"))
        type_bytes = self._append_types()
        content = hashlib.blake2b(digest_size=16)
        for name in sorted(self._files):
            content.update(self._files[name].digest.digest())
        description = {
            "format": FORMAT,
            "version": VERSION,
            "sentences": self._n_sentences,
            "tokens": self._n_tokens,
            "types": len(self._types),
            "type_bytes": type_bytes,
            "content": content.hexdigest(),
            "fingerprint": fingerprint or content.hexdigest(),
            "origin": origin,
            "settings": settings,
            "report": asdict(self.report),
        }
        with corpus_errors(self._shown):
            for file in self._files.values():
                file.sync()
            path = self._folder / DESCRIPTION
            # A file name may be invalid Unicode, which ASCII JSON can store.
            path.write_text(json.dumps(description, indent=1) + "\n", encoding="ascii")
            sync(path)
            sync(self._folder)

    def _append_types(self) -> int:
        """Write the list of types and return its size in bytes."""
        end = 0
        types = iter(self._types)
        while words := list(islice(types, _TYPES_AT_ONCE)):
            try:
                encoded = [word.encode("utf-8") for word in words]
            except UnicodeEncodeError as error:
                raise ElmoError(
                    f"a token must be text that UTF-8 can encode, got {error.object!r}: remove its surrogates"
                ) from error
            ends = end + np.cumsum([len(word) for word in encoded], dtype="<i8")
            self._append("types.bin", np.frombuffer(b"".join(encoded), dtype=np.uint8))
            self._append("type_ends.bin", ends)
            end = int(ends[-1])
        return end

    def _append(self, name: str, values: NDArray[Any]) -> None:
        with corpus_errors(self._shown):
            if name not in self._files:
                self._files[name] = _AppendedFile(self._folder / name)
            self._files[name].append(values.tobytes())

    def close(self) -> None:
        """Close the files; closing twice is fine."""
        for file in self._files.values():
            file.close()


class _AppendedFile(OffsetFile):
    """An unbuffered file for appending, with a digest of its contents."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.digest = hashlib.blake2b(digest_size=16)
        self._end = 0

    def append(self, data: bytes) -> None:
        self._end = self.write(self._end, data)
        self.digest.update(data)


def build_vocabulary(corpus: PreparedCorpus, *, max_size: int | None = None, min_count: int = 1) -> Vocabulary:
    """A vocabulary of `<S>`, `</S>`, `<UNK>` and the types by falling frequency; ties by first appearance.

    `max_size` includes the special words. Words that occur fewer than `min_count` times are left out, and the few that
    vocab.txt cannot store.
    """
    if max_size is not None and max_size <= len(SPECIALS):
        rule = f"more than {len(SPECIALS)}, the number of special words"
        raise ElmoError(f"max_size must be {rule}, got {max_size}", "max_size")
    if min_count < 1:
        raise ElmoError(f"min_count must be at least 1, got {min_count}", "min_count")
    counts = np.asarray(corpus.counts[len(SPECIALS) :])
    order = np.argsort(-counts, kind="stable")
    order = order[: int(np.count_nonzero(counts >= min_count))]
    words = (corpus.type_text(int(index) + len(SPECIALS)) for index in order)
    rest = None if max_size is None else max_size - len(SPECIALS)
    return Vocabulary([*SPECIALS, *islice(filter(_can_be_stored, words), rest)])


def write_vocabulary(vocabulary: Vocabulary, path: Path) -> None:
    """Write a vocab.txt that bilm-tf can read, atomically."""
    vocabulary.require_specials()
    write_text(path, vocabulary.to_text())


def coverage(corpus: PreparedCorpus, vocabulary: Vocabulary) -> float:
    """The share of the corpus's tokens that are in the vocabulary; `<UNK>` counts as missing."""
    inside = np.fromiter((text in vocabulary for text in corpus.type_texts()), np.bool_, corpus.n_types)
    inside[SPECIALS.index(UNKNOWN)] = False
    return float(corpus.counts[inside].sum() / max(1, corpus.n_tokens))


def _can_be_stored(word: str) -> bool:
    """Whether vocab.txt can store the word: reading it strips lines and skips one word."""
    return word == word.strip() and word not in ("", SKIPPED_LINE) and "\n" not in word

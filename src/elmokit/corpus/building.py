"""The files of a prepared corpus, written as sentences come and whole only when corpus.json is there."""

from __future__ import annotations

import hashlib
import json
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmokit.corpus.encoding import Encoded
from elmokit.corpus.files import DESCRIPTION
from elmokit.corpus.report import Report, Tally
from elmokit.errors import ElmoError
from elmokit.storage.atomic import disk_errors, sync
from elmokit.storage.offset_file import OffsetFile
from elmokit.text.vocab import BEGIN, END, UNKNOWN

FORMAT = "elmokit-corpus"
VERSION = 1
"""Goes up when the files change, or when a splitter or tokenizer gives other sentences for the same text."""
SPECIALS = (BEGIN, END, UNKNOWN)
_TYPES_AT_ONCE = 1 << 16
_UNKNOWN_ID = SPECIALS.index(UNKNOWN)


def corpus_errors(folder: Path) -> AbstractContextManager[None]:
    """Explain errors of the disk while a prepared corpus is written."""
    return disk_errors(
        f"the prepared corpus {folder}", "name another folder", if_full="free some, or name another folder"
    )


class CorpusBuilder:
    """Adds encoded sentences to the files of a new folder; memory holds the list of types and nothing else.

    Errors of the disk are told about `shown`, the folder whose place the new one will take.
    """

    def __init__(self, folder: Path, *, shown: Path, max_types: int) -> None:
        if max_types < len(SPECIALS):
            raise ElmoError(f"max_types must be at least {len(SPECIALS)}, the special types, got {max_types}")
        self._folder, self._shown = folder, shown
        self._max_types = min(max_types, 1 << 32)
        self._types = {special: number for number, special in enumerate(SPECIALS)}
        self._counts = np.zeros(1 << 16, dtype=np.int64)
        self._n_tokens = self._n_sentences = 0
        self._files: dict[str, _Growing] = {}

    @property
    def n_types(self) -> int:
        """Distinct types by now, the special ones among them."""
        return len(self._types)

    def add(self, part: Encoded, tally: Tally) -> None:
        """Append sentences; the tally takes over their counts."""
        places = self._places(part)
        if len(self._types) > len(self._counts):
            self._counts = np.concatenate([self._counts, np.zeros(len(self._types), dtype=np.int64)])
        np.add.at(self._counts, places, part.counts)
        self._append("tokens.bin", places[part.ids])
        self._append("ends.bin", (self._n_tokens + np.cumsum(part.lengths)).astype("<i8"))
        self._n_tokens += len(part.ids)
        self._n_sentences += len(part.lengths)
        tally.add(part.tally)

    def _places(self, part: Encoded) -> NDArray[np.uint32]:
        """The ids of the part's types in the whole corpus."""
        known, limit = self._types, self._max_types
        places = np.empty(len(part.types), dtype="<u4")
        for number, word in enumerate(part.types):
            place = known.get(word)
            if place is None:
                if len(known) < limit:
                    place = known[word] = len(known)
                else:
                    place = _UNKNOWN_ID
                    part.tally.unlisted += int(part.counts[number])
            places[number] = place
        return places

    def finish(
        self, report: Report, settings: dict[str, Any], fingerprint: str | None, origin: str | None = None
    ) -> None:
        """Write what remains, everything flushed to the disk, corpus.json last; what the words mean: shelf.py."""
        # Of a corpus without sentences, too, all files are there.
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
            "report": report.to_dict(),
        }
        with corpus_errors(self._shown):
            for file in self._files.values():
                file.sync()
            path = self._folder / DESCRIPTION
            # A file's name need not be Unicode, and ASCII JSON can hold any.
            path.write_text(json.dumps(description, indent=1) + "\n", encoding="ascii")
            sync(path)
            sync(self._folder)

    def _append_types(self) -> int:
        """Write the list of types, some at a time, and return its bytes."""
        end = 0
        types = iter(self._types)
        while words := list(islice(types, _TYPES_AT_ONCE)):
            try:
                encoded = [word.encode("utf-8") for word in words]
            except UnicodeEncodeError as error:
                raise ElmoError(
                    f"a token must be text that UTF-8 can hold, got {error.object!r}: take its surrogates out"
                ) from error
            ends = end + np.cumsum([len(word) for word in encoded], dtype="<i8")
            self._append("types.bin", np.frombuffer(b"".join(encoded), dtype=np.uint8))
            self._append("type_ends.bin", ends)
            end = int(ends[-1])
        return end

    def _append(self, name: str, values: NDArray[Any]) -> None:
        with corpus_errors(self._shown):
            if name not in self._files:
                self._files[name] = _Growing(self._folder / name)
            self._files[name].append(values.tobytes())

    def close(self) -> None:
        """Close the files; closing twice is fine."""
        for file in self._files.values():
            file.close()

    def __enter__(self) -> CorpusBuilder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Growing(OffsetFile):
    """A file that is appended to, with a digest of what is in it; nothing waits in a buffer to fail on closing."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.digest = hashlib.blake2b(digest_size=16)
        self._end = 0

    def append(self, data: bytes) -> None:
        self._end = self.write(self._end, data)
        self.digest.update(data)

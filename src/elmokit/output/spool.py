"""A crash-safe spool: the folder OUTPUT.partial next to the output, in which the vectors are collected.

    settings.json     the settings of the run
    vectors.bin       the flat array of rows (sentence_vectors.py), little-endian float32
    sentences.jsonl   [text, [token, ...]] for each sentence
    journal           a line with a checksum for each commit
    lock              locked while a process works here

Data are on the disk before the journal line that counts them, so a kill or a power cut at any moment leaves a last
whole line and everything it counts. Bytes after that are cut off when the run is resumed. The output is built in the
same folder from these files, so for a while the vectors are on the disk twice.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import ElmoError
from elmokit.messages import counted
from elmokit.output.sentence_vectors import TEXTS, VECTORS, SentenceVectors, VectorShape
from elmokit.storage.array_file import OffsetFile
from elmokit.storage.atomic import disk_errors, sync, write_text
from elmokit.storage.cache import remove_leftovers
from elmokit.storage.locks import ProcessLock, try_lock
from elmokit.storage.trusted import WorkFolder, open_file

FORMAT, VERSION = "elmokit-spool", 1
SETTINGS, JOURNAL, LOCK, RESULT = "settings.json", "journal", "lock", "result.tmp"
FORMER_TEMPORARY = "settings.json.tmp"
"""A file that a killed run of an earlier release may have left."""
# Removed in this order: the journal after the data that it describes, and late the settings, which mark the folder.
FILES = (RESULT, VECTORS, TEXTS, JOURNAL, SETTINGS, FORMER_TEMPORARY, LOCK)


def partial_folder(output: Path) -> Path:
    """The folder in which the vectors of an output are collected; links in its path are already followed."""
    return output.with_name(output.name + ".partial")


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings of the run whose vectors are in a folder; empty if it is not the folder of a run."""
    try:
        fd = open_file(folder / SETTINGS)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    with os.fdopen(fd, encoding="ascii") as file, suppress(ValueError):
        found = json.load(file)
        return found if isinstance(found, dict) and found.get("format") == FORMAT else {}
    return {}


@dataclass(frozen=True)
class Record:
    """What is on the disk after a commit, counted from the start of the run."""

    sentences: int = 0
    tokens: int = 0
    vector_bytes: int = 0
    """Length of vectors.bin for these sentences."""
    text_bytes: int = 0
    """Length of sentences.jsonl for these sentences."""
    layers: int | None = None
    """L+1 if all layers are stored."""
    dim: int | None = None
    """Size of a vector; None before the first sentence."""
    sha256: str = ""
    """Digest of the input lines read so far."""
    output_bytes: int | None = None
    """Only in the last record: the size of the output, which has been written."""


class Spool:
    """Collects sentences and vectors one by one; commit() flushes them to the disk, stored() reads them.

    As a context manager it closes its files; a spool without any commit is removed.
    """

    def __init__(
        self, output: Path, *, settings: Mapping[str, object], pooled: bool = False, resume: bool = False
    ) -> None:
        self.output = output
        self.folder = partial_folder(output)
        self.pooled = pooled
        self.settings: dict[str, Any] = json.loads(json.dumps(dict(settings), default=str))
        self.finished = False
        """Whether an earlier run has written the output, and only the clean-up is missing."""
        self._digest = hashlib.sha256()
        self._state = self._committed = Record()
        self._committed_at = time.monotonic()
        self._journal_end = 0
        self._files: list[OffsetFile] = []
        self._removed = False
        with self._errors():
            self._lock = self._acquire()
            try:
                self._open(resume)
            except BaseException:
                self._close()
                raise

    def _errors(self, *, committing: bool = False) -> AbstractContextManager[None]:
        # Except in a commit, what is not committed counts too: a commit follows.
        resumable = (self._committed if committing else self._state).sentences > 0
        again = f"run it again with resume, which continues from {self.folder}" if resumable else "run it again"
        repair, free = f"when that is repaired, {again}", f"free some and {again}"
        return disk_errors(self.output, repair, if_full=free, arguments=("resume",))

    def _acquire(self) -> ProcessLock:
        while True:
            try:
                self._work = WorkFolder(self.folder)
            except NotADirectoryError:
                raise ElmoError(
                    f"{self.folder} must be a folder or absent, got a file: move it, since vectors are collected there"
                ) from None
            try:
                return try_lock(self._work.path / LOCK)
            except BaseException as error:
                self._work.close()
                if isinstance(error, BlockingIOError):
                    raise ElmoError(
                        f"another process is writing {self.output}: wait until it ends or choose another output",
                        "output",
                    ) from None
                if not isinstance(error, FileNotFoundError):  # the run before has just removed the folder
                    raise

    def _open(self, resume: bool) -> None:
        earlier = self._read_settings()
        if not earlier:
            self._write_settings()  # before any other file, since it marks the folder
        for name in (VECTORS, TEXTS, JOURNAL):
            self._files.append(OffsetFile(self._work.path / name))
        self._vectors, self._texts, self._journal = self._files
        last = self._last_record()
        if self.finished and not resume:
            last = None
        if last and not resume:
            raise ElmoError(
                f"{self.folder} has {counted(last.sentences, 'sentence')} of an earlier run: continue it with resume, "
                "or delete that folder to start again",
                "resume",
            )
        if last:
            self._compare(earlier)
        else:
            self._journal_end, self.finished = 0, False
        self._state = self._committed = last or Record()
        # The journal is cut first, so that no line of it counts bytes that are cut afterwards.
        self._journal.truncate(self._journal_end)
        self._journal.sync()
        if not self.finished:
            self._vectors.truncate(self._state.vector_bytes)
            self._texts.truncate(self._state.text_bytes)
        if earlier and not last:
            self._write_settings()
        sync(self._work.path)
        sync(self.folder.parent)

    def _write_settings(self) -> None:
        whole = {"format": FORMAT, "version": VERSION, "pooled": self.pooled, "settings": self.settings}
        write_text(self._work.path / SETTINGS, json.dumps(whole, indent=1), errors=nullcontext)

    def _read_settings(self) -> dict[str, Any]:
        if found := read_settings(self._work.path):
            if found.get("version") != VERSION:
                raise ElmoError(
                    f"{self.folder} must be of version {VERSION}, got {found.get('version')} from another release of "
                    "elmokit: finish it with that release or delete the folder"
                )
            return found
        remove_leftovers(self._work.path, SETTINGS, alone=True)
        if any(path.name not in (LOCK, FORMER_TEMPORARY) for path in self._work.path.iterdir()):
            raise ElmoError(
                f"{self.folder} is not the folder of an unfinished run: move it, since the vectors for {self.output} "
                "are collected there"
            )
        return {}

    def _last_record(self) -> Record | None:
        """The last record whose data are complete; sets the end of the journal, and `finished`."""
        last = None
        for record, end in _read_records(self._work.path / JOURNAL):
            if record.output_bytes is not None:
                with suppress(OSError):
                    self.finished = self.output.stat().st_size == record.output_bytes
                if not self.finished:
                    break
            elif record.vector_bytes > self._vectors.size() or record.text_bytes > self._texts.size():
                # Lost data, or a finished run, which removes its data before its journal.
                continue
            last, self._journal_end = record, end
        return last

    def _compare(self, earlier: Mapping[str, Any]) -> None:
        before = {"pooled": earlier["pooled"], **earlier["settings"]}
        now = {"pooled": self.pooled, **self.settings}
        differ = [name for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)]
        if differ:
            said, asked = (", ".join(f"{n} {json.dumps(each.get(n))}" for n in differ) for each in (before, now))
            raise ElmoError(
                f"resume needs the settings of the run that it continues, which had {said}, got {asked}: "
                f"use those again, or delete {self.folder} to start again",
                "resume",
            )

    @property
    def sentences(self) -> int:
        """Sentences appended so far, including those of the resumed run."""
        return self._state.sentences

    @property
    def tokens(self) -> int:
        """Tokens appended so far."""
        return self._state.tokens

    def skip_committed(self, lines: Iterator[str]) -> None:
        """Skip the lines that a resumed run already has, and check that they are the same."""
        read = 0
        for line in itertools.islice(lines, self.sentences):
            _add_line(self._digest, line)
            read += 1
        if self.sentences and (read < self.sentences or self._digest.hexdigest() != self._state.sha256):
            raise self.input_changed()

    def input_changed(self) -> ElmoError:
        """The error for an input that differs from the one of the earlier run."""
        return ElmoError(
            f"resume needs the same input, but it has changed within or after the {counted(self.sentences, 'line')} "
            f"already done: restore it, or delete {self.folder} to start again",
            "resume",
        )

    def append(self, text: str, tokens: list[str], vectors: NDArray[Any]) -> None:
        """Add a sentence; vectors are [T, D] or [L+1, T, D], or [D] or [L+1, D] if pooled."""
        vectors = np.asarray(vectors)
        state = self._state
        if state.dim is None:
            shape = VectorShape.of(vectors, self.pooled)
        else:
            shape = VectorShape(self.pooled, state.layers, state.dim)
        rows = shape.to_rows(vectors, len(tokens))
        # JSON escapes everything beyond ASCII, so lone surrogates are preserved and no text contains a line end.
        line = json.dumps([text, tokens], separators=(",", ":")).encode("ascii") + b"\n"
        digest = self._digest.copy()
        _add_line(digest, text)
        with self._errors():
            vector_bytes = state.vector_bytes
            if rows.size:
                vector_bytes = self._vectors.write(vector_bytes, rows.data.cast("B"))
            text_bytes = self._texts.write(state.text_bytes, line)
        # An interrupt may come between any two steps: the sentence counts after the one assignment of _state.
        self._digest = digest
        self._state = Record(
            sentences=state.sentences + 1,
            tokens=state.tokens + len(tokens),
            vector_bytes=vector_bytes,
            text_bytes=text_bytes,
            layers=shape.layers,
            dim=shape.dim,
            sha256=digest.hexdigest(),
        )

    def commit_if_due(self, most_bytes: int, most_seconds: float) -> None:
        """Commit if a kill would lose at least `most_bytes`, or if the last commit was `most_seconds` ago."""
        now, before = self._state, self._committed
        lost = now.vector_bytes + now.text_bytes - before.vector_bytes - before.text_bytes
        if lost >= most_bytes or time.monotonic() - self._committed_at >= most_seconds:
            self.commit()

    def commit(self) -> None:
        """Flush everything appended so far to the disk, and count it in the journal."""
        if self._state == self._committed:
            return
        state = self._state
        with self._errors(committing=True):
            self._vectors.sync()
            self._texts.sync()
            self._note(state)
        self._committed = state
        self._committed_at = time.monotonic()

    def _note(self, record: Record) -> None:
        end = self._journal.write(self._journal_end, _to_line(record))
        self._journal.sync()
        self._journal_end = end

    def stored(self) -> SentenceVectors:
        """The committed sentences, for a writer."""
        record = self._committed
        shape = VectorShape(self.pooled, record.layers, record.dim or 0)
        return SentenceVectors(self._work.path, self.folder, record.sentences, record.tokens, shape, self.settings)

    def publish(self, write: Callable[[SentenceVectors, Path], None]) -> None:
        """Let a writer build the output in the spool, move it to its place, and remove the spool."""
        self.commit()
        result = self._work.path / RESULT
        with self._errors():
            try:
                write(self.stored(), result)
                sync(result)
                size = result.stat().st_size
                result.replace(self.output)
            except BaseException:
                result.unlink(missing_ok=True)  # half an output only takes space that the next try needs
                raise
            sync(self.output.parent)
            if self.sentences:
                self._note(replace(self._committed, output_bytes=size))
        self.remove()

    def remove(self) -> None:
        """Delete the files of the spool, and its folder if nothing else is in it."""
        for file in self._files:  # Windows deletes no open file
            file.close()
        with self._errors():
            remove_leftovers(self._work.path, SETTINGS, alone=True)
            for name in FILES:
                (self._work.path / name).unlink(missing_ok=True)
            with suppress(OSError):  # not empty: it contains a file of somebody else
                self.folder.rmdir()
        self._removed = True
        self._close()

    def _close(self) -> None:
        for file in self._files:
            file.close()
        self._lock.release()
        self._work.close()

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        if self._committed.sentences == 0 and not self._removed:
            self.remove()
        else:
            self._close()


def _add_line(digest: hashlib._Hash, line: str) -> None:
    data = line.encode("utf-8", "surrogatepass")
    digest.update(len(data).to_bytes(8, "little"))  # so that moving the end of a line changes the digest
    digest.update(data)


def _to_line(record: Record) -> bytes:
    """One line of the journal: a checksum, then the record."""
    body = json.dumps(asdict(record), separators=(",", ":")).encode("ascii")
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _read_records(path: Path) -> Iterator[tuple[Record, int]]:
    """Each whole record and the offset after it, up to the first line that is cut or damaged."""
    end = 0
    with path.open("rb") as file:
        for line in file:
            # A line that a crash cut short, or a page that did not reach the disk, has another checksum.
            if not line.endswith(b"\n") or line[:9] != b"%08x " % zlib.crc32(line[9:-1]):
                return
            end += len(line)
            yield Record(**json.loads(line[9:])), end

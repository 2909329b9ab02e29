"""Lines of text → one file of vectors; an interrupted run can be resumed.

The vectors are collected in a crash-safe spool, the folder OUTPUT.partial next to the output:

    state.json        the settings of the run, and the valid length of the other files
    vectors.bin       the flat array of rows (sentence_vectors.py), little-endian float32 or float16
    sentences.jsonl   [text, [token, ...]] for each sentence
    lock              locked while a process uses the folder

Data are flushed to the disk before state.json, which is replaced atomically, includes them. So a kill or a power cut at
any moment leaves a valid state.json and all data that it includes. Bytes after the valid length are cut off when the
run is resumed. The output is built in the same folder, so for a while the vectors are on the disk twice.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import ElmoError
from elmokit.messages import counted
from elmokit.output.sentence_vectors import TEXTS, VECTORS, SentenceVectors, Store, VectorShape
from elmokit.output.writers import writer_for
from elmokit.storage.array_file import OffsetFile
from elmokit.storage.atomic import disk_errors, sync, write_text
from elmokit.storage.cache import remove_leftovers
from elmokit.storage.locks import ProcessLock, try_lock
from elmokit.storage.trusted import WorkFolder, follow_links

Encode = Callable[[Iterable[list[str]]], Iterator[NDArray[Any]]]
"""Takes lists of tokens and yields an array for each list, in the same order; it may read ahead."""


@dataclass(frozen=True)
class Summary:
    """The result of a finished run."""

    sentences: int
    tokens: int
    resumed_from: int
    """Number of sentences that were done by an earlier run."""


def check_output(output: str | Path) -> Path:
    """The file to write, with links followed; an ElmoError if it cannot be written."""
    try:
        path = follow_links(Path(output))
        for each in (path, partial_folder(path)):  # the name of the partial folder is longer and must fit too
            with suppress(FileNotFoundError, NotADirectoryError):
                each.stat()
    except ElmoError:
        raise
    except (OSError, RuntimeError, ValueError) as error:  # before Python 3.13 a loop of links is a RuntimeError
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ElmoError(f"output must be a path that can be used, got {output} ({reason})", "output") from error
    if path.is_dir():
        advice = f"add a name such as {path / 'vectors.h5'}"
        raise ElmoError(f"output must be a file, got the folder {output}: {advice}", "output")
    if path.exists() and not path.is_file():
        raise ElmoError(f"output must be a regular file, got {output}: choose another", "output")
    if not path.parent.is_dir():
        raise ElmoError(f"the folder of output must exist, got {output}: create {path.parent} first", "output")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        advice = "choose another or change its mode"
        raise ElmoError(f"the folder of output must be writable, got {path.parent}: {advice}", "output")
    return path


def embed_lines(
    lines: Iterable[str],
    *,
    tokenise: Callable[[str], list[str]],
    encode: Encode,
    output: str | Path,
    layout: str = "elmokit",
    settings: Mapping[str, object],
    pooled: bool = False,
    store: Store = "float32",
    resume: bool = False,
    commit_bytes: int = 64 << 20,
    commit_seconds: float = 5.0,
    on_progress: Callable[[int, int], None] | None = None,
) -> Summary:
    """Encode each line as a sentence and write all of them to one file, which appears whole or not at all.

    `encode` yields arrays [T, D] or [L+1, T, D], or with `pooled` [D] or [L+1, D]; `store` is their dtype on the disk.
    They are collected in OUTPUT.partial, and flushed to the disk every `commit_bytes` or `commit_seconds` and when an
    exception ends the run. `resume` continues an earlier run if the settings and the finished lines are the same.
    `on_progress` is called with the number of sentences and tokens done, including those of the earlier run.
    """
    target = check_output(output)
    writer = writer_for(target, layout)
    with Spool(target, settings=settings, pooled=pooled, store=store, resume=resume) as spool:
        source = iter(lines)
        spool.skip_committed(source)
        resumed_from = spool.done.sentences
        if spool.finished:
            if next(source, None) is not None:
                raise spool.input_changed()
            spool.remove()
        else:
            try:
                for _ in _append_all(spool, source, tokenise, encode):
                    if on_progress:
                        on_progress(spool.done.sentences, spool.done.tokens)
                    spool.commit_if_due(commit_bytes, commit_seconds)
            finally:
                spool.commit()
            spool.publish(writer)
    return Summary(spool.done.sentences, spool.done.tokens, resumed_from)


def _append_all(
    spool: Spool, source: Iterator[str], tokenise: Callable[[str], list[str]], encode: Encode
) -> Iterator[None]:
    """Append the lines of `source`; yields before the first line and after each line."""
    waiting: deque[tuple[str, list[str]]] = deque()  # the sentences that `encode` has read ahead

    def tokens() -> Iterator[list[str]]:
        for line in source:
            words = tokenise(line)
            waiting.append((line, words))
            yield words

    arrays = encode(tokens())
    try:
        yield
        for vectors in arrays:
            if not waiting:
                raise RuntimeError("encode yielded more arrays than it took sentences")
            spool.append(*waiting.popleft(), vectors)
            yield
        if waiting or next(source, None) is not None:
            raise RuntimeError(f"encode ended after {spool.done.sentences} sentences, before its input did")
    finally:
        if isinstance(arrays, Generator):
            arrays.close()  # to free its threads and device memory now


FORMAT, VERSION = "elmokit-spool", 1
STATE, LOCK, RESULT = "state.json", "lock", "result.tmp"
# Removed in this order: the state late, because it marks the folder and records that the run has finished.
FILES = (RESULT, VECTORS, TEXTS, STATE, LOCK)


def partial_folder(output: Path) -> Path:
    """The folder in which the vectors of an output are collected; links in its path are already followed."""
    return output.with_name(output.name + ".partial")


@dataclass(frozen=True)
class SpoolProgress:
    """The amount of data on the disk, from the start of the run."""

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
    """The size of the output after it has been written; None before."""


class Spool:
    """Collects sentences and vectors one by one; `commit` flushes them to the disk, `stored` reads them.

    A context manager that closes the files at the end; a spool without any commit is removed.
    """

    def __init__(
        self,
        output: Path,
        *,
        settings: Mapping[str, object],
        pooled: bool = False,
        store: Store = "float32",
        resume: bool = False,
    ) -> None:
        self.output = output
        self.folder = partial_folder(output)
        self.pooled, self.store = pooled, store
        self.settings: dict[str, Any] = json.loads(json.dumps(dict(settings), default=str))
        self.finished = False
        """Whether an earlier run has written the output, so that only the clean-up is left."""
        self.done = self._committed = SpoolProgress()
        """The data appended so far, including those of the resumed run."""
        self._digest = hashlib.sha256()
        self._committed_at = time.monotonic()
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
        # Outside a commit, uncommitted data can be resumed too, because a commit follows.
        resumable = (self._committed if committing else self.done).sentences > 0
        again = f"run it again with resume, which continues from {self.folder}" if resumable else "run it again"
        repair, free = f"when that is repaired, {again}", f"free some and {again}"
        return disk_errors(self.output, repair, if_full=free, arguments=("resume",))

    def _acquire(self) -> ProcessLock:
        while True:
            try:
                self._work = WorkFolder(self.folder)
            except NotADirectoryError:
                raise ElmoError(
                    f"{self.folder} must be a folder or absent, got a file: move it, since the run needs this name"
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
                if not isinstance(error, FileNotFoundError):  # another run has just removed the folder
                    raise

    def _open(self, resume: bool) -> None:
        earlier, before = self._read_state()
        if before.sentences and resume:
            self._compare(earlier)
            self.done = self._committed = before
        elif before.sentences and not self.finished:
            raise ElmoError(
                f"{self.folder} has {counted(before.sentences, 'sentence')} of an earlier run: continue it with "
                "resume, or delete that folder to start again",
                "resume",
            )
        else:
            self.finished = False
            self._write_state(self.done)  # before the other files, since it marks the folder
        self._files = [OffsetFile(self._work.path / name) for name in (VECTORS, TEXTS)]
        self._vectors, self._texts = self._files
        if not self.finished:
            self._vectors.truncate(self.done.vector_bytes)
            self._texts.truncate(self.done.text_bytes)
        sync(self._work.path)
        sync(self.folder.parent)

    @property
    def _all_settings(self) -> dict[str, Any]:
        return {"pooled": self.pooled, "store": self.store, **self.settings}

    def _write_state(self, done: SpoolProgress) -> None:
        state = {"format": FORMAT, "version": VERSION, "settings": self._all_settings, "done": asdict(done)}
        write_text(self._work.path / STATE, json.dumps(state, indent=1), errors=nullcontext)

    def _read_state(self) -> tuple[dict[str, Any], SpoolProgress]:
        """The settings and the progress of an earlier run; sets `finished`."""
        remove_leftovers(self._work.path, STATE, locked=True)
        found = None
        with suppress(FileNotFoundError, ValueError):
            found = json.loads((self._work.path / STATE).read_text(encoding="ascii"))
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            if any(path.name != LOCK for path in self._work.path.iterdir()):
                raise ElmoError(
                    f"{self.folder} is not the folder of an unfinished run: move it, since the run for {self.output} "
                    "needs this name"
                )
            return {}, SpoolProgress()
        if found.get("version") != VERSION:
            raise ElmoError(
                f"{self.folder} must be of version {VERSION}, got {found.get('version')} from another release of "
                "elmokit: finish it with that release or delete the folder"
            )
        done = SpoolProgress(**found["done"])
        with suppress(OSError):
            self.finished = done.output_bytes is not None and self.output.stat().st_size == done.output_bytes
        sizes = [path.stat().st_size if (path := self._work.path / name).exists() else 0 for name in (VECTORS, TEXTS)]
        if not self.finished and (sizes[0] < done.vector_bytes or sizes[1] < done.text_bytes):
            done = SpoolProgress()  # a finished run removed its data, and the output was deleted later
        return found["settings"], done

    def _compare(self, before: Mapping[str, Any]) -> None:
        now = self._all_settings
        differ = [name for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)]
        if differ:
            earlier, given = (", ".join(f"{n} {json.dumps(each.get(n))}" for n in differ) for each in (before, now))
            raise ElmoError(
                f"resume needs the settings of the earlier run, which were {earlier}, got {given}: "
                f"use the earlier settings, or delete {self.folder} to start again",
                "resume",
            )

    def skip_committed(self, lines: Iterator[str]) -> None:
        """Skip the lines that an earlier run has finished, and check that they are the same."""
        read = 0
        for line in itertools.islice(lines, self.done.sentences):
            _add_line(self._digest, line)
            read += 1
        if self.done.sentences and (read < self.done.sentences or self._digest.hexdigest() != self.done.sha256):
            raise self.input_changed()

    def input_changed(self) -> ElmoError:
        """The error for an input that differs from the input of the earlier run."""
        return ElmoError(
            f"resume needs the same input, but it has changed within or after the "
            f"{counted(self.done.sentences, 'line')} already done: restore it, or delete {self.folder} to start again",
            "resume",
        )

    def append(self, text: str, tokens: list[str], vectors: NDArray[Any]) -> None:
        """Add a sentence with its vectors: [T, D] or [L+1, T, D], or if pooled [D] or [L+1, D]."""
        vectors, done = np.asarray(vectors), self.done
        shape = self._shape(done) if done.dim is not None else VectorShape.of(vectors, self.pooled, self.store)
        rows = shape.to_rows(vectors, len(tokens))
        # JSON escapes everything beyond ASCII, so lone surrogates are preserved and no text contains a line end.
        line = json.dumps([text, tokens], separators=(",", ":")).encode("ascii") + b"\n"
        digest = self._digest.copy()
        _add_line(digest, text)
        with self._errors():
            vector_bytes = done.vector_bytes
            if rows.size:
                vector_bytes = self._vectors.write(vector_bytes, rows.data.cast("B"))
            text_bytes = self._texts.write(done.text_bytes, line)
        # An interrupt may come between any two statements: only the assignment of `done` adds the sentence.
        self._digest = digest
        self.done = SpoolProgress(
            sentences=done.sentences + 1,
            tokens=done.tokens + len(tokens),
            vector_bytes=vector_bytes,
            text_bytes=text_bytes,
            layers=shape.layers,
            dim=shape.dim,
            sha256=digest.hexdigest(),
        )

    def commit_if_due(self, most_bytes: int, most_seconds: float) -> None:
        """Commit if a kill would lose at least `most_bytes`, or if the last commit is `most_seconds` old."""
        now, before = self.done, self._committed
        lost = now.vector_bytes + now.text_bytes - before.vector_bytes - before.text_bytes
        if lost >= most_bytes or time.monotonic() - self._committed_at >= most_seconds:
            self.commit()

    def commit(self) -> None:
        """Flush all data appended so far to the disk, and record them in state.json."""
        if (done := self.done) == self._committed:
            return
        with self._errors(committing=True):
            self._vectors.sync()
            self._texts.sync()
            self._write_state(done)
        self._committed = done
        self._committed_at = time.monotonic()

    def stored(self) -> SentenceVectors:
        """The committed sentences, for a writer."""
        done = self._committed
        return SentenceVectors(
            self._work.path, self.folder, done.sentences, done.tokens, self._shape(done), self.settings
        )

    def _shape(self, done: SpoolProgress) -> VectorShape:
        return VectorShape(self.pooled, done.layers, done.dim or 0, self.store)

    def publish(self, write: Callable[[SentenceVectors, Path], None]) -> None:
        """Let a writer build the output in the spool, move the output to its path, and remove the spool."""
        self.commit()
        result = self._work.path / RESULT
        with self._errors():
            result.unlink(missing_ok=True)
            result.touch(exist_ok=False)  # a new file, so that the writer cannot follow a planted link
            try:
                write(self.stored(), result)
                sync(result)
                size = result.stat().st_size
                result.replace(self.output)
            except BaseException:
                result.unlink(missing_ok=True)  # to free its space for the next try
                raise
            sync(self.output.parent)
            self._write_state(replace(self._committed, output_bytes=size))
        self.remove()

    def remove(self) -> None:
        """Delete the files of the spool, and its folder if nothing else is in it."""
        for file in self._files:  # Windows cannot delete an open file
            file.close()
        with self._errors():
            for name in FILES:
                (self._work.path / name).unlink(missing_ok=True)
            with suppress(OSError):  # not empty: it contains other files
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
    digest.update(len(data).to_bytes(8, "little"))  # so that a moved line break changes the digest
    digest.update(data)

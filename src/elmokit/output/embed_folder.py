"""A folder of text files → a folder of vector files, by several processes and on several machines.

    texts/news/2024.txt → OUTPUT/news/2024.txt.h5

Every file is written by `embed_lines`, so that it appears whole or not at all, and an interrupted file is resumed.
The records for a second run are next to the vectors:

    OUTPUT/.elmokit/settings.json               the settings that determine all vectors: model, layer and so on
    OUTPUT/.elmokit/news/2024.txt.h5.json       written when a file is finished: the size and digest of its text

The parent process reads no text and computes nothing. It sends the names of files, the largest first, to worker
processes, which answer with pickled messages:

    ("ready", settings)              the model is loaded
    ("progress", bytes, tokens)      done so far in the current file
    ("done", summary, tokens)        the file is finished; the tokens are those of this run
    ("failed", message, arguments)   the file, or the model before the first file, failed
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import queue
import signal
import stat
import subprocess
import threading
import time
from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from elmokit.corpus.worker_process import ParentProcess, WorkerProcess
from elmokit.errors import ElmoError
from elmokit.output.embed_lines import Summary
from elmokit.output.writers import writer_for
from elmokit.storage.atomic import disk_errors, write_text
from elmokit.text.packed import READ_ERRORS, open_decompressed

RECORDS, SETTINGS = ".elmokit", "settings.json"
_PIECE = 1 << 20
_PROGRESS_SECONDS = 0.5
_PARENT_SECONDS = 0.5
_STOP_SECONDS = 10.0
_ADVICE = "run the same command again, with fewer workers if memory was full"


class FileProgress:
    """The progress of a worker with one file, in bytes; the worker reads ahead of the tokens that it has computed."""

    def __init__(self, send: Callable[[object], None]) -> None:
        self._send, self._sent = send, time.monotonic()
        self._bytes = self._tokens = self.done_tokens = 0
        self._earlier: int | None = None

    def read_bytes(self, count: int) -> None:
        """Add the number of bytes just read from the file."""
        self._bytes += count

    def read_tokens(self, count: int) -> None:
        """Add the number of tokens of the sentence just read."""
        self._tokens += count

    def done(self, _: int, tokens: int) -> None:
        """Set the number of tokens done, which at the first call are those of an earlier run."""
        if self._earlier is None:
            self._earlier = tokens
        self.done_tokens = tokens - self._earlier
        if (now := time.monotonic()) - self._sent >= _PROGRESS_SECONDS:
            self._sent = now
            share = tokens / max(1, self._tokens + self._earlier)
            self._send(("progress", int(self._bytes * share), self.done_tokens))


EmbedFile = Callable[[Path, Path, FileProgress], Summary]
"""Embeds a text file into an output file, and reports its progress."""


@dataclass(frozen=True)
class TextFile:
    """A text file to embed."""

    name: str
    """Its path relative to the folder, with / between the parts."""
    path: Path
    size: int

    def output(self, folder: Path, ending: str) -> Path:
        """The file for its vectors."""
        return folder / f"{self.name}.{ending}"


@dataclass
class FolderSummary:
    """The result of a run over a folder."""

    files: int = 0
    """Number of files that this run has written."""
    skipped: int = 0
    """Number of files that an earlier run had finished."""
    sentences: int = 0
    tokens: int = 0
    failed: dict[str, ElmoError] = field(default_factory=dict)
    """File name → the error because of which the file has no vectors."""


@dataclass(frozen=True)
class FolderProgress:
    """The progress of a run."""

    bytes: int
    """Bytes of text done, including those of earlier runs."""
    files: int
    """Files done, including those of earlier runs."""
    tokens: int
    """Tokens done in this run."""


def find_texts(folder: Path) -> list[TextFile]:
    """All files below a folder that are not hidden, sorted by name; links are followed, but no folder is read twice."""
    found, seen = [], set()
    for root, folders, names in os.walk(folder, onerror=_unreadable, followlinks=True):
        facts = Path(root).stat()
        if (facts.st_dev, facts.st_ino) in seen:
            folders.clear()
            continue
        seen.add((facts.st_dev, facts.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for path in (Path(root, name) for name in names if not name.startswith(".")):
            size = 0
            with suppress(OSError):  # the error is reported when the file is read
                size = path.stat().st_size
            found.append(TextFile(path.relative_to(folder).as_posix(), path, size))
    if not found:
        raise ElmoError(f"a folder to embed must contain text files, got none in {folder}: choose another folder")
    return sorted(found, key=lambda file: file.name)


def _unreadable(error: OSError) -> None:
    raise ElmoError(
        f"the folder {error.filename} cannot be read ({error.strerror or error}): change its permissions, or move it"
    ) from error


def select_shard(files: Sequence[TextFile], shard: str) -> list[TextFile]:
    """The files of the shard "i/n": every n-th file in the given order, starting with the i-th."""
    part, slash, parts = shard.partition("/")
    numbers = [int(each) if each.isascii() and each.isdigit() else 0 for each in (part, parts)]
    if not slash or not 1 <= numbers[0] <= numbers[1]:
        raise ElmoError(f"shard must be from 1/N to N/N, such as 3/10, got {shard!r}", "shard")
    return list(files[numbers[0] - 1 :: numbers[1]])


def check_folders(texts: Path, output: Path, ending: str, layout: str) -> None:
    """Refuse an output folder that is a file or inside the folder of texts, and an ending without a writer."""
    writer_for(Path(f"text.{ending}"), layout)
    if not output.is_dir():
        is_folder_name = True
        with suppress(ElmoError):
            writer_for(output)
            is_folder_name = False
        if output.exists() or not is_folder_name:
            raise ElmoError(f"output must be a folder if the texts are in a folder, got {output}", "output")
    source, target = texts.resolve(), output.resolve()
    if source in (target, *target.parents) or target in source.parents:
        raise ElmoError(
            f"output must be outside the folder of the texts, got {output} for {texts}: vectors would be read as text",
            "output",
        )


def embed_folder(
    files: Sequence[TextFile],
    output: Path,
    *,
    ending: str,
    start: Callable[[int], WorkerProcess],
    workers: int = 1,
    on_progress: Callable[[FolderProgress], None] = lambda progress: None,
) -> FolderSummary:
    """Embed the files that have no vectors yet, each into one vector file; errors of files are in the summary.

    `start` starts the worker process with a number from 0; the process runs `serve_files`.
    """
    with disk_errors(output):
        output.mkdir(parents=True, exist_ok=True)
    run = _FolderRun(output, ending, start, on_progress)
    try:
        run.start()
        _compare_settings(output, run.settings)
        run.embed(files, workers)
    except BaseException:
        run.stop()
        raise
    run.close()
    return run.summary


def _compare_settings(output: Path, now: Mapping[str, Any]) -> None:
    """Store the settings in a new folder; refuse settings that differ from those of an earlier run."""
    path = output / RECORDS / SETTINGS
    if not path.exists():
        with disk_errors(output):
            path.parent.mkdir(exist_ok=True)
        write_text(path, json.dumps(now, indent=1, sort_keys=True))
    before = _read_json(path) or {}
    now = json.loads(json.dumps(now))
    if differ := [name for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)]:
        earlier, given = (", ".join(f"{n} {json.dumps(each.get(n))}" for n in differ) for each in (before, now))
        raise ElmoError(
            f"the vectors in {output} must all be made with the same settings, which were {earlier}, got {given}: use "
            "the earlier settings, or choose another output",
            "output",
        )


def _read_json(path: Path) -> dict[str, Any] | None:
    with suppress(OSError, ValueError):
        found = json.loads(path.read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else None
    return None


class _FileWorker:
    """A worker process, and the file that it embeds."""

    def __init__(self, number: int, process: WorkerProcess, messages: queue.Queue[tuple[_FileWorker, Any]]) -> None:
        self.number, self.process = number, process
        self.file: TextFile | None = None
        self.ready = False
        self.read = self.tokens = 0
        """Bytes and tokens done in the current file."""
        self._messages = messages
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                message = self.process.receive()
            except BaseException as error:  # noqa: BLE001 - raised in the main thread
                self._messages.put((self, error))
                return
            self._messages.put((self, message))

    def embed(self, file: TextFile, output: Path) -> None:
        self.file, self.read, self.tokens = file, 0, 0
        self.process.send(pickle.dumps((file.path, output)))

    def interrupt(self) -> None:
        """Interrupt the process, which then stores the finished vectors."""
        if self.ready:
            with suppress(OSError):
                self.process.process.send_signal(signal.SIGINT)


class _FolderRun:
    """The worker processes of a run, the waiting files, and the summary."""

    def __init__(
        self,
        output: Path,
        ending: str,
        start: Callable[[int], WorkerProcess],
        on_progress: Callable[[FolderProgress], None],
    ) -> None:
        self.summary = FolderSummary()
        self.settings: dict[str, Any] = {}
        self._output, self._ending = output, ending
        self._start, self._on_progress = start, on_progress
        self._messages: queue.Queue[tuple[_FileWorker, Any]] = queue.Queue()
        self._workers: dict[int, _FileWorker] = {}
        self._waiting: deque[TextFile] = deque()
        self._done_bytes = self._done_files = self._done_tokens = 0

    def start(self) -> None:
        """Start the first worker and wait until it has loaded the model."""
        self._start_worker(0)
        self._receive_message()

    def embed(self, files: Iterable[TextFile], workers: int) -> None:
        """Embed the files that have no vectors yet."""
        for file in files:
            if (state := self._state(file)) is None:
                self._waiting.append(file)
                continue
            if isinstance(state, ElmoError):
                self.summary.failed[file.name] = state
            else:
                self.summary.skipped += 1
            self._add_done(file)
        # The largest first: a large file at the end would leave the other workers idle.
        self._waiting = deque(sorted(self._waiting, key=lambda file: (-file.size, file.name)))
        self._report()
        for number in range(1, min(workers, len(self._waiting))):
            self._start_worker(number)
        self._send_next_file(self._workers[0])
        while self._waiting or any(worker.file for worker in self._workers.values()):
            self._receive_message()

    def _state(self, file: TextFile) -> bool | ElmoError | None:
        """True for a finished file, None for an unfinished file, an error for a file whose text has changed."""
        target = file.output(self._output, self._ending)
        record = _read_json(record_of(self._output, target))
        if record is None:
            return None
        try:
            if target.stat().st_size != record.get("output_bytes"):
                return None
            facts = file.path.stat()
            same = facts.st_size == record["size"]
            if same and facts.st_mtime_ns != record["changed"]:
                same = text_digest(file.path) == record["sha256"]
        except FileNotFoundError:
            return None
        except ElmoError as error:
            return error
        if same:
            return True
        return ElmoError(f"the text has changed since {target} was written: delete that file to embed the text again")

    def _start_worker(self, number: int) -> None:
        self._workers[number] = _FileWorker(number, self._start(number), self._messages)

    def _receive_message(self) -> None:
        worker, message = self._messages.get()
        if isinstance(message, BaseException):
            self._replace(worker, message)
            return
        kind, *values = message
        if kind == "ready":
            worker.ready = True
            self.settings = values[0]
            self._send_next_file(worker)
        elif kind == "progress":
            worker.read, worker.tokens = values
            self._report()
        elif worker.file is None:  # the model cannot be loaded
            raise ElmoError(values[0], *values[1])
        else:
            self._finish(worker, worker.file, values)

    def _finish(self, worker: _FileWorker, file: TextFile, values: list[Any]) -> None:
        """Record the result of a file: a summary, or the message and the arguments of an error."""
        worker.file = None
        if isinstance(values[0], Summary):
            self.summary.files += 1
            self.summary.sentences += values[0].sentences
            self.summary.tokens += values[0].tokens
            self._done_tokens += values[1]
        else:
            self.summary.failed[file.name] = ElmoError(values[0], *values[1])
        self._add_done(file)
        self._report()
        self._send_next_file(worker)

    def _replace(self, worker: _FileWorker, error: BaseException) -> None:
        """Start a new process if one was killed while it embedded a file; any other error ends the run."""
        if worker.file is None or not isinstance(error, ElmoError):
            raise error
        self._workers.pop(worker.number).process.close()
        self.summary.failed[worker.file.name] = error
        self._add_done(worker.file)
        if self._waiting:
            self._start_worker(worker.number)

    def _send_next_file(self, worker: _FileWorker) -> None:
        if worker.ready and worker.file is None and self._waiting:
            file = self._waiting.popleft()
            worker.embed(file, file.output(self._output, self._ending))

    def _add_done(self, file: TextFile) -> None:
        self._done_bytes += file.size
        self._done_files += 1

    def _report(self) -> None:
        active = [worker for worker in self._workers.values() if worker.file]
        read = sum(worker.read for worker in active)
        tokens = self._done_tokens + sum(worker.tokens for worker in active)
        self._on_progress(FolderProgress(self._done_bytes + read, self._done_files, tokens))

    def stop(self) -> None:
        """Let the workers store their finished vectors, then end them."""
        deadline = time.monotonic() + _STOP_SECONDS
        try:
            for worker in self._workers.values():
                worker.interrupt()
            for worker in self._workers.values():
                with suppress(subprocess.TimeoutExpired):
                    if worker.ready:
                        worker.process.process.wait(max(0.0, deadline - time.monotonic()))
        finally:
            self.close()

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers.values():
            worker.process.close()


def record_of(output: Path, target: Path) -> Path:
    """The record that is written when `target`, a file in the folder `output`, is finished."""
    return output / RECORDS / f"{target.relative_to(output).as_posix()}.json"


def text_digest(path: Path) -> str:
    """The SHA-256 of a text, unpacked; an ElmoError if the text cannot be read, is damaged or is not UTF-8."""
    digest, decoder, lines = hashlib.sha256(), getincrementaldecoder("utf-8")(), 0
    with ExitStack() as stack:
        file = open_decompressed(path, stack)
        try:
            while piece := file.read(_PIECE):
                digest.update(piece)
                decoder.decode(piece)
                lines += piece.count(b"\n")
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            line = lines + error.object.count(b"\n", 0, error.start) + 1
            raise ElmoError(f"a text must be UTF-8, got other bytes in line {line:,}: convert it with iconv") from error
        except READ_ERRORS as error:
            raise ElmoError(f"the text is damaged after line {lines:,} ({error}): get it again") from error
    return digest.hexdigest()


# In a worker process


def start_worker(module: str, options: object, threads: int) -> WorkerProcess:
    """Start a process that runs `serve` of a module, which calls `serve_files`; the process gets the options."""
    environment = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}
    process = WorkerProcess(module, "a process that embeds files", _ADVICE, environment=environment)
    process.send(pickle.dumps((os.getpid(), options)))
    return process


def serve_files(load: Callable[[Any], tuple[Path, Mapping[str, Any], EmbedFile]]) -> None:
    """Embed the files that the parent process names, until it closes the pipe, interrupts this process or dies.

    `load` takes the options of `start_worker`. It returns the output folder, the settings that determine the vectors,
    and the function that embeds a file.
    """
    with suppress(KeyboardInterrupt):
        parent = ParentProcess()
        try:
            parent_id, options = pickle.load(parent.messages)
            threading.Thread(target=_exit_with, args=(parent_id,), daemon=True).start()
            output, settings, embed = load(options)
            parent.send(("ready", dict(settings)))
            with suppress(EOFError):
                while True:
                    path, target = pickle.load(parent.messages)
                    parent.send(_embed_one(output, path, target, embed, parent.send))
        except ElmoError as error:
            parent.send(("failed", str(error), error.arguments))
        except Exception as error:  # noqa: BLE001 - raised in the parent
            parent.send(error)


def _exit_with(parent_id: int) -> None:
    """End this process when its parent has died; the files on the disk are valid at any moment."""
    while os.getppid() == parent_id:
        time.sleep(_PARENT_SECONDS)
    os._exit(1)


def _embed_one(
    output: Path, path: Path, target: Path, embed: EmbedFile, send: Callable[[object], None]
) -> tuple[object, ...]:
    """Embed one file, and return the message for the parent."""
    progress = FileProgress(send)
    try:
        before = path.stat()
        if not stat.S_ISREG(before.st_mode):
            raise ElmoError("a text must be a regular file, got something else: copy its content to a file")
        digest = text_digest(path)
        record = record_of(output, target)
        with disk_errors(target):
            for folder in (target.parent, record.parent):
                folder.mkdir(parents=True, exist_ok=True)
        summary = embed(path, target, progress)
        after = path.stat()
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise ElmoError("the text has changed while it was read: run the same command again")
        source = {"size": before.st_size, "changed": before.st_mtime_ns, "sha256": digest}
        write_text(record, json.dumps({**source, "output_bytes": target.stat().st_size, **asdict(summary)}))
    except ElmoError as error:
        return "failed", str(error), error.arguments
    except OSError as error:
        return "failed", f"the text cannot be read ({error.strerror or error})", ()
    except Exception as error:  # noqa: BLE001 - one bad text must not end the whole run
        reason = next(iter(str(error).splitlines()), "no message")
        return "failed", f"the text cannot be embedded ({type(error).__name__}: {reason})", ()
    return "done", summary, progress.done_tokens

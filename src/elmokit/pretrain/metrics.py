"""metrics.jsonl, one JSON object per measurement of a training run; the same values for TensorBoard and the terminal.

| line | keys |
| --- | --- |
| training | step, tokens, seconds, epoch, loss, perplexity, forward_perplexity, backward_perplexity, learning_rate, |
| | gradient_norm, tokens_per_second |
| | (a transformer adds masked_perplexity; a mode without predictions is omitted; a sampled softmax adds |
| | sampled_words: its perplexities are lower than those over all words) |
| held-out | step, tokens, seconds, heldout_perplexity, heldout_forward, heldout_backward, heldout_masked |
| event | step, event |

A number that is not finite is null. The checkpoint of step s includes the lines of step s: a run that resumes from it
drops the lines of later steps and writes them again.
"""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from elmokit.errors import ElmoError, MissingExtraError
from elmokit.messages import perplexity
from elmokit.pretrain.checkpoints import RunFolder, RunProgress
from elmokit.progress import ProgressDisplay
from elmokit.storage import Closing
from elmokit.storage.array_file import OffsetFile
from elmokit.storage.atomic import atomic_file, disk_errors


class MetricsLog(Closing):
    """Appends lines to a metrics.jsonl; a line is complete in the file when `write` returns.

    With `resume_step`, the lines of later steps and incomplete lines are dropped first; without it, an existing file
    is replaced. A write that fails, on a full disk for example, raises ElmoError and leaves only complete lines, so
    that a training loop can save its state and stop.
    """

    def __init__(self, path: Path, resume_step: int | None = None) -> None:
        self.path = path
        before = b"" if resume_step is None else _lines_up_to(path, resume_step)
        with _errors(path):
            unchanged = path.exists() and path.stat().st_size == len(before)
        if not unchanged:
            with atomic_file(path) as temporary:
                temporary.write_bytes(before)
        with _errors(path):
            self._file = OffsetFile(path)  # without a buffer: a run may be killed at any time
        self._end = len(before)

    def write(self, line: Mapping[str, Any]) -> None:
        """Append a line with an integer `step`; its other values are numbers, text or None."""
        assert type(line["step"]) is int, line
        plain = {name: _plain(value) for name, value in line.items()}
        data = json.dumps(plain, allow_nan=False, ensure_ascii=False).encode() + b"\n"
        with _errors(self.path):
            try:
                self._end = self._file.write(self._end, data)
            except OSError:
                with suppress(OSError):
                    self._file.truncate(self._end)
                raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl, also while the run is writing it: an incomplete last line is ignored."""
    lines = []
    for number, line in enumerate(_lines(path), 1):
        if (values := _parsed(line)) is not None:
            lines.append(values)
        elif line.endswith(b"\n"):
            raise ElmoError(f"{path}, line {number} must be a JSON object with a step, got {line[:40]!r}: remove it")
    return lines


def _lines_up_to(path: Path, last_step: int) -> bytes:
    parsed = ((line, _parsed(line)) for line in (_lines(path) if path.exists() else []))
    return b"".join(line for line, values in parsed if values is not None and values["step"] <= last_step)


def _lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise ElmoError(f"the metrics {path} cannot be read: {error.strerror or error}") from error


def _parsed(line: bytes) -> dict[str, Any] | None:
    """The line's values, or None if it is incomplete or not a JSON object with a step."""
    try:
        values = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return values if isinstance(values, dict) and type(values.get("step")) is int else None


def _plain(value: Any) -> Any:  # noqa: ANN401 -- also numbers of numpy and torch
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _errors(path: Path) -> AbstractContextManager[None]:
    return disk_errors(f"the metrics {path}", "free some space and resume")


# TensorBoard groups tags by the name before the slash.
_TAGS = {
    "loss": "training/loss",
    "learning_rate": "training/learning_rate",
    "gradient_norm": "training/gradient_norm",
    "tokens_per_second": "training/tokens_per_second",
    "perplexity": "perplexity/training",
    "masked_perplexity": "perplexity/training_masked",
    "forward_perplexity": "perplexity/training_forward",
    "backward_perplexity": "perplexity/training_backward",
    "heldout_perplexity": "perplexity/heldout",
    "heldout_masked": "perplexity/heldout_masked",
    "heldout_forward": "perplexity/heldout_forward",
    "heldout_backward": "perplexity/heldout_backward",
}


class TensorBoardLog(Closing):
    """Writes lines of metrics.jsonl as TensorBoard scalars and texts; a context manager.

    A run that resumes at `resume_step` hides what was written for later steps, and a new run hides everything that
    an old run wrote, so that no curve appears twice. A write that fails raises ElmoError once, and nothing is written
    after that: the run still has its metrics.jsonl. Every write is immediate: torch's SummaryWriter writes in a thread
    and reports errors late.
    """

    def __init__(self, folder: Path, resume_step: int | None = None) -> None:
        try:
            events: Any = import_module("tensorboard.compat.proto.event_pb2")
            records: Any = import_module("tensorboard.summary.writer.record_writer")
            summary: Any = import_module("torch.utils.tensorboard.summary")
        except ImportError as error:
            raise MissingExtraError("tensorboard", "train", "a TensorBoard log") from error
        self.folder, self._event, self._summary = folder, events.Event, summary
        self._writer: Any = None
        first = 0 if resume_step is None else resume_step + 1
        with self._errors():
            folder.mkdir(parents=True, exist_ok=True)
            number = len(list(folder.glob("events.out.tfevents.*")))
            path = folder / f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{number}"
            self._writer = records.RecordWriter(path.open("xb"))
            self._add(0, file_version="brain.Event:2")
            self._add(first, session_log=events.SessionLog(status=events.SessionLog.START))

    def write(self, line: Mapping[str, Any]) -> None:
        """Add the finite numbers and the event of a line."""
        for name, tag in _TAGS.items():
            value = line.get(name)
            if value is not None and math.isfinite(value):
                self._add(line["step"], summary=self._summary.scalar(tag, float(value)))
        if "event" in line:
            self._add(line["step"], summary=self._summary.text("events", str(line["event"])))

    def _add(self, step: int, **content: Any) -> None:  # noqa: ANN401 - protocol buffers
        if self._writer is not None:
            with self._errors():
                self._writer.write(self._event(wall_time=time.time(), step=step, **content).SerializeToString())
                self._writer.flush()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        with disk_errors(f"the TensorBoard log {self.folder}", "resume without it"):
            try:
                yield
            except OSError:
                with suppress(OSError):
                    self.close()
                raise

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


class RunRecorder:
    """Shows a run on stderr and records it in its folder; a context manager.

    Without a folder, as in all processes but the first, it does nothing. `total` is the number of tokens of the run.
    `display` shows the progress; tests pass their own.
    """

    def __init__(
        self,
        folder: RunFolder | None = None,
        since: RunProgress | None = None,
        total: int | None = None,
        *,
        tensorboard: bool = False,
        display: ProgressDisplay | None = None,
    ) -> None:
        since = since or RunProgress()
        self.failed: ElmoError | None = None  # the error of a write; the run then saves its state and ends
        self.unwritten: list[dict[str, Any]] = []  # lines that could not be written; checkpoints store them
        self._logs: list[MetricsLog | TensorBoardLog] = []
        self._last = (since.seconds, since.predictions)
        self._total, self._shown, self._heldout = total, "", ""
        with ExitStack() as stack:
            if folder is not None:
                self._logs.append(stack.enter_context(MetricsLog(folder.metrics, since.step or None)))
            if folder is not None and tensorboard:
                board = TensorBoardLog(folder.folder / "tensorboard", since.step or None)
                self._logs.append(stack.enter_context(board))
            shown = ("training", "tokens") if folder is not None else ()
            display = display or ProgressDisplay(*shown, total=total, quiet=folder is None)
            self._display = stack.enter_context(display)
            self._stack = stack.pop_all()

    def show_progress(self, progress: RunProgress, done: float, doing: str = "") -> None:
        """Show the progress of the run, its last measurements and, in `doing`, work other than updates."""
        total = self._total or (round(progress.predictions / done) if done else None)
        parts = [f"step {progress.step:,}", self._shown, self._heldout, doing]
        self._display.update(progress.predictions, total, ", ".join(filter(None, parts)))

    def record_training(self, values: Mapping[str, Any]) -> None:
        """Record the measurements of the updates since the last call."""
        seconds, tokens = values["seconds"], values["tokens"]
        speed = (tokens - self._last[1]) / max(1e-6, seconds - self._last[0])
        self._last = (seconds, tokens)
        self.record({**values, "tokens_per_second": round(speed, 1)})
        shown = _perplexities_by_mode(values, "{}_perplexity") or perplexity(values["perplexity"])
        sampled = f" (among {values['sampled_words']:,} words)" if "sampled_words" in values else ""
        rate, gradient = values["learning_rate"], values["gradient_norm"]
        self._shown = f"perplexity {shown}{sampled}, rate {rate:.3g}, gradient {gradient:.3g}"

    def record_held_out(self, values: Mapping[str, Any], *, best: bool) -> None:
        """Record a held-out perplexity."""
        self.record(values)
        self._last = (values["seconds"], values["tokens"])  # the evaluation's time does not count as training
        mean, mark = perplexity(values["heldout_perplexity"]), ", the best so far" if best else ""
        self._heldout = f"held-out {mean}"
        by_mode = _perplexities_by_mode(values, "heldout_{}")
        self._display.note(f"step {values['step']:,}: held-out perplexity {mean} ({by_mode}){mark}")

    def note(self, step: int, text: str) -> None:
        """Record a message for the user."""
        self.record({"step": step, "event": text})
        self._display.note(f"step {step:,}: {text}")

    def record_return(self, values: Mapping[str, Any], text: str) -> None:
        """Record that the run returned to an earlier update, and why."""
        self.note(values["step"], text)
        self._last = (values["seconds"], values["tokens"])

    def record(self, line: Mapping[str, Any]) -> None:
        """Write a line to metrics.jsonl and TensorBoard; an error is stored in `failed`, so the loop can save first."""
        for log in self._logs:
            try:
                log.write(line)
            except ElmoError as error:
                self.failed = self.failed or error
                if isinstance(log, MetricsLog):
                    self.unwritten.append(dict(line))

    def __enter__(self) -> RunRecorder:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def _perplexities_by_mode(values: Mapping[str, Any], names: str) -> str:
    """A text with the perplexity of each prediction mode that was measured."""
    modes = {mode: values.get(names.format(mode)) for mode in ("masked", "forward", "backward")}
    return ", ".join(f"{mode} {perplexity(value)}" for mode, value in modes.items() if value is not None)

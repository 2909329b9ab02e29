"""What a run shows and records: the progress line, metrics.jsonl, TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, ClassVar

from elmokit.errors import ElmoError
from elmokit.pretrain.loop import Progressed
from elmokit.pretrain.metrics import MetricsLog
from elmokit.pretrain.progress import Progress, perplexity
from elmokit.pretrain.run_files import RunFolder
from elmokit.pretrain.tensorboard import TensorBoardLog


class Unwatched:
    """For all processes but the first."""

    def measured(self, values: Mapping[str, Any], *, done: float) -> None:
        """Numbers of the updates since the last call."""

    def held_out(self, values: Mapping[str, Any], *, best: bool) -> None:
        """A held-out perplexity."""

    def note(self, step: int, text: str) -> None:
        """Something a person should know."""

    def went_back(self, values: Mapping[str, Any], text: str) -> None:
        """The run goes on from an earlier update, and why."""

    failed: ElmoError | None = None
    unwritten: ClassVar[list[dict[str, Any]]] = []


class RunWatcher:
    """Shows a run on stderr and records it in its folder; a context manager."""

    def __init__(self, folder: RunFolder, since: Progressed, done: float, *, tensorboard: bool) -> None:
        self._stack = ExitStack()
        resume_step = since.step if since.step else None
        try:
            self._log = self._stack.enter_context(MetricsLog(folder.metrics, resume_step))
            self._board = None
            if tensorboard:
                board = TensorBoardLog(folder.folder / "tensorboard", resume_step)
                self._board = self._stack.enter_context(board)
            self._progress = self._stack.enter_context(
                Progress(start_fraction=done, start_seconds=since.seconds, start_tokens=since.predictions)
            )
        except BaseException:
            self._stack.close()
            raise
        self._last = (since.seconds, since.predictions)
        self.failed: ElmoError | None = None
        self.unwritten: list[dict[str, Any]] = []

    def measured(self, values: Mapping[str, Any], *, done: float) -> None:
        """Numbers of the updates since the last call."""
        seconds, tokens = values["seconds"], values["tokens"]
        speed = (tokens - self._last[1]) / max(1e-6, seconds - self._last[0])
        self._last = (seconds, tokens)
        line = {**values, "tokens_per_second": round(speed, 1)}
        self.record(line)
        self._progress.update(values["step"], done, seconds, tokens, line)

    def held_out(self, values: Mapping[str, Any], *, best: bool) -> None:
        """A held-out perplexity."""
        self.record(values)
        self._last = (values["seconds"], values["tokens"])  # the time it took is not the training's
        ways = {way: values.get(f"heldout_{way}") for way in ("masked", "forward", "backward")}
        apart = ", ".join(f"{way} {perplexity(value)}" for way, value in ways.items() if value)
        mark = ", the best so far" if best else ""
        self._progress.note(
            f"step {values['step']:,}: held-out perplexity {perplexity(values['heldout_perplexity'])} ({apart}){mark}"
        )

    def note(self, step: int, text: str) -> None:
        """Something a person should know."""
        self.record({"step": step, "event": text})
        self._progress.note(f"step {step:,}: {text}")

    def went_back(self, values: Mapping[str, Any], text: str) -> None:
        """The run goes on from an earlier update, and why."""
        self.note(values["step"], text)
        self._last = (values["seconds"], values["tokens"])

    def record(self, line: Mapping[str, Any]) -> None:
        """Write a line to metrics.jsonl and TensorBoard."""
        # The loop saves its state before it ends with the error.
        try:
            self._log.write(line)
        except ElmoError as error:
            self.failed = self.failed or error
            self.unwritten.append(dict(line))
        try:
            if self._board is not None:
                self._board.write(line)
        except ElmoError as error:
            self.failed = self.failed or error

    def __enter__(self) -> RunWatcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

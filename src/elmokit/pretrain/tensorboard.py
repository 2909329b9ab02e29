"""The measurements of a training run for TensorBoard, beside metrics.jsonl and from the same lines."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from elmokit.errors import MissingExtraError
from elmokit.storage.atomic import disk_errors

# Names before a slash are TensorBoard's groups: what belongs together stands together.
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


class TensorBoardLog:
    """Writes lines of metrics.jsonl as TensorBoard's scalars and texts; a context manager.

    A run that resumes at resume_step hides what an earlier one wrote for later steps, and a new run all that an old one
    wrote, so that no curve is there twice. A write that fails raises ElmoError once, and
    the log is silent from there on: the run has its metrics.jsonl.
    """

    def __init__(self, folder: Path, resume_step: int | None = None) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtraError("tensorboard", "train", "a TensorBoard log") from error
        self.folder = folder
        self._writer: Any = None
        self._hook_before = threading.excepthook
        # The writer's thread fails with a traceback of its own besides the error that it hands over to us.
        threading.excepthook = self._hook = self._without_disk_errors
        try:
            with self._failing_once():
                self._writer = SummaryWriter(str(folder), purge_step=0 if resume_step is None else resume_step + 1)
        except BaseException:
            self._let_go()
            raise

    def write(self, line: Mapping[str, Any]) -> None:
        """Add the numbers and the event of a line; those that are missing or not finite are left out."""
        if self._writer is None:
            return
        with self._failing_once():
            for name, tag in _TAGS.items():
                value = line.get(name)
                if value is not None and math.isfinite(value):
                    self._writer.add_scalar(tag, float(value), line["step"])
            if "event" in line:
                self._writer.add_text("events", str(line["event"]), line["step"])

    def flush(self) -> None:
        """Write out what is waiting, for before a checkpoint: a run that resumes there does not write it again."""
        if self._writer is not None:
            with self._failing_once():
                self._writer.flush()

    def close(self) -> None:
        """Write out what is waiting and close the files; a second call does nothing."""
        if self._writer is not None:
            with self._failing_once():
                self._writer.close()
        self._let_go()

    def _let_go(self) -> None:
        self._writer = None
        if threading.excepthook is self._hook:
            threading.excepthook = self._hook_before

    def _without_disk_errors(self, failure: threading.ExceptHookArgs) -> None:
        if not (issubclass(failure.exc_type, OSError) and type(failure.thread).__module__.startswith("tensorboard.")):
            self._hook_before(failure)

    @contextmanager
    def _failing_once(self) -> Iterator[None]:
        with disk_errors(f"the TensorBoard log {self.folder}", "resume without it"):
            try:
                yield
            except OSError:
                self._writer = None  # its thread may still be about to report the error
                raise

    def __enter__(self) -> TensorBoardLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

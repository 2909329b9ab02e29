"""metrics.jsonl: what a training run measured, one JSON object a line, in step with the checkpoints.

| line | keys |
| --- | --- |
| training | step, tokens, seconds, epoch, loss, perplexity, forward_perplexity, backward_perplexity, learning_rate, |
| | gradient_norm, tokens_per_second |
| | (of a transformer also masked_perplexity; a way without predictions is left out) |
| held-out | step, tokens, seconds, heldout_perplexity, heldout_forward, heldout_backward, heldout_masked |
| event | step, event |

A number that is not finite is null. A line of step s belongs before the checkpoint of step s: a run that resumes there
drops the lines of later steps and writes them again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from elmokit.errors import ElmoError
from elmokit.storage.array_file import OffsetFile
from elmokit.storage.atomic import atomic_file, disk_errors


class MetricsLog:
    """Appends lines to a metrics.jsonl; a line is in the file, whole, when `write` returns.

    With resume_step the lines of later steps and whatever a crash tore are dropped first, without it an existing file
    is replaced. A write that fails, on a full disk say, raises ElmoError and leaves whole lines behind, so that a
    training loop can save its state and stop.
    """

    def __init__(self, path: Path, resume_step: int | None = None) -> None:
        self.path = path
        kept = b"" if resume_step is None else _kept(path, resume_step)
        with _errors(path):
            unchanged = path.exists() and path.stat().st_size == len(kept)
        if not unchanged:
            with atomic_file(path) as temporary:
                temporary.write_bytes(kept)
        with _errors(path):
            # Nothing may wait in memory for a run that is killed.
            self._file = OffsetFile(path)
        self._end = len(kept)

    def write(self, line: Mapping[str, Any]) -> None:
        """Append a line; it has a whole number `step`, and its other values are numbers, text or None."""
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

    def sync(self) -> None:
        """Make the lines durable, for before a checkpoint that counts on them."""
        with _errors(self.path):
            self._file.sync()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl, also of a run that goes on: a last line that is not yet whole is left out."""
    lines = []
    for number, line in enumerate(_lines(path), 1):
        if (values := _parsed(line)) is not None:
            lines.append(values)
        elif line.endswith(b"\n"):
            raise ElmoError(f"{path}, line {number} must be a JSON object with a step, got {line[:40]!r}: remove it")
    return lines


def _kept(path: Path, last_step: int) -> bytes:
    parsed = ((line, _parsed(line)) for line in (_lines(path) if path.exists() else []))
    return b"".join(line for line, values in parsed if values is not None and values["step"] <= last_step)


def _lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise ElmoError(f"the metrics {path} cannot be read: {error.strerror or error}") from error


def _parsed(line: bytes) -> dict[str, Any] | None:
    """The line's values, or None where it is not a whole line of ours."""
    try:
        values = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return values if isinstance(values, dict) and type(values.get("step")) is int else None


def _plain(value: Any) -> Any:  # noqa: ANN401 -- numbers of numpy and torch among them
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _errors(path: Path) -> AbstractContextManager[None]:
    return disk_errors(f"the metrics {path}", "free some space and resume")

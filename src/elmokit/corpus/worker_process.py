"""A second Python process that runs one function and exchanges pickled messages with this one.

Unlike a process of `multiprocessing`, it never imports the caller's main module: a script needs no main guard, and
torch is not imported. When the parent process dies, the worker's input ends and it exits.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from elmokit.errors import ElmoError


def available_cores() -> int:
    """The number of cores that this process may use; a container or a batch job has fewer than its machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class WorkerProcess:
    """A process that runs the function `serve` of a module; `purpose` and `advice` are for error messages."""

    def __init__(
        self,
        module: str,
        purpose: str,
        advice: str,
        *,
        descriptors: Sequence[int] = (),
        environment: Mapping[str, str] = {},
    ) -> None:
        self._purpose, self._advice = purpose, advice
        # The process must import the same modules as this one, from the same paths.
        paths = [path for path in sys.path if isinstance(path, str)]
        code = f"import sys; sys.path[:] = {paths!r}; from {module} import serve; serve()"
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=descriptors,
                env={**os.environ, **environment},
                start_new_session=True,  # Ctrl-C reaches only the parent, which then stops this process
            )
        except OSError as error:
            raise ElmoError(f"{purpose} cannot be started ({error.strerror or error}): {advice}") from error

    def send(self, message: bytes) -> None:
        """Write bytes to the standard input of the process."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # the process has ended; `receive` reports that
            self.process.stdin.write(message)
            self.process.stdin.flush()

    def receive(self) -> Any:  # noqa: ANN401 - whatever the process sends
        """Wait for the next message of the process; an exception that it sends is raised here."""
        assert self.process.stdout is not None
        try:
            message = pickle.load(self.process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise ElmoError(
                f"{self._purpose} ended with status {self.process.wait()}, perhaps because memory was full: "
                f"{self._advice}"
            ) from error
        if isinstance(message, BaseException):
            raise message
        return message

    def close(self) -> None:
        """Kill the process and close its pipes."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            with suppress(OSError):  # a full pipe to a dead process cannot be flushed
                if stream is not None:
                    stream.close()


class ParentProcess:
    """The connection of a worker process to its parent."""

    def __init__(self) -> None:
        self.messages: IO[bytes] = sys.stdin.buffer
        self._results = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)  # prints of imported packages go to standard error

    def send(self, message: object) -> None:
        """Send a message; an exception is sent with its traceback."""
        pickled = _pickled_error(message) if isinstance(message, BaseException) else pickle.dumps(message, protocol=5)
        self._results.write(pickled)
        self._results.flush()


def _pickled_error(error: BaseException) -> bytes:
    """The pickled error or, if it cannot be pickled, a RuntimeError with its text."""
    where = "".join(traceback.format_exception(error))
    if not isinstance(error, ElmoError):
        error.add_note(f"in a worker process:\n{where}")
    with suppress(Exception):
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
        return pickled
    return pickle.dumps(RuntimeError(f"a worker process failed:\n{where}"))

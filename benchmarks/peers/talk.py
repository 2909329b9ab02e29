"""A system in a child process, and its protocol: one line of JSON per request and per answer.

A child loads its model, reports the seconds for that, and then answers requests one by one. It times itself, so that no
time includes the pipe. Between requests its process is stopped, so that threads that spin while they wait for work take
no time from the system that is measured. Its memory is the peak of the whole process.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

import numpy as np

from peers.systems import Batch, System, Vectors, loader

BENCHMARKS = Path(__file__).resolve().parents[1]
_STILL = 0.02
"""Seconds of pause before a system is timed, as in a service that waits for requests."""


class NoSystemError(Exception):
    """The system could not be started; the message says why."""


class Child:
    """A system in its own process."""

    def __init__(self, name: str, model: str | Path, *, python: str | Path = sys.executable, threads: int = 1) -> None:
        paths = [str(BENCHMARKS), *(str(Path(p).resolve()) for p in os.environ.get("PYTHONPATH", "").split(":") if p)]
        environment = {**os.environ, "PYTHONPATH": ":".join(paths), "OMP_NUM_THREADS": str(threads)}
        self.name = name
        self.process = subprocess.Popen(
            [str(python), "-W", "ignore", "-m", "peers.talk", name, str(model)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        ready = self._answer()
        self.load_seconds: float = ready["load_seconds"]
        self.facts: dict[str, str] = ready["facts"]

    def seconds(self, batch: Batch, *, fresh: bool = False, own_batches: bool = False, size: int = 64) -> float:
        """The seconds for a batch; with `fresh` the system first forgets its cached words, which is not timed.

        With `own_batches` the system makes the batches, with `size` sentences each if it has no rule of its own.
        """
        return self._times(batch, fresh=fresh, own_batches=own_batches, size=size)[0]

    def repeated(self, batch: Batch, times: int) -> list[float]:
        """The seconds for each of `times` computations of a batch in a row, as in a busy service."""
        return self._times(batch, fresh=False, own_batches=False, size=len(batch), times=times)

    def _times(self, batch: Batch, *, fresh: bool, own_batches: bool, size: int, times: int = 1) -> list[float]:
        time.sleep(_STILL)
        answer = self._ask(do="time", batch=batch, fresh=fresh, own_batches=own_batches, size=size, times=times)
        found: list[float] = answer["seconds"]
        return found

    def vectors(self, sentences: Batch, folder: Path) -> list[Vectors]:
        """The sentences' vectors [T, D], computed as one batch."""
        path = folder / f"{self.name}.npz"
        self._ask(do="vectors", sentences=sentences, path=str(path))
        with np.load(path) as found:
            return [found[str(number)] for number in range(len(sentences))]

    def megabytes(self) -> float:
        """The peak memory of the process so far; also updates `facts`."""
        answer = self._ask(do="report")
        self.facts |= answer["facts"]
        found: float = answer["megabytes"]
        return found

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _ask(self, **request: object) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "its process ended without an answer"}
        if "error" in answer:
            self.close()
            raise NoSystemError(answer["error"])
        self.process.send_signal(signal.SIGSTOP)
        return answer


def peak_megabytes() -> float:
    """The peak memory of this process, from the kernel, because getrusage includes the parent's peak."""
    status = Path("/proc/self/status")
    if status.exists():
        peak = next((line for line in status.read_text().splitlines() if line.startswith("VmHWM:")), None)
        if peak is not None:
            return int(peak.split()[1]) / 1000
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def serve(system: System, load_seconds: float, requests: TextIO, answers: TextIO) -> None:
    """Answer requests until there are no more."""

    def answer(**found: object) -> None:
        answers.write(json.dumps(found) + "\n")
        answers.flush()

    answer(load_seconds=load_seconds, facts=system.facts)
    for line in requests:
        request = json.loads(line)
        if request["do"] == "report":
            answer(megabytes=peak_megabytes(), facts=system.facts)
        elif request["do"] == "vectors":
            system.fresh()
            found = system.encode(request["sentences"])
            np.savez(request["path"], **{str(number): array for number, array in enumerate(found)})
            answer()
        else:
            if request["fresh"]:
                system.fresh()
            batch, size = request["batch"], request["size"]
            seconds = []
            for _ in range(request["times"]):
                start = time.perf_counter()
                system.encode_all(batch, size) if request["own_batches"] else system.encode(batch)
                seconds.append(time.perf_counter() - start)
            answer(seconds=seconds)


def main() -> None:
    name, model = sys.argv[1:]
    # Output of libraries must not come between two lines of JSON.
    answers, sys.stdout = sys.stdout, sys.stderr
    try:
        # The system's modules are imported before the clock starts, so that only the loading of a model is timed.
        load = loader(name)
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        start = time.perf_counter()
        system = load(model)
        took = time.perf_counter() - start
    except Exception as error:  # noqa: BLE001 - the parent must get any error
        text = str(error).strip().splitlines()
        answers.write(json.dumps({"error": f"{type(error).__name__}: {text[0] if text else 'no message'}"}) + "\n")
        answers.flush()
        return
    serve(system, took, sys.stdin, answers)


if __name__ == "__main__":
    main()

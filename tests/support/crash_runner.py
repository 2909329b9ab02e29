"""Run by test_output_crash.py in a process of its own, which forks the runs that it kills.

Forking beside pytest's threads would be asking for trouble, and starting Python for each kill would take minutes.

    crash_runner.py FOLDER random|every NAME LAYOUT
"""

import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from elmokit.output import read_vectors, writer_for
from elmokit.output.sentence_vectors import SentenceVectors
from support.output_samples import embed, encoder, numbered_lines, vectors_for


def start(task: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        task()
        os._exit(0)
    except BaseException:  # noqa: BLE001 - a fork must never return into the loop of its parent
        traceback.print_exc()
        os._exit(1)


def outcome(pid: int) -> int:
    """0, the exit status of a failure, or minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def check_whole(output: Path, lines: list[str]) -> None:
    back = list(read_vectors(output))
    assert len(back) == len(lines)
    for line, (_, vectors) in zip(lines, back, strict=True):
        assert (vectors == vectors_for(line.split(), "all")).all()


def check_nothing_else(output: Path) -> None:
    assert list(output.parent.iterdir()) == [output], list(output.parent.iterdir())


def slow_encode(sentences):
    for vectors in encoder("all")(sentences):
        time.sleep(0.0002)
        yield vectors


def kill_at_random(output: Path, layout: str) -> int:
    """Kill a run again and again, a little later each time, until one gets through."""
    lines = numbered_lines(300)
    dice = random.Random(str(output.name) + layout)
    for attempt in range(400):
        pid = start(
            lambda: embed(lines, output, "all", layout=layout, encode=slow_encode, resume=True, commit_bytes=2_000)
        )
        time.sleep(dice.uniform(0, 0.0015 * attempt * (1 + attempt / 100)))  # a busy machine needs longer
        os.kill(pid, signal.SIGKILL)
        status = outcome(pid)
        assert status in (0, -signal.SIGKILL), status
        if output.exists():
            assert outcome(start(lambda: check_whole(output, lines))) == 0  # reading parquet starts threads: not here
        if status == 0:
            check_nothing_else(output)
            return attempt
    raise AssertionError("no run got through")


def die_at(step: int) -> None:
    """Arrange that this process is killed at its step-th change to the disk or read of the spool."""
    count = 0

    def counted(module, name: str) -> None:
        real = getattr(module, name)

        def wrapped(*args, **options):
            nonlocal count
            count += 1
            if count == step:
                if name == "write":
                    real(args[0], bytes(args[1])[: len(args[1]) // 2])  # a write that is cut short
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)

        setattr(module, name, wrapped)

    for name in ("write", "fsync", "ftruncate", "replace", "unlink", "rmdir", "mkdir"):
        counted(os, name)
    counted(SentenceVectors, "_read")


def kill_at_every_step(output: Path, layout: str) -> int:
    """For each step of a run: kill a run there, then one that resumes it a few steps in, then let it finish."""
    lines = numbered_lines(6)

    def run(step: int) -> None:
        die_at(step)
        embed(lines, output, "all", layout=layout, resume=True, commit_bytes=300)

    for step in range(1, 500):
        first = outcome(start(lambda: run(step)))  # noqa: B023 - called within this turn of the loop
        assert first in (0, -signal.SIGKILL), first
        if first == 0:
            return step
        if output.exists():
            check_whole(output, lines)
        assert outcome(start(lambda: run(1 + step // 2))) in (0, -signal.SIGKILL)  # noqa: B023
        assert outcome(start(lambda: run(0))) == 0
        check_whole(output, lines)
        check_nothing_else(output)
        output.unlink()
    raise AssertionError("a run of six sentences takes fewer steps than that")


if __name__ == "__main__":
    os.fsync = lambda fd: None  # a kill loses nothing that was written, so the waits would test nothing
    folder, mode, name, layout = sys.argv[1:]
    target = Path(folder) / name
    writer_for(target, layout)  # imports what the forks need, so that they start at once
    print((kill_at_random if mode == "random" else kill_at_every_step)(target, layout))

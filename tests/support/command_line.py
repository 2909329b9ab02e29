"""Running `elmo`: in this process, in one of its own, and in a shell."""

import subprocess
import sys

import pytest

from elmokit.cli import main

TEXT = ["the bank of the river .", "", "a bank raised money", "the bank of the river .", "😀 x/y"]


def elmo(*arguments: object, stdin: bytes = b"", **options) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "elmokit", *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, check=False, **options)


def call(capsys, *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return stop.value.code, captured.out, captured.err


def shell(command: str, **options) -> subprocess.CompletedProcess:
    whole = command.replace("elmo ", f"{sys.executable} -m elmokit ", 1)
    return subprocess.run(["bash", "-c", whole], capture_output=True, check=False, **options)

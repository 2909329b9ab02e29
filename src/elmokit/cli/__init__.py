"""The command line `elmo`: thin commands, heavy imports inside each."""

from elmokit.cli.main import main

__all__ = ["main"]

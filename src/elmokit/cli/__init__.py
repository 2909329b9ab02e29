"""The command line `elmo`: one file per command, with its options and what it does."""

from elmokit.cli.main import main
from elmokit.cli.registry import Command, command, group

__all__ = ["Command", "command", "group", "main"]

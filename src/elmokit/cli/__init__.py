"""The command line `elmo`: each file has one command with its options and its code."""

from elmokit.cli.main import main
from elmokit.cli.registry import Command, command, group

__all__ = ["Command", "command", "group", "main"]

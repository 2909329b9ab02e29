"""Hooks of the documentation site: the command reference from the commands, and links to files outside docs/."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from typing import Any

from elmokit.cli import main

INTRODUCTION = """# Commands

This page is made from the commands themselves: it is what `--help` prints.
A user's mistake ends in one sentence and exit status 2. `MODEL` is a path, the name of a bundled model (`en`,
`en-lstm`, `zh`) or `owner/name` on the Hugging Face Hub.
"""


COMMANDS = "- [Commands](commands.md): the help of every command."


def help_text(*command: str) -> str:
    """Return what `elmo COMMAND --help` prints."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        try:
            main([*command, "--help"])
        except SystemExit as stop:
            if stop.code:
                raise RuntimeError(f"elmo {' '.join(command)} --help failed") from stop
    # The usage line would name the running program, which is mkdocs.
    return re.sub(r"\AUsage: .*?(?= [\[{])", " ".join(["Usage: elmo", *command]), printed.getvalue().strip())


def subcommands(text: str) -> list[str]:
    """Return the names under `Commands:` in a help text."""
    listed = text.partition("\nCommands:\n")[2]
    return re.findall(r"^  ([a-z][\w-]*)", listed, flags=re.MULTILINE)


def command_reference(*command: str) -> str:
    """Return the help of a command and of all commands below it, each under a heading."""
    text = help_text(*command)
    parts = [f"{'#' * (2 + max(0, len(command) - 1))} elmo {' '.join(command)}".rstrip(), f"```text\n{text}\n```"]
    parts += [command_reference(*command, name) for name in subcommands(text)]
    return "\n\n".join(parts)


def on_files(files: Any, *, config: Any) -> Any:  # noqa: ANN401 - mkdocs is not installed where this is linted
    """Add the page of the commands."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "commands.md", content=f"{INTRODUCTION}\n{command_reference()}\n"))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:  # noqa: ANN401
    """Point links that leave docs/ (`../examples/demo.py`, from a folder of docs/ `../../`) to the repository.

    The page of the commands exists on the site only, so the start page gets its link here.
    """
    if page and page.file.src_uri == "index.md":
        markdown = re.sub(r"^- Commands: .*$", COMMANDS, markdown, count=1, flags=re.MULTILINE)
    up = r"\.\./" * (1 + (page.file.src_uri.count("/") if page else 0))
    return re.sub(rf"\]\({up}([^)\s]+)\)", rf"]({config['extra']['repository']}/blob/main/\1)", markdown)

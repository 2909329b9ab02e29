"""What the commands of `elmo` have in common: the application, arguments that return, checks of what was typed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from elmokit.errors import ElmoError

app = typer.Typer(
    name="elmo",
    help="ELMo on today's Python: load every released model, train your own, turn words in context into vectors.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
typed: list[str] = []
"""The arguments of this call, for what is recorded of it."""

Split = Literal["none", "line", "paragraph"]

Model = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="A model of any format: folder, .hdf5, .zip, checkpoint; en, zh; owner/name."),
]
Options = Annotated[
    str | None, typer.Option(metavar="FILE", help="options.json, where it lies apart from the weights.")
]
Vocab = Annotated[str | None, typer.Option(metavar="FILE", help="vocab.txt, where it lies apart from the weights.")]
# Named in full: some versions of typer take a metavar that is the name in capitals for the name.
ModelOption = Annotated[
    str, typer.Option("--model", metavar="MODEL", help="A model of any format; a bundled one; owner/name on the Hub.")
]
Device = Annotated[
    str | None,
    typer.Option("--device", metavar="DEVICE", help="cpu, cuda, cuda:1 … [default: a GPU if there is one]."),
]
Workers = Annotated[int | None, typer.Option(metavar="N", min=1, help="Processes that read the text [default: all].")]


def refuse_empty(**values: str | None) -> None:
    """An unset shell variable arrives as an empty string, which as a path would mean the current folder."""
    for name, value in values.items():
        if value is not None and not value.strip():
            shown = name if name.isupper() else f"--{name}"
            raise ElmoError(f"{shown} must not be empty: is a shell variable unset?")


def path_or_none(value: str | None) -> Path | None:
    """A path where one was typed."""
    return None if value is None else Path(value)


def group(name: str, help: str) -> typer.Typer:
    """Commands behind a word, as `elmo task train`; the word alone shows their help."""
    made = typer.Typer(help=help, add_completion=False, rich_markup_mode=None, invoke_without_command=True)

    @made.callback()
    def commands(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            print(context.get_help())

    app.add_typer(made, name=name)
    return made

"""The command `elmo`: thin commands, heavy imports inside each, one sentence and exit status 2 for a user's mistake."""

from __future__ import annotations

import io
import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from elmokit import __version__
from elmokit.cli import looking, models, probing, tasks, training
from elmokit.cli.shared import app, typed
from elmokit.errors import ElmoError

_INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; a user's mistake ends in one sentence on stderr and exit status 2."""
    _prepare_streams()
    logging.basicConfig(format="elmo: %(message)s", level=logging.WARNING, stream=sys.stderr)
    # Whichever click typer brings: its usage errors derive from these.
    usage_error: type[BaseException] = typer.BadParameter.__mro__[1]
    arguments = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    typed[:] = map(str, arguments)
    try:
        status = app(arguments, standalone_mode=False)
        sys.stdout.flush()  # an error must show here, not while Python exits
    except ElmoError as error:
        _stop(str(error), 2)
    except usage_error as error:
        _stop(f"{error.format_message()} (elmo --help shows the usage)", 2)  # type: ignore[attr-defined]
    except (KeyboardInterrupt, typer.Abort):
        status = _INTERRUPTED
    except OSError as error:
        if not _stdout_fails():
            raise
        # Keep Python from flushing into it once more at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # the reader has gone (`elmo embed … | head`): leave quietly
            sys.exit(141)
        _stop(f"standard output cannot be written: {error.strerror or error}", 2)
    if status == _INTERRUPTED:  # typer turns Ctrl-C into this number itself
        _stop("interrupted", _INTERRUPTED)
    sys.exit(status if isinstance(status, int) else 0)


def _prepare_streams() -> None:
    """Let stdout take any text, and put something in the place of a stream that the shell closed (`2>&-`)."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 -- open till the end, as stdout is
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _stdout_fails() -> bool:
    """Whether an error came from stdout, which then fails again; an empty line does no harm before a traceback."""
    try:
        print(flush=True)
    except OSError:
        return True
    return False


def _stop(message: str, status: int) -> None:
    print(f"elmo: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(status)


def _version(value: bool) -> None:
    if value:
        print(f"elmokit {__version__}")
        raise typer.Exit


@app.callback()
def elmo(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say what is chosen, and why.")] = False,
) -> None:
    """ELMo on today's Python: load every released model, train your own, turn words in context into vectors."""
    if verbose:
        logging.getLogger().setLevel(logging.INFO)


_ORDER = [module.__name__ for module in (models, training, tasks, looking, probing)]
app.registered_commands.sort(key=lambda command: _ORDER.index(getattr(command.callback, "__module__", _ORDER[-1])))

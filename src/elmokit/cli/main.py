"""The command `elmo`: a user's mistake ends in one sentence and exit status 2."""

from __future__ import annotations

import io
import logging
import os
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Annotated

import typer

from elmokit import __version__
from elmokit.cli.registry import OutputClosedError, application, typed
from elmokit.errors import ElmoError

_INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; a user's mistake ends in one sentence on stderr and exit status 2."""
    _prepare_streams()
    for module in iter_modules([str(Path(__file__).parent)]):  # each registers its commands
        import_module(f"elmokit.cli.{module.name}")
    logging.basicConfig(format="elmo: %(message)s", level=logging.WARNING, stream=sys.stderr)
    # Whichever click typer brings: its usage errors derive from these.
    usage_error: type[BaseException] = typer.BadParameter.__mro__[1]
    arguments = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    typed[:] = map(str, arguments)
    try:
        status = application(_elmo)(arguments, prog_name="elmo", standalone_mode=False)
        sys.stdout.flush()  # an error must show here, not while Python exits
    except ElmoError as error:
        _stop(str(error), 2)
    except usage_error as error:
        context = getattr(error, "ctx", None)
        name = context.command_path if context else "elmo"
        _stop(f"{error.format_message()} ({name} --help shows the usage)", 2)  # type: ignore[attr-defined]
    except (KeyboardInterrupt, typer.Abort):
        status = _INTERRUPTED
    except (OSError, OutputClosedError) as caught:
        problem = caught if isinstance(caught, OSError) else caught.__cause__
        if not isinstance(problem, OSError) or not _stdout_fails():
            raise
        # Keep Python from flushing into it once more at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(problem, BrokenPipeError):  # the reader has gone (`elmo embed … | head`): leave quietly
            sys.exit(141)
        _stop(f"standard output cannot be written: {problem.strerror or problem}", 2)
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


def _elmo(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print which device, dtype and backend are chosen, and why.")
    ] = False,
) -> None:
    if verbose:
        logging.getLogger().setLevel(logging.INFO)

"""The command `elmo`: a user's mistake ends in a message of one sentence and exit status 2."""

from __future__ import annotations

import io
import logging
import os
import sys
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Annotated, Any

import typer

from elmokit import __version__, progress
from elmokit.cli.registry import QUIET_HELP, OutputClosedError, application, be_quiet, typed_arguments, typed_command
from elmokit.errors import ElmoError
from elmokit.extensions import load_extensions
from elmokit.messages import printable

_INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; a user's mistake ends in a message of one sentence on stderr and exit status 2."""
    _prepare_streams()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter("elmo: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    # click's UsageError, from which typer's usage errors derive, found without knowing which click typer uses.
    usage_error: type[BaseException] = typer.BadParameter.__mro__[1]
    arguments = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    typed_arguments[:] = map(str, arguments)
    level = logging.getLogger().level
    try:
        for module in iter_modules([str(Path(__file__).parent)]):  # each registers its commands
            import_module(f"elmokit.cli.{module.name}")
        load_extensions()
        status = application(_elmo)(arguments, prog_name="elmo", standalone_mode=False)
        sys.stdout.flush()  # so that an error is raised here, not while Python exits
    except ElmoError as error:
        _stop(str(error), 2)
    except usage_error as error:
        _stop(f"{_usage_message(error)} ({typed_command()} --help shows the usage)", 2)
    except (KeyboardInterrupt, typer.Abort):
        status = _INTERRUPTED
    except (OSError, OutputClosedError) as caught:
        problem = caught if isinstance(caught, OSError) else caught.__cause__
        if not isinstance(problem, OSError) or not _stdout_fails():
            raise
        # So that Python does not write to the broken stdout again at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(problem, BrokenPipeError):  # the reader stopped early (`elmo embed … | head`): no message
            sys.exit(141)
        _stop(f"standard output cannot be written: {problem.strerror or problem}", 2)
    finally:  # undo the effects of --quiet and --verbose
        progress.silent = False
        logging.getLogger().setLevel(level)
    if status == _INTERRUPTED:  # also typer's own status after Ctrl-C
        _stop("interrupted", _INTERRUPTED)
    sys.exit(status if isinstance(status, int) else 0)


class _Formatter(logging.Formatter):
    """Formats log messages; control characters in them, for example in file names, are made harmless."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the base class's name
        return printable(super().formatMessage(record))


def _usage_message(error: Any) -> str:  # noqa: ANN401 - a usage error of click
    message = error.format_message()
    if (possibilities := getattr(error, "possibilities", None)) is None or not hasattr(error, "option_name"):
        return str(message)
    close = get_close_matches(error.option_name, possibilities, cutoff=0.7)
    return str(error.message) + (f"; did you mean {' or '.join(close)}?" if close else "")


def _prepare_streams() -> None:
    """Let stdout accept any text, and replace a stream that the shell closed (`2>&-`)."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 -- stays open, as stdout does
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    if sys.stderr is sys.__stderr__ and isinstance(sys.stderr, io.TextIOWrapper):
        raw = io.BufferedWriter(_Stderr(sys.stderr.fileno(), "w", closefd=False))
        sys.stderr = io.TextIOWrapper(raw, sys.stderr.encoding, sys.stderr.errors, line_buffering=True)


class _Stderr(io.FileIO):
    """Standard error that ignores write errors, so that a lost terminal, pipe or log does not stop the work."""

    def write(self, data: Any, /) -> int:  # noqa: ANN401 - a buffer
        try:
            return super().write(data)
        except OSError:
            return len(data)


def _stdout_fails() -> bool:
    """Whether stdout fails, tested by printing an empty line, which is harmless before a traceback."""
    try:
        print(flush=True)
    except OSError:
        return True
    return False


def _stop(message: str, status: int) -> None:
    print(f"elmo: {printable(' '.join(message.split()))}", file=sys.stderr)
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
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help=QUIET_HELP)] = False,
) -> None:
    be_quiet(quiet)
    if verbose:
        logging.getLogger().setLevel(logging.INFO)

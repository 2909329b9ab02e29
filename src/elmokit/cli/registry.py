"""The commands of `elmo`: a dataclass is registered under its name, and its fields become the options.

    @command("shout")
    @dataclass(frozen=True, kw_only=True)
    class Shout(Command):
        \"""Print a text in capitals.\"""

        text: str = argument("The text to print.", "TEXT")
        times: int = option(1, "Number of times to print it.", metavar="N", least=1)

        def run(self) -> None:
            print(self.text.upper() * self.times)

The docstring is the text of `--help`. Heavy imports belong in `run`, so that `elmo --help` stays fast.
"""

from __future__ import annotations

import inspect
import logging
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

import typer

from elmokit import progress
from elmokit.errors import ElmoError
from elmokit.options import base_type, check_options, shown_value

_SETTINGS: dict[str, Any] = {"rich_markup_mode": None, "pretty_exceptions_enable": False}
QUIET_HELP = "Print results and errors only: no progress and no notes."
_HELP = "ELMo on today's Python: load every released model, train your own, turn words in context into vectors."

typed_arguments: list[str] = []
"""The arguments of the current call of `elmo`."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """Base class of commands: its fields are the arguments and options, and `run` executes the command."""

    def __post_init__(self) -> None:
        check_options(self)

    def run(self) -> int | None:
        """Execute the command; an exit status other than 0 is returned."""
        raise NotImplementedError


C = TypeVar("C", bound=type[Command])
_COMMANDS: dict[str, type[Command]] = {}
_GROUPS: dict[str, str] = {}


def command(name: str) -> Callable[[C], C]:
    """Register a dataclass as a command; "task train" is the command `train` of the group `task`."""

    def register(command_class: C) -> C:
        _COMMANDS[name] = command_class
        return command_class

    return register


def group(name: str, help: str) -> None:
    """Set the help text of a group, which contains the commands whose names begin with its name."""
    _GROUPS[name] = help


def unregister_command(name: str) -> None:
    """Remove a command from the registry."""
    del _COMMANDS[name]


def options_of(owner: type, shown: Callable[[], Mapping[str, str]]) -> Any:  # noqa: ANN401 - a field
    """A field for the options that the fields of another dataclass define; its value has the options that were given.

    `shown` returns the text of each option's default for `--help`.
    """
    return field(default_factory=dict, metadata={"options_of": owner, "shown": shown})


def command_line() -> str:
    """The command that the user typed, for reports and model cards."""
    return shlex.join(["elmo", *typed_arguments])


def typed_command() -> str:
    """The name of the command that the user typed, such as `elmo task train`, without its arguments."""
    path = ""
    for word in (word for word in typed_arguments if not word.startswith("-")):
        longer = f"{path} {word}".strip()
        if not any(f"{name} ".startswith(f"{longer} ") for name in _COMMANDS):
            break
        path = longer
    return f"elmo {path}".strip()


def be_quiet(quiet: bool) -> None:
    """If `quiet` is true, show only results and errors."""
    if quiet:
        progress.silent = True
        logging.getLogger().setLevel(logging.ERROR)


def application(callback: Callable[..., None]) -> typer.Typer:
    """All registered commands as a typer application; `callback` has the options of `elmo` itself."""
    app = typer.Typer(name="elmo", help=_HELP, context_settings={"help_option_names": ["-h", "--help"]}, **_SETTINGS)
    app.callback()(callback)
    groups: dict[str, typer.Typer] = {}
    for path, command_class in _COMMANDS.items():
        *above, name = path.split()
        if above and above[0] not in groups:
            groups[above[0]] = _typer_group(above[0])
            app.add_typer(groups[above[0]], name=above[0])
        (groups[above[0]] if above else app).command(name)(_command_function(command_class))
    return app


def _typer_group(name: str) -> typer.Typer:
    app = typer.Typer(help=_GROUPS.get(name), invoke_without_command=True, **_SETTINGS)

    @app.callback()
    def commands(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            print(context.get_help())

    return app


class OutputClosedError(Exception):
    """Stands for a BrokenPipeError, which typer itself would turn into exit status 1."""


def _command_function(command_class: type[Command]) -> Callable[..., int | None]:
    """A function with a parameter for each option of a command, as typer needs it."""
    own = list(_parameters(command_class))
    has_quiet = any("--quiet" in each.flags.split("/") for each in own)

    def call(**given: Any) -> int | None:  # noqa: ANN401
        be_quiet(not has_quiet and given.pop("quiet"))
        try:
            return command_class(**_field_values(command_class, given)).run()
        except ElmoError as error:
            raise ElmoError(message_with_options(error, command_class, given)) from error
        except BrokenPipeError as error:
            raise OutputClosedError from error

    parameters = [each.for_typer() for each in own]
    if not has_quiet:
        annotation = Annotated[bool, typer.Option("--quiet", "-q", help=QUIET_HELP)]
        parameters.append(
            inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation)
        )
    call.__doc__ = command_class.__doc__
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


@dataclass(frozen=True)
class _Parameter:
    """An option or an argument of a command."""

    owner: type
    """The dataclass that has the field: the command, or the dataclass of an `options_of` field."""
    item: Field[Any]
    collector: str | None
    """The name of the `options_of` field that collects this option, if there is one."""
    shown_default: str | None

    @property
    def flags(self) -> str:
        """The flags as typer takes them: --size, or --fast/--slow."""
        flag = "--" + self.item.name.replace("_", "-")
        switch = self.collector and self._type is bool
        return self.item.metadata.get("names") or (f"{flag}/--no-{flag[2:]}" if switch else flag)

    @property
    def shown(self) -> str:
        """The name in messages."""
        if self.item.metadata.get("positional"):
            return str(self.item.metadata["metavar"])
        return self.flags.split("/", maxsplit=1)[0]

    @property
    def _type(self) -> Any:  # noqa: ANN401
        return base_type(self.owner, self.item.name)[0]

    @property
    def _item_type(self) -> Any:  # noqa: ANN401
        """The type of one value of an option that can have several; otherwise the type of the option."""
        return get_args(self._type)[0] if get_origin(self._type) is tuple else self._type

    def for_typer(self) -> inspect.Parameter:
        """The parameter of the function for typer."""
        metadata, required = self.item.metadata, self.item.default is MISSING
        many, choices = self._item_type is not self._type, get_args(self._item_type)
        # Literals are strings for typer, because `check_options` checks them. Paths are strings, because `value` must
        # see an empty text, which as a Path would be the current folder.
        single = str if choices or self._item_type is Path else self._item_type
        kind: Any = list[single] if many else single  # type: ignore[valid-type]
        default = None if many or required or self.collector else self.item.default
        if metadata.get("positional"):
            shown: Any = typer.Argument(help=metadata["help"], metavar=metadata["metavar"], show_default=False)
            default = ... if required else default
        else:
            usual = {int: "N", float: "X", Path: "FILE", bool: None}.get(self._item_type, "|".join(choices) or "TEXT")
            usual_default = None if default is None or self._type is bool else shown_value(default)
            value = self.shown_default or metadata.get("shown", usual_default)
            note = " [required]" if required else f" [default: {value}]" if value else ""
            metavar = metadata.get("metavar") or usual
            completion = (lambda: choices) if choices else None
            shown = typer.Option(
                self.flags, help=metadata["help"] + note, metavar=metavar, show_default=False, autocompletion=completion
            )
        kind = kind | None if default is None else kind
        annotation = Annotated[kind, shown]
        return inspect.Parameter(self.item.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)

    def value(self, given: Any) -> Any:  # noqa: ANN401
        """The value of the field for the value that typer parsed."""
        metadata = self.item.metadata
        if given is None and self.item.default is MISSING:
            help = metadata["help"].rstrip(".")
            raise ElmoError(f"{self.shown} {metadata['metavar']} is missing: {help[0].lower()}{help[1:]}")
        values = given if isinstance(given, list | tuple) else [given]
        # An unset shell variable arrives as an empty text.
        if not metadata.get("blank") and any(isinstance(each, str) and not each.strip() for each in values):
            raise ElmoError(f"{self.shown} must not be empty: is a shell variable unset?")
        if self._item_type is not self._type:
            return tuple(Path(each) if self._item_type is Path else each for each in given or ())
        return Path(given) if self._item_type is Path and given is not None else given


def _parameters(command_class: type[Command]) -> Iterator[_Parameter]:
    """The options in the order of `--help`: those of the command itself before those of its base classes."""
    found = {item.name: item for item in fields(command_class)}
    names = dict.fromkeys(
        name for owner in command_class.__mro__ for name in inspect.get_annotations(owner) if name in found
    )
    for item in map(found.__getitem__, names):
        if other := item.metadata.get("options_of"):
            shown = item.metadata["shown"]()
            yield from (_Parameter(other, each, item.name, shown[each.name]) for each in fields(other))
        else:
            yield _Parameter(command_class, item, None, None)


def _field_values(command_class: type[Command], given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the fields of a command for the values that typer parsed."""
    values: dict[str, Any] = {}
    for each in _parameters(command_class):
        name, value = each.item.name, each.value(given[each.item.name])
        if each.collector is None:
            values[name] = value
        elif value is not None:
            values.setdefault(each.collector, {})[name] = value
    return values


def message_with_options(error: ElmoError, command_class: type[Command], given: Mapping[str, Any]) -> str:
    """The message of an error, with the names of arguments replaced by the options of the command.

    Paths, quoted values and commands such as `elmo vocab` that contain the name of an argument are not changed. `given`
    has the parsed values.
    """
    message = str(error)
    for each in _parameters(command_class):
        name = each.item.name
        if name in error.arguments:
            switched_off = each.collector and given.get(name) is False
            shown = each.shown.replace("--", "--no-") if switched_off else each.shown
            message = re.sub(rf"(?<![\w/\\.'\"-])(?<!elmo ){re.escape(name)}(?![\w/\\'\"-]|\.\w)", shown, message)
    return message

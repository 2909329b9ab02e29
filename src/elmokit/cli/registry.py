"""The commands of `elmo`: a dataclass is registered under its name, and its fields become the options.

    @command("shout")
    @dataclass(frozen=True, kw_only=True)
    class Shout(Command):
        \"""Print a text in capitals.\"""

        text: str = argument("The text to print.", "TEXT")
        times: int = option(1, "Number of times to print it.", metavar="N", least=1)

        def run(self) -> None:
            print(self.text.upper() * self.times)

The docstring is what `--help` says. Heavy imports belong in `run`, so that `elmo --help` stays fast.
"""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import typer

from elmokit.errors import ElmoError
from elmokit.options import base_type, check_options, shown_value

_SETTINGS: dict[str, Any] = {"add_completion": False, "rich_markup_mode": None, "pretty_exceptions_enable": False}
_HELP = "ELMo on today's Python: load every released model, train your own, turn words in context into vectors."

typed: list[str] = []
"""The arguments of this call of `elmo`."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """The arguments and options of one command, and what it does with them."""

    def __post_init__(self) -> None:
        check_options(self)

    def run(self) -> int | None:
        """Do the work, and return an exit status other than 0 if there is one."""
        raise NotImplementedError


C = TypeVar("C", bound=type[Command])
_COMMANDS: dict[str, type[Command]] = {}
_GROUPS: dict[str, str] = {}


def command(name: str) -> Callable[[C], C]:
    """Register a dataclass as a command; "task train" is the command `train` of the group `task`."""

    def register(made: C) -> C:
        _COMMANDS[name] = made
        return made

    return register


def group(name: str, help: str) -> None:
    """Describe the commands whose names begin with this word."""
    _GROUPS[name] = help


def unregister_command(name: str) -> None:
    """Forget a command."""
    del _COMMANDS[name]


def options_of(owner: type, shown: Callable[[], Mapping[str, str]]) -> Any:  # noqa: ANN401 - a field
    """A field that collects options with the names of another dataclass's fields: those that were given.

    `shown` returns the default of each in words.
    """
    return field(default_factory=dict, metadata={"options_of": owner, "shown": shown})


def command_line() -> str:
    """What the user typed, for records of it."""
    return shlex.join(["elmo", *typed])


def application(callback: Callable[..., None]) -> typer.Typer:
    """All registered commands as a typer application; `callback` has the options of `elmo` itself."""
    app = typer.Typer(name="elmo", help=_HELP, **_SETTINGS)
    app.callback()(callback)
    groups: dict[str, typer.Typer] = {}
    for path, made in _COMMANDS.items():
        *above, name = path.split()
        if above and above[0] not in groups:
            groups[above[0]] = _typer_group(above[0])
            app.add_typer(groups[above[0]], name=above[0])
        (groups[above[0]] if above else app).command(name)(_function(made))
    return app


def _typer_group(name: str) -> typer.Typer:
    made = typer.Typer(help=_GROUPS.get(name), invoke_without_command=True, **_SETTINGS)

    @made.callback()
    def commands(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            print(context.get_help())

    return made


class OutputClosedError(Exception):
    """A BrokenPipeError, which typer's own handler would end with status 1."""


def _function(made: type[Command]) -> Callable[..., int | None]:
    """A function with a parameter for each option, as typer needs it."""

    def call(**given: Any) -> int | None:  # noqa: ANN401
        try:
            return made(**_values(made, given)).run()
        except ElmoError as error:
            raise ElmoError(message_with_options(error, made, given)) from error
        except BrokenPipeError as error:
            raise OutputClosedError from error

    parameters = [
        inspect.Parameter(item.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for item, annotation, default in _parameters(made)
    ]
    call.__doc__ = made.__doc__
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _fields(made: type[Command]) -> list[Field[Any]]:
    """The fields in the order of `--help`: those of the command itself before those that it shares."""
    found = {item.name: item for item in fields(made)}
    order = dict.fromkeys(name for owner in made.__mro__ for name in inspect.get_annotations(owner) if name in found)
    return [found[name] for name in order]


def _parameters(made: type[Command]) -> Iterator[tuple[Field[Any], Any, Any]]:
    """Each option as typer takes it: the field, an annotated type, the default."""
    for item in _fields(made):
        if other := item.metadata.get("options_of"):
            shown = item.metadata["shown"]()
            for each in fields(other):
                base, _ = base_type(other, each.name)
                name = _flag(each.name)
                names = f"{name}/--no-{name[2:]}" if base is bool else name
                yield each, Annotated[base | None, _option(each, base, names, shown[each.name])], None
        else:
            yield item, *_own_parameter(made, item)


def _own_parameter(made: type[Command], item: Field[Any]) -> tuple[Any, Any]:
    base, _ = base_type(made, item.name)
    many = get_origin(base) is tuple
    one = get_args(base)[0] if many else base
    plain = str if one is Path else one  # an empty text has to be refused before it becomes the current folder
    kind: Any = list[plain] if many else plain  # type: ignore[valid-type]
    default = None if many or item.default is MISSING else item.default
    if item.metadata.get("positional"):
        parameter = typer.Argument(help=item.metadata["help"], metavar=item.metadata["metavar"], show_default=False)
        if item.default is MISSING:
            return Annotated[kind, parameter], ...
    else:
        usual = None if default is None or base is bool else shown_value(default)
        parameter = _option(item, one, _names(item), item.metadata.get("shown", usual))
    return Annotated[kind | None if default is None else kind, parameter], default


def _option(item: Field[Any], kind: Any, names: str, shown: str | None) -> Any:  # noqa: ANN401
    metavar = item.metadata.get("metavar")
    if metavar is None and get_origin(kind) is Literal:
        metavar = "|".join(get_args(kind))
    elif metavar is None and kind is not bool:
        metavar = {int: "N", float: "X", Path: "FILE"}.get(kind, "TEXT")
    note = " [required]" if item.default is MISSING else f" [default: {shown}]" if shown else ""
    return typer.Option(names, help=item.metadata["help"] + note, metavar=metavar, show_default=False)


def _names(item: Field[Any]) -> str:
    return item.metadata.get("names") or _flag(item.name)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _values(made: type[Command], given: Mapping[str, Any]) -> dict[str, Any]:
    """What typer parsed as values of the dataclass's fields."""
    values: dict[str, Any] = {}
    for item in _fields(made):
        if other := item.metadata.get("options_of"):
            names = [each.name for each in fields(other) if given[each.name] is not None]
            for name in names:
                _refuse_blank(_flag(name), given[name])
            values[item.name] = {name: given[name] for name in names}
            continue
        value, (base, _) = given[item.name], base_type(made, item.name)
        if value is None and item.default is MISSING:
            help = item.metadata["help"].rstrip(".")
            raise ElmoError(f"{_shown_name(item)} {item.metadata['metavar']} is needed: {help[0].lower()}{help[1:]}")
        if not item.metadata.get("blank"):
            _refuse_blank(_shown_name(item), value)
        if get_origin(base) is tuple:
            one = Path if get_args(base)[0] is Path else lambda each: each
            value = tuple(map(one, value or ()))
        elif base is Path and value is not None:
            value = Path(value)
        values[item.name] = value
    return values


def _refuse_blank(shown: str, value: Any) -> None:  # noqa: ANN401
    """An unset shell variable arrives as an empty text, which as a path would mean the current folder."""
    for each in value if isinstance(value, list | tuple) else [value]:
        if isinstance(each, str) and not each.strip():
            raise ElmoError(f"{shown} must not be empty: is a shell variable unset?")


def _shown_name(item: Field[Any]) -> str:
    if item.metadata.get("positional"):
        return str(item.metadata["metavar"])
    return _names(item).split("/", maxsplit=1)[0]


def message_with_options(error: ElmoError, made: type[Command], given: Mapping[str, Any]) -> str:
    """The message with the option of the command in the place of each argument that the error names.

    Paths and quoted values that contain the name of an argument stay as they are. `given`: what the user typed.
    """
    shown: dict[str, str] = {}
    for item in fields(made):
        if other := item.metadata.get("options_of"):
            for each in fields(other):
                typed_no = "no_" if given.get(each.name) is False else ""
                shown[each.name] = _flag(typed_no + each.name)
        elif "help" in item.metadata:
            shown[item.name] = _shown_name(item)
    message = str(error)
    for name in error.arguments:
        if name in shown:
            word = rf"(?<![\w/\\.'\"-]){re.escape(name)}(?![\w/\\'\"-]|\.\w)"
            message = re.sub(word, shown[name], message)
    return message

"""Fields of a dataclass as options of a command, each with the sentence that its metadata holds under "help"."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Annotated, Any, get_args, get_type_hints

import typer


def with_options_of(made: type[Any], shown: Mapping[str, str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a typer command one option for each field in place of its `**changes`; None where it was not given.

    `shown`: what `--help` says about each field's default.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(command)
        hints = get_type_hints(command, include_extras=True)
        parameters = [
            value.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
            for name, value in signature.parameters.items()
            if value.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        types = get_type_hints(made)
        for item in fields(made):
            option = typer.Option(
                *_names(item.name, types[item.name]),
                help=f"{item.metadata['help']} [{shown[item.name]}]",
                metavar=_metavar(types[item.name]),
                show_default=False,
            )
            annotation: Any = Annotated[types[item.name] | None, option]
            parameters.append(
                inspect.Parameter(item.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
            )
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return decorate


def shown_value(value: object) -> str:
    """A default as `--help` shows it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _names(name: str, kind: object) -> list[str]:
    dashed = name.replace("_", "-")
    return [f"--{dashed}/--no-{dashed}"] if kind is bool else [f"--{dashed}"]


def _metavar(kind: object) -> str | None:
    if kind is bool:
        return None
    if choices := get_args(kind):
        return "|".join(choices)
    return {int: "N", float: "X"}.get(kind, "TEXT")  # type: ignore[call-overload, no-any-return]

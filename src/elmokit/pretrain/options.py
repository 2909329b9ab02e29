"""The recipe's fields as options of the command line, each with its sentence and its value in every preset."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Any, get_args, get_type_hints

import typer

from elmokit.pretrain.recipe import Preset, Recipe, RecipeName, make_recipe


def with_recipe_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """A typer command whose `**changes` are one option for each field of the recipe; None where it was not given."""
    signature = inspect.signature(command)
    hints = get_type_hints(command, include_extras=True)
    parameters = [
        value.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, value in signature.parameters.items()
        if value.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    types = get_type_hints(Recipe)
    values = _preset_values()
    for item in fields(Recipe):
        option = typer.Option(
            *_names(item.name, types[item.name]),
            help=f"{item.metadata['help']} [{values[item.name]}]",
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


def _names(name: str, kind: object) -> list[str]:
    dashed = name.replace("_", "-")
    return [f"--{dashed}/--no-{dashed}"] if kind is bool else [f"--{dashed}"]


def _metavar(kind: object) -> str | None:
    if kind is bool:
        return None
    if choices := get_args(kind):
        return "|".join(choices)
    return {int: "N", float: "X"}.get(kind, "TEXT")  # type: ignore[call-overload, no-any-return]


def _preset_values() -> dict[str, str]:
    """What each option is by default: one value, or one for each preset or recipe that differs."""
    sizes, ways = get_args(Preset), get_args(RecipeName)
    recipes = {(size, way): make_recipe(preset=size, recipe=way) for size in sizes for way in ways}
    shown = {}
    for item in fields(Recipe):
        by_size = {size: getattr(recipes[size, "modern"], item.name) for size in sizes}
        same = len(set(by_size.values())) == 1
        text = _text(by_size["small"]) if same else ", ".join(f"{size} {_text(v)}" for size, v in by_size.items())
        paper = {getattr(recipes[size, "paper"], item.name) for size in sizes}
        if len(paper) == 1 and paper != set(by_size.values()):
            text += f"; paper {_text(paper.pop())}"
        shown[item.name] = text
    return shown


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)

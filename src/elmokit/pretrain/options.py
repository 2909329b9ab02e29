"""The recipe's fields as options of the command line, each with its value in every preset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, get_args

from elmokit.option_fields import shown_value, with_options_of
from elmokit.pretrain.recipe import Preset, Recipe, RecipeName, make_recipe


def with_recipe_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """A typer command whose `**changes` are one option for each field of the recipe; None where it was not given."""
    return with_options_of(Recipe, _preset_values())(command)


def _preset_values() -> dict[str, str]:
    """What each option is by default: one value, or one for each preset, recipe or encoder that differs."""
    sizes, ways = get_args(Preset), get_args(RecipeName)
    recipes = {(size, way): make_recipe(preset=size, recipe=way) for size in sizes for way in ways}
    transformers = {size: make_recipe(preset=size, changes={"context": "transformer"}) for size in sizes}
    shown = {}
    for item in fields(Recipe):
        by_size = {size: getattr(recipes[size, "modern"], item.name) for size in sizes}
        of_transformer = {size: getattr(transformers[size], item.name) for size in sizes}
        if item.metadata["only"] == "segments":
            by_size = of_transformer
        text = _by_size(by_size)
        paper = {getattr(recipes[size, "paper"], item.name) for size in sizes}
        if item.metadata["only"] != "segments" and len(paper) == 1 and paper != set(by_size.values()):
            text += f"; paper {shown_value(paper.pop())}"
        if item.metadata["only"] is None and item.name != "context" and of_transformer != by_size:
            text += f"; transformer {_by_size(of_transformer)}"
        shown[item.name] = text
    return shown


def _by_size(values: Mapping[str, object]) -> str:
    if len(set(values.values())) == 1:
        return shown_value(next(iter(values.values())))
    return ", ".join(f"{size} {shown_value(value)}" for size, value in values.items())

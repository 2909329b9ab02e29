"""The recipe's fields as options of the command line, each with its value in every preset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_args

from elmokit.option_fields import shown_value, with_options_of
from elmokit.pretrain.recipe import Preset, Recipe, RecipeName, make_recipe


def with_recipe_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """A typer command whose `**changes` are one option for each field of the recipe; None where it was not given."""
    return with_options_of(Recipe, _preset_values())(command)


def _preset_values() -> dict[str, str]:
    """What each option is by default: one value, or one for each preset or recipe that differs."""
    sizes, ways = get_args(Preset), get_args(RecipeName)
    recipes = {(size, way): make_recipe(preset=size, recipe=way) for size in sizes for way in ways}
    shown = {}
    for item in fields(Recipe):
        by_size = {size: getattr(recipes[size, "modern"], item.name) for size in sizes}
        same = len(set(by_size.values())) == 1
        text = (
            shown_value(by_size["small"])
            if same
            else ", ".join(f"{size} {shown_value(v)}" for size, v in by_size.items())
        )
        paper = {getattr(recipes[size, "paper"], item.name) for size in sizes}
        if len(paper) == 1 and paper != set(by_size.values()):
            text += f"; paper {shown_value(paper.pop())}"
        shown[item.name] = text
    return shown

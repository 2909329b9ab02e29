from dataclasses import fields
from typing import Literal, get_args, get_origin, get_type_hints

import pytest
import typer
from elmokit.pretrain.options import with_recipe_options
from typer.testing import CliRunner

from elmokit.pretrain.recipe import Recipe

HINTS = get_type_hints(Recipe)
RUNNER = CliRunner()


@pytest.fixture
def run():
    """Run a command that has the recipe's options; what it was given, or what it printed."""
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    got = {}

    @app.command()
    @with_recipe_options
    def command(name: str = "nobody", **changes: object) -> None:
        got.update(name=name, **changes)

    def call(*arguments):
        got.clear()
        result = RUNNER.invoke(app, list(arguments), env={"COLUMNS": "200"})
        return result, dict(got)

    return call


def flag(name):
    return "--" + name.replace("_", "-")


def joined(text):
    return " ".join(text.split())


def test_help_shows_every_field_with_its_sentence_and_choices(run):
    result, _ = run("--help")
    assert result.exit_code == 0
    shown = joined(result.output)
    for item in fields(Recipe):
        assert item.metadata["help"], item.name
        assert f"{flag(item.name)} " in shown
        assert joined(item.metadata["help"]) in shown
        if get_origin(HINTS[item.name]) is Literal:
            assert f"{flag(item.name)} {'|'.join(get_args(HINTS[item.name]))}" in shown
        if HINTS[item.name] is bool:
            assert flag(f"no-{item.name}") in shown


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("layers", "[2]"),
        ("cell_size", "[tiny 512, small 1,024, medium 2,048, original 4,096]"),
        ("highways", "[tiny 1, small 1, medium 1, original 2; transformer 1]"),
        ("learning_rate", "; paper 0.2; transformer tiny 0.005, small 0.005, medium 0.004, original 0.003]"),
        ("optimizer", "[adam; paper adagrad; transformer muon]"),
        ("window", "[32; paper 20]"),
        ("scale_by_window", "[no; paper yes]"),
        ("mask", "[0.3,0.15]"),
        ("blocks", "[tiny 4, small 8, medium 12, original 12]"),
        ("keep", "[2]"),
    ],
)
def test_help_shows_the_values_of_presets_and_recipes(run, name, values):
    shown = joined(run("--help")[0].output)
    sentence = next(joined(item.metadata["help"]) for item in fields(Recipe) if item.name == name)
    after = shown.split(sentence + " ", 1)[1]
    assert after.startswith("[")
    assert after[: after.index("]") + 1].endswith(values)


def test_what_is_not_given_is_none(run):
    _, got = run("--name", "x")
    assert got.pop("name") == "x"
    assert got == {item.name: None for item in fields(Recipe)}


@pytest.mark.parametrize("item", fields(Recipe), ids=lambda item: item.name)
def test_every_field_can_be_given(run, item):
    hint = HINTS[item.name]
    if hint is bool:
        for name, value in ((item.name, True), (f"no-{item.name}", False)):
            assert run(flag(name))[1][item.name] is value
        return
    value = get_args(hint)[-1] if get_origin(hint) is Literal else {int: 7, float: 0.5, str: "1:2"}[hint]
    _, got = run(flag(item.name), str(value))
    assert got[item.name] == value
    assert type(got[item.name]) is type(value)


@pytest.mark.parametrize("arguments", [("--layers", "two"), ("--optimizer", "sgd"), ("--nonsense", "1")])
def test_a_wrong_value_is_a_mistake_of_usage(run, arguments):
    result, got = run(*arguments)
    assert result.exit_code == 2
    assert arguments[0] in result.output
    assert not got

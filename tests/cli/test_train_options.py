"""The options of `elmo train` that come from the recipe: their help, their defaults and what arrives."""

from dataclasses import fields
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from elmokit.cli.train import TrainCommand
from elmokit.pretrain.recipe import Recipe
from support.command_line import call

HINTS = get_type_hints(Recipe)


@pytest.fixture
def changes(capsys, monkeypatch):
    """changes("--layers", 3): the options of the recipe that arrive."""
    got = []
    monkeypatch.setattr(TrainCommand, "run", lambda command: got.append(dict(command.changes)))

    def run(*arguments):
        status, _, err = call(capsys, "train", "text.txt", "--output", "run", *arguments)
        assert status == 0, err
        return got.pop()

    return run


@pytest.fixture
def help_text(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    return joined(call(capsys, "train", "--help")[1])


def flag(name):
    return "--" + name.replace("_", "-")


def joined(text):
    """On one line; the help may break a line behind a hyphen."""
    return " ".join(text.split()).replace("- ", "-")


def test_help_shows_every_field_with_its_sentence_and_choices(help_text):
    for item in fields(Recipe):
        assert item.metadata["help"], item.name
        assert f"{flag(item.name)} " in help_text
        assert joined(item.metadata["help"]) in help_text
        if get_origin(HINTS[item.name]) is Literal:
            assert f"{flag(item.name)} {'|'.join(get_args(HINTS[item.name]))}" in help_text
        if HINTS[item.name] is bool:
            assert flag(f"no-{item.name}") in help_text


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("layers", "[default: 2]"),
        ("cell_size", "[default: tiny 512, small 1,024, medium 2,048, original 4,096]"),
        ("highways", "[default: tiny 1, small 1, medium 1, original 2; transformer 1]"),
        ("learning_rate", "; paper 0.2; transformer tiny 0.005, small 0.005, medium 0.004, original 0.003]"),
        ("optimizer", "[default: adam; paper adagrad; transformer muon]"),
        ("window", "[default: 32; paper 20]"),
        ("scale_by_window", "[default: no; paper yes]"),
        ("mask", "[default: 0.3,0.15]"),
        ("blocks", "[default: tiny 4, small 8, medium 12, original 12]"),
        ("keep", "[default: 2]"),
    ],
)
def test_help_shows_the_values_of_presets_and_recipes(help_text, name, values):
    sentence = next(joined(item.metadata["help"]) for item in fields(Recipe) if item.name == name)
    after = help_text.split(sentence + " ", 1)[1]
    assert after.startswith("[")
    assert after[: after.index("]") + 1].endswith(values)


def test_only_what_is_given_arrives(changes):
    assert changes() == {}


@pytest.mark.parametrize("item", fields(Recipe), ids=lambda item: item.name)
def test_every_field_can_be_given(changes, item):
    hint = HINTS[item.name]
    if hint is bool:
        for name, value in ((item.name, True), (f"no-{item.name}", False)):
            assert changes(flag(name)) == {item.name: value}
        return
    value = get_args(hint)[-1] if get_origin(hint) is Literal else {int: 7, float: 0.5, str: "1:2"}[hint]
    found = changes(flag(item.name), str(value))
    assert found == {item.name: value}
    assert type(found[item.name]) is type(value)


@pytest.mark.parametrize("arguments", [("--layers", "two"), ("--nonsense", "1")])
def test_a_wrong_value_is_a_mistake_of_usage(capsys, arguments):
    status, _, err = call(capsys, "train", "text.txt", "--output", "run", *arguments)
    assert status == 2
    assert arguments[0] in err
    assert err.endswith("(elmo train --help shows the usage)\n")


def test_a_choice_that_there_is_not(capsys):
    status, _, err = call(capsys, "train", "text.txt", "--output", "run", "--optimizer", "sgd")
    assert (status, err) == (2, "elmo: --optimizer must be one of adam, muon, adagrad, got 'sgd'\n")

"""A command from outside the package, and how messages about arguments become messages about options."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from elmokit import ElmoError
from elmokit.cli import Command, command
from elmokit.cli.registry import message_with_options, unregister_command
from elmokit.cli.task import TaskTrainCommand
from elmokit.options import argument, option
from support.command_line import call


@pytest.fixture
def shout():
    @command("shout")
    @dataclass(frozen=True, kw_only=True)
    class ShoutCommand(Command):
        """Print texts in capitals."""

        texts: tuple[str, ...] = argument("The texts to print.", "TEXT")
        times: int = option(1, "Number of times to print each text.", least=1)
        folder: Path | None = option(None, "Folder of nothing.", metavar="DIR")
        loud: bool = option(False, "Add an exclamation mark.", names="--loud/--quiet")

        def run(self) -> int | None:
            if self.times > 9:
                raise ElmoError(
                    f"times must be at most 9, not {self.times}, for texts; see other_times", "times", "texts"
                )
            for text in self.texts * self.times:
                print(f"{text.upper()}{'!' if self.loud else ''} {self.folder}")
            return 7 if self.loud else None

    yield ShoutCommand
    unregister_command("shout")


@pytest.mark.usefixtures("shout")
def test_a_command_from_outside(capsys):
    assert call(capsys, "shout", "a", "b", "--times", 2, "--folder", "x") == (0, "A x\nB x\n" * 2, "")
    assert call(capsys, "shout", "a", "--loud") == (7, "A! None\n", "")
    status, out, _ = call(capsys, "shout", "--help")
    assert status == 0
    assert "Number of times to print each text. [default: 1]" in " ".join(out.split())
    assert "Print texts in capitals." in call(capsys, "--help")[1]


@pytest.mark.usefixtures("shout")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a", "--times", 0], "--times must be at least 1, got 0"),
        (["a", "--times", 10], "--times must be at most 9, not 10, for TEXT; see other_times"),
        (["a", "--folder", " "], "--folder must not be empty: is a shell variable unset?"),
        ([""], "TEXT must not be empty: is a shell variable unset?"),
        (["a", "--nonsense"], "No such option: --nonsense (elmo shout --help shows the usage)"),
    ],
)
def test_its_mistakes(capsys, arguments, message):
    assert call(capsys, "shout", *arguments) == (2, "", f"elmo: {message}\n")


def test_only_names_of_arguments_become_options(shout):
    shown = message_with_options(
        ElmoError("times: /times/x times.txt 'times' times2, times. words", "times"), shout, {}
    )
    assert shown == "--times: /times/x times.txt 'times' times2, --times. words"
    shown = message_with_options(ElmoError("times and words", "words"), shout, {})
    assert shown == "times and words", "the command has no such option"
    shown = message_with_options(ElmoError("no times; elmo times makes some", "times"), shout, {})
    assert shown == "no --times; elmo times makes some", "the name of a command"


def test_an_option_that_was_switched_off_is_shown_as_it_was_typed():
    error = ElmoError("crf is for tag", "crf")
    assert message_with_options(error, TaskTrainCommand, {"crf": False}) == "--no-crf is for tag"
    assert message_with_options(error, TaskTrainCommand, {"crf": True}) == "--crf is for tag"

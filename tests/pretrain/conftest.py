"""Fixtures for training runs: a small corpus, a cache of its own, the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from elmokit.cli import main
from elmokit.model.context import State
from elmokit.pretrain import run as train
from elmokit.pretrain.network import LanguageModelNetwork
from elmokit.pretrain.updates import Updates
from support.training_runs import Command, FinishedRun, write_text


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """300 sentences of a random grammar, one a line."""
    return write_text(tmp_path / "text.txt")


@pytest.fixture
def elmo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command line in this process, with a corpus cache of its own and without curves, which take long."""
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(train, "draw_curve", lambda *_: None)

    def run(*arguments: object) -> FinishedRun:
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        written = capsys.readouterr()
        code = caught.value.code
        return FinishedRun(code if isinstance(code, int) else 0, written.out, written.err)

    return run


@pytest.fixture
def refused(elmo: Command):
    """Run a command that must end in one sentence on stderr and exit status 2; the sentence."""

    def run(*arguments: object, after: str = "") -> str:
        ended = elmo(*arguments)
        assert ended.status == 2, ended.err
        said, _, sentence = ended.err.rpartition("elmo: ")
        assert "Traceback" not in ended.err
        assert sentence.count("\n") == 1, ended.err
        assert not said or after in said, ended.err
        return sentence

    return run


@pytest.fixture
def poison(monkeypatch):
    """Make the loss and the states of some updates NaN, so many times, in the last of their micro-batches alone."""

    def into(steps, times: int = 1000) -> None:
        update, forward, current = Updates.update, LanguageModelNetwork.forward, []
        left = iter(range(times))

        def update_with(updates: Updates, step: int, batches, rate: float) -> None:
            current[:] = [step + 1, len(batches)]
            update(updates, step, batches, rate)

        def forward_with(network: LanguageModelNetwork, *arguments):
            loss, each, after = forward(network, *arguments)
            if network.training:
                current[1] -= 1
                if current[0] in steps and current[1] == 0 and next(left, None) is not None:
                    nan = float("nan")
                    return loss * nan, each * nan, State(after.h * nan, after.c * nan)
            return loss, each, after

        monkeypatch.setattr(Updates, "update", update_with)
        monkeypatch.setattr(LanguageModelNetwork, "forward", forward_with)

    return into

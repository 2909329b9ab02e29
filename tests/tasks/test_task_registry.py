"""A task from outside the package, used end to end: trained, scored, saved, loaded, and run by `elmo task`."""

import json
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from elmokit import Elmo, ElmoError
from elmokit.cli import main
from elmokit.options import option
from elmokit.tasks import (
    Task,
    TaskOptions,
    TextExample,
    fit,
    load,
    register_task,
    save,
    task_named,
    task_names,
    unregister_task,
)
from elmokit.tasks.network import TaskNetwork, masked_mean
from elmokit.tasks.scores import MainScore, TaskScores
from elmokit.tasks.task import Answer
from support.task_samples import GOOD, texts, tiny_options
from support.tiny_models import tiny_checkpoint


@dataclass(frozen=True)
class CountOptions(TaskOptions):
    """The options of all tasks, and one that only this task has."""

    most: int = option(9, "Largest count.", least=1)


@dataclass(frozen=True)
class CountAnswer(Answer):
    """A count."""

    count: float


class CountNetwork(TaskNetwork):
    """The mean over the words, and one number."""

    def __init__(self, options, spec):
        super().__init__(options, spec, 1)
        self.output = nn.Linear(self.state_size, 1)

    def vectors(self, inputs):
        return masked_mean(self.states(inputs[0]), inputs[0].mask)

    def output_loss(self, outputs, targets, inputs):
        return (outputs.squeeze(1) - targets).square().mean()

    def decode(self, outputs, inputs):
        return (outputs.squeeze(1),)


@dataclass(frozen=True)
class CountTask(Task):
    """How many words of praise a text has, as a share of 10."""

    most: int

    name = "count"
    example = TextExample
    options = CountOptions

    @classmethod
    def from_examples(cls, examples, options, path=None):
        return cls(options.most), ["one note"]

    @classmethod
    def from_dict(cls, stored, options):
        return cls(stored["most"])

    def to_dict(self):
        return {"kind": self.name, "most": self.most}

    def check(self, examples, path=None, *, held_out=False):
        return []

    def build_network(self, options, spec):
        return CountNetwork(options, spec)

    def targets(self, examples):
        return torch.tensor([float(example.label) for example in examples])

    def answer(self, example, decoded):
        return CountAnswer(min(float(decoded[0]), self.most))

    def score(self, examples, answers):
        errors = [abs(float(e.label) - a.count) for e, a in zip(examples, answers, strict=True)]
        return TaskScores((MainScore("negative error", -sum(errors) / len(errors)),), has_errors=False)


@pytest.fixture
def toy():
    register_task(CountTask)
    yield
    unregister_task("count")


def counts(n):
    return [TextExample(e.tokens, str(sum(word in GOOD for word in e.tokens)), e.line) for e in texts(n)]


def test_a_toy_task_through_python(toy, tmp_path):
    elmo = Elmo(tiny_checkpoint(scale=1.0))
    options = CountOptions(**{**tiny_options(epochs=12).to_dict(), "most": 1})
    fitted = fit("count", counts(80), None, options, elmo=elmo, cache=tmp_path / "cache")
    assert fitted.notes == ["one note"]
    assert fitted.scores.main.value > -0.2, fitted.history
    save(fitted.model, tmp_path / "model")
    model = load(tmp_path / "model")
    assert (model.kind, model.labels, model.task, model.options) == ("count", (), CountTask(1), options)
    assert model.predict("a good film") == fitted.model.predict("a good film")
    assert model.predict("a good film").count > model.predict("a bad film").count
    assert model.score(counts(20)).main.value > -0.3


def test_a_toy_task_through_the_command_line(toy, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))
    Elmo(tiny_checkpoint(scale=1.0)).save(tmp_path / "elmo")
    lines = [f"{example.label}\t{' '.join(example.tokens)}" for example in counts(40)]
    (tmp_path / "a.tsv").write_text("\n".join(["label\ttext", *lines]) + "\n")

    def call(*arguments):
        with pytest.raises(SystemExit) as stop:
            main(["task", *map(str, arguments)])
        assert stop.value.code == 0, capsys.readouterr().err
        return capsys.readouterr().out

    out = call(
        *("train", "count", tmp_path / "a.tsv", "--model", tmp_path / "elmo", "--output", tmp_path / "model"),
        *("--hidden", 8, "--epochs", 2, "--learning-rate", 0.02),
    )
    assert out.startswith("negative error")
    assert call("eval", tmp_path / "model", tmp_path / "a.tsv").startswith("negative error")
    assert call("predict", tmp_path / "model", "a good film").endswith("  a good film\n")
    call("predict", tmp_path / "model", "--input", tmp_path / "a.tsv", "--output", tmp_path / "b.jsonl")
    stored = [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()]
    assert [set(line) for line in stored] == [{"text", "count"}] * 40
    call("predict", tmp_path / "model", "a good film", "--output", tmp_path / "b.tsv")
    assert (tmp_path / "b.tsv").read_text().splitlines()[0] == "count\ttext"


def test_the_registry(toy):
    assert task_names() == ["classify", "tag", "pair", "count"]
    assert task_named("count") is CountTask
    with pytest.raises(ElmoError, match="count is registered"):
        register_task(CountTask)
    with pytest.raises(ElmoError, match="one of classify, tag, pair, count, got 'parse'"):
        task_named("parse")
    with pytest.raises(ElmoError, match="got 'parse'"):
        unregister_task("parse")


def test_a_model_of_a_task_that_is_not_registered(tmp_path):
    register_task(CountTask)
    try:
        options = CountOptions(**tiny_options(elmo="none", epochs=1).to_dict())
        save(fit("count", counts(8), counts(4), options).model, tmp_path / "model")
    finally:
        unregister_task("count")
    with pytest.raises(ElmoError, match="a task is one of classify, tag, pair, got 'count'"):
        load(tmp_path / "model")


def test_options_of_other_tasks_are_refused(toy):
    with pytest.raises(ElmoError, match="pooling is for classify and pair") as caught:
        fit("count", counts(8), counts(4), CountOptions(elmo="none", pooling="max"))
    assert caught.value.arguments == ("pooling",)

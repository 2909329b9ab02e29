"""A context encoder from outside the package, used end to end: trained, resumed, scored, saved and loaded.

And installed packages whose modules register what they add.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from elmokit import Elmo, ElmoConfig, ElmoError, extensions
from elmokit.cli import main
from elmokit.cli.registry import unregister_command
from elmokit.config import CharacterConfig, ContextConfig
from elmokit.formats.registry import format_named, formats, unregister_format
from elmokit.model.context import ContextEncoder, ContextOutput, build_context, register_context, unregister_context
from elmokit.model.int8 import Linear, apply_linear
from elmokit.output.writers import unregister_writer, writer_for
from elmokit.pretrain.recipe import Recipe, make_recipe
from elmokit.tasks import load as load_task
from elmokit.tasks import task_named, unregister_task


@dataclass(frozen=True)
class BigramConfig(ContextConfig):
    """A layer that looks at nothing but the token itself: a language model of pairs of words."""

    kind: ClassVar[str] = "bigram"
    size: int
    n_layers: int = 1

    @property
    def token_size(self) -> int:
        return self.size

    @classmethod
    def from_options(cls, options: Any) -> BigramConfig:
        return cls(options["output_size"])

    def to_options(self) -> dict[str, Any]:
        return {"output_size": self.size}


class BigramEncoder(ContextEncoder):
    """The same linear layer in training and in use, one for each direction."""

    def __init__(self, config: BigramConfig, n_directions: int) -> None:
        super().__init__(config, n_directions)
        self.maps = nn.ModuleList(nn.Linear(config.size, config.size) for _ in range(n_directions))

    def reset_parameters(self) -> None:
        for layer in self.maps:
            nn.init.eye_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, tokens, lengths, state=None, *, dropout=0.0) -> ContextOutput:
        mask = (torch.arange(tokens.shape[1]) < lengths[:, None]).to(tokens.device)[..., None]
        parts = [apply_map(layer, tokens) * mask for layer in self.maps]
        return ContextOutput(torch.stack([self.token_layer(tokens), torch.cat(parts, dim=-1)]), None)

    def read_windows(self, x, keep, state, *, dropout=0.0):
        return torch.stack([apply_map(layer, part) for layer, part in zip(self.maps, x, strict=True)]), None

    def explain(self, tokens) -> str:
        return "torch: there is only one way"


def apply_map(layer: Linear, x: torch.Tensor) -> torch.Tensor:
    return apply_linear(layer, x.flatten(0, -2)).view(*x.shape[:-1], -1)


@pytest.fixture(autouse=True)
def bigram(tmp_path, monkeypatch):
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))
    register_context(BigramConfig, BigramEncoder)
    yield
    unregister_context("bigram")


def elmo_command(*arguments) -> int:
    """Run the command line in this process; its exit status."""
    with pytest.raises(SystemExit) as ended:
        main(list(map(str, arguments)))
    return ended.value.code or 0


CONFIG = CharacterConfig(filters=((1, 4), (2, 8)), embedding_size=4)
SHAPE = (
    *("--context", "bigram", "--output-size", "16", "--filters", "1:4,2:8", "--character-size", "4"),
    *("--highways", "0", "--batch-size", "4", "--window", "8", "--loss", "full", "--min-count", "1"),
)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("the river bank was wet\nthe bank lent him money\nmoney flows like a river\n" * 30)
    return path


@pytest.fixture
def trained(text, tmp_path):
    folder = tmp_path / "model"
    assert elmo_command("train", text, *SHAPE, "--steps", "60", "--output", folder) == 0
    return folder


def test_it_is_trained_scored_and_resumed_exactly(text, trained, tmp_path, capsys):
    other = tmp_path / "stopped"
    command = ["train", text, *SHAPE, "--output", other]
    assert elmo_command(*command, "--steps", "30", "--decay", "none", "--warmup", "0") == 0
    assert elmo_command(*command, "--steps", "60", "--decay", "none", "--warmup", "0", "--resume") == 0
    whole = tmp_path / "whole"
    plain = ["train", text, *SHAPE, "--output", whole, "--steps", "60", "--decay", "none", "--warmup", "0"]
    assert elmo_command(*plain) == 0
    one, two = Elmo.load(other), Elmo.load(whole)
    assert all(torch.equal(value, two.state_dict()[name]) for name, value in one.state_dict().items())
    capsys.readouterr()
    assert elmo_command("eval", trained, text) == 0
    shown = capsys.readouterr().out
    sentences = text.read_text().splitlines()
    perplexity = Elmo.load(trained).perplexity(sentences)
    assert f"{perplexity:.2f}" in shown
    assert perplexity < 0.7 * len(Elmo.load(trained).vocab)


def test_it_gives_vectors_and_words(trained):
    elmo = Elmo.load(trained)
    assert (elmo.config.n_outputs, elmo.config.vector_size) == (2, 32)
    alone, again = (
        elmo.encode([["the", "river"]])[0],
        elmo.encode([["a", "bank", "like", "money"], ["the", "river"]])[1],
    )
    assert alone.shape == (2, 32)
    assert np.array_equal(alone, again)
    assert elmo(["the river"])["lstm_outputs1"].shape == (1, 2, 32)
    assert len(elmo.substitutes(["the", "river"], 1, k=3)) == 3
    assert "only one way" in elmo.explain()


def test_it_is_saved_and_loaded_in_every_dtype(trained, tmp_path, capsys):
    elmo = Elmo.load(trained)
    elmo.save(tmp_path / "again")
    assert np.array_equal(Elmo.load(tmp_path / "again").encode([["a", "river"]])[0], elmo.encode([["a", "river"]])[0])
    assert elmo_command("convert", trained, str(tmp_path / "small"), "--dtype", "int8") == 0
    small = Elmo.load(tmp_path / "small")
    assert small.dtype == "int8"
    np.testing.assert_allclose(small.encode([["a", "river"]])[0], elmo.encode([["a", "river"]])[0], rtol=0.1, atol=0.05)
    capsys.readouterr()
    assert elmo_command("info", trained) == 0
    assert "size 16, n_layers 1; both directions" in capsys.readouterr().out


def test_what_needs_an_lstm_is_refused(trained, tmp_path, capsys):
    with pytest.raises(ElmoError, match="bigram"):
        Elmo.load(trained, state="carry")
    with pytest.raises(ElmoError, match="bigram"):
        Elmo.load(trained).save(tmp_path / "old", format="bilm")
    assert elmo_command("eval", trained, str(trained / "vocab.txt"), "--state", "carry") == 2
    assert "bigram" in capsys.readouterr().err


def test_a_task_uses_it(trained, tmp_path):
    labelled = tmp_path / "labelled.tsv"
    labelled.write_text("label\ttext\n" + "water\tthe river was wet\nmoney\tthe bank lent him money\n" * 8)
    command = ["task", "train", "classify", labelled, "--model", trained, "--output", str(tmp_path / "task")]
    assert elmo_command(*command, "--epochs", "2", "--hidden", "4") == 0
    assert load_task(tmp_path / "task").predict(["the river"])


def test_an_unknown_kind_or_one_that_exists_is_named(text, tmp_path, capsys):
    assert elmo_command("train", text, "--context", "nothing", "--output", str(tmp_path / "m")) == 2
    assert "lstm, transformer, bigram" in capsys.readouterr().err

    class Other(BigramConfig):
        kind = "lstm"

    with pytest.raises(ElmoError, match="lstm"):
        register_context(Other, BigramEncoder)

    class Unknown(BigramConfig):
        pass

    with pytest.raises(ElmoError, match="Unknown"):
        build_context(Unknown(3), 2)
    with pytest.raises(ElmoError, match="context"):
        ElmoConfig(None, CONFIG)


MODULE = """
from dataclasses import dataclass
from elmokit.cli import Command, command
from elmokit.config import LstmConfig
from elmokit.formats.registry import Format, register_format
from elmokit.model.context import register_context
from elmokit.model.lstm import LstmEncoder
from elmokit.options import argument
from elmokit.output.writers import register_writer
from elmokit.tasks import register_task
from elmokit.tasks.classify import ClassifyTask

@dataclass(frozen=True)
class OtherConfig(LstmConfig):
    kind = "other"

class SortTask(ClassifyTask):
    name = "sort"

@command("shout")
@dataclass(frozen=True, kw_only=True)
class ShoutCommand(Command):
    \"""Print a text in capitals.\"""

    text: str = argument("The text to print.", "TEXT")

    def run(self):
        print(self.text.upper())

register_context(OtherConfig, LstmEncoder)
register_format(Format("nothing", "", lambda source, name: None, None))
register_task(SortTask)
register_writer(".toy", write=lambda stored, target: target.write_text(str(len(list(stored.items())))))
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Two installed packages: one that extends elmokit, and one that is broken."""
    for name, module in (("good", MODULE), ("broken", "import no_such_package")):
        (tmp_path / f"elmokit_{name}.py").write_text(module)
        facts = tmp_path / f"{name}-1.0.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (facts / "entry_points.txt").write_text(f"[elmokit]\n{name} = elmokit_{name}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(extensions, "_waiting", None)
    yield
    if sys.modules.pop("elmokit_good", None) is not None:
        unregister_context("other")
        unregister_format("nothing")
        unregister_task("sort")
        unregister_writer(".toy")
        unregister_command("shout")


@pytest.mark.usefixtures("installed")
class TestInstalledPackages:
    """What they register is there without an import of theirs."""

    def test_the_command_line_has_it(self, text, tmp_path, capsys, caplog):
        assert elmo_command("shout", "hello") == 0
        assert capsys.readouterr().out == "HELLO\n"
        assert ["elmokit_broken" in record.getMessage() for record in caplog.records] == [True]
        shape = [*SHAPE[4:], "--context", "other", "--cell-size", "8", "--output-size", "4"]
        assert elmo_command("train", text, *shape, "--steps", "2", "--output", tmp_path / "other") == 0
        assert (
            elmo_command("embed", "--input", text, "--model", tmp_path / "other", "--output", tmp_path / "vectors.toy")
            == 0
        )
        assert (tmp_path / "vectors.toy").read_text() == "90"

    @pytest.mark.parametrize(
        "used",
        [
            lambda: ElmoConfig.from_dict(
                {"other": {"cell_size": 8, "output_size": 4}, "words": {"n_words": 5, "embedding_size": 4}}
            ),
            lambda: Recipe(context="other"),
            lambda: make_recipe(changes={"context": "other"}),
            lambda: format_named("nothing"),
            lambda: next(found for found in formats() if found.name == "nothing"),
            lambda: task_named("sort"),
            lambda: writer_for(Path("vectors.toy")),
        ],
    )
    def test_python_has_it(self, used):
        assert used()

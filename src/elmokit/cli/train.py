"""`elmo train`: trains a new model on text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

from elmokit.cli.registry import command, command_line, options_of
from elmokit.cli.shared import CORPUS_HELP, DeviceOption, say, share_cores
from elmokit.formats.bundled import resolve_model
from elmokit.options import REQUIRED, argument, option, shown_value
from elmokit.pretrain.recipe import Preset, Recipe, RecipeName, make_recipe


def _defaults() -> dict[str, str]:
    """The text of the default of each recipe option; it names each preset, recipe or encoder that differs."""
    sizes, recipe_names = get_args(Preset), get_args(RecipeName)
    recipes = {(size, recipe): make_recipe(preset=size, recipe=recipe) for size in sizes for recipe in recipe_names}
    transformers = {size: make_recipe(preset=size, changes={"context": "transformer"}) for size in sizes}
    shown = {}
    for item in fields(Recipe):
        by_size = {size: getattr(recipes[size, "modern"], item.name) for size in sizes}
        of_transformer = {size: getattr(transformers[size], item.name) for size in sizes}
        if item.metadata.get("only") == "segments":
            by_size = of_transformer
        text = _by_size(by_size)
        paper = {getattr(recipes[size, "paper"], item.name) for size in sizes}
        if item.metadata.get("only") != "segments" and len(paper) == 1 and paper != set(by_size.values()):
            text += f"; paper {shown_value(paper.pop())}"
        if item.metadata.get("only") is None and item.name != "context" and of_transformer != by_size:
            text += f"; transformer {_by_size(of_transformer)}"
        shown[item.name] = text
    return shown


def _by_size(values: Mapping[str, object]) -> str:
    if len(set(values.values())) == 1:
        return shown_value(next(iter(values.values())))
    return ", ".join(f"{size} {shown_value(value)}" for size, value in values.items())


@command("train")
@dataclass(frozen=True, kw_only=True)
class TrainCommand(DeviceOption):
    """Train a model on any text. Elmo.load then opens DIR. For several GPUs run torchrun -m elmokit train ..."""

    corpus: tuple[str, ...] = argument(f"{CORPUS_HELP}.", "CORPUS", default=())
    output: Path = option(REQUIRED, "The folder for the run and, at its end, the model.", metavar="DIR")
    vocab: Path | None = option(
        None, "File with the words of the softmax, one per line.", metavar="FILE", shown="from the corpus"
    )
    preset: Preset | None = option(None, "Size of the network.", shown="small")
    recipe: RecipeName | None = option(None, "How the network is trained.", shown="modern")
    config: Path | None = option(None, "Options in a TOML file, or a bilm-tf options.json.", metavar="FILE")
    heldout: tuple[str, ...] = option((), "Text to measure perplexity on; may be repeated.", metavar="FILE")
    word_vectors: Path | None = option(
        None, "Initial word vectors for --input words: a word2vec, GloVe or fastText file.", metavar="FILE"
    )
    init: str | None = option(None, "Model of any format to start from and train further.", metavar="MODEL")
    init_options: Path | None = option(
        None, "The options.json of --init if it is not next to the weights.", metavar="FILE"
    )
    resume: bool = option(False, "Resume the run in DIR exactly where it stopped; start a new one if there is none.")
    cache: Path | None = option(
        None,
        "Folder for prepared corpora, which several runs can share; elmokit does not delete them.",
        metavar="DIR",
        shown="~/.cache/elmokit",
    )
    workers: int | None = option(None, "Number of processes that prepare the corpus.", least=1, shown="all cores")
    tensorboard: bool = option(False, "Also write logs for TensorBoard to DIR/tensorboard.")
    changes: Mapping[str, Any] = options_of(Recipe, _defaults)

    def run(self) -> int:
        """Train; the exit status is 0, or 128 + the number of the signal that stopped the run."""
        share_cores()
        from elmokit.pretrain.request import TrainRequest
        from elmokit.pretrain.run import run_training

        given = {item.name: getattr(self, item.name) for item in fields(self)}
        given["init"] = None if self.init is None else Path(resolve_model(self.init))
        return run_training(TrainRequest(**given, command=command_line()), say)

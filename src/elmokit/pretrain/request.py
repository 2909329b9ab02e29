"""The request of a run, which its folder stores as run.json, and the options that may change when it is resumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from glob import escape
from itertools import chain
from pathlib import Path
from typing import Any

from elmokit.config import CONTEXTS, CharacterConfig
from elmokit.corpus.prepared import PreparedCorpus
from elmokit.errors import ElmoError
from elmokit.formats.load import read_checkpoint, read_vocabulary
from elmokit.pretrain.checkpoints import VERSION, RunFolder
from elmokit.pretrain.recipe import Recipe, character_options, make_recipe, read_config
from elmokit.storage.atomic import write_text
from elmokit.text.vocab import BEGIN, END, UNKNOWN, Vocabulary

_DEFAULT_EPOCHS = 10.0
_SHAPES = [config.from_options(Recipe().to_dict()).to_options() for config in CONTEXTS.values()]
_SHAPE = {"input", "word_size", *character_options(CharacterConfig(((1, 1),))), *chain(*_SHAPES)}
"""Options that the model of `init` decides."""
_LENGTHS = {"tokens", "epochs", "steps", "minutes"}
_RESUMABLE = _LENGTHS | {
    *("until", "eval_every", "patience", "log_every", "checkpoint_every", "checkpoint_minutes", "keep"),
    *("learning_rate", "clip_norm"),  # for a run that diverged
    *("batch_size", "batch_tokens", "accumulate"),  # for another number of processes: their product must stay the same
    "prediction_layer",  # an output of the model, not part of the training: old runs may add it
}
"""Options that may change when a run is resumed."""
_FILES = ("word_vectors", "init", "init_options")
_MODEL_FILES = ("config.json", "options.json", "encoder.pkl", "checkpoint")
"""Files of models of elmokit or an older system: a run in their folder would overwrite their vocab.txt."""


@dataclass(frozen=True)
class TrainRequest:
    """The arguments of a run that are not options of the recipe, and in `changes` the options that were given."""

    corpus: Sequence[str]
    output: Path
    vocab: Path | None = None
    heldout: Sequence[str] = ()
    word_vectors: Path | None = None
    init: Path | None = None
    init_options: Path | None = None
    preset: str | None = None
    recipe: str | None = None
    config: Path | None = None
    resume: bool = False
    cache: Path | None = None
    workers: int | None = None
    device: str | None = None
    tensorboard: bool = False
    command: str = ""
    """The command that the user typed, for the model card."""
    changes: Mapping[str, Any] = field(default_factory=dict)

    def stored(self) -> dict[str, Any]:
        """The part of the request that run.json stores, with absolute paths."""

        def sources(names: Sequence[str]) -> list[str]:
            return [name if name == "-" else str(Path(name).expanduser().absolute()) for name in names]

        files = {name: getattr(self, name) for name in _FILES}
        return {
            "corpus": sources(self.corpus),
            "heldout": sources(self.heldout),
            **{name: None if path is None else str(path.resolve()) for name, path in files.items()},
            "preset": self.preset,
            "recipe_name": self.recipe,
        }

    def given_options(self) -> dict[str, Any]:
        """The options that the user gave: those of `config`, replaced by those given directly."""
        named = {"preset": self.preset, "recipe": self.recipe}
        config = {} if self.config is None else read_config(self.config)
        return {**config, **{name: value for name, value in named.items() if value}, **self.changes}


def resolve_request(request: TrainRequest, folder: RunFolder) -> tuple[TrainRequest, Recipe]:
    """The complete request and recipe; a resumed run uses the stored ones, except for options that may change."""
    if request.vocab is not None:
        read_vocab_file(request.vocab)  # report a mistake before hours of preparing a corpus
    for name, path in (("word_vectors", request.word_vectors), ("init", request.init)):
        if path is not None and not path.exists() and not any(path.parent.glob(f"{escape(path.name)}.*")):
            raise ElmoError(f"{name} {path} does not exist", name)
    return _resumed(request, folder) if folder.started else _new(request, folder)


def _new(request: TrainRequest, folder: RunFolder) -> tuple[TrainRequest, Recipe]:
    if not request.corpus:
        raise ElmoError("a corpus is needed: name files, folders or patterns, or - for standard input")
    if any((folder.folder / name).exists() for name in _MODEL_FILES):
        raise ElmoError(f"{folder.folder} contains a model: choose another output", "output")
    vocab = folder.folder / "vocab.txt"
    if vocab.exists() and not (request.vocab is not None and request.vocab.samefile(vocab)):
        raise ElmoError(f"{vocab} would be overwritten: give it as vocab, or choose another output", "vocab", "output")
    changes = _with_context(request)
    recipe = make_recipe(preset=request.preset, recipe=request.recipe, config=request.config, changes=changes)
    _check_together(request, recipe)
    clock = recipe.minutes if recipe.objective == "windows" else 0  # the schedules of segments never follow the clock
    if not (recipe.tokens or recipe.epochs or recipe.steps or clock):
        recipe = replace(recipe, epochs=_DEFAULT_EPOCHS)
    given = request.given_options()
    return replace(request, preset=given.get("preset", "small"), recipe=given.get("recipe", "modern")), recipe


def _check_together(request: TrainRequest, recipe: Recipe) -> None:
    """Refuse options that contradict each other."""
    vectors, init = request.word_vectors is not None, request.init is not None
    if recipe.done and not init:
        raise ElmoError(f"done {recipe.done:g} needs init, the model after this share of the run", "done", "init")
    if request.init_options is not None and not init:
        raise ElmoError("init_options needs init, the model that they belong to", "init_options", "init")
    if recipe.word_size and recipe.input != "words" and not init:
        raise ElmoError("word_size needs input words: a character model has no word table", "word_size", "input")
    if init and vectors:
        raise ElmoError(
            "word_vectors cannot be given with init, whose model has its own word table", "word_vectors", "init"
        )
    if vectors and recipe.input != "words":
        raise ElmoError("word_vectors need input words: a character model has no word table", "word_vectors", "input")
    if vectors and not recipe.train_word_vectors and recipe.weight_decay:
        raise ElmoError(
            f"weight_decay {recipe.weight_decay:g} would change word vectors that are not trained: give "
            "train_word_vectors, or leave weight_decay out",
            "weight_decay",
            "train_word_vectors",
        )
    if recipe.tie_softmax and not recipe.train_word_vectors:
        raise ElmoError(
            "tie_softmax needs train_word_vectors, because the softmax cannot learn otherwise: leave it out",
            "tie_softmax",
            "train_word_vectors",
        )


def _with_context(request: TrainRequest) -> dict[str, Any]:
    """The given options, with the context encoder of the model of `init`, which decides the defaults."""
    if request.init is None:
        return dict(request.changes)
    context = read_checkpoint(request.init, options=request.init_options).config.context
    given, shape = request.given_options(), context.to_options()
    named = given.get("context", context.kind)
    if named != context.kind:
        raise ElmoError(f"context must be {context.kind}, the encoder of {request.init.name}, got {named}", "context")
    grows = {"blocks"} & shape.keys()
    if refused := sorted((_SHAPE - grows) & request.changes.keys()):
        raise ElmoError(f"{refused[0]} cannot be given with init, whose model has its own shape", refused[0], "init")
    for name in grows & given.keys():
        if isinstance(given[name], int) and given[name] < shape[name]:
            raise ElmoError(
                f"{name} must be at least the {shape[name]} of {request.init.name}, which can only grow, got "
                f"{given[name]}",
                name,
            )
        shape[name] = given[name]
    return {**shape, **request.changes, "context": context.kind}


def _resumed(request: TrainRequest, folder: RunFolder) -> tuple[TrainRequest, Recipe]:
    if not request.resume:
        raise ElmoError(
            f"{folder.folder} contains a run: give resume to continue it, or choose another output", "resume", "output"
        )
    stored = folder.read_request()
    recipe = Recipe(**stored["recipe"])
    vocab = None if stored["vocab"] is None else folder.checkpoints / stored["vocab"]
    now, given = request.stored(), request.given_options()
    now |= {"preset": given.pop("preset", None), "recipe_name": given.pop("recipe", None)}
    for name, value in now.items():
        moved = name in ("corpus", "heldout") and stored[name]  # the text may have another path on another machine
        if value and value != stored[name] and not moved:
            shown = name.removesuffix("_name")
            raise ElmoError(f"{shown} was {stored[name]} when the run began and cannot change now", shown)
    if request.vocab is not None and (vocab is None or read_vocab_file(request.vocab) != read_vocab_file(vocab)):
        raise ElmoError(f"vocab {request.vocab} has other words than the run began with: leave it out", "vocab")
    fixed = _SHAPE if stored["init"] is not None else ()
    # "auto" was resolved when the run began.
    given = {name: value for name, value in given.items() if name not in fixed and value != "auto"}
    changed = replace(recipe, **given)
    for name in given.keys() - _RESUMABLE:
        if getattr(changed, name) != getattr(recipe, name):
            raise ElmoError(
                f"{name} was {getattr(recipe, name)} when the run began and cannot change now; these options may: "
                f"{', '.join(sorted(_RESUMABLE))}",
                name,
            )
    # A new length replaces all old ones; the minutes of a leg are not a length.
    lengths = _LENGTHS if recipe.objective == "windows" else _LENGTHS - {"minutes"}
    if any(given.get(name) for name in lengths):
        changed = replace(changed, **{name: given.get(name, 0) for name in lengths})
    elif not any(getattr(changed, name) for name in lengths):
        changed = replace(changed, **{name: getattr(recipe, name) for name in lengths})
    if recipe.objective != "windows":
        changed = replace(changed, minutes=given.get("minutes", 0.0), until=given.get("until", 1.0))
    paths: dict[str, Any] = {name: stored[name] and Path(stored[name]) for name in _FILES}
    return replace(
        request,
        corpus=now["corpus"] or stored["corpus"],
        heldout=now["heldout"] or stored["heldout"],
        vocab=vocab,
        preset=stored["preset"],
        recipe=stored["recipe_name"],
        **paths,
    ), changed


def read_vocab_file(path: Path) -> Vocabulary:
    """The words of a vocab.txt; `<S>`, `</S>` and `<UNK>` must be among them."""
    if not path.is_file():
        raise ElmoError(f"vocab {path} does not exist or is not a file; elmo vocab writes one", "vocab")
    vocab = read_vocabulary(path)
    try:
        vocab.require_specials()
    except ElmoError as error:
        raise ElmoError(f"{path}: {error}") from error
    return vocab


def store_request(
    request: TrainRequest,
    recipe: Recipe,
    folder: RunFolder,
    prepared: Mapping[str, PreparedCorpus | None],
    vocab: Vocabulary,
) -> None:
    """Store what a resumed run needs. run.json is written last and keeps the command that began the run."""
    own = vocab.specials == (BEGIN, END, UNKNOWN)  # a model with other boundary words stores its own vocabulary
    if own:
        write_text(folder.checkpoints / "vocab.txt", vocab.to_text())
    found = {name: part for name, part in prepared.items() if part is not None}
    folder.write_request(
        {
            "version": VERSION,
            "command": folder.read_request()["command"] if folder.started else request.command,
            **request.stored(),
            "vocab": "vocab.txt" if own else None,
            "prepared": {name: {"folder": str(p.folder.resolve()), "content": p.content} for name, p in found.items()},
            "recipe": recipe.to_dict(),
        }
    )

"""What a run is asked to do, kept in its folder, and what may change when it is resumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from glob import escape
from pathlib import Path
from typing import Any

from elmokit.corpus.prepared import PreparedCorpus
from elmokit.errors import ElmoError
from elmokit.formats.bilm_options import read_vocabulary
from elmokit.formats.load import read_checkpoint
from elmokit.formats.source import FolderSource
from elmokit.pretrain.checkpoints import VERSION, RunFolder
from elmokit.pretrain.recipe import Recipe, make_recipe, read_config
from elmokit.storage.atomic import write_text
from elmokit.text.vocab import BEGIN, END, UNKNOWN, Vocabulary

_DEFAULT_EPOCHS = 10.0
_SHAPE = frozenset(
    (
        *("input", "cell_size", "output_size", "layers", "filters", "character_size", "max_characters", "highways"),
        *("activation", "word_size", "cell_clip", "projection_clip", "skip_connections"),
        *("size", "blocks", "heads", "inner_size", "attention_window", "softmax_size", "every"),
    )
)
"""Options that a model given with --init decides."""
_OF_A_MODEL = ("config.json", "options.json", "encoder.pkl", "checkpoint")
"""Files by which a folder is known to hold a model, of ours or of an older system, whose vocab.txt would be lost."""
_LENGTHS = frozenset(("tokens", "epochs", "steps", "minutes"))
_MAY_CHANGE = _LENGTHS | {
    "until",
    *("eval_every", "patience", "log_every", "checkpoint_every", "checkpoint_minutes", "keep"),
    *("learning_rate", "clip_norm"),  # for a run that diverged
    *("batch_size", "batch_tokens", "accumulate"),  # for another number of processes: their product stays
}
"""Options that a resumed run may be given anew."""


@dataclass(frozen=True)
class TrainRequest:
    """The arguments of `elmo train` that are not options of the recipe, and those options that were given."""

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
    """What the user typed, for the model card."""
    changes: Mapping[str, Any] = field(default_factory=dict)

    def kept(self) -> dict[str, Any]:
        """What run.json keeps, files by their full names."""
        return {
            "corpus": [_full(source) for source in self.corpus],
            "heldout": [_full(source) for source in self.heldout],
            "word_vectors": None if self.word_vectors is None else str(self.word_vectors.resolve()),
            "init": None if self.init is None else str(self.init.resolve()),
            "init_options": None if self.init_options is None else str(self.init_options.resolve()),
            "preset": self.preset,
            "way": self.recipe,
        }


def settled(request: TrainRequest, folder: RunFolder) -> tuple[TrainRequest, Recipe]:
    """The request and the recipe; a resumed run has those it began with, but for how long it goes on."""
    if request.vocab is not None:
        vocab_of(request.vocab)  # a mistake shows before hours of preparing a corpus
    for name, path in (("--word-vectors", request.word_vectors), ("--init", request.init)):
        if path is not None and not path.exists() and not any(path.parent.glob(f"{escape(path.name)}.*")):
            raise ElmoError(f"{name} {path} does not exist")
    return _resumed(request, folder) if folder.started else _new(request, folder)


def _new(request: TrainRequest, folder: RunFolder) -> tuple[TrainRequest, Recipe]:
    if not request.corpus:
        raise ElmoError("a corpus is needed: name files, folders or globs, or - for standard input")
    if any((folder.folder / name).exists() for name in _OF_A_MODEL):
        raise ElmoError(f"{folder.folder} holds a model already: choose another --output")
    recipe = make_recipe(
        preset=request.preset, recipe=request.recipe, config=request.config, changes=_with_context(request)
    )
    if recipe.done and request.init is None:
        raise ElmoError(f"done {recipe.done:g} needs --init, the model that has so much of the run behind it")
    if request.init is not None and request.word_vectors is not None:
        raise ElmoError("--word-vectors cannot be given with --init, whose model has a word table of its own")
    if request.init is not None and (given := sorted(_SHAPE & request.changes.keys())):
        raise ElmoError(f"--{given[0].replace('_', '-')} cannot be given with --init, whose model has its shape")
    if request.word_vectors is not None and recipe.input != "words":
        raise ElmoError("--word-vectors go with --input words; a character model has no word table")
    if request.word_vectors is not None and not recipe.train_word_vectors and recipe.weight_decay:
        raise ElmoError(
            f"weight_decay {recipe.weight_decay:g} would move the word vectors that --no-train-word-vectors keeps as "
            "they are: leave one of the two out"
        )
    if recipe.tie_softmax and not recipe.train_word_vectors:
        raise ElmoError(
            "--tie-softmax with --no-train-word-vectors would keep the softmax from learning: leave one out"
        )
    clock = recipe.minutes if recipe.objective == "windows" else 0  # the schedules of segments never follow it
    if not (recipe.tokens or recipe.epochs or recipe.steps or clock):
        recipe = replace(recipe, epochs=_DEFAULT_EPOCHS)
    named = _options(request)
    request = replace(
        request,
        preset=request.preset or named.get("preset", "small"),
        recipe=request.recipe or named.get("recipe", "modern"),
    )
    return request, recipe


def _with_context(request: TrainRequest) -> dict[str, Any]:
    """The options on the command line, with the context encoder of --init's model, which decides the defaults."""
    if request.init is None:
        return dict(request.changes)
    kind = read_checkpoint(request.init, options=request.init_options).config.context.kind
    named = _options(request).get("context", kind)
    if named != kind:
        raise ElmoError(f"context must be {kind}, the encoder of --init {request.init.name}, got {named}")
    return {**request.changes, "context": kind}


def _resumed(request: TrainRequest, folder: RunFolder) -> tuple[TrainRequest, Recipe]:
    if not request.resume:
        raise ElmoError(
            f"{folder.folder} holds a run already: add --resume to go on with it, or choose another --output"
        )
    kept = folder.read_request()
    recipe = Recipe(**kept["recipe"])
    vocab = _path(kept["vocab"] and str(folder.checkpoints / kept["vocab"]))
    now, named = request.kept(), _options(request)
    now |= {"preset": named.pop("preset", None), "way": named.pop("recipe", None)}
    moved = {name for name in ("corpus", "heldout") if now[name] and kept[name]}
    for name, value in now.items():
        if value and value != kept[name] and name not in moved:  # a run may be carried to where its text is elsewhere
            shown = {"way": "recipe"}.get(name, name)
            raise ElmoError(f"{shown} was {kept[name]} when the run began and cannot change with --resume")
    if request.vocab is not None and (vocab is None or vocab_of(request.vocab) != vocab_of(vocab)):
        raise ElmoError(f"--vocab {request.vocab} has other words than the run began with: leave it out with --resume")
    if kept["init"] is not None:
        named = {name: value for name, value in named.items() if name not in _SHAPE}
    named = {name: value for name, value in named.items() if value != "auto"}  # which was settled when the run began
    asked = replace(recipe, **named)
    for name in named.keys() - _MAY_CHANGE:
        if getattr(asked, name) != getattr(recipe, name):
            raise ElmoError(
                f"{name} was {getattr(recipe, name)} when the run began and cannot change with --resume; "
                f"what may change is {', '.join(sorted(_MAY_CHANGE))}"
            )
    # A new length takes the place of all the old ones; the minutes of a leg are no length.
    lengths = _LENGTHS if recipe.objective == "windows" else _LENGTHS - {"minutes"}
    if any(named.get(name) for name in lengths):
        asked = replace(asked, **{name: named.get(name, 0) for name in lengths})
    elif not any(getattr(asked, name) for name in lengths):
        asked = replace(asked, **{name: getattr(recipe, name) for name in lengths})
    if recipe.objective != "windows":
        asked = replace(asked, minutes=named.get("minutes", 0.0), until=named.get("until", 1.0))
    request = replace(
        request,
        corpus=now["corpus"] or kept["corpus"],
        heldout=now["heldout"] or kept["heldout"],
        vocab=vocab,
        word_vectors=_path(kept["word_vectors"]),
        init=_path(kept["init"]),
        init_options=_path(kept["init_options"]),
        preset=kept["preset"],
        recipe=kept["way"],
    )
    return request, asked


def _options(request: TrainRequest) -> dict[str, Any]:
    """What the user named: in the file given with --config, over it on the command line."""
    named = {"preset": request.preset, "recipe": request.recipe}
    given = {} if request.config is None else read_config(request.config)
    return {**given, **{name: value for name, value in named.items() if value}, **request.changes}


def vocab_of(path: Path) -> Vocabulary:
    """The words of a vocab.txt, `<S>`, `</S>` and `<UNK>` among them."""
    if not path.is_file():
        raise ElmoError(f"--vocab {path} does not exist or is no file; elmo vocab writes one")
    vocab = read_vocabulary(FolderSource(path.parent), path.name)
    try:
        vocab.require_specials()
    except ElmoError as error:
        raise ElmoError(f"{path}: {error}") from error
    return vocab


def keep_request(
    request: TrainRequest,
    recipe: Recipe,
    folder: RunFolder,
    corpus: PreparedCorpus,
    heldout: PreparedCorpus | None,
    vocab: Vocabulary,
) -> None:
    """Keep what a resumed run needs; run.json comes last, and names the command that began the run."""
    command = folder.read_request()["command"] if folder.started else request.command
    own = vocab.specials == (BEGIN, END, UNKNOWN)  # an existing model with other boundaries has its words itself
    if own:
        write_text(folder.checkpoints / "vocab.txt", vocab.to_text())
    prepared = {
        name: {"folder": str(part.folder.resolve()), "content": part.content}
        for name, part in (("corpus", corpus), ("heldout", heldout))
        if part is not None
    }
    folder.write_request(
        {
            "version": VERSION,
            "command": command,
            **request.kept(),
            "vocab": "vocab.txt" if own else None,
            "prepared": prepared,
            "recipe": recipe.to_dict(),
        }
    )


def _full(source: str) -> str:
    return source if source == "-" else str(Path(source).expanduser().absolute())


def _path(name: str | None) -> Path | None:
    return None if name is None else Path(name)

"""Every option of a training run, with its default and its text in `elmo train --help`.

A recipe is made from four sources, each overriding the one before: the defaults here, presets.toml (a preset is a size
of the network, a recipe is how it is trained), a TOML file of the user, and the command line.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from elmokit.config import CONTEXTS, CharacterConfig, ElmoConfig, WordConfig
from elmokit.errors import ElmoError
from elmokit.extensions import load_extensions
from elmokit.formats.bilm_options import read_options
from elmokit.options import check_options, option
from elmokit.text.tokens import name_in_files

Preset = Literal["tiny", "small", "medium", "original"]
RecipeName = Literal["modern", "paper"]


def lstm_option(default: Any, help: str, **bounds: float) -> Any:  # noqa: ANN401
    """An option of encoders that are trained on windows of text."""
    return option(default, help, only="windows", **bounds)


def transformer_option(default: Any, help: str, **bounds: float) -> Any:  # noqa: ANN401
    """An option of encoders that are trained on segments of text."""
    return option(default, help, only="segments", **bounds)


@dataclass(frozen=True)
class Recipe:
    """All options of a training run, in the order of `elmo train --help`."""

    # The network.
    input: Literal["chars", "words"] = option(
        "chars", "What the model reads for a token: its characters, or its row in a word table."
    )
    context: str = option("lstm", "Kind of context encoder: lstm, transformer, or one added with register_context.")
    cell_size: int = lstm_option(1024, "Size of the memory cell of each LSTM (H).", least=1)
    output_size: int = lstm_option(
        128, "Size of the output of each LSTM (P); a vector has one for each direction.", least=1
    )
    layers: int = lstm_option(2, "Number of LSTM layers in each direction.", least=1)
    size: int = transformer_option(384, "Size of the token vectors in every layer of a transformer (P).", least=2)
    blocks: int = transformer_option(8, "Number of blocks of a transformer.", least=1)
    heads: int = transformer_option(6, "Number of attention heads in each block.", least=1)
    inner_size: int = transformer_option(960, "Size of the feed-forward layer in each block.", least=1)
    attention_window: int = transformer_option(
        64, "Number of words that a word sees on each side in one block.", least=1
    )
    softmax_size: int = transformer_option(256, "Size of the vectors that the softmax reads.", least=1)
    every: int = transformer_option(2, "Number of blocks per layer of the model's output.", least=1)
    prediction_layer: bool = transformer_option(
        False, "Add a last layer to the output: what the softmax reads to predict the word itself."
    )
    filters: str = option("1:32,2:32,3:64,4:128,5:256,6:512,7:1024", "Character convolutions, as width:count,…")
    character_size: int = option(16, "Size of the character vectors.", least=1)
    max_characters: int = option(50, "Number of bytes that are read of a word, two markers included.", least=3)
    highways: int = option(1, "Number of highway layers after the convolutions.", least=0)
    activation: Literal["relu", "tanh"] = option("relu", "Activation after each convolution.")
    word_size: int = option(
        0, "Size of the word vectors with --input words; 0: the size that the context encoder reads.", least=0
    )
    cell_clip: float = lstm_option(3.0, "Limit for the memory cells; 0: none.", least=0)
    projection_clip: float = lstm_option(3.0, "Limit for the LSTMs' outputs; 0: none.", least=0)
    skip_connections: bool = lstm_option(True, "Add the input of layers after the first to their output.")
    tie_softmax: bool = option(False, "Use the word table as the softmax, with --input words.")
    train_word_vectors: bool = option(True, "Continue to train the vectors of --word-vectors.")

    # The text.
    segment: Literal["english", "jieba", "chars", "whitespace", "none"] = option(
        "none", "How a sentence is split into tokens; none: at white space."
    )
    split: Literal["none", "line", "paragraph"] = option(
        "none", "Split raw text into sentences: every line, or every paragraph between blank lines."
    )
    max_tokens: int = option(1000, "Largest number of tokens in a sentence; longer ones are left out.", least=1)
    vocab_size: int = option(50_000, "Number of words in the softmax without --vocab.", least=4)
    min_count: int = option(2, "Number of times a word must occur to be in the softmax without --vocab.", least=1)
    heldout_fraction: float = option(
        0.01, "Share of the sentences held out without --heldout, at most 10,000.", least=0, most=0.5
    )
    shuffle: bool = option(True, "Read the sentences in a new random order in each epoch, not in file order.")

    # The training.
    batch_size: int = lstm_option(
        0,
        "Rows of text per process and batch; 0: by the size of the text, 16 to 32 on a CPU, up to 256 on a GPU.",
        least=0,
    )
    window: int = lstm_option(32, "Tokens of each row per update (bilm-tf: unroll_steps).", least=1)
    batch_tokens: int = transformer_option(
        0,
        "Tokens per process and batch; 0: by the size of the text, 512 to 4,096 on a CPU, up to 65,536 on a GPU.",
        least=0,
    )
    segment_tokens: int = transformer_option(
        256, "Largest number of tokens in a segment, its two boundaries included.", least=3
    )
    join: float = transformer_option(
        0.5, "Share of the segments that are several consecutive sentences.", least=0, most=1
    )
    mask: str = transformer_option(
        "0.3,0.15", "Share of the words that are masked and predicted: at the start and at the end of the run."
    )
    causal: str = transformer_option(
        "0.6,0.125",
        "Share of the segments in which words are predicted from one side: at the start and at the end of the run.",
    )
    grow: float = transformer_option(
        0.5, "Share of the run after which an update reads twice as many tokens; 1: never.", least=0, most=1
    )
    accumulate: int = option(1, "Number of batches per update.", least=1)
    reset: float = lstm_option(1.0, "Share of the sentences that start from a zero state.", least=0, most=1)
    dropout: float = option(
        0.1, "Dropout on each LSTM layer's input and the top output, or in each transformer block.", least=0, most=0.99
    )
    loss: Literal["auto", "full", "sampled"] = option(
        "auto", "Softmax over all words or over a sample; auto: a sample for large vocabularies on a CPU."
    )
    negatives: int = option(8192, "Number of words in the sample of the sampled softmax.", least=1)
    optimizer: Literal["adam", "muon", "adagrad"] = option(
        "adam", "The optimiser; muon: orthogonal steps for matrices, Adam for tables and biases."
    )
    learning_rate: float = option(6e-3, "The largest learning rate.", least=0)
    warmup: float = option(0.1, "Share of the run in which the rate rises.", least=0, most=1)
    decay: Literal["none", "linear", "cosine"] = option("cosine", "How the rate falls after that.")
    final_rate: float = option(0.02, "The last rate, as a share of the largest.", least=0, most=1)
    beta1: float = option(0.9, "Adam's decay of the mean gradient.", least=0, most=0.9999)
    beta2: float = option(0.99, "Adam's decay of the mean squared gradient.", least=0, most=0.99999)
    momentum: float = option(0.95, "Muon's decay of the mean gradient.", least=0, most=0.9999)
    weight_decay: float = option(0.0, "Decoupled weight decay of matrices; with muon, not of tables.", least=0)
    accumulator: float = option(1.0, "Initial value of Adagrad's sums.", least=1e-9)
    clip_norm: float = option(0.5, "Limit for the norm of all gradients together; 0: none.", least=0)
    unigram_bias: bool = option(True, "Start a new softmax from the words' frequencies, not from equal probabilities.")
    scale_by_window: bool = lstm_option(False, "Multiply the loss by the window, as bilm-tf does.")
    precision: Literal["auto", "float32", "bfloat16"] = option("auto", "dtype to compute in; auto: bfloat16 on a GPU.")
    seed: int = option(1, "Seed of all random numbers.", least=0, most=2**63 - 1)

    # The length of the run, and what is stored.
    tokens: float = option(0.0, "Tokens after which to stop; 0: no limit.", least=0)
    epochs: float = option(
        0.0, "Passes over the text after which to stop; 0: no limit, or 10 if no other length is given.", least=0
    )
    steps: int = option(0, "Updates after which to stop; 0: no limit.", least=0)
    minutes: float = option(
        0.0,
        "Minutes after which to stop; 0: no limit. Without another length, an LSTM's schedules follow the clock; a "
        "transformer's never do. --resume continues the run.",
        least=0,
    )
    done: float = transformer_option(
        0.0,
        "Share of the run that the model of --init has already done; the schedules continue from there.",
        least=0,
        most=0.999,
    )
    until: float = transformer_option(
        1.0,
        "Share of the run at which to stop; --resume continues it, on this machine or another one.",
        least=0,
        most=1,
    )
    eval_every: int = option(
        0, "Updates between held-out perplexities; 0: up to twenty evaluations in the run.", least=0
    )
    patience: int = option(
        0, "Stop after this number of held-out perplexities without an improvement; 0: never.", least=0
    )
    log_every: int = option(
        0, "Updates between lines of metrics.jsonl; 0: about five hundred lines in the run.", least=0
    )
    checkpoint_every: int = option(0, "Updates between checkpoints; 0: one at each evaluation.", least=0)
    checkpoint_minutes: float = option(2.0, "Longest time between checkpoints in minutes; 0: no limit.", least=0)
    keep: int = option(2, "Number of checkpoints to store besides the best.", least=1)

    def __post_init__(self) -> None:
        for name in ("mask", "causal"):  # a TOML file may contain a number
            if isinstance(getattr(self, name), int | float):
                object.__setattr__(self, name, str(getattr(self, name)))
        check_options(self)
        object.__setattr__(self, "segment", name_in_files(self.segment))
        if self.tie_softmax and self.input != "words":
            raise ElmoError(
                "tie_softmax needs input words: a character model has no table for the softmax", "tie_softmax", "input"
            )
        parse_filters(self.filters)
        if self.context not in CONTEXTS:
            load_extensions()
        if self.context not in CONTEXTS:
            raise ElmoError(f"context must be one of {', '.join(CONTEXTS)}, got {self.context!r}", "context")
        for name in ("mask", "causal"):
            parse_range(name, getattr(self, name))
        context = CONTEXTS[self.context].from_options(self.to_dict())
        if self.tie_softmax and (self.word_size or context.token_size) != context.prediction_size:
            raise ElmoError(
                f"tie_softmax needs a word_size of {context.prediction_size}, the size that the softmax reads, got "
                f"{self.word_size or context.token_size}",
                "tie_softmax",
                "word_size",
            )

    @property
    def objective(self) -> str:
        """The training objective of the context encoder: windows or segments."""
        return CONTEXTS[self.context].objective

    def config(self, n_words: int) -> ElmoConfig:
        """The configuration of the network for a vocabulary of `n_words`."""
        context = CONTEXTS[self.context].from_options(self.to_dict())
        if self.input == "words":
            size = self.word_size or context.token_size
            return ElmoConfig(context, words=WordConfig(n_words, size), token_projection=size != context.token_size)
        characters = CharacterConfig(
            filters=parse_filters(self.filters),
            embedding_size=self.character_size,
            max_characters=self.max_characters,
            activation=self.activation,
            n_highway=self.highways,
        )
        return ElmoConfig(context, characters, token_projection=characters.n_filters != context.token_size)

    def to_dict(self) -> dict[str, Any]:
        """The options for JSON."""
        return asdict(self)


def parse_filters(text: str) -> tuple[tuple[int, int], ...]:
    """The width and number of filters of each convolution.

    >>> parse_filters("1:32,2:64")
    ((1, 32), (2, 64))
    """
    pairs = []
    for part in text.split(","):
        width, colon, count = part.strip().partition(":")
        if not (colon and width.strip().isdecimal() and count.strip().isdecimal()):
            raise ElmoError(f"filters must look like 1:32,2:64 (width:count), got {text!r}", "filters")
        pairs.append((int(width), int(count)))
    return tuple(pairs)


def parse_range(name: str, text: str) -> tuple[float, float]:
    """The share at the start and at the end of a run; one number stands for both.

    >>> parse_range("mask", "0.3,0.15"), parse_range("mask", "0.2")
    ((0.3, 0.15), (0.2, 0.2))
    """
    try:
        first, *more = (float(part) for part in text.split(","))
        (last,) = more or [first]
    except ValueError:
        first = last = -1.0
    if not (0 <= first <= 1 and 0 <= last <= 1):
        raise ElmoError(f"{name} must be a share from 0 to 1, or two as in 0.3,0.15 (start, end), got {text!r}", name)
    return first, last


def make_recipe(
    *,
    preset: str | None = None,
    recipe: str | None = None,
    config: Path | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Recipe:
    """Make a recipe from the presets, then the user's file, then the changes from the command line."""
    named = {**(read_config(config) if config is not None else {}), **(changes or {})}
    in_file = {name: named.pop(name, None) for name in ("preset", "recipe")}
    size, method = preset or in_file["preset"] or "small", recipe or in_file["recipe"] or "modern"
    context = named.get("context", "lstm")
    load_extensions()
    presets = tomllib.loads(files("elmokit.pretrain").joinpath("presets.toml").read_text(encoding="utf-8"))
    known = {"preset": (size, presets["preset"]), "recipe": (method, presets["recipe"]), "context": (context, CONTEXTS)}
    for name, (value, choices) in known.items():
        if not isinstance(value, str) or value not in choices:
            raise ElmoError(f"{name} must be one of {', '.join(choices)}, got {value!r}", name)
    objective, sizes = CONTEXTS[context].objective, presets["preset"][size]
    for item in fields(Recipe):
        unusable = item.metadata.get("only") not in (None, objective)
        if unusable and named.get(item.name, item.default) != item.default:
            others = [kind for kind in CONTEXTS if CONTEXTS[kind].objective == item.metadata.get("only")]
            raise ElmoError(
                f"{item.name} is an option for the encoder {' or '.join(others)}, and this run has {context}: leave it "
                "out",
                item.name,
            )
    if objective == "windows":
        values = {**presets["recipe"][method], **sizes["network"], **sizes.get(method, {})}
    elif method == "modern":
        values = {**presets["objective"][objective], **sizes.get(context, {})}
    else:
        raise ElmoError(
            f"recipe {method} trains an LSTM, and this run has the encoder {context}: leave it out", "recipe"
        )
    return Recipe(**{**values, **named})


def read_config(path: Path) -> dict[str, Any]:
    """Options from a TOML file with the names of `elmo train --help`, or from a bilm-tf options.json."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ElmoError(
            f"config {path} cannot be read: {getattr(error, 'strerror', None) or error}", "config"
        ) from error
    try:
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except ValueError as error:
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise ElmoError(f"config {path} is not valid {kind}: {error}", "config") from error
    if path.suffix == ".json":
        # These options describe bilm-tf's training; its rate of 0.2 would ruin any other recipe.
        values = {"recipe": "paper", **from_bilm_options(values, str(path))}
    known = {item.name for item in fields(Recipe)} | {"preset", "recipe"}
    values = {name.replace("-", "_"): value for name, value in values.items()}
    if unknown := sorted(set(values) - known):
        raise ElmoError(f"config {path} has no option {unknown[0]!r}; elmo train --help lists them", "config")
    return values


def from_bilm_options(options: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The training options of bilm-tf's options.json by their names in a recipe, without the counts of the corpus."""
    if not isinstance(options, Mapping):
        raise ElmoError(f"{where} must be an object with named values, got {options!r}")
    if options.get("bidirectional") is False:
        raise ElmoError(
            f"{where} asks for one direction (bidirectional: false), and elmo train trains two: leave it out"
        )
    values = {ours: options[theirs] for theirs, ours in _BILM_NAMES.items() if theirs in options}
    if "sample_softmax" in options:
        values["loss"] = "sampled" if options["sample_softmax"] else "full"
    config = read_options(options, where, bidirectional=True, n_words=1, projections=(False, False))
    characters = config.characters
    values |= {"input": "words" if characters is None else "chars", **config.context.to_options()}
    return values if characters is None else values | character_options(characters)


def character_options(characters: CharacterConfig) -> dict[str, Any]:
    """The options of a recipe that give this configuration."""
    return {
        "filters": ",".join(f"{width}:{count}" for width, count in characters.filters),
        "character_size": characters.embedding_size,
        "max_characters": characters.max_characters,
        "highways": characters.n_highway,
        "activation": characters.activation,
    }


_BILM_NAMES = {
    "dropout": "dropout",
    "all_clip_norm_val": "clip_norm",
    "n_epochs": "epochs",
    "batch_size": "batch_size",
    "unroll_steps": "window",
    "n_negative_samples_batch": "negatives",
    "learning_rate": "learning_rate",
    "share_embedding_softmax": "tie_softmax",
    "n_tokens_vocab": "vocab_size",
}

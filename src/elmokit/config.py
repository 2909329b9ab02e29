"""The shape of a model, as frozen dataclasses that check themselves.

Dimension letters, used in every signature of the package:
B batch, T tokens, U distinct tokens, M characters of a token, C character vocabulary, F filters,
P token vector (of an LSTM also its output), H LSTM cell, L context layers, V word vocabulary,
S vector that the softmax reads, D vector given to the user (of an LSTM 2P for two directions, P for one).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from functools import partial
from typing import Any, ClassVar, Literal, Self

from elmokit.errors import ElmoError
from elmokit.extensions import load_extensions
from elmokit.options import REQUIRED, check_options, check_value, option

Activation = Literal["relu", "tanh"]
Alphabet = Literal["bytes", "symbols"]

_MOST_PARTS = 1000
"""Layers, highways or filters: a damaged file with a billion would be built before its weights are missed."""
_size = partial(option, least=1, most=2**31 - 1)
_characters = partial(option, least=3, most=2**16)  # a damaged file with more would turn each word into millions of ids
_clip = partial(option, 3.0, least=1e-18, most=1e18)  # torch clamps to no whole number above 2**63


@dataclass(frozen=True)
class CharacterConfig:
    """The character part: M ids of a token → convolutions, max over positions, highways → F numbers."""

    filters: tuple[tuple[int, int], ...]
    """(width, count) of each convolution, in the order in which their outputs are joined."""
    embedding_size: int = _size(16, "Numbers per character.")
    max_characters: int = _characters(50, "M: ids per token, the two word markers included; a longer token is cut.")
    activation: Activation = option("relu", "Applied after the maximum over positions.")
    n_highway: int = option(0, "Highway layers over the F filter outputs.", least=0, most=_MOST_PARTS)
    alphabet: Alphabet = option(
        "bytes", "bytes: UTF-8 bytes and five markers; symbols: the code points of the model's own table."
    )
    n_characters: int = _size(
        262, "C: rows of the character table; row 0 is the padded token's and always zero.", least=2
    )
    padding_character: int = _size(261, "The id that pads a token to M; it has a trained row of its own.")

    def __post_init__(self) -> None:
        check_options(self)
        if not isinstance(self.filters, list | tuple) or not all(
            isinstance(pair, list | tuple) and len(pair) == 2 for pair in self.filters
        ):
            raise ElmoError(f"filters must be pairs of width and count, got {self.filters!r}")
        if not 0 < len(self.filters) <= _MOST_PARTS:
            raise ElmoError(f"filters must name 1 to {_MOST_PARTS} convolutions, got {len(self.filters)}")
        for width, count in self.filters:
            check_value("a filter's width", width, int, {"least": 1, "most": self.max_characters})
            check_value("a filter's count", count, int, {"least": 1})
        object.__setattr__(self, "filters", tuple((int(width), int(count)) for width, count in self.filters))
        if self.alphabet == "bytes" and (self.n_characters, self.padding_character) != (262, 261):
            raise ElmoError(f"n_characters must be 262 for a byte alphabet, got {self.n_characters}")
        if self.padding_character >= self.n_characters:
            raise ElmoError(f"padding_character must be below n_characters, got {self.padding_character}")

    @property
    def widest_filter(self) -> int:
        """Characters that the widest convolution looks at."""
        return max(width for width, _ in self.filters)

    @property
    def n_filters(self) -> int:
        """F, the filters of all widths together."""
        return sum(count for _, count in self.filters)


@dataclass(frozen=True)
class WordConfig:
    """The word part: an id from the vocabulary → a row of a table."""

    n_words: int = _size(
        REQUIRED, "V: words in the table, the padding row 0 not counted; a word's id is its vocabulary index + 1."
    )
    embedding_size: int = _size(REQUIRED, "Numbers per word.")
    max_characters: int | None = _characters(
        None, "If given, a word is cut to two characters less than this before it is looked up."
    )

    def __post_init__(self) -> None:
        check_options(self)


OneLayer = Literal["mix", "top"] | int
"""One vector per token: the mix of the layers, the top one, or one by its number."""


class ContextConfig(ABC):
    """The shape of a context encoder; a frozen dataclass for each kind.

    `register_context` in `elmokit.model.context` adds a kind from outside the package.
    """

    kind: ClassVar[str]
    """Its name: the key in config.json, and the `context` of `elmo train`."""
    objective: ClassVar[str] = "windows"
    """How it is trained: on `windows` or on `segments` of text (`elmokit.pretrain.objective`)."""

    @property
    def default_layer(self) -> OneLayer:
        """The layer that `Elmo.encode` gives: one whose vectors are good features of words in context."""
        return "mix"

    @property
    def similarity_layer(self) -> OneLayer:
        """The layer that `Elmo.similarity` compares: the one whose cosines tell senses apart best."""
        return self.default_layer

    @property
    @abstractmethod
    def n_layers(self) -> int:
        """L: the layers above the token layer."""

    @property
    @abstractmethod
    def token_size(self) -> int:
        """P: numbers per token that it reads."""

    @property
    def prediction_size(self) -> int:
        """S: numbers per token that the softmax reads."""
        return self.token_size

    def vector_size(self, n_directions: int) -> int:
        """D: numbers per token in a vector for the user; the directions' outputs are concatenated."""
        return n_directions * self.token_size

    def describe(self, n_directions: int) -> list[tuple[str, str]]:
        """Names and values for `elmo info` and the model card."""
        values = ", ".join(f"{item.name} {getattr(self, item.name)}" for item in fields(self))  # type: ignore[arg-type]
        return [(self.kind, f"{values}; {'both directions' if n_directions > 1 else 'forward only'}")]

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """The shape that options of `elmo train` describe."""
        return cls(**{field: options[name] for field, name in cls._option_names().items()})

    def to_options(self) -> dict[str, Any]:
        """The options of `elmo train` that describe this shape."""
        return {name: getattr(self, field) for field, name in self._option_names().items()}

    @classmethod
    def _option_names(cls) -> dict[str, str]:
        """The option of `elmo train` for each field that has one: of the same name, or the field's `train`."""
        named = [(item.name, item.metadata.get("train", item.name)) for item in fields(cls) if item.metadata]  # type: ignore[arg-type]
        return {field: name for field, name in named if name}


@dataclass(frozen=True)
class LstmConfig(ContextConfig):
    """One direction of the LSTM stack; the other has the same shape."""

    kind: ClassVar[str] = "lstm"
    cell_size: int = _size(REQUIRED, "H: numbers in the memory cell.")
    output_size: int = _size(
        REQUIRED, "P: numbers in the output and in the recurrent state; equal to H where there is no projection."
    )
    n_layers: int = _size(2, "L.", most=_MOST_PARTS, train="layers")
    projection: bool = option(True, "Whether the cell's output is multiplied down from H to P.", train=None)
    skip_connections: bool = option(True, "Whether layers after the first add their input to their output.")
    cell_clip: float | None = _clip("Bound on each number of the memory cell.")
    projection_clip: float | None = _clip(
        "Bound on each number of the projected output; has no effect without a projection."
    )
    forget_bias: float = 1.0
    """Added to the forget gate; what the bias in the file leaves out."""

    def __post_init__(self) -> None:
        check_options(self)
        if self.forget_bias not in (0, 1):
            raise ElmoError(f"forget_bias must be 0 or 1, got {self.forget_bias!r}")
        if not self.projection and self.output_size != self.cell_size:
            raise ElmoError(
                f"output_size must be the cell_size {self.cell_size} where there is no projection, "
                f"got {self.output_size}"
            )

    @property
    def token_size(self) -> int:
        """P: a token has as many numbers as an output, so that every layer can have the same shape."""
        return self.output_size

    def describe(self, n_directions: int) -> list[tuple[str, str]]:
        """Names and values for `elmo info` and the model card."""
        size = f"{self.n_layers} x {self.cell_size}" + (f", projected to {self.output_size}" if self.projection else "")
        bounds = (self.cell_clip, self.projection_clip if self.projection else None)
        cells, outputs = ("none" if bound is None else f"±{bound:g}" for bound in bounds)
        return [
            ("LSTM", f"{size}, {'both directions' if n_directions > 1 else 'forward only'}"),
            ("clips", f"cells {cells}, outputs {outputs}"),
            ("skip connections", "yes" if self.skip_connections else "no"),
        ]

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """The shape that options of `elmo train` describe; a clip of 0 means none."""
        clips = {name: options[name] or None for name in ("cell_clip", "projection_clip")}
        shape = super().from_options({**options, **clips})
        return replace(shape, projection=shape.cell_size != shape.output_size)

    def to_options(self) -> dict[str, Any]:
        """The options of `elmo train` that describe this shape."""
        return {name: 0.0 if value is None else value for name, value in super().to_options().items()}


@dataclass(frozen=True)
class TransformerConfig(ContextConfig):
    """Blocks of attention and feed-forward layers: every layer reads both sides of a word."""

    kind: ClassVar[str] = "transformer"
    objective: ClassVar[str] = "segments"
    size: int = _size(REQUIRED, "P: numbers per token, in every layer.")
    n_blocks: int = _size(8, "Blocks on top of each other.", most=_MOST_PARTS, train="blocks")
    n_heads: int = _size(6, "Attention heads, each with P / n_heads numbers per token.", train="heads")
    inner_size: int = _size(960, "I: numbers per token inside the feed-forward part.")
    window: int = _size(64, "How far a token sees to either side in one block.", train="attention_window")
    softmax_size: int = _size(256, "S: numbers per token that the softmax reads.")
    every: int = _size(2, "Blocks per layer that the user gets.")
    prediction_layer: bool = option(
        False, "Whether what the softmax reads about the word itself is one more layer, the last."
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.size % (2 * self.n_heads):
            raise ElmoError(
                f"size must be an even number for each of the {self.n_heads} heads, got {self.size}: "
                f"take {-(-self.size // (2 * self.n_heads)) * 2 * self.n_heads} or other heads"
            )
        if self.n_blocks % self.every:
            raise ElmoError(f"n_blocks must be a multiple of every ({self.every}), got {self.n_blocks}")
        if self.prediction_layer and self.softmax_size > self.size:
            raise ElmoError(
                f"softmax_size must be at most {self.size}, the size of a layer, got {self.softmax_size}: with "
                "prediction_layer, what the softmax reads is a layer too; give a smaller one, or leave that layer out",
                *("softmax_size", "prediction_layer"),
            )

    @property
    def n_layers(self) -> int:
        """L: each `every`-th block gives a layer, and so may the prediction."""
        return self.n_blocks // self.every + self.prediction_layer

    @property
    def default_layer(self) -> OneLayer:
        """The layer of the last block."""
        return self.n_blocks // self.every if self.prediction_layer else "top"

    @property
    def similarity_layer(self) -> OneLayer:
        """The top layer, which may be the prediction."""
        return "top"

    @property
    def token_size(self) -> int:
        """P."""
        return self.size

    @property
    def prediction_size(self) -> int:
        """S."""
        return self.softmax_size

    def vector_size(self, n_directions: int) -> int:
        """P: a vector contains both sides."""
        if n_directions != 2:
            raise ElmoError("a transformer reads both sides of a word: bidirectional must be true, got false")
        return self.size

    def describe(self, n_directions: int) -> list[tuple[str, str]]:
        """Names and values for `elmo info` and the model card."""
        given = "every block" if self.every == 1 else f"each {self.every} blocks"
        layers = f"the token layer and one for {given}"
        if self.prediction_layer:
            layers = f"the token layer, one for {given} and the prediction that the softmax reads"
        return [
            ("Transformer", f"{self.n_blocks} x {self.size}, {self.n_heads} heads, feed-forward {self.inner_size}"),
            ("attention", f"{self.window} words to either side in a block"),
            ("layers", f"{layers}, each after a layer norm"),
        ]


CONTEXTS: dict[str, type[ContextConfig]] = {"lstm": LstmConfig, "transformer": TransformerConfig}
"""The kinds of context encoder by name."""


@dataclass(frozen=True)
class ElmoConfig:
    """The whole network: what a token is made of, and the context encoder above it."""

    context: ContextConfig
    """The context encoder."""
    characters: CharacterConfig | None = None
    """The character part, if the model has one."""
    words: WordConfig | None = None
    """The word part, if the model has one; with both, a token is [word; characters]."""
    token_projection: bool = option(
        True, "Whether a linear layer projects the token to P numbers; without it the parts must have P."
    )
    bidirectional: bool = option(True, "Two directions, or the forward one alone.")

    def __post_init__(self) -> None:
        if not isinstance(self.context, ContextConfig):
            raise ElmoError(f"context must be the shape of a context encoder (LstmConfig …), got {self.context!r}")
        check_options(self)
        if self.characters is None and self.words is None:
            raise ElmoError("a model needs a character part, a word part or both, got neither")
        self.context.vector_size(self.n_directions)  # refuses a number of directions that the encoder does not have
        if not self.token_projection and self.parts_size != self.token_size:
            raise ElmoError(
                f"a token without projection must have the {self.token_size} numbers that the context encoder reads, "
                f"got {self.parts_size}"
            )

    @property
    def lstm(self) -> LstmConfig:
        """The context encoder of a model that has an LSTM, as every ELMo in the older formats has."""
        if not isinstance(self.context, LstmConfig):
            raise ElmoError(f"this needs a model with an LSTM; this one has the context encoder {self.context.kind}")
        return self.context

    @property
    def parts_size(self) -> int:
        """Numbers in a token before its projection."""
        words = self.words.embedding_size if self.words else 0
        return words + (self.characters.n_filters if self.characters else 0)

    @property
    def token_size(self) -> int:
        """P: numbers in a token vector, before any context."""
        return self.context.token_size

    @property
    def n_directions(self) -> int:
        """2 for a biLM, 1 for a forward model."""
        return 2 if self.bidirectional else 1

    @property
    def vector_size(self) -> int:
        """D: numbers in a vector given to the user."""
        return self.context.vector_size(self.n_directions)

    @property
    def n_outputs(self) -> int:
        """L + 1: the token layer and the context layers."""
        return self.context.n_layers + 1

    def to_dict(self) -> dict[str, Any]:
        """The configuration for JSON; the context encoder's key is its kind."""
        values = asdict(self)
        return {self.context.kind: values.pop("context"), **values}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ElmoConfig:
        """The configuration that `to_dict` wrote."""
        parts: dict[str, Any] = dict(values)
        if not CONTEXTS.keys() & parts.keys():
            load_extensions()
        kind = next((kind for kind in CONTEXTS if kind in parts), None)
        if kind is None:
            raise ElmoError(
                f"a configuration needs the key {' or '.join(CONTEXTS)}; another context encoder needs the package it "
                "comes from"
            )
        parts["context"] = _build(CONTEXTS[kind], parts.pop(kind), kind)
        for name, part in (("characters", CharacterConfig), ("words", WordConfig)):
            if parts.get(name) is not None:
                parts[name] = _build(part, parts[name], name)
        config: ElmoConfig = _build(cls, parts, "configuration")
        return config


def _build(kind: type[Any], values: object, where: str) -> Any:  # noqa: ANN401 - any of the dataclasses above
    if not isinstance(values, Mapping):
        raise ElmoError(f"{where} must be an object with named values, got {values!r}")
    known = {field.name for field in fields(kind)}
    if unknown := sorted(set(values) - known):
        raise ElmoError(f"{where} has no key {unknown[0]}; known are {', '.join(sorted(known))}")
    needed = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
    if missing := [name for name in needed if name not in values]:
        raise ElmoError(f"{where} needs the key {missing[0]}")
    return kind(**values)

"""The shape of a model, as frozen dataclasses that check themselves.

Dimension letters, used in every signature of the package:
B batch, T tokens, U distinct tokens, M characters of a token, C character vocabulary, F filters,
P token vector (of an LSTM also its output), H LSTM cell, L context layers, V word vocabulary,
S vector that the softmax reads, D vector given to the user (of an LSTM 2P for two directions, P for one).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, ClassVar, Literal, Self

from elmokit.errors import ElmoError

Activation = Literal["relu", "tanh"]
Alphabet = Literal["bytes", "symbols"]

_LARGEST = 2**31 - 1
_MOST_CHARACTERS = 2**16
"""A damaged file with more would turn each word into millions of ids."""
_MOST_PARTS = 1000
"""Layers, highways or filters: a damaged file with a billion would be built before its weights are missed."""
_LARGEST_CLIP = 1e18
"""torch clamps to no whole number above 2**63."""


def _whole(name: str, value: object, least: int, most: int = _LARGEST) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ElmoError(f"{name} must be a whole number of at least {least}, got {value!r}", name)
    if value > most:
        raise ElmoError(f"{name} must be at most {most}, got {value}", name)


def _choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ElmoError(f"{name} must be one of {', '.join(allowed)}, got {value!r}", name)


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ElmoError(f"{name} must be true or false, got {value!r}", name)


def _clip(name: str, value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _LARGEST_CLIP:
        raise ElmoError(f"{name} must be a positive number up to {_LARGEST_CLIP:g} or absent, got {value!r}", name)


@dataclass(frozen=True)
class CharacterConfig:
    """The character part: M ids of a token → convolutions, max over positions, highways → F numbers."""

    filters: tuple[tuple[int, int], ...]
    """(width, count) of each convolution, in the order in which their outputs are joined."""
    embedding_size: int = 16
    """Numbers per character."""
    max_characters: int = 50
    """M: ids per token, the two word markers included; a longer token is cut."""
    activation: Activation = "relu"
    """Applied after the maximum over positions."""
    n_highway: int = 0
    """Highway layers over the F filter outputs."""
    alphabet: Alphabet = "bytes"
    """`bytes`: UTF-8 bytes and five markers. `symbols`: the code points of the model's own table."""
    n_characters: int = 262
    """C: rows of the character table; row 0 is the padded token's and always zero."""
    padding_character: int = 261
    """The id that pads a token to M; it has a trained row of its own."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "filters", tuple(tuple(pair) for pair in self.filters))
        if not 0 < len(self.filters) <= _MOST_PARTS:
            raise ElmoError(f"filters must name 1 to {_MOST_PARTS} convolutions, got {len(self.filters)}")
        _whole("max_characters", self.max_characters, 3, _MOST_CHARACTERS)
        for pair in self.filters:
            if len(pair) != 2:
                raise ElmoError(f"filters must be pairs of width and count, got {pair!r}")
            _whole("a filter's width", pair[0], 1)
            _whole("a filter's count", pair[1], 1)
            if pair[0] > self.max_characters:
                raise ElmoError(f"a filter's width must be at most max_characters {self.max_characters}, got {pair[0]}")
        for name, least in (("embedding_size", 1), ("n_characters", 2), ("padding_character", 1)):
            _whole(name, getattr(self, name), least)
        _whole("n_highway", self.n_highway, 0, _MOST_PARTS)
        _choice("activation", self.activation, ("relu", "tanh"))
        _choice("alphabet", self.alphabet, ("bytes", "symbols"))
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

    n_words: int
    """V: words in the table, the padding row 0 not counted; a word's id is its vocabulary index + 1."""
    embedding_size: int
    """Numbers per word."""
    max_characters: int | None = None
    """If given, a word is cut to two characters less than this before it is looked up."""

    def __post_init__(self) -> None:
        _whole("n_words", self.n_words, 1)
        _whole("embedding_size", self.embedding_size, 1)
        if self.max_characters is not None:
            _whole("max_characters", self.max_characters, 3, _MOST_CHARACTERS)


class ContextConfig(ABC):
    """The shape of a context encoder; a frozen dataclass for each kind.

    `register_context` in `elmokit.model.context` adds a kind from outside the package.
    """

    kind: ClassVar[str]
    """Its name: the key in config.json, and the `context` of `elmo train`."""
    objective: ClassVar[str] = "windows"
    """How it is trained: on `windows` or on `segments` of text (`elmokit.pretrain.objective`)."""
    default_layer: ClassVar[Literal["mix", "top"]] = "mix"
    """The layer that `Elmo.encode` gives: the one whose vectors are best for words in context."""

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
    @abstractmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """The shape that options of `elmo train` describe."""

    @abstractmethod
    def to_options(self) -> dict[str, Any]:
        """The options of `elmo train` that describe this shape."""


# The options of `elmo train` for the fields of the two configurations below.
_LSTM_OPTIONS = {
    "cell_size": "cell_size",
    "output_size": "output_size",
    "n_layers": "layers",
    "cell_clip": "cell_clip",
    "projection_clip": "projection_clip",
    "skip_connections": "skip_connections",
}
_TRANSFORMER_OPTIONS = {
    "size": "size",
    "n_blocks": "blocks",
    "n_heads": "heads",
    "inner_size": "inner_size",
    "window": "attention_window",
    "softmax_size": "softmax_size",
    "every": "every",
}


@dataclass(frozen=True)
class LstmConfig(ContextConfig):
    """One direction of the LSTM stack; the other has the same shape."""

    kind: ClassVar[str] = "lstm"
    cell_size: int
    """H: numbers in the memory cell."""
    output_size: int
    """P: numbers in the output and in the recurrent state; equal to H where there is no projection."""
    n_layers: int = 2
    """L."""
    projection: bool = True
    """Whether the cell's output is multiplied down from H to P."""
    skip_connections: bool = True
    """Whether layers after the first add their input to their output."""
    cell_clip: float | None = 3.0
    """Bound on each number of the memory cell."""
    projection_clip: float | None = 3.0
    """Bound on each number of the projected output; has no effect without a projection."""
    forget_bias: float = 1.0
    """Added to the forget gate; what the bias in the file leaves out."""

    def __post_init__(self) -> None:
        for name in ("cell_size", "output_size"):
            _whole(name, getattr(self, name), 1)
        _whole("n_layers", self.n_layers, 1, _MOST_PARTS)
        for name in ("projection", "skip_connections"):
            _flag(name, getattr(self, name))
        for name in ("cell_clip", "projection_clip"):
            _clip(name, getattr(self, name))
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
        values = {field: options[name] for field, name in _LSTM_OPTIONS.items()}
        values |= {name: values[name] or None for name in ("cell_clip", "projection_clip")}
        return cls(**values, projection=values["cell_size"] != values["output_size"])

    def to_options(self) -> dict[str, Any]:
        """The options of `elmo train` that describe this shape."""
        values = {name: getattr(self, field) for field, name in _LSTM_OPTIONS.items()}
        return {name: 0.0 if value is None else value for name, value in values.items()}


@dataclass(frozen=True)
class TransformerConfig(ContextConfig):
    """Blocks of attention and feed-forward layers: every layer reads both sides of a word."""

    kind: ClassVar[str] = "transformer"
    objective: ClassVar[str] = "segments"
    default_layer: ClassVar[Literal["mix", "top"]] = "top"
    size: int
    """P: numbers per token, in every layer."""
    n_blocks: int = 8
    """Blocks on top of each other."""
    n_heads: int = 6
    """Attention heads, each with P / n_heads numbers per token."""
    inner_size: int = 960
    """I: numbers per token inside the feed-forward part."""
    window: int = 64
    """How far a token sees to either side in one block."""
    softmax_size: int = 256
    """S: numbers per token that the softmax reads."""
    every: int = 2
    """Blocks per layer that the user gets."""

    def __post_init__(self) -> None:
        for name in ("size", "n_heads", "inner_size", "window", "softmax_size", "every"):
            _whole(name, getattr(self, name), 1)
        _whole("n_blocks", self.n_blocks, 1, _MOST_PARTS)
        if self.size % (2 * self.n_heads):
            raise ElmoError(
                f"size must be an even number for each of the {self.n_heads} heads, got {self.size}: "
                f"take {-(-self.size // (2 * self.n_heads)) * 2 * self.n_heads} or other heads"
            )
        if self.n_blocks % self.every:
            raise ElmoError(f"n_blocks must be a multiple of every ({self.every}), got {self.n_blocks}")

    @property
    def n_layers(self) -> int:
        """L: each `every`-th block gives a layer."""
        return self.n_blocks // self.every

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
        return [
            ("Transformer", f"{self.n_blocks} x {self.size}, {self.n_heads} heads, feed-forward {self.inner_size}"),
            ("attention", f"{self.window} words to either side in a block"),
            ("layers", f"the token layer and one for {given}, normed"),
        ]

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """The shape that options of `elmo train` describe."""
        return cls(**{field: options[name] for field, name in _TRANSFORMER_OPTIONS.items()})

    def to_options(self) -> dict[str, Any]:
        """The options of `elmo train` that describe this shape."""
        return {name: getattr(self, field) for field, name in _TRANSFORMER_OPTIONS.items()}


CONTEXTS: dict[str, type[ContextConfig]] = {"lstm": LstmConfig, "transformer": TransformerConfig}
"""The kinds of context encoder by name."""


@dataclass(frozen=True, init=False)
class ElmoConfig:
    """The whole network: what a token is made of, and the context encoder above it."""

    context: ContextConfig
    """The context encoder."""
    characters: CharacterConfig | None = None
    """The character part, if the model has one."""
    words: WordConfig | None = None
    """The word part, if the model has one; with both, a token is [word; characters]."""
    token_projection: bool = True
    """Whether a linear layer projects the token to P numbers; without it the parts must have P."""
    bidirectional: bool = True
    """Two directions, or the forward one alone."""

    def __init__(
        self,
        context: ContextConfig | None = None,
        characters: CharacterConfig | None = None,
        words: WordConfig | None = None,
        token_projection: bool = True,
        bidirectional: bool = True,
        *,
        lstm: LstmConfig | None = None,
    ) -> None:
        """`lstm` is the older name of `context`, for models with an LSTM."""
        given = context if lstm is None else lstm
        if not isinstance(given, ContextConfig):
            raise ElmoError(f"context must be the configuration of a context encoder (LstmConfig …), got {given!r}")
        for name, value in (("context", given), ("characters", characters), ("words", words)):
            object.__setattr__(self, name, value)
        for name, flag in (("token_projection", token_projection), ("bidirectional", bidirectional)):
            _flag(name, flag)
            object.__setattr__(self, name, flag)
        if characters is None and words is None:
            raise ElmoError("a model needs a character part, a word part or both, got neither")
        given.vector_size(self.n_directions)  # refuses a number of directions that the encoder does not have
        if not token_projection and self.parts_size != self.token_size:
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
        kind = next((kind for kind in CONTEXTS if kind in parts), None)
        if kind is None:
            raise ElmoError(f"a configuration needs the key {' or '.join(CONTEXTS)}")
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
    if kind is CharacterConfig and not (
        isinstance(values["filters"], list | tuple) and all(isinstance(p, list | tuple) for p in values["filters"])
    ):
        raise ElmoError(f"filters must be pairs of width and count, got {values['filters']!r}")
    return kind(**values)

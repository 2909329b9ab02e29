"""The configuration of a model, as frozen dataclasses that check their values.

Dimension letters, used in every signature of the package:
B batch, T tokens, U distinct tokens, M characters of a token, C character vocabulary, F filters,
P token vector (in an LSTM also its output), H LSTM cell, L context layers, V word vocabulary,
S vector that the softmax reads, D vector given to the user (in an LSTM 2P for two directions, P for one).
"""

from __future__ import annotations

import re
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

_MAX_PARTS = 1000
"""The largest number of layers, highways or filter widths. A damaged file that asks for a billion is refused here,
before they are built."""
_size = partial(option, least=1, most=2**31 - 1)
_characters = partial(option, least=3, most=2**16)  # a damaged file with more would turn each word into millions of ids
_clip = partial(option, 3.0, least=1e-18, most=1e18)  # torch cannot clamp to an integer above 2**63


@dataclass(frozen=True)
class CharacterConfig:
    """The character part of a token encoder: M ids → convolutions, maximum over positions, highways → F numbers."""

    filters: tuple[tuple[int, int], ...]
    """(width, count) of each convolution, in the order in which their outputs are joined."""
    embedding_size: int = _size(16, "Size of a character's vector.")
    max_characters: int = _characters(50, "M: ids per token, including the two word markers; a longer token is cut.")
    activation: Activation = option("relu", "Applied after the maximum over positions.")
    n_highway: int = option(0, "Highway layers over the F filter outputs.", least=0, most=_MAX_PARTS)
    alphabet: Alphabet = option(
        "bytes", "bytes: UTF-8 bytes and five markers; symbols: the code points of the model's own table."
    )
    n_characters: int = _size(
        262, "C: rows of the character table; row 0 is for padding tokens and always zero.", least=2
    )
    padding_character: int = _size(261, "The id that pads a token to M; it has a trained row of its own.")

    def __post_init__(self) -> None:
        check_options(self)
        if not isinstance(self.filters, list | tuple) or not all(
            isinstance(pair, list | tuple) and len(pair) == 2 for pair in self.filters
        ):
            raise ElmoError(f"filters must be pairs of width and count, got {self.filters!r}")
        if not 0 < len(self.filters) <= _MAX_PARTS:
            raise ElmoError(f"filters must name 1 to {_MAX_PARTS} convolutions, got {len(self.filters)}")
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
        """The width of the widest convolution, in characters."""
        return max(width for width, _ in self.filters)

    @property
    def n_filters(self) -> int:
        """F: the number of filters of all widths."""
        return sum(count for _, count in self.filters)


@dataclass(frozen=True)
class WordConfig:
    """The word part of a token encoder: an id from the vocabulary → a row of a table."""

    n_words: int = _size(
        REQUIRED, "V: words in the table, without the padding row 0; a word's id is its vocabulary index + 1."
    )
    embedding_size: int = _size(REQUIRED, "Size of a word's vector.")
    max_characters: int | None = _characters(
        None, "If given, a word is cut to this number of characters minus two before it is looked up."
    )

    def __post_init__(self) -> None:
        check_options(self)


OneLayer = Literal["mix", "top"] | int
"""A choice of one vector per token: the mix of the layers, the top layer, or a layer by its number."""


class ContextConfig(ABC):
    """The configuration of a context encoder; each kind is a frozen dataclass.

    `register_context` in `elmokit.model.context` adds a kind from outside the package.
    """

    kind: ClassVar[str]
    """The name of the kind: the key in config.json, and the value of `context` in `elmo train`."""
    objective: ClassVar[str] = "windows"
    """The kind of training: on `windows` or on `segments` of text (`elmokit.pretrain.objective`)."""

    @property
    def default_layer(self) -> OneLayer:
        """The layer that `Elmo.encode` returns by default: its vectors are good features of words in context."""
        return "mix"

    @property
    def similarity_layer(self) -> OneLayer:
        """The layer that `Elmo.similarity` compares by default: its cosines separate senses best."""
        return self.default_layer

    @property
    @abstractmethod
    def n_layers(self) -> int:
        """L: the number of layers above the token layer."""

    @property
    @abstractmethod
    def token_size(self) -> int:
        """P: the size of the token vectors that the encoder reads."""

    @property
    def prediction_size(self) -> int:
        """S: the size of the vectors that the softmax reads."""
        return self.token_size

    def vector_size(self, n_directions: int) -> int:
        """D: the size of a token's vector for the user; the outputs of the directions are concatenated."""
        return n_directions * self.token_size

    def describe(self, n_directions: int) -> list[tuple[str, str]]:
        """Names and values for `elmo info` and the model card."""
        values = ", ".join(f"{item.name} {getattr(self, item.name)}" for item in fields(self))  # type: ignore[arg-type]
        return [(self.kind, f"{values}; {'both directions' if n_directions > 1 else 'forward only'}")]

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """The configuration that options of `elmo train` describe."""
        names = cls._option_names()
        try:
            return cls(**{field: options[name] for field, name in names.items()})
        except ElmoError as error:
            message = str(error)
            for field in error.arguments:
                message = re.sub(rf"\b{field}\b", names.get(field) or field, message)
            raise ElmoError(message, *(names.get(field) or field for field in error.arguments)) from error

    def to_options(self) -> dict[str, Any]:
        """The options of `elmo train` that describe this configuration."""
        return {name: getattr(self, field) for field, name in self._option_names().items()}

    @classmethod
    def _option_names(cls) -> dict[str, str]:
        """The option of `elmo train` for each field that has one: its metadata `train`, by default the field's name."""
        named = [(item.name, item.metadata.get("train", item.name)) for item in fields(cls) if item.metadata]  # type: ignore[arg-type]
        return {field: name for field, name in named if name}


@dataclass(frozen=True)
class LstmConfig(ContextConfig):
    """One direction of the LSTM stack; the other direction has the same sizes."""

    kind: ClassVar[str] = "lstm"
    cell_size: int = _size(REQUIRED, "H: numbers in the memory cell.")
    output_size: int = _size(
        REQUIRED, "P: numbers in the output and in the recurrent state; equal to H without a projection."
    )
    n_layers: int = _size(2, "L: number of layers.", most=_MAX_PARTS, train="layers")
    projection: bool = option(True, "Whether a matrix projects the cell's output from H to P.", train=None)
    skip_connections: bool = option(True, "Whether layers after the first add their input to their output.")
    cell_clip: float | None = _clip("Bound on each number of the memory cell.")
    projection_clip: float | None = _clip(
        "Bound on each number of the projected output; has no effect without a projection."
    )
    forget_bias: float = 1.0
    """Added to the forget gate, because the bias in the file does not include it."""

    def __post_init__(self) -> None:
        check_options(self)
        if self.forget_bias not in (0, 1):
            raise ElmoError(f"forget_bias must be 0 or 1, got {self.forget_bias!r}")
        if not self.projection and self.output_size != self.cell_size:
            raise ElmoError(
                f"output_size must equal cell_size ({self.cell_size}) without a projection, got {self.output_size}"
            )

    @property
    def token_size(self) -> int:
        """P: a token vector has the size of an output, so that every layer can have the same shape."""
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
        """The configuration that options of `elmo train` describe; a clip of 0 means none."""
        clips = {name: options[name] or None for name in ("cell_clip", "projection_clip")}
        config = super().from_options({**options, **clips})
        return replace(config, projection=config.cell_size != config.output_size)

    def to_options(self) -> dict[str, Any]:
        """The options of `elmo train` that describe this configuration."""
        return {name: 0.0 if value is None else value for name, value in super().to_options().items()}


@dataclass(frozen=True)
class TransformerConfig(ContextConfig):
    """Blocks of attention and feed-forward layers: every layer reads the text on both sides of a word."""

    kind: ClassVar[str] = "transformer"
    objective: ClassVar[str] = "segments"
    size: int = _size(REQUIRED, "P: size of a token's vector in every layer.")
    n_blocks: int = _size(8, "Number of blocks.", most=_MAX_PARTS, train="blocks")
    n_heads: int = _size(6, "Attention heads, each of size P / n_heads.", train="heads")
    inner_size: int = _size(960, "I: inner size of the feed-forward part.")
    window: int = _size(64, "Tokens on each side that a token attends to in one block.", train="attention_window")
    softmax_size: int = _size(256, "S: size of the vectors that the softmax reads.")
    every: int = _size(2, "Number of blocks per layer that the user gets.")
    prediction_layer: bool = option(
        False, "Whether the vector from which the softmax predicts the word is one more layer, the last."
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.size % (2 * self.n_heads):
            raise ElmoError(
                f"size must be a multiple of twice n_heads ({2 * self.n_heads}), got {self.size}: "
                f"take {-(-self.size // (2 * self.n_heads)) * 2 * self.n_heads}, or another n_heads",
                *("size", "n_heads"),
            )
        if self.n_blocks % self.every:
            raise ElmoError(
                f"n_blocks must be a multiple of every ({self.every}), got {self.n_blocks}", "n_blocks", "every"
            )
        if self.prediction_layer and self.softmax_size > self.size:
            raise ElmoError(
                f"softmax_size must be at most {self.size}, the size of a layer, got {self.softmax_size}: with "
                "prediction_layer, the softmax's input is a layer too; give a smaller softmax_size, or leave "
                "prediction_layer out",
                *("softmax_size", "prediction_layer"),
            )

    @property
    def n_layers(self) -> int:
        """L: one layer per `every` blocks, and the prediction layer if there is one."""
        return self.n_blocks // self.every + self.prediction_layer

    @property
    def default_layer(self) -> OneLayer:
        """The layer of the last block."""
        return self.n_blocks // self.every if self.prediction_layer else "top"

    @property
    def similarity_layer(self) -> OneLayer:
        """The top layer, which is the prediction layer if there is one."""
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
        """P: one vector contains both directions."""
        if n_directions != 2:
            raise ElmoError("bidirectional must be true for a transformer, which reads both sides of a word, got false")
        return self.size

    def describe(self, n_directions: int) -> list[tuple[str, str]]:
        """Names and values for `elmo info` and the model card."""
        blocks = "every block" if self.every == 1 else f"each {self.every} blocks"
        layers = f"the token layer and one for {blocks}"
        if self.prediction_layer:
            layers = f"the token layer, one for {blocks} and the prediction that the softmax reads"
        return [
            ("Transformer", f"{self.n_blocks} x {self.size}, {self.n_heads} heads, feed-forward {self.inner_size}"),
            ("attention", f"{self.window} words to either side in a block"),
            ("layers", f"{layers}, each after a layer norm"),
        ]


CONTEXTS: dict[str, type[ContextConfig]] = {"lstm": LstmConfig, "transformer": TransformerConfig}
"""The kinds of context encoder by name."""


@dataclass(frozen=True)
class ElmoConfig:
    """The whole network: the parts of the token encoder, and the context encoder above it."""

    context: ContextConfig
    """The context encoder."""
    characters: CharacterConfig | None = None
    """The character part, if the model has one."""
    words: WordConfig | None = None
    """The word part, if the model has one; with both, a token is [word; characters]."""
    token_projection: bool = option(
        True, "Whether a linear layer projects the token to size P; without it the parts must have size P together."
    )
    bidirectional: bool = option(True, "Two directions, or the forward one alone.")

    def __post_init__(self) -> None:
        if not isinstance(self.context, ContextConfig):
            raise ElmoError(f"context must be a ContextConfig such as LstmConfig, got {self.context!r}")
        check_options(self)
        if self.characters is None and self.words is None:
            raise ElmoError("a model needs a character part, a word part or both, got neither")
        self.context.vector_size(self.n_directions)  # refuses a number of directions that the encoder does not have
        if not self.token_projection and self.parts_size != self.token_size:
            raise ElmoError(
                f"without token_projection the token's parts must have size {self.token_size}, which the context "
                f"encoder reads, got {self.parts_size}"
            )

    @property
    def lstm(self) -> LstmConfig:
        """The configuration of the LSTM, which every ELMo in the older formats has; refused for another encoder."""
        if not isinstance(self.context, LstmConfig):
            raise ElmoError(f"this needs a model with an LSTM; this one has the context encoder {self.context.kind}")
        return self.context

    @property
    def parts_size(self) -> int:
        """The size of a token before its projection."""
        words = self.words.embedding_size if self.words else 0
        return words + (self.characters.n_filters if self.characters else 0)

    @property
    def token_size(self) -> int:
        """P: the size of a token vector, before any context."""
        return self.context.token_size

    @property
    def n_directions(self) -> int:
        """2 for a biLM, 1 for a forward model."""
        return 2 if self.bidirectional else 1

    @property
    def vector_size(self) -> int:
        """D: the size of a vector given to the user."""
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
                f"a configuration needs the key {' or '.join(CONTEXTS)}: for another context encoder, install its "
                "package"
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
        raise ElmoError(f"{where} has no key {unknown[0]}; the known keys are {', '.join(sorted(known))}")
    needed = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
    if missing := [name for name in needed if name not in values]:
        raise ElmoError(f"{where} needs the key {missing[0]}")
    return kind(**values)

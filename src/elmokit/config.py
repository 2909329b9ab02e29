"""The shape of a model, as frozen dataclasses that check themselves.

Dimension letters, used in every signature of the package:
B batch, T tokens, U distinct tokens, M characters of a token, C character vocabulary, F filters,
P LSTM output (projection), H LSTM cell, L layers, V word vocabulary,
D vector given to the user (2P for two directions, P for one).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Literal

from elmokit.errors import ElmoError

Activation = Literal["relu", "tanh"]
Alphabet = Literal["bytes", "symbols"]

_LARGEST = 2**31 - 1
_MOST_CHARACTERS = 2**16
"""Beyond this a damaged file would turn each word into millions of ids."""
_LARGEST_CLIP = 1e18
"""torch clamps to no whole number above 2**63."""


def _whole(name: str, value: object, least: int, most: int = _LARGEST) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ElmoError(f"{name} must be a whole number of at least {least}, got {value!r}")
    if value > most:
        raise ElmoError(f"{name} must be at most {most}, got {value}")


def _choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ElmoError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ElmoError(f"{name} must be true or false, got {value!r}")


def _clip(name: str, value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _LARGEST_CLIP:
        raise ElmoError(f"{name} must be a positive number up to {_LARGEST_CLIP:g} or absent, got {value!r}")


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
    """The id that fills a token up to M; it has a trained row of its own."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "filters", tuple(tuple(pair) for pair in self.filters))
        if not self.filters:
            raise ElmoError("filters must name at least one convolution, got none")
        _whole("max_characters", self.max_characters, 3, _MOST_CHARACTERS)
        for pair in self.filters:
            if len(pair) != 2:
                raise ElmoError(f"filters must be pairs of width and count, got {pair!r}")
            _whole("a filter's width", pair[0], 1)
            _whole("a filter's count", pair[1], 1)
            if pair[0] > self.max_characters:
                raise ElmoError(f"a filter's width must be at most max_characters {self.max_characters}, got {pair[0]}")
        _whole("embedding_size", self.embedding_size, 1)
        _whole("n_highway", self.n_highway, 0)
        _whole("n_characters", self.n_characters, 2)
        _whole("padding_character", self.padding_character, 1)
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
    """Where given, a word is cut to this many characters, two less, before it is looked up."""

    def __post_init__(self) -> None:
        _whole("n_words", self.n_words, 1)
        _whole("embedding_size", self.embedding_size, 1)
        if self.max_characters is not None:
            _whole("max_characters", self.max_characters, 3, _MOST_CHARACTERS)


@dataclass(frozen=True)
class LstmConfig:
    """One direction of the LSTM stack; the other has the same shape."""

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
        _whole("cell_size", self.cell_size, 1)
        _whole("output_size", self.output_size, 1)
        _whole("n_layers", self.n_layers, 1)
        _flag("projection", self.projection)
        _flag("skip_connections", self.skip_connections)
        _clip("cell_clip", self.cell_clip)
        _clip("projection_clip", self.projection_clip)
        if self.forget_bias not in (0, 1):
            raise ElmoError(f"forget_bias must be 0 or 1, got {self.forget_bias!r}")
        if not self.projection and self.output_size != self.cell_size:
            raise ElmoError(
                f"output_size must be the cell_size {self.cell_size} where there is no projection, "
                f"got {self.output_size}"
            )


@dataclass(frozen=True)
class ElmoConfig:
    """The whole network: what a token is made of, and the LSTM stacks above it."""

    lstm: LstmConfig
    """The LSTM stack of each direction."""
    characters: CharacterConfig | None = None
    """The character part, where the model has one."""
    words: WordConfig | None = None
    """The word part, where the model has one; with both, a token is [word; characters]."""
    token_projection: bool = True
    """Whether a linear layer brings the token to P numbers; without it the parts must have P already."""
    bidirectional: bool = True
    """Two directions, or the forward one alone."""

    def __post_init__(self) -> None:
        _flag("token_projection", self.token_projection)
        _flag("bidirectional", self.bidirectional)
        if self.characters is None and self.words is None:
            raise ElmoError("a model needs a character part, a word part or both, got neither")
        if not self.token_projection and self.parts_size != self.lstm.output_size:
            raise ElmoError(
                f"a token without projection must have the {self.lstm.output_size} numbers of the LSTM's output, "
                f"got {self.parts_size}"
            )

    @property
    def parts_size(self) -> int:
        """Numbers in a token before its projection."""
        words = self.words.embedding_size if self.words else 0
        return words + (self.characters.n_filters if self.characters else 0)

    @property
    def n_directions(self) -> int:
        """2 for a biLM, 1 for a forward model."""
        return 2 if self.bidirectional else 1

    @property
    def vector_size(self) -> int:
        """D: numbers in a vector given to the user."""
        return self.n_directions * self.lstm.output_size

    @property
    def n_outputs(self) -> int:
        """L + 1: the token layer and the LSTM layers."""
        return self.lstm.n_layers + 1

    def to_dict(self) -> dict[str, Any]:
        """The configuration as JSON can hold it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ElmoConfig:
        """The configuration that `to_dict` wrote."""
        parts: dict[str, Any] = dict(values)
        for name, kind in (("lstm", LstmConfig), ("characters", CharacterConfig), ("words", WordConfig)):
            if parts.get(name) is not None:
                parts[name] = _build(kind, parts[name], name)
        if not isinstance(parts.get("lstm"), LstmConfig):
            raise ElmoError("a configuration needs the key lstm")
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

"""The options file of bilm-tf, AllenNLP and NLPL models: options.json ↔ ElmoConfig."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elmokit.config import CharacterConfig, ElmoConfig, LstmConfig, WordConfig
from elmokit.errors import ElmoError

_KINDS: dict[type, str] = {int: "a whole number", str: "a word", list: "a list", Mapping: "an object with named values"}


def _get(options: Mapping[str, Any], key: str, kind: type, where: str) -> Any:  # noqa: ANN401
    value: Any = options
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise ElmoError(f"{where} needs the key {key}; use the options.json that came with the weights")
        value = value[part]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ElmoError(f"{where}: {key} must be {_KINDS[kind]}, got {value!r}")
    return value


def read_clip(lstm: Mapping[str, Any], key: str) -> Any:  # noqa: ANN401 - checked by LstmConfig
    """A clipping limit, or None for no limit, which older systems also write as 0."""
    return None if lstm.get(key) in (None, 0) else lstm[key]


def read_options(
    options: Mapping[str, Any], where: str, *, bidirectional: bool, n_words: int | None, projections: tuple[bool, bool]
) -> ElmoConfig:
    """The configuration that options.json describes.

    options.json does not state the other arguments, which come from the weights: `bidirectional`, `n_words` (rows of
    `embedding` in a token model) and `projections` (whether tokens, and cells, are projected even to the same size).
    """
    lstm = _get(options, "lstm", Mapping, where)
    cell, output = _get(options, "lstm.dim", int, where), _get(options, "lstm.projection_dim", int, where)
    skip = lstm.get("use_skip_connections")
    try:
        config = LstmConfig(
            cell_size=cell,
            output_size=output,
            n_layers=lstm.get("n_layers", 1),
            projection=output != cell or projections[1],
            skip_connections=bool(skip) if skip in (None, 0, 1) else skip,
            cell_clip=read_clip(lstm, "cell_clip"),
            projection_clip=read_clip(lstm, "proj_clip"),
        )
        if options.get("char_cnn") is None:
            if n_words is None:
                raise ElmoError("a model without char_cnn needs the dataset embedding in its weights")
            return ElmoConfig(
                config, words=WordConfig(n_words, output), token_projection=False, bidirectional=bidirectional
            )
        characters = _read_characters(options, where)
        projection = characters.n_filters != output or projections[0]
        return ElmoConfig(config, characters, token_projection=projection, bidirectional=bidirectional)
    except ElmoError as error:
        raise ElmoError(str(error) if where in str(error) else f"{where}: {error}") from error


def _read_characters(options: Mapping[str, Any], where: str) -> CharacterConfig:
    filters = _get(options, "char_cnn.filters", list, where)
    if not all(isinstance(pair, list) for pair in filters):
        raise ElmoError(f"{where}: char_cnn.filters must be pairs of width and count, got {filters!r}")
    n_characters = options["char_cnn"].get("n_characters", 262)
    if n_characters not in (261, 262):
        raise ElmoError(f"{where}: char_cnn.n_characters must be 261 or 262, got {n_characters!r}")
    return CharacterConfig(
        filters=tuple(tuple(pair) for pair in filters),
        embedding_size=_get(options, "char_cnn.embedding.dim", int, where),
        max_characters=_get(options, "char_cnn.max_characters_per_token", int, where),
        activation=_get(options, "char_cnn.activation", str, where),
        n_highway=options["char_cnn"].get("n_highway") or 0,
    )


def write_options(config: ElmoConfig) -> dict[str, Any]:
    """An options.json for inference with older systems, with all keys that AllenNLP requires."""
    lstm = config.lstm
    options: dict[str, Any] = {
        "lstm": {
            "dim": lstm.cell_size,
            "projection_dim": lstm.output_size,
            "n_layers": lstm.n_layers,
            "use_skip_connections": lstm.skip_connections,
            "cell_clip": lstm.cell_clip,
            "proj_clip": lstm.projection_clip if lstm.projection else None,
        },
    }
    if not config.bidirectional:
        options["bidirectional"] = False
    if config.characters is not None:
        characters = config.characters
        options["char_cnn"] = {
            "activation": characters.activation,
            "embedding": {"dim": characters.embedding_size},
            "filters": [list(pair) for pair in characters.filters],
            "max_characters_per_token": characters.max_characters,
            "n_characters": characters.n_characters,
            "n_highway": characters.n_highway,
        }
    if config.words is not None:
        options["n_tokens_vocab"] = config.words.n_words
    return options

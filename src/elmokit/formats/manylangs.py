"""Reads ELMoForManyLangs folders: word.dic, char.dic, two pickles of tensors, and a JSON file with the structure."""

from __future__ import annotations

import pickle
import struct
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, BinaryIO

import torch
from torch import Tensor

from elmokit.config import CharacterConfig, ElmoConfig, LstmConfig, WordConfig
from elmokit.errors import DamagedFileError, ElmoError
from elmokit.formats.bilm_options import read_clip
from elmokit.formats.checkpoint import Checkpoint, check_finite, check_plain, check_shape
from elmokit.formats.registry import Format, ModelFiles
from elmokit.formats.source import ZIP_MAGIC, Source, read_json, read_text
from elmokit.model.bilm import int8_names
from elmokit.model.int8 import quantised
from elmokit.storage.trusted import check_zip
from elmokit.text.chars import SymbolTable
from elmokit.text.vocab import Vocabulary

FILES = ("token_embedder.pkl", "encoder.pkl")
_SPECIALS = ("<bos>", "<eos>", "<oov>")
_IDEOGRAPHIC_SPACE = "\u3000"

RELEASED: dict[str, Any] = {
    "encoder": {"name": "elmo", "projection_dim": 512, "cell_clip": 3, "proj_clip": 3, "dim": 4096, "n_layers": 2},
    "token_embedder": {
        "name": "cnn",
        "activation": "relu",
        "filters": [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]],
        "n_highway": 2,
        "word_dim": 100,
        "char_dim": 50,
        "max_characters_per_token": 50,
    },
}
"""The structure of all released models, for folders without a structure file."""

# The weights-only unpickler refuses code with UnpicklingError. Damaged files make it or the zip reader raise these:
_READ_ERRORS = (
    RuntimeError, EOFError, ValueError, KeyError, IndexError, AttributeError, TypeError,
    OSError, ImportError, AssertionError, OverflowError, MemoryError, struct.error, zipfile.BadZipFile,
)  # fmt: skip


def detect(source: Source, name: str | None) -> str | None:
    """encoder.pkl, if the folder has both pickles or one of them is given."""
    wanted = [file for file in FILES if name in (None, file)]
    return "encoder.pkl" if wanted and set(wanted) <= set(source.names()) else None


def read(files: ModelFiles) -> Checkpoint:
    """Read a model from an ELMoForManyLangs folder; with `files.int8` each matrix is quantised when it is read."""
    source, names = files.source, files.source.names()
    if missing := [name for name in FILES if name not in names]:
        raise ElmoError(f"{source.describe(missing[0])} is missing; the folder is not a complete model")
    structure, where = _find_structure(source)
    words = _read_words(source) if "word.dic" in names else None
    symbols = _read_symbols(source) if "char.dic" in names else None
    try:
        config = _config(structure, words, symbols)
    except ElmoError as error:
        raise ElmoError(f"{where}: {error}") from error
    matrices = int8_names(config) if files.int8 else set()
    weights: dict[str, Tensor] = {}
    for name, table in (("token_embedder.pkl", _token_table(config)), ("encoder.pkl", _encoder_table(config))):
        tensors = load_tensors(source, name)
        for theirs, shape, ours in table:
            if theirs not in tensors:
                raise ElmoError(
                    f"{source.describe(name)} lacks {theirs}, which {where} requires: the two do not belong together"
                )
            check_shape(tuple(tensors[theirs].shape), shape, theirs, source.describe(name))
            check_plain(tensors[theirs], theirs, source.describe(name))
            check_finite(tensors[theirs], theirs, source.describe(name))
            parts = ours(tensors[theirs].to(torch.float32, copy=True))  # a pickle's tensors may share memory
            weights |= quantised(parts, matrices)
    return Checkpoint(
        config,
        weights,
        kind=files.format.name,
        where=files.where,
        vocab=words,
        symbols=symbols if config.characters else None,
    )


def load_tensors(source: Source, name: str) -> Mapping[str, Tensor]:
    """The tensors of a pickle. A pickle with other objects is refused, and no code in it runs."""
    where = source.describe(name)
    with source.open(name) as file:
        try:
            _refuse_bomb(file, source.stored_bytes(name), where)
            with warnings.catch_warnings(action="ignore"):  # warnings about pickles that are refused anyway
                tensors = torch.load(file, map_location="cpu", weights_only=True)
        except ElmoError:
            raise
        except pickle.UnpicklingError as error:
            raise DamagedFileError(
                f"{where} must contain tensors only, and it contains other objects or code, or is damaged: not loaded; "
                "fetch it again from a source you trust"
            ) from error
        except _READ_ERRORS as error:
            reason = (str(error) or type(error).__name__).splitlines()[0].partition(". ")[0]
            raise DamagedFileError(f"{where} is not a complete PyTorch file ({reason}); fetch it again") from error
    if not isinstance(tensors, Mapping):
        raise DamagedFileError(f"{where} must contain named tensors, got {type(tensors).__name__}; fetch it again")
    for key, value in tensors.items():
        if not isinstance(value, Tensor):
            raise DamagedFileError(
                f"{where} must contain named tensors, got {type(value).__name__} as {key!r}; fetch it again"
            )
    return tensors


def _refuse_bomb(file: BinaryIO, stored: int, where: str) -> None:
    """Refuse a zip that decompresses to too much: PyTorch never compresses its zips, but reads compressed ones."""
    if file.read(len(ZIP_MAGIC)) == ZIP_MAGIC:
        with zipfile.ZipFile(file) as archive:
            check_zip(archive, stored, where)
    file.seek(0)


def _find_structure(source: Source) -> tuple[dict[str, Any], str]:
    """The structure: from the file in this folder that config.json names, or that of the released models."""
    if "config.json" in source.names():
        given = read_json(source, "config.json").get("config_path")
        for base in (PurePosixPath(given).name, PureWindowsPath(given).name) if isinstance(given, str) else ():
            if base in source.names():  # the path is from another machine, and nothing outside the folder is read
                return read_json(source, base), source.describe(base)
    return RELEASED, source.describe("(the structure of the released models)")


def _config(structure: Mapping[str, Any], words: Vocabulary | None, symbols: SymbolTable | None) -> ElmoConfig:
    encoder, embedder = structure.get("encoder"), structure.get("token_embedder")
    if not isinstance(encoder, Mapping) or not isinstance(embedder, Mapping):
        raise ElmoError("a structure needs the keys encoder and token_embedder")
    if encoder.get("name", "elmo") != "elmo":
        raise ElmoError(f"encoder.name must be elmo, got {encoder['name']!r}")
    if embedder.get("name", "cnn") != "cnn":
        raise ElmoError(
            f"token_embedder.name must be cnn, got {embedder['name']!r}: vectors of others depend on the batch"
        )
    for key in ("dim", "projection_dim", "n_layers"):
        if key not in encoder:
            raise ElmoError(f"a structure needs the key encoder.{key}")
    longest = embedder.get("max_characters_per_token")
    characters = word_part = None
    if embedder.get("char_dim"):
        filters = embedder.get("filters")
        if not isinstance(filters, list) or not all(isinstance(pair, list) for pair in filters):
            raise ElmoError(f"token_embedder.filters must be pairs of width and count, got {filters!r}")
        if symbols is None:
            raise ElmoError("a model with characters needs char.dic, and there is none")
        characters = CharacterConfig(
            filters=tuple(tuple(pair) for pair in filters),
            embedding_size=embedder["char_dim"],
            max_characters=longest,  # type: ignore[arg-type] # checked by CharacterConfig
            activation=embedder.get("activation", "relu"),
            n_highway=embedder.get("n_highway") or 0,
            alphabet="symbols",
            n_characters=max(symbols.ids.values()) + 2,
            padding_character=symbols.ids[symbols.padding] + 1,
        )
    if embedder.get("word_dim"):
        if words is None:
            raise ElmoError("a model with words needs word.dic, and there is none")
        word_part = WordConfig(len(words), embedder["word_dim"], longest)
    lstm = LstmConfig(
        cell_size=encoder["dim"],
        output_size=encoder["projection_dim"],
        n_layers=encoder["n_layers"],
        cell_clip=read_clip(encoder, "cell_clip"),
        projection_clip=read_clip(encoder, "proj_clip"),
        forget_bias=0.0,
    )
    return ElmoConfig(lstm, characters, word_part)


# A row: the name in the file, the required shape, and the function that makes BiLM's parameters.
_Rows = Iterator[tuple[str, tuple[int, ...], Any]]


def _token_table(config: ElmoConfig) -> _Rows:
    def rename(ours: str) -> Any:  # noqa: ANN401 - a small function of a tensor
        return lambda value: {ours: value}

    def with_padding(ours: str) -> Any:  # noqa: ANN401
        return lambda value: {ours: torch.cat([torch.zeros_like(value[:1]), value])}

    def halves(ours: str, part: str) -> Any:  # noqa: ANN401
        # Its gate is for the input, BiLM's gate for the transform: σ(−z) = 1 − σ(z).
        return lambda value: {
            f"{ours}.transform.{part}": value.chunk(2)[0].clone(),
            f"{ours}.gate.{part}": -value.chunk(2)[1],
        }

    if config.words is not None:
        shape = (config.words.n_words, config.words.embedding_size)
        yield "word_emb_layer.embedding.weight", shape, with_padding("token_encoder.words.weight")
    if config.characters is not None:
        characters, cnn = config.characters, "token_encoder.char_cnn"
        shape = (characters.n_characters - 1, characters.embedding_size)
        yield "char_emb_layer.embedding.weight", shape, with_padding(f"{cnn}.embedding.weight")
        for number, (width, count) in enumerate(characters.filters):
            ours = f"{cnn}.convolutions.{number}"
            yield f"convolutions.{number}.weight", (count, characters.embedding_size, width), rename(f"{ours}.weight")
            yield f"convolutions.{number}.bias", (count,), rename(f"{ours}.bias")
        size = characters.n_filters
        for number in range(characters.n_highway):
            ours = f"{cnn}.highways.{number}"
            yield f"highways._layers.{number}.weight", (2 * size, size), halves(ours, "weight")
            yield f"highways._layers.{number}.bias", (2 * size,), halves(ours, "bias")
    output = config.lstm.output_size
    yield "projection.weight", (output, config.parts_size), rename("token_encoder.projection.weight")
    yield "projection.bias", (output,), rename("token_encoder.projection.bias")


def _encoder_table(config: ElmoConfig) -> _Rows:
    cell, output = config.lstm.cell_size, config.lstm.output_size
    leaves = (
        ("input_linearity.weight", (4 * cell, output), "input_weight"),
        ("state_linearity.weight", (4 * cell, output), "recurrent_weight"),
        ("state_linearity.bias", (4 * cell,), "bias"),
        ("state_projection.weight", (output, cell), "projection_weight"),
    )
    for direction in ("forward", "backward"):
        for layer in range(config.lstm.n_layers):
            for theirs, shape, ours in leaves:
                name = f"{direction}_lstm.layers.{layer}.{ours}"
                yield f"{direction}_layer_{layer}.{theirs}", shape, lambda value, name=name: {name: value}


def _read_dic(source: Source, name: str) -> dict[str, int]:
    """Read a .dic file: each line is a symbol, a tab and an id; a line with only an id is the ideographic space."""
    ids: dict[str, int] = {}
    for number, line in enumerate(read_text(source, name).split("\n"), start=1):
        if not line.rstrip("\r"):
            continue
        fields = line.strip().split("\t")
        symbol, index = (_IDEOGRAPHIC_SPACE, fields[0]) if len(fields) == 1 else (fields[0], fields[-1])
        if not (index.isascii() and index.isdigit()) or len(index) > 9:
            raise ElmoError(
                f"{source.describe(name)}: line {number} must be a symbol, a tab and a number, got {line!r}"
            )
        ids[symbol] = int(index)
    if not ids:
        raise ElmoError(f"{source.describe(name)} has no entries")
    return ids


def _read_words(source: Source) -> Vocabulary:
    ids = _read_dic(source, "word.dic")
    highest = max(ids.values())
    if highest > 2 * len(ids) + 1000:
        raise ElmoError(f"{source.describe('word.dic')} has {len(ids)} words and the id {highest}")
    words = [""] * (highest + 1)
    for word, index in ids.items():
        words[index] = word
    try:
        vocab = Vocabulary(words, specials=_SPECIALS)
        vocab.require_specials()
        return vocab
    except ElmoError as error:
        raise ElmoError(f"{source.describe('word.dic')}: {error}") from error


def _read_symbols(source: Source) -> SymbolTable:
    ids = _read_dic(source, "char.dic")
    try:
        return SymbolTable(ids)
    except ElmoError as error:
        raise ElmoError(f"{source.describe('char.dic')}: {error}") from error


FORMAT = Format(
    name="manylangs",
    description="an ELMoForManyLangs folder (encoder.pkl, token_embedder.pkl)",
    detect=detect,
    read=read,
    files=(*FILES, "*.dic", "*.json"),
)

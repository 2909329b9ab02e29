"""The format elmokit: a folder with config.json, model.safetensors and the other parts of a model.

| file | contents |
| --- | --- |
| config.json | `format` "elmokit", `version`, `model` (ElmoConfig), `mixes`, `specials`, `text`, `about`, `dtype` |
| model.safetensors | BiLM's weights by their names; `mixes.k.weights` and `mixes.k.gamma` |
| … in int8 | `name.values`, `name.scales` and perhaps `name.columns` instead of a matrix `name`; see `Int8Matrix` |
| vocab.txt | one word per line, in the order of the word table and the softmax |
| characters.json | code points and their ids, for a model with its own alphabet |
| lm_head.safetensors | the softmax: `weight` [V, P], or `weight.values` and `weight.scales` in int8; `bias` [V] |
| optimizer.safetensors | Adagrad accumulators of an imported training run |
| README.md | a model card; its notes are read again |
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from io import SEEK_END
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elmokit.config import ElmoConfig
from elmokit.errors import DamagedFileError, ElmoError
from elmokit.formats.card import CARD_TITLE, model_card, notes_in
from elmokit.formats.checkpoint import Checkpoint, check_plain
from elmokit.formats.registry import Format, ModelFiles
from elmokit.formats.source import Source, read_json, read_text
from elmokit.model.bilm import int8_names
from elmokit.model.int8 import COLUMNS, SCALES, VALUES, quantised
from elmokit.storage.atomic import update_folder, write_tensors, write_text
from elmokit.text.chars import SymbolTable
from elmokit.text.vocab import BEGIN, END, UNKNOWN, Vocabulary

NAME, VERSION = "elmokit", 1
_OPTIONAL = {"lm_head.safetensors", "optimizer.safetensors", "vocab.txt", "characters.json"}
_READ_ERRORS = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, RuntimeError)
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I8": torch.int8,
}
_MOST_HEADER = 1 << 22
_Change = Callable[[dict[str, Tensor]], dict[str, Tensor]]
_LAYER_NORMS = (False, True, "batch", "sentence")


def detect(source: Source, name: str | None) -> str | None:
    """config.json, if it has this format or model.safetensors is in the same folder."""
    if name not in (None, "model.safetensors"):
        return None
    names = source.names()
    if "config.json" not in names:
        return None
    if "model.safetensors" in names:
        return "config.json"
    with suppress(ElmoError):
        if read_json(source, "config.json").get("format") == NAME:
            return "config.json"
    return None


def read(files: ModelFiles) -> Checkpoint:
    """Read a model from an elmokit folder; with `files.int8` each matrix is quantised when it is read."""
    source, int8 = files.source, files.int8
    names = source.names()
    where = source.describe("config.json")
    values = read_json(source, "config.json")
    if values.get("format") != NAME and "version" not in values:
        message = f"{where} does not describe an ELMo model: format must be {NAME}, got {values.get('format')!r}"
        if (kind := values.get("model_type")) == NAME:
            message += "; transformers saved it, and ElmokitModel.to_elmokit makes an Elmo of it"
        elif isinstance(kind, str):
            message += f"; it is of a {kind} model of transformers"
        raise ElmoError(message)
    if values.get("version") != VERSION:
        raise ElmoError(f"{where}: version must be {VERSION}, got {values.get('version')!r}; update elmokit")
    if not isinstance(values.get("model"), dict):
        raise ElmoError(f"{where}: model must be an object with named values, got {values.get('model')!r}")
    try:
        config = ElmoConfig.from_dict(values["model"])
    except (ElmoError, TypeError) as error:
        raise ElmoError(f"{where}: {error}") from error
    stored = values.get("dtype")
    if stored not in (None, "int8"):
        raise ElmoError(f"{where}: dtype must be int8 or absent, got {stored!r}; update elmokit")
    change: _Change = dict
    if int8 and stored is None:
        change = partial(quantised, names=int8_names(config), factors=int8_names(config, COLUMNS))
    tensors = _load_tensors(source, "model.safetensors", int8=stored is not None, change=change)
    mixes = []
    for number, layer_norm in enumerate(_mixes(values, where)):
        parts = {part: tensors.pop(f"mixes.{number}.{part}", None) for part in ("weights", "gamma")}
        shapes = [None if part is None else tuple(part.shape) for part in parts.values()]
        if shapes != [(config.n_outputs,), ()]:
            raise ElmoError(
                f"{source.describe('model.safetensors')} must contain {config.n_outputs} weights and a gamma of mix "
                f"{number}, got the shapes {shapes}"
            )
        mixes.append({**parts, "layer_norm": layer_norm})
    with_optimizer = "optimizer.safetensors" in names and not int8
    return Checkpoint(
        config,
        tensors,
        kind=NAME,
        where=source.describe("model.safetensors"),
        vocab=_read_vocabulary(source, values) if "vocab.txt" in names else None,
        symbols=_read_symbols(source) if config.characters and config.characters.alphabet == "symbols" else None,
        head=_read_head(source, config.context.prediction_size) if "lm_head.safetensors" in names else {},
        mixes=mixes,
        optimizer=_load_tensors(source, "optimizer.safetensors") if with_optimizer else {},
        text=_text_values(values, "text", where),
        about=_text_values(values, "about", where),
        notes=_read_notes(source) if "README.md" in names else "",
    )


def write(checkpoint: Checkpoint, folder: Path) -> None:
    """Write an elmokit folder; config.json is written last, so a folder with this file is complete."""
    with update_folder(folder, last="config.json", optional=_OPTIONAL) as staging:
        if (folder / "encoder.pkl").exists():
            raise ElmoError(
                f"{folder} contains an ELMoForManyLangs model, which would lose its config.json: save elsewhere"
            )
        _write_files(checkpoint, staging, card=_card_is_ours(folder / "README.md"))


def _card_is_ours(path: Path) -> bool:
    """Whether a model card may be written: there is none yet, or elmokit wrote it."""
    if not path.is_file():  # missing, or not to be opened: opening a pipe would wait
        return not path.exists()
    with path.open("rb") as file:
        return file.read(len(CARD_TITLE)) == CARD_TITLE.encode()


def _write_files(checkpoint: Checkpoint, folder: Path, *, card: bool) -> None:
    tensors = dict(checkpoint.weights)
    for number, mix in enumerate(checkpoint.mixes):
        tensors[f"mixes.{number}.weights"] = mix["weights"]
        tensors[f"mixes.{number}.gamma"] = mix["gamma"]
    write_tensors(folder / "model.safetensors", tensors)
    for name, part in (("lm_head", checkpoint.head), ("optimizer", checkpoint.optimizer)):
        if part:
            write_tensors(folder / f"{name}.safetensors", part)
    values: dict[str, Any] = {
        "format": NAME,
        "version": VERSION,
        "model": checkpoint.config.to_dict(),
        "mixes": [{"layer_norm": mix["layer_norm"]} for mix in checkpoint.mixes],
    }
    if checkpoint.int8:
        values["dtype"] = "int8"
    values |= {key: words for key, words in (("text", checkpoint.text), ("about", checkpoint.about)) if words}
    if checkpoint.vocab is not None:
        write_text(folder / "vocab.txt", checkpoint.vocab.to_text())
        values["specials"] = list(checkpoint.vocab.specials)
    if checkpoint.symbols is not None:
        write_text(folder / "characters.json", json.dumps(dict(checkpoint.symbols.ids)))
    if card:
        write_text(folder / "README.md", model_card(checkpoint))
    write_text(folder / "config.json", json.dumps(values, indent=2) + "\n")


def _mixes(values: dict[str, Any], where: str) -> list[Any]:
    mixes = values.get("mixes", [])
    if not isinstance(mixes, list) or not all(isinstance(mix, dict) for mix in mixes):
        raise ElmoError(f"{where}: mixes must be a list of objects, got {mixes!r}")
    norms = [mix.get("layer_norm", False) for mix in mixes]
    if wrong := [norm for norm in norms if norm not in _LAYER_NORMS]:
        raise ElmoError(f"{where}: layer_norm of a mix must be false, true, batch or sentence, got {wrong[0]!r}")
    return norms


def _text_values(values: dict[str, Any], key: str, where: str) -> dict[str, str]:
    words = values.get(key, {})
    if not isinstance(words, dict) or not all(isinstance(value, str) for value in words.values()):
        raise ElmoError(f"{where}: {key} must be an object with strings as values, got {words!r}")
    return words


def _read_head(source: Source, output_size: int) -> dict[str, Tensor]:
    """The softmax, with a float or int8 matrix."""
    head = _load_tensors(source, "lm_head.safetensors", int8=True)
    n_words = head["bias"].numel() if "bias" in head else 0
    got = {name: tuple(value.shape) for name, value in head.items()}
    matrix, row = (n_words, output_size), (n_words,)
    where = source.describe("lm_head.safetensors")
    int8 = {f"weight{VALUES}": matrix, f"weight{SCALES}": row, "bias": row}
    if got not in ({}, {"weight": matrix, "bias": row}, int8):
        raise ElmoError(
            f"{where} must contain weight [V, {output_size}] and bias [V], or for int8 weight{VALUES}, weight{SCALES} "
            f"and bias, got {got}"
        )
    return head


def _load_tensors(source: Source, name: str, *, int8: bool = False, change: _Change = dict) -> dict[str, Tensor]:
    """The tensors of a file. Each is converted when it is read, so only one unconverted tensor is in memory."""
    found: dict[str, Tensor] = {}
    for key, value in _read_tensors(source, name):
        if key != "step" and not (int8 and key.endswith(VALUES) and value.dtype == torch.int8):
            check_plain(value, key, source.describe(name))
        found |= change({key: value})
    return found


def _read_tensors(source: Source, name: str) -> Iterator[tuple[str, Tensor]]:
    """Read the tensors of a safetensors file. They are not mapped: a change of the file would change them.

    The file consists of the length of a JSON header in 8 bytes, the header, and the tensors one after the other.
    """
    where = source.describe(name)
    if name not in source.names():
        raise ElmoError(f"{where} is missing; the folder is not a complete model")
    with source.open(name) as file:
        try:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if length <= _MOST_HEADER else {}
            left, at = file.seek(0, SEEK_END) - 8 - length, 0
            header.pop("__metadata__", None)
            file.seek(8 + length)
            for key, facts in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
                shape, dtype, (start, end) = facts["shape"], _DTYPES.get(facts["dtype"]), facts["data_offsets"]
                if dtype is None:
                    raise ElmoError(f"{where}: {key} must be a plain tensor of floats, got {facts['dtype']!r}")
                if not all(type(size) is int and size >= 0 for size in (*shape, start, end)):
                    raise ValueError(f"the shape of {key} is {shape}")
                if start != at or end - start != math.prod(shape) * dtype.itemsize or end > left:
                    raise ValueError(f"{key} is not complete")
                value, at = torch.empty(shape, dtype=dtype), end
                file.readinto(value.view(-1).view(torch.uint8).numpy())  # type: ignore[attr-defined]
                yield key, value
            if at != left:
                raise ValueError(f"{left} bytes of tensors, and {at} in its header")
        except ElmoError:
            raise
        except _READ_ERRORS as error:
            reason = str(error) or type(error).__name__
            raise DamagedFileError(f"{where} is not a complete safetensors file ({reason}); fetch it again") from error


def _read_vocabulary(source: Source, values: dict[str, Any]) -> Vocabulary:
    specials = values.get("specials", [BEGIN, END, UNKNOWN])
    if not (isinstance(specials, list) and len(specials) == 3 and all(isinstance(word, str) for word in specials)):
        raise ElmoError(f"{source.describe('config.json')}: specials must be three words, got {specials!r}")
    # Not Vocabulary.from_text, which strips words and skips a line: a word may be a space of another script.
    words = read_text(source, "vocab.txt").removesuffix("\n").split("\n")
    return Vocabulary(words, specials=tuple(specials))


def _read_notes(source: Source) -> str:
    with suppress(ElmoError):  # a model is complete without its card
        return notes_in(read_text(source, "README.md"))
    return ""


def _read_symbols(source: Source) -> SymbolTable:
    if "characters.json" not in source.names():
        raise ElmoError(f"{source.describe('characters.json')} is missing; the folder is not a complete model")
    ids = read_json(source, "characters.json")
    if not all(type(value) is int for value in ids.values()):
        raise ElmoError(f"{source.describe('characters.json')} must map symbols to whole numbers")
    try:
        return SymbolTable(ids)
    except ElmoError as error:
        raise ElmoError(f"{source.describe('characters.json')}: {error}") from error


FORMAT = Format(
    name=NAME,
    description="an elmokit folder (config.json, model.safetensors)",
    detect=detect,
    read=read,
    write=write,
    files=("config.json", "model.safetensors", "README.md", *sorted(_OPTIONAL)),
    dtypes=("float32", "float16", "int8"),
)

"""Our own folder: config.json, model.safetensors, and what else the model has.

| file | holds |
| --- | --- |
| config.json | `format` "elmokit", `version`, `model` (ElmoConfig), `mixes`, `specials`, `text` (how it was read) |
| model.safetensors | BiLM's parameters by their names; `mixes.k.weights` and `mixes.k.gamma` |
| vocab.txt | a word a line, in the order of the word table and the softmax |
| characters.json | code points and their ids, for an alphabet of the model's own |
| lm_head.safetensors | the softmax: `weight` [V, P], `bias` [V] |
| optimizer.safetensors | Adagrad accumulators of an imported training run |
| README.md | a model card, with notes that are read back |
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from safetensors.torch import load_file, save_file
from torch import Tensor

from elmokit.config import ElmoConfig
from elmokit.errors import ElmoError
from elmokit.formats.atomic import filling, replacing, write_text
from elmokit.formats.card import CARD_TITLE, model_card, notes_in
from elmokit.formats.checkpoint import Checkpoint, check_plain
from elmokit.formats.source import Source, read_bytes, read_json, read_text
from elmokit.text.chars import SymbolTable
from elmokit.text.vocab import BEGIN, END, UNKNOWN, Vocabulary

FORMAT, VERSION = "elmokit", 1
_OPTIONAL = {"lm_head.safetensors", "optimizer.safetensors", "vocab.txt", "characters.json"}
_LAYER_NORMS = (False, True, "batch", "sentence")


def read_native(source: Source) -> Checkpoint:
    """A model from our own folder."""
    names = source.names()
    where = source.describe("config.json")
    values = read_json(source, "config.json")
    if values.get("version") != VERSION:
        raise ElmoError(f"{where}: version must be {VERSION}, got {values.get('version')!r}; update elmokit")
    if not isinstance(values.get("model"), dict):
        raise ElmoError(f"{where}: model must be an object with named values, got {values.get('model')!r}")
    try:
        config = ElmoConfig.from_dict(values["model"])
    except (ElmoError, TypeError) as error:
        raise ElmoError(f"{where}: {error}") from error
    tensors = _load(source, "model.safetensors")
    mixes = []
    for number, layer_norm in enumerate(_mixes(values, where)):
        parts = {part: tensors.pop(f"mixes.{number}.{part}", None) for part in ("weights", "gamma")}
        shapes = [None if part is None else tuple(part.shape) for part in parts.values()]
        if shapes != [(config.n_outputs,), ()]:
            raise ElmoError(
                f"{source.describe('model.safetensors')} must hold {config.n_outputs} weights and a gamma of mix "
                f"{number}, got the shapes {shapes}"
            )
        mixes.append({**parts, "layer_norm": layer_norm})
    optional = {
        name: _load(source, f"{name}.safetensors") if f"{name}.safetensors" in names else {}
        for name in ("lm_head", "optimizer")
    }
    head = optional["lm_head"]
    got = {name: tuple(value.shape) for name, value in head.items()}
    n_words = head["bias"].numel() if "bias" in head else 0
    if head and got != {"weight": (n_words, config.lstm.output_size), "bias": (n_words,)}:
        raise ElmoError(
            f"{source.describe('lm_head.safetensors')} must hold weight [V, {config.lstm.output_size}] and bias [V], "
            f"got {got}"
        )
    return Checkpoint(
        config,
        tensors,
        kind="elmokit",
        where=source.describe("model.safetensors"),
        vocab=_read_vocabulary(source, values) if "vocab.txt" in names else None,
        symbols=_read_symbols(source) if config.characters and config.characters.alphabet == "symbols" else None,
        head=head,
        mixes=mixes,
        optimizer=optional["optimizer"],
        text=_text(values, where),
        notes=_read_notes(source) if "README.md" in names else "",
    )


def write_native(checkpoint: Checkpoint, folder: Path) -> None:
    """Write our own folder; config.json comes last, so that a folder with one is whole."""
    with filling(folder, last="config.json", optional=_OPTIONAL) as staging:
        if (folder / "encoder.pkl").exists():
            raise ElmoError(
                f"{folder} holds an ELMoForManyLangs model, which would lose its config.json: save elsewhere"
            )
        _write(checkpoint, staging, card=_card_is_ours(folder / "README.md"))


def _card_is_ours(path: Path) -> bool:
    """Whether a model card may be written: there is none, or one that was written here."""
    if not path.exists():
        return True
    with path.open("rb") as file:
        return file.read(len(CARD_TITLE)) == CARD_TITLE.encode()


def _write(checkpoint: Checkpoint, folder: Path, *, card: bool) -> None:
    tensors = dict(checkpoint.weights)
    for number, mix in enumerate(checkpoint.mixes):
        tensors[f"mixes.{number}.weights"] = mix["weights"]
        tensors[f"mixes.{number}.gamma"] = mix["gamma"]
    _save(folder / "model.safetensors", tensors)
    for name, part in (("lm_head", checkpoint.head), ("optimizer", checkpoint.optimizer)):
        if part:
            _save(folder / f"{name}.safetensors", part)
    values: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "model": checkpoint.config.to_dict(),
        "mixes": [{"layer_norm": mix["layer_norm"]} for mix in checkpoint.mixes],
    }
    if checkpoint.text:
        values["text"] = checkpoint.text
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


def _text(values: dict[str, Any], where: str) -> dict[str, str]:
    text = values.get("text", {})
    if not isinstance(text, dict) or not all(isinstance(value, str) for value in text.values()):
        raise ElmoError(f"{where}: text must be an object with words for values, got {text!r}")
    return text


def _load(source: Source, name: str) -> dict[str, Tensor]:
    where = source.describe(name)
    if name not in source.names():
        raise ElmoError(f"{where} is missing; the folder is not a whole model")
    path = source.path(name)
    source.open(name).close()  # says so where it cannot be read; the next line would call the file missing
    try:
        tensors = load_file(path) if path else load_safetensors(read_bytes(source, name))
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise ElmoError(f"{where} is not a whole safetensors file ({error}); fetch it again") from error
    for key, value in tensors.items():
        if key != "step":
            check_plain(value, key, where)
    return tensors


def _save(path: Path, tensors: dict[str, Tensor]) -> None:
    with replacing(path) as temporary:
        try:
            save_file({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, temporary)
        except SafetensorError as error:  # its word for a disk that is full
            raise OSError(str(error)) from error


def _read_vocabulary(source: Source, values: dict[str, Any]) -> Vocabulary:
    specials = values.get("specials", [BEGIN, END, UNKNOWN])
    if not (isinstance(specials, list) and len(specials) == 3 and all(isinstance(word, str) for word in specials)):
        raise ElmoError(f"{source.describe('config.json')}: specials must be three words, got {specials!r}")
    # Not Vocabulary.from_text: a word may be a space of another script, and no line is left out.
    words = read_text(source, "vocab.txt").removesuffix("\n").split("\n")
    try:
        return Vocabulary(words, specials=tuple(specials))
    except ElmoError as error:
        raise ElmoError(f"{source.describe('vocab.txt')}: {error}") from error


def _read_notes(source: Source) -> str:
    with suppress(ElmoError):  # a model is whole without its card
        return notes_in(read_text(source, "README.md"))
    return ""


def _read_symbols(source: Source) -> SymbolTable:
    if "characters.json" not in source.names():
        raise ElmoError(f"{source.describe('characters.json')} is missing; the folder is not a whole model")
    ids = read_json(source, "characters.json")
    if not all(type(value) is int for value in ids.values()):
        raise ElmoError(f"{source.describe('characters.json')} must map symbols to whole numbers")
    try:
        return SymbolTable(ids)
    except ElmoError as error:
        raise ElmoError(f"{source.describe('characters.json')}: {error}") from error

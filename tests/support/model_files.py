"""Models of every layout that was ever released, made of random numbers and written without the package's writers.

Letters as in the package: H cell, P output, L layers, F filters, M characters of a word, V vocabulary.
"""

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from elmokit import Elmo
from elmokit.cli import main
from support import refusals
from support.bundle_writer import write_bundle

WORDS = ["<S>", "</S>", "<UNK>", "the", "bank", "river", "of", "a", "."]
SENTENCES = [
    ["the", "river", "bank", "."],
    ["naïve", "語", "日本語", "🙂", "x" * 70],
    [],
    ["a"],
]
LONG = 50

Arrays = dict[str, np.ndarray]


@dataclass
class Bilm:
    """A model of the bilm family; cells are `cell/direction/layer/{kernel,bias,projection}`, all else as in hdf5."""

    options: dict[str, Any]
    weights: Arrays
    vocab: list[str] | None = None

    @property
    def n_directions(self) -> int:
        return 1 + any(name.startswith("cell/1/") for name in self.weights)

    @property
    def n_layers(self) -> int:
        return sum(name.startswith("cell/0/") and name.endswith("/kernel") for name in self.weights)

    def cell(self, direction: int, layer: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        kernel, bias, projection = (
            self.weights.get(f"cell/{direction}/{layer}/{leaf}") for leaf in ("kernel", "bias", "projection")
        )
        return kernel, bias, projection


def make_bilm(
    *,
    cell: int = 7,
    output: int = 5,
    layers: int = 2,
    directions: int = 2,
    projection: bool | None = None,
    filters: tuple[tuple[int, int], ...] = ((1, 3), (2, 4), (3, 2)),
    token_projection: bool | None = None,
    char_dim: int = 4,
    longest: int = LONG,
    highways: int = 1,
    activation: str = "relu",
    words: bool = False,
    softmax: bool = False,
    seed: int = 0,
    scale: float = 1.0,
    lstm: dict[str, Any] | None = None,
    without: tuple[str, ...] = (),
) -> Bilm:
    """Random weights and the options that describe them; `lstm` adds to the options, `without` takes keys out."""
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> np.ndarray:
        return (rng.normal(size=shape) * scale / max(1, shape[0]) ** 0.5).astype(np.float32)

    size = sum(count for _, count in filters)
    weights: Arrays = {}
    options: dict[str, Any] = {
        "lstm": {
            "dim": cell,
            "projection_dim": output,
            "n_layers": layers,
            "use_skip_connections": True,
            "cell_clip": 3,
            "proj_clip": 3,
            **(lstm or {}),
        }
    }
    if words:
        weights["embedding"] = rng.normal(size=(len(WORDS), output)).astype(np.float32)
    else:
        options["char_cnn"] = {
            "activation": activation,
            "embedding": {"dim": char_dim},
            "filters": [list(pair) for pair in filters],
            "max_characters_per_token": longest,
            "n_characters": 262,
            "n_highway": highways,
        }
        weights["char_embed"] = rng.normal(size=(261, char_dim)).astype(np.float32)
        for number, (width, count) in enumerate(filters):
            weights[f"CNN/W_cnn_{number}"] = draw(1, width, char_dim, count)
            weights[f"CNN/b_cnn_{number}"] = draw(count)
        for number in range(highways):
            for leaf in ("carry", "transform"):
                weights[f"CNN_high_{number}/W_{leaf}"] = draw(size, size)
                weights[f"CNN_high_{number}/b_{leaf}"] = draw(size)
        if size != output if token_projection is None else token_projection:
            weights["CNN_proj/W_proj"], weights["CNN_proj/b_proj"] = draw(size, output), draw(output)
    for direction in range(directions):
        for layer in range(layers):
            name = f"cell/{direction}/{layer}/"
            weights[name + "kernel"], weights[name + "bias"] = draw(2 * output, 4 * cell), draw(4 * cell)
            if output != cell if projection is None else projection:
                weights[name + "projection"] = draw(cell, output)
    if softmax:
        weights["softmax/W"], weights["softmax/b"] = draw(len(WORDS), output), draw(len(WORDS))
    for key in without:
        section, _, leaf = key.rpartition(".")
        (options[section] if section else options).pop(leaf)
    return Bilm(options, weights, WORDS if words or softmax else None)


# What comes before a cell's three arrays, and what they are called: (family, directions, one layer?).
_CELLS = {
    ("hdf5", 2, False): ("RNN_{d}/RNN/MultiRNNCell/Cell{l}/LSTMCell/", ("W_0", "B", "W_P_0")),
    ("hdf5", 2, True): ("RNN_{d}/RNN/LSTMCell/", ("W_0", "B", "W_P_0")),
    ("hdf5", 1, False): ("rnn/MultiRNNCell/Cell{l}/LSTMCell/", ("kernel", "bias", "projection/kernel")),
    ("hdf5", 1, True): ("rnn/LSTMCell/", ("kernel", "bias", "projection/kernel")),
    ("tensorflow", 2, False): (
        "RNN_{d}/rnn/multi_rnn_cell/cell_{l}/lstm_cell/",
        ("kernel", "bias", "projection/kernel"),
    ),
    ("tensorflow", 2, True): ("RNN_{d}/rnn/lstm_cell/", ("kernel", "bias", "projection/kernel")),
    ("tensorflow", 1, False): ("rnn/multi_rnn_cell/cell_{l}/lstm_cell/", ("kernel", "bias", "projection/kernel")),
    ("tensorflow", 1, True): ("rnn/lstm_cell/", ("kernel", "bias", "projection/kernel")),
}


def named(model: Bilm, family: str, *, stacked: bool | None = None) -> Arrays:
    """The weights by the names of a family's files; `stacked=True` names one layer as if there were more."""
    one = model.n_layers == 1 if stacked is None else not stacked
    prefix, leaves = _CELLS[family, model.n_directions, one]
    renamed = {}
    for name, value in model.weights.items():
        if name.startswith("cell/"):
            _, direction, layer, leaf = name.split("/")
            name = prefix.format(d=direction, l=layer) + leaves[("kernel", "bias", "projection").index(leaf)]
        renamed[("lm/" if family == "tensorflow" else "") + name] = value
    return renamed


def write_hdf5(path: Path, arrays: Arrays) -> Path:
    with h5py.File(path, "w") as file:
        for name, value in arrays.items():
            file.create_dataset(name, data=value)
    return path


def write_bilm(
    folder: Path,
    model: Bilm,
    *,
    weights: str = "weights.hdf5",
    options: str = "options.json",
    stacked: bool | None = None,
) -> Path:
    """A folder as bilm-tf leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {name: value for name, value in named(model, "hdf5", stacked=stacked).items() if "softmax" not in name}
    write_hdf5(folder / weights, arrays)
    (folder / options).write_text(json.dumps(model.options))
    _write_vocab(folder, model)
    return folder


def write_tensorflow(folder: Path, model: Bilm, *, step: int = 7, slots: bool = True) -> Path:
    """A training folder of bilm-tf: checkpoint, its Adagrad slots, options with 261 characters."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = named(model, "tensorflow")
    if slots:
        tensors |= {f"{name}/Adagrad": slot_of(value) for name, value in tensors.items()}
    tensors["global_step"] = np.array(step, np.int64)
    tensors["train_perplexity"] = np.array(321.5, np.float32)
    write_bundle(folder / f"model.ckpt-{step}", tensors)
    (folder / "checkpoint").write_text(f'model_checkpoint_path: "/gone/away/model.ckpt-{step}"\n')
    options = json.loads(json.dumps(model.options))
    if "char_cnn" in options:
        options["char_cnn"]["n_characters"] = 261
    (folder / "options.json").write_text(json.dumps(options))
    _write_vocab(folder, model)
    return folder


def slot_of(value: np.ndarray) -> np.ndarray:
    """An accumulator that tells which array, and which number of it, it belongs to."""
    return (1 + np.square(value)).astype(np.float32)


def _write_vocab(folder: Path, model: Bilm) -> None:
    if model.vocab is not None:
        (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in model.vocab), encoding="utf-8")


def write_zip(path: Path, folder: Path, *, top: str = "", rename: dict[str, str] | None = None) -> Path:
    """The files of a folder in a zip, under a folder of its own where `top` names one."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.iterdir()):
            archive.write(file, top + (rename or {}).get(file.name, file.name))
    return path


@dataclass
class ManyLangs:
    """A model of ELMoForManyLangs: its structure, its two files of tensors, its two dictionaries."""

    structure: dict[str, Any]
    embedder: Arrays
    encoder: Arrays
    words: dict[str, int] | None
    characters: dict[str, int] | None


def make_manylangs(*, words: bool = True, characters: bool = True, seed: int = 0, longest: int = 9) -> ManyLangs:
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> np.ndarray:
        return (rng.normal(size=shape) / max(1, shape[-1]) ** 0.5).astype(np.float32)

    word_dim, char_dim, output, cell, layers, highways = 6, 3, 5, 8, 2, 2
    filters = [[1, 3], [2, 4]]
    size = sum(count for _, count in filters) if characters else 0
    word_list = ["<oov>", "<bos>", "<eos>", "<pad>", "the", "bank", "\u3000", "x" * (longest - 2)]
    symbols = [*"abehiknrtvx語", "\u3000", "<bos>", "<eos>", "<oov>", "<pad>", "<bow>", "<eow>"]
    embedder: Arrays = {}
    if words:
        embedder["word_emb_layer.embedding.weight"] = draw(len(word_list), word_dim)
    if characters:
        embedder["char_emb_layer.embedding.weight"] = draw(len(symbols), char_dim)
        for number, (width, count) in enumerate(filters):
            embedder[f"convolutions.{number}.weight"] = draw(count, char_dim, width)
            embedder[f"convolutions.{number}.bias"] = draw(count)
        for number in range(highways):
            embedder[f"highways._layers.{number}.weight"] = draw(2 * size, size)
            embedder[f"highways._layers.{number}.bias"] = draw(2 * size)
    embedder["projection.weight"] = draw(output, size + (word_dim if words else 0))
    embedder["projection.bias"] = draw(output)
    encoder: Arrays = {}
    for direction in ("forward", "backward"):
        for layer in range(layers):
            prefix = f"{direction}_layer_{layer}."
            encoder[prefix + "input_linearity.weight"] = draw(4 * cell, output)
            encoder[prefix + "state_linearity.weight"] = draw(4 * cell, output)
            encoder[prefix + "state_linearity.bias"] = draw(4 * cell)
            encoder[prefix + "state_projection.weight"] = draw(output, cell)
    structure = {
        "encoder": {
            "name": "elmo",
            "projection_dim": output,
            "cell_clip": 3,
            "proj_clip": 0.6,
            "dim": cell,
            "n_layers": layers,
        },
        "token_embedder": {
            "name": "cnn",
            "activation": "relu",
            "filters": filters,
            "n_highway": highways,
            "word_dim": word_dim if words else 0,
            "char_dim": char_dim if characters else 0,
            "max_characters_per_token": longest,
        },
        "classifier": {"name": "sampled_softmax", "n_samples": 8192},
        "dropout": 0.1,
    }
    word_ids, symbol_ids = ({symbol: index for index, symbol in enumerate(table)} for table in (word_list, symbols))
    return ManyLangs(structure, embedder, encoder, word_ids if words else None, symbol_ids if characters else None)


def write_manylangs(folder: Path, model: ManyLangs, *, config_path: str = "small.json", zipped: bool = False) -> Path:
    """A model folder of ELMoForManyLangs; released ones have PyTorch's old pickles, not its zips."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, arrays in (("token_embedder.pkl", model.embedder), ("encoder.pkl", model.encoder)):
        tensors = {key: torch.from_numpy(value.copy()) for key, value in arrays.items()}
        torch.save(tensors, folder / name, _use_new_zipfile_serialization=zipped)
    for name, ids in (("word.dic", model.words), ("char.dic", model.characters)):
        if ids is not None:
            text = "".join(f"{symbol}\t{index}\n" for symbol, index in ids.items())
            (folder / name).write_text(text, encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"seed": 1, "gpu": -1, "config_path": config_path}))
    (folder / "small.json").write_text(json.dumps(model.structure))
    return folder


def refusal(path: Path | str, *facts: str, **arguments: Any) -> str:
    """Load what cannot be loaded: an ElmoError of one line that contains the facts."""
    return refusals.refusal(lambda: Elmo.load(path, **arguments), *facts)


def run(*arguments: object) -> int:
    """The exit status of `elmo` with these arguments."""
    with pytest.raises(SystemExit) as left:
        main(list(map(str, arguments)))
    return left.value.code

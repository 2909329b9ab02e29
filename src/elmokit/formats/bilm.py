"""The format of bilm-tf, AllenNLP and NLPL: options.json with weights.hdf5, read and written.

| file | contents |
| --- | --- |
| options.json, or the partner of …_weights.hdf5 | the shape of the network (bilm_options.py) |
| weights.hdf5, or any other .hdf5 or .h5 file | the weights, with the names in the table at the end of this module |
| vocab.txt | one word per line, in the order of the word table and the softmax |

tensorflow.py reads the same weights from a training checkpoint with `read_weights`. No file of these formats
contains the forget bias of 1: `LstmConfig.forget_bias` adds it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elmokit.config import ElmoConfig
from elmokit.errors import DamagedFileError, ElmoError
from elmokit.formats.bilm_options import read_options, write_options
from elmokit.formats.checkpoint import Checkpoint, as_tensors, check_shape
from elmokit.formats.hdf5 import Hdf5Tensors, names_at_top, write_datasets
from elmokit.formats.registry import Format, ModelFiles, first_bytes
from elmokit.formats.source import Source, read_json, read_text
from elmokit.model.bilm import int8_names
from elmokit.model.int8 import quantised
from elmokit.storage.atomic import update_folder, write_text
from elmokit.storage.hostile_hdf5 import MAGIC
from elmokit.text.vocab import Vocabulary

log = logging.getLogger(__name__)

Array = NDArray[np.float32]
Family = Literal["hdf5", "tensorflow"]

HDF5_SUFFIXES = (".hdf5", ".h5")
_CELL_GROUPS = ("RNN_0", "rnn")
"""The groups of an HDF5 file that contain LSTM cells: with two directions, with one."""


def detect(source: Source, name: str | None) -> str | None:
    """The HDF5 file with the weights: the given one, or the only one in the folder that contains LSTM cells."""
    files = hdf5_files(source, name)
    models = [file for file in files if names_at_top(source, file, _CELL_GROUPS)]
    if len(models) > 1:
        raise ElmoError(
            f"{source.describe(models[0])} is one of several models ({', '.join(models)}): give one of the files"
        )
    # Any other HDF5 file is accepted too: reading it raises an error that says what it lacks.
    return next((file for file in models or files if not is_embedding_table(source, file)), None)


def hdf5_files(source: Source, name: str | None) -> list[str]:
    """The HDF5 files of a folder, or the given one."""
    if name is not None:
        path = source.path(name)
        exists = path is None or path.is_file()
        return [name] if exists and (_is_hdf5_name(name) or _is_hdf5(source, name)) else []
    named = [name for name in source.names() if _is_hdf5_name(name)]
    files = [name for name in named if _is_hdf5(source, name)]
    if named and not files:
        raise DamagedFileError(f"{source.describe(named[0])} is not an HDF5 file; fetch it again")
    return files


def is_embedding_table(source: Source, name: str) -> bool:
    """Whether an HDF5 file contains an embedding of each word and no network."""
    return names_at_top(source, name, ("embedding", *_CELL_GROUPS)) == {"embedding"}


def _is_hdf5_name(name: str) -> bool:
    return name.lower().endswith(HDF5_SUFFIXES)


def _is_hdf5(source: Source, name: str) -> bool:
    return first_bytes(source, name).startswith(MAGIC)


def read(files: ModelFiles) -> Checkpoint:
    """A model from weights.hdf5 and options.json."""
    with Hdf5Tensors(files.source, files.main) as tensors:
        return read_weights(files, WeightsFile(tensors, "hdf5", files.where), options_name(files, files.main))


def options_name(files: ModelFiles, weights: str) -> tuple[Source, str]:
    """The options file of a weights file: the given one, the partner with a similar name, or options.json."""
    if files.options is not None:
        return files.options
    names = files.source.names()
    partner = PurePosixPath(weights.replace("weights", "options")).with_suffix(".json").name
    for name in (partner, "options.json"):
        if name in names:
            return files.source, name
    raise ElmoError(
        f"{files.source.describe(weights)} needs its options.json: put it in the same folder, or give it as options",
        "options",
    )


class _Tensors(Protocol):
    """The named arrays of a file, which are read one at a time."""

    def names(self) -> list[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read(self, name: str) -> NDArray[Any]: ...


class WeightsFile:
    """The weights in a file of either family (HDF5 or TensorFlow); `where` names the file in messages."""

    def __init__(self, tensors: _Tensors, family: Family, where: str) -> None:
        self.tensors, self.family, self.where = tensors, family, where
        self.names = set(tensors.names())
        self.scope = _scope(family)

    def read(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """Read an array after a check of its shape."""
        got = self.tensors.shape(name)
        if name.endswith("char_embed") and got == (shape[0] + 1, *shape[1:]):
            return self.tensors.read(name)[1:]  # some files also have a row for padding
        check_shape(got, shape, name, self.where)
        return self.tensors.read(name)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of an array, or None if the file does not contain it."""
        return self.tensors.shape(name) if name in self.names else None

    def is_forward_only(self) -> bool:
        """Whether the cells have the names of a model with one direction."""
        return any(name.startswith(f"{self.scope}rnn/") for name in self.names)


def read_weights(files: ModelFiles, file: WeightsFile, options_at: tuple[Source, str]) -> Checkpoint:
    """Read a model from a weights file of either family and its options, with softmax and Adagrad state if present.

    With `files.int8` each matrix is quantised when it is read.
    """
    options, options_where = read_json(*options_at), options_at[0].describe(options_at[1])
    table = file.shape(f"{file.scope}embedding")
    config = read_options(
        options,
        options_where,
        bidirectional=not file.is_forward_only() and options.get("bidirectional") is not False,
        n_words=table[0] if table else None,
        projections=_projections(file),
    )
    matrices = int8_names(config) if files.int8 else set()
    weights: dict[str, Tensor] = {}
    slots: dict[str, NDArray[Any]] = {}
    for mapping in weight_mappings(config, file.family):
        found = next((name for name in mapping.file_names if name in file.names), None)
        if found is None:
            raise ElmoError(
                f"{file.where} lacks {mapping.file_names[0]}, which {options_where} requires: they do not belong "
                "together"
            )
        parts = as_tensors(dict(zip(mapping.parameters, mapping.read(file.read(found, mapping.shape)), strict=True)))
        weights |= quantised(parts, matrices)
        if f"{found}/Adagrad" in file.names and not files.int8:
            slot = mapping.read(file.read(f"{found}/Adagrad", mapping.shape))
            if mapping.parameters[0].endswith(("embedding.weight", "words.weight")):
                slot[0][0] = 1.0  # the padding row has no gradient, but Adagrad needs a positive number
            slots.update(zip(mapping.parameters, slot, strict=True))
    _refuse_more_weights(file, config, options_where)
    head, head_slots = _read_head(file, config, shared_with=weights if options.get("share_embedding_softmax") else {})
    optimizer = {} if files.int8 else as_tensors(slots | head_slots)
    if optimizer and file.shape("global_step") == ():
        optimizer["step"] = torch.from_numpy(file.tensors.read("global_step").reshape(1).astype(np.int64))
    return Checkpoint(
        config,
        weights,
        kind=files.format.name,
        where=file.where,
        vocab=_read_vocabulary(files, needed=bool(config.words or head)),
        head=as_tensors(head),
        optimizer=optimizer,
    )


def _projections(file: WeightsFile) -> tuple[bool, bool]:
    """Whether tokens, and cells, have projections other than the identity.

    bilm-tf leaves out projections that keep the size. AllenNLP requires them, so `write` adds identity matrices.
    """
    token = [name for name in file.names if name.startswith(f"{file.scope}CNN_proj/") and not _is_slot(name)]
    cell = [name for name in file.names if name.endswith(("/W_P_0", "/projection/kernel"))]
    return tuple(any(not _is_identity(file, name) for name in names) for names in (token, cell))  # type: ignore[return-value]


def _is_identity(file: WeightsFile, name: str) -> bool:
    """Whether an array is an identity matrix or a zero bias."""
    match file.tensors.shape(name):
        case (size,):
            return size > 0 and not file.tensors.read(name).any()
        case (rows, columns) if rows == columns:
            return np.array_equal(file.tensors.read(name), np.eye(rows, dtype=np.float32))
    return False


def _is_slot(name: str) -> bool:
    return name.endswith(("/Adagrad", "/Adam", "/Adam_1"))


def _refuse_more_weights(file: WeightsFile, config: ElmoConfig, options_where: str) -> None:
    """Raise an error if the file has layers, highways or filters that the options do not describe."""
    known = {name for mapping in weight_mappings(config, file.family) for name in mapping.file_names}
    for name in sorted(file.names - known):
        local = name.removeprefix(file.scope)
        identity = local.startswith("CNN_proj/") or local.endswith(("/W_P_0", "/projection/kernel"))
        if local.startswith(("CNN", "RNN_", "rnn/")) and not identity and not _is_slot(name):
            raise ElmoError(
                f"{file.where} contains {name}, which {options_where} does not ask for: they do not belong together"
            )


def _read_head(
    file: WeightsFile, config: ElmoConfig, shared_with: Mapping[str, Tensor]
) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """The softmax and its Adagrad state, if present; a shared softmax takes its weights from the word table."""
    shapes = {"bias": file.shape(f"{file.scope}softmax/b"), "weight": file.shape(f"{file.scope}softmax/W")}
    table = shared_with.get("token_encoder.words.weight")
    if not shapes["bias"] or not (shapes["weight"] or table is not None):
        return {}, {}
    n_words = shapes["bias"][0]
    head: dict[str, NDArray[Any]] = {}
    slots: dict[str, NDArray[Any]] = {}
    for part, name, shape in (("bias", "b", (n_words,)), ("weight", "W", (n_words, config.lstm.output_size))):
        file_name = f"{file.scope}softmax/{name}"
        if file_name in file.names:
            head[part] = file.read(file_name, shape)
        if f"{file_name}/Adagrad" in file.names:
            slots[f"head.{part}"] = file.read(f"{file_name}/Adagrad", shape)
    if "weight" not in head and table is not None:
        check_shape(
            tuple(table[1:].shape), (n_words, config.lstm.output_size), "embedding (shared by the softmax)", file.where
        )
        head["weight"] = table[1:].clone().numpy()
    return head, slots


def _read_vocabulary(files: ModelFiles, *, needed: bool) -> Vocabulary | None:
    """The given vocabulary, or the one in the folder of the weights."""
    if files.vocab is not None or "vocab.txt" not in files.source.names():
        return files.vocab
    try:
        return Vocabulary.from_text(read_text(files.source, "vocab.txt"))
    except ElmoError:
        if needed:
            raise
        return None


def write(checkpoint: Checkpoint, folder: Path) -> None:
    """Write options.json, weights.hdf5 and, if the model has a vocabulary, vocab.txt into a folder."""
    config = checkpoint.config
    if not _can_be_stored(config):
        raise ElmoError(
            f"{checkpoint.where} has its own kind of words or characters, and the bilm format stores only UTF-8 bytes "
            "or a plain word table: choose the format elmokit"
        )
    _warn_about_losses(checkpoint, folder)
    checkpoint = checkpoint.in_floats()
    weights = {name: value.float().cpu().numpy() for name, value in checkpoint.weights.items()}
    if config.lstm.forget_bias != 1:
        _take_out_forget_bias(weights, 1 - config.lstm.forget_bias)
    arrays = {
        mapping.file_names[0]: mapping.write(tuple(weights[name] for name in mapping.parameters))
        for mapping in weight_mappings(config, "hdf5")
    }
    arrays |= _identities(config)
    if checkpoint.head:
        # Older readers ignore these two datasets; `read` restores the language model from them.
        arrays["softmax/W"] = checkpoint.head["weight"].float().cpu().numpy()
        arrays["softmax/b"] = checkpoint.head["bias"].float().cpu().numpy()
    with update_folder(folder, last="options.json", optional=("vocab.txt",)) as staging:
        write_datasets(staging / "weights.hdf5", arrays, _second_names(config))
        if checkpoint.vocab is not None:
            write_text(staging / "vocab.txt", checkpoint.vocab.to_text())
        write_text(staging / "options.json", json.dumps(write_options(config), indent=2) + "\n")


def _can_be_stored(config: ElmoConfig) -> bool:
    if config.characters is not None:
        return config.characters.alphabet == "bytes" and config.words is None
    return config.words is not None and config.words.max_characters is None and not config.token_projection


def _warn_about_losses(checkpoint: Checkpoint, folder: Path) -> None:
    if any(bool(mix["weights"].any()) or float(mix["gamma"]) != 1 for mix in checkpoint.mixes):
        log.warning("the bilm format stores no mixes: the trained mixes of this model are not in %s", folder)
    segment = checkpoint.text.get("segment", "none")
    if segment not in ("none", "whitespace"):
        log.warning("the bilm format does not store how text becomes tokens: load it with segment=%r", segment)


def _take_out_forget_bias(weights: dict[str, NDArray[Any]], amount: float) -> None:
    for name, value in weights.items():
        if name.endswith(".bias") and "_lstm." in name:
            size = len(value) // 4
            weights[name] = np.concatenate([value[:size], value[size : 2 * size] - amount, value[2 * size :]])


def _identities(config: ElmoConfig) -> dict[str, NDArray[Any]]:
    """The projections that bilm-tf leaves out and AllenNLP requires, as identity matrices."""
    arrays: dict[str, NDArray[Any]] = {}
    size = config.lstm.output_size
    identity = np.eye(size, dtype=np.float32)
    if config.characters is not None and not config.token_projection:
        arrays["CNN_proj/W_proj"], arrays["CNN_proj/b_proj"] = identity, np.zeros(size, np.float32)
    if config.bidirectional and not config.lstm.projection:
        for direction in range(2):
            for layer in range(config.lstm.n_layers):
                arrays[_cell_names(config, "hdf5", direction, layer)[0][2]] = identity
    return arrays


def _second_names(config: ElmoConfig) -> dict[str, str]:
    """Second names of the groups of a one-layer model: AllenNLP reads other names than bilm-tf writes."""
    if config.lstm.n_layers != 1 or not config.bidirectional:
        return {}
    links = {}
    for direction in range(2):
        single, stacked = _cell_names(config, "hdf5", direction, 0)
        links[stacked[0].rpartition("/")[0]] = single[0].rpartition("/")[0]
    return links


# The table: the name and shape of each array in the file, and its conversion to and from parameters of BiLM.


@dataclass(frozen=True)
class WeightMapping:
    """An array in the file and its parameters of BiLM."""

    file_names: tuple[str, ...]
    """The array's name; several if older tools disagree."""
    shape: tuple[int, ...]
    parameters: tuple[str, ...]
    """The names of the parameters of BiLM that the array contains."""
    read: Callable[[Array], tuple[Array, ...]]
    write: Callable[[tuple[Array, ...]], Array]


# {d}: direction, {l}: layer. The second name of each pair is for a one-layer model.
_CELLS: dict[tuple[Family, bool], tuple[str, str]] = {
    ("hdf5", True): ("RNN_{d}/RNN/MultiRNNCell/Cell{l}/LSTMCell/", "RNN_{d}/RNN/LSTMCell/"),
    ("hdf5", False): ("rnn/MultiRNNCell/Cell{l}/LSTMCell/", "rnn/LSTMCell/"),
    ("tensorflow", True): ("lm/RNN_{d}/rnn/multi_rnn_cell/cell_{l}/lstm_cell/", "lm/RNN_{d}/rnn/lstm_cell/"),
    ("tensorflow", False): ("lm/rnn/multi_rnn_cell/cell_{l}/lstm_cell/", "lm/rnn/lstm_cell/"),
}
_LEAVES = {("hdf5", True): ("W_0", "B", "W_P_0")}
_OTHER_LEAVES = ("kernel", "bias", "projection/kernel")


def weight_mappings(config: ElmoConfig, family: Family) -> Iterator[WeightMapping]:
    """The arrays of a model with this configuration, without the softmax."""
    scope = _scope(family)
    if config.words is not None:
        shape = (config.words.n_words, config.words.embedding_size)
        yield _mapping(f"{scope}embedding", shape, "token_encoder.words.weight", _PADDING_ROW)
    if config.characters is not None:
        yield from _character_rows(config, scope)
    if config.characters is not None and config.token_projection:
        yield from _linear(
            f"{scope}CNN_proj/", "proj", "token_encoder.projection", config.parts_size, config.lstm.output_size
        )
    for direction in range(config.n_directions):
        for layer in range(config.lstm.n_layers):
            yield from _cell_rows(config, family, direction, layer)


def _scope(family: Family) -> str:
    return "lm/" if family == "tensorflow" else ""


def _character_rows(config: ElmoConfig, scope: str) -> Iterator[WeightMapping]:
    characters = config.characters
    assert characters is not None
    shape = (characters.n_characters - 1, characters.embedding_size)
    cnn = "token_encoder.char_cnn."
    yield _mapping(f"{scope}char_embed", shape, cnn + "embedding.weight", _PADDING_ROW)
    for number, (width, count) in enumerate(characters.filters):
        shape4 = (1, width, characters.embedding_size, count)
        parameter = f"{cnn}convolutions.{number}"
        yield _mapping(f"{scope}CNN/W_cnn_{number}", shape4, parameter + ".weight", _CONVOLUTION)
        yield _mapping(f"{scope}CNN/b_cnn_{number}", (count,), parameter + ".bias", _SAME)
    size = characters.n_filters
    for number in range(characters.n_highway):
        yield from _linear(f"{scope}CNN_high_{number}/", "carry", f"{cnn}highways.{number}.gate", size, size)
        yield from _linear(f"{scope}CNN_high_{number}/", "transform", f"{cnn}highways.{number}.transform", size, size)


def _cell_rows(config: ElmoConfig, family: Family, direction: int, layer: int) -> Iterator[WeightMapping]:
    lstm = config.lstm
    kernel, bias, projection = zip(*_cell_names(config, family, direction, layer), strict=True)
    parameter = f"{('forward', 'backward')[direction]}_lstm.layers.{layer}."
    size = lstm.output_size
    yield WeightMapping(
        kernel,
        (2 * size, 4 * lstm.cell_size),
        (parameter + "input_weight", parameter + "recurrent_weight"),
        lambda w: (_swap_gates(w[:size]).T.copy(), _swap_gates(w[size:]).T.copy()),
        lambda parts: _swap_gates(np.concatenate([parts[0].T, parts[1].T])),
    )
    yield _mapping(bias, (4 * lstm.cell_size,), parameter + "bias", _GATES)
    if lstm.projection:
        yield _mapping(projection, (lstm.cell_size, size), parameter + "projection_weight", _TRANSPOSED)


def _cell_names(config: ElmoConfig, family: Family, direction: int, layer: int) -> list[tuple[str, str, str]]:
    """The names of a cell's kernel, bias and projection; the cell of a one-layer model has two sets of names."""
    kind = family, config.bidirectional
    leaves = _LEAVES.get(kind, _OTHER_LEAVES)
    stacked, single = _CELLS[kind]
    prefixes = [single, stacked] if config.lstm.n_layers == 1 else [stacked]
    return [tuple(prefix.format(d=direction, l=layer) + leaf for leaf in leaves) for prefix in prefixes]  # type: ignore[misc]


def _linear(scope: str, leaf: str, parameter: str, size_in: int, size_out: int) -> Iterator[WeightMapping]:
    yield _mapping(f"{scope}W_{leaf}", (size_in, size_out), parameter + ".weight", _TRANSPOSED)
    yield _mapping(f"{scope}b_{leaf}", (size_out,), parameter + ".bias", _SAME)


def _mapping(
    file_name: str | tuple[str, ...], shape: tuple[int, ...], parameter: str, conversion: _Conversion
) -> WeightMapping:
    read, write = conversion
    names = (file_name,) if isinstance(file_name, str) else file_name
    return WeightMapping(names, shape, (parameter,), lambda value: (read(value),), lambda parts: write(parts[0]))


def _swap_gates(value: Array) -> Array:
    """Reorder gates on the last axis: input, candidate, forget, output (file) ↔ input, forget, candidate, output."""
    i, j, f, o = np.split(value, 4, axis=-1)
    return np.concatenate([i, f, j, o], axis=-1)


_Conversion = tuple[Callable[[Array], Array], Callable[[Array], Array]]
"""The functions from an array of the file to a parameter of BiLM, and back."""
_SAME: _Conversion = (lambda value: value, lambda value: value)
_GATES: _Conversion = (_swap_gates, _swap_gates)
_TRANSPOSED: _Conversion = (lambda value: np.ascontiguousarray(value.T), lambda value: np.ascontiguousarray(value.T))
_PADDING_ROW: _Conversion = (lambda rows: np.concatenate([np.zeros_like(rows[:1]), rows]), lambda rows: rows[1:])
_CONVOLUTION: _Conversion = (
    lambda value: np.ascontiguousarray(value[0].transpose(2, 1, 0)),
    lambda value: np.ascontiguousarray(value.transpose(2, 1, 0)[None]),
)

FORMAT = Format(
    name="bilm",
    description="options.json with a weights .hdf5 file, as bilm-tf, AllenNLP and NLPL have it",
    detect=detect,
    read=read,
    write=write,
    contexts=("lstm",),
    files=("*.json", "*.hdf5", "*.h5", "vocab.txt"),
    takes_options=True,
)

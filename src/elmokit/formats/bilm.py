"""bilm-tf's models: options.json with weights.hdf5, or with a TensorFlow checkpoint.

One table of names serves both. The forget bias of 1 is in no file of this family: `LstmConfig.forget_bias` adds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elmokit.config import ElmoConfig
from elmokit.errors import ElmoError
from elmokit.formats.bilm_table import Family, rows
from elmokit.formats.checkpoint import Checkpoint, as_tensors, check_shape
from elmokit.formats.hdf5 import Hdf5Tensors
from elmokit.formats.options import read_options
from elmokit.formats.source import Source, read_json, read_text
from elmokit.formats.tensorbundle import TensorBundle
from elmokit.model.bilm import int8_names
from elmokit.model.int8 import quantised
from elmokit.text.vocab import Vocabulary


class Tensors(Protocol):
    """Named arrays in a file, read one at a time."""

    def names(self) -> list[str]:
        """All names."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape, without reading the array."""
        ...

    def read(self, name: str) -> NDArray[Any]:
        """The array."""
        ...


def find_options(source: Source, weights: str) -> str:
    """The options file that belongs to a weights file: options.json, or its released-style partner."""
    names = source.names()
    partner = PurePosixPath(weights.replace("weights", "options")).with_suffix(".json").name
    for name in (partner, "options.json"):
        if name in names:
            return name
    raise ElmoError(
        f"{source.describe(weights)} needs its options file: put options.json beside it or give options= (--options)"
    )


def read_hdf5(
    source: Source, weights: str, options: tuple[Source, str] | None = None, *, int8: bool = False
) -> Checkpoint:
    """A model from weights.hdf5 and options.json; with `int8` its matrices are brought to 8 bits as they are read."""
    options = options or (source, find_options(source, weights))
    with Hdf5Tensors(source, weights) as tensors:
        return _read(_File(tensors, "hdf5", source.describe(weights)), options, int8=int8)


def read_tensorflow(
    source: Source, prefix: str, options: tuple[Source, str] | None = None, *, int8: bool = False
) -> Checkpoint:
    """A model from a TensorFlow checkpoint `prefix.index` and options.json, with softmax and Adagrad slots.

    With `int8` its matrices are brought to 8 bits as they are read.
    """
    options = options or (source, find_options(source, f"{prefix}.index"))
    where = source.describe(prefix)  # so that messages name the whole path
    tensors = TensorBundle(where, open_file=lambda name: source.open(prefix + name.removeprefix(where)))
    return _read(_File(tensors, "tensorflow", source.describe(f"{prefix}.index")), options, int8=int8)


class _File:
    """A weights file of either family, with its name for messages."""

    def __init__(self, tensors: Tensors, family: Family, where: str) -> None:
        self.tensors, self.family, self.where = tensors, family, where
        self.names = set(tensors.names())
        self.scope = "lm/" if family == "tensorflow" else ""

    def read(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """The array, once its shape is known to fit."""
        got = self.tensors.shape(name)
        if name.endswith("char_embed") and got == (shape[0] + 1, *shape[1:]):
            return self.tensors.read(name)[1:]  # a dump that kept the padded token's row
        check_shape(got, shape, name, self.where)
        return self.tensors.read(name)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape, or None where the file has no such array."""
        return self.tensors.shape(name) if name in self.names else None

    def is_forward_only(self) -> bool:
        """Whether the cells lie where a model of one direction has them."""
        return any(name.startswith(f"{self.scope}rnn/") for name in self.names)


def _read(file: _File, options_at: tuple[Source, str], *, int8: bool) -> Checkpoint:
    options, options_where = read_json(*options_at), options_at[0].describe(options_at[1])
    bidirectional = not file.is_forward_only() and options.get("bidirectional") is not False
    table = file.shape(f"{file.scope}embedding")
    config = read_options(
        options,
        options_where,
        bidirectional=bidirectional,
        n_words=table[0] if table else None,
        projections=_projections(file),
    )
    matrices = int8_names(config) if int8 else set()
    weights: dict[str, Tensor] = {}
    slots: dict[str, NDArray[Any]] = {}
    for row in rows(config, file.family):
        found = next((name for name in row.theirs if name in file.names), None)
        if found is None:
            raise ElmoError(
                f"{file.where} lacks {row.theirs[0]}, which {options_where} asks for: they do not belong together"
            )
        parts = as_tensors(dict(zip(row.ours, row.read(file.read(found, row.shape)), strict=True)))
        weights |= quantised(parts, matrices)
        if f"{found}/Adagrad" in file.names and not int8:
            slot = row.read(file.read(f"{found}/Adagrad", row.shape))
            if row.ours[0].endswith(("embedding.weight", "words.weight")):
                slot[0][0] = 1.0  # the padding row gets no gradient; any positive number keeps Adagrad defined
            slots.update(zip(row.ours, slot, strict=True))
    _refuse_left_over(file, config, options_where)
    head, head_slots = _read_head(file, config, shared_with=weights if options.get("share_embedding_softmax") else {})
    optimizer = {} if int8 else as_tensors(slots | head_slots)
    if optimizer and file.shape("global_step") == ():
        optimizer["step"] = torch.from_numpy(file.tensors.read("global_step").reshape(1).astype(np.int64))
    return Checkpoint(
        config,
        weights,
        kind="bilm" if file.family == "hdf5" else "tensorflow",
        where=file.where,
        head=as_tensors(head),
        optimizer=optimizer,
    )


def _projections(file: _File) -> tuple[bool, bool]:
    """Whether projections (of a token, of a cell) are there and do something.

    bilm-tf leaves out those that change no size; AllenNLP insists on them, so our writer adds identities, which are
    left out again here.
    """
    token = [name for name in file.names if name.startswith(f"{file.scope}CNN_proj/") and not _is_slot(name)]
    cell = [name for name in file.names if name.endswith(("/W_P_0", "/projection/kernel"))]
    return tuple(any(not _is_identity(file, name) for name in names) for names in (token, cell))  # type: ignore[return-value]


def _is_identity(file: _File, name: str) -> bool:
    """Whether a product with this matrix, or a sum with this bias, changes nothing."""
    match file.tensors.shape(name):
        case (size,):
            return size > 0 and not file.tensors.read(name).any()
        case (rows, columns) if rows == columns:
            return np.array_equal(file.tensors.read(name), np.eye(rows, dtype=np.float32))
    return False


def _is_slot(name: str) -> bool:
    return name.endswith(("/Adagrad", "/Adam", "/Adam_1"))


def _refuse_left_over(file: _File, config: ElmoConfig, options_where: str) -> None:
    """Layers, highways or filters in the file beyond what the options ask for mean that the two do not fit."""
    known = {name for row in rows(config, file.family) for name in row.theirs}
    for name in sorted(file.names - known):
        local = name.removeprefix(file.scope)
        identity = local.startswith("CNN_proj/") or local.endswith(("/W_P_0", "/projection/kernel"))
        if local.startswith(("CNN", "RNN_", "rnn/")) and not identity and not _is_slot(name):
            raise ElmoError(
                f"{file.where} holds {name}, which {options_where} does not ask for: they do not belong together"
            )


def _read_head(
    file: _File, config: ElmoConfig, shared_with: Mapping[str, Tensor]
) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """The softmax and its slots where the file has them; a shared one takes its weights from the word table."""
    shapes = {"bias": file.shape(f"{file.scope}softmax/b"), "weight": file.shape(f"{file.scope}softmax/W")}
    table = shared_with.get("token_encoder.words.weight")
    if not shapes["bias"] or not (shapes["weight"] or table is not None):
        return {}, {}
    n_words = shapes["bias"][0]
    head: dict[str, NDArray[Any]] = {}
    slots: dict[str, NDArray[Any]] = {}
    for part, name, shape in (("bias", "b", (n_words,)), ("weight", "W", (n_words, config.lstm.output_size))):
        theirs = f"{file.scope}softmax/{name}"
        if theirs in file.names:
            head[part] = file.read(theirs, shape)
        if f"{theirs}/Adagrad" in file.names:
            slots[f"head.{part}"] = file.read(f"{theirs}/Adagrad", shape)
    if "weight" not in head and table is not None:
        check_shape(
            tuple(table[1:].shape), (n_words, config.lstm.output_size), "embedding (shared by the softmax)", file.where
        )
        head["weight"] = table[1:].clone().numpy()
    return head, slots


def read_vocabulary(source: Source, name: str) -> Vocabulary:
    """vocab.txt of the bilm family."""
    text = read_text(source, name)
    try:
        return Vocabulary.from_text(text)
    except ElmoError as error:
        raise ElmoError(f"{source.describe(name)}: {error}") from error

"""options.json and weights.hdf5 as bilm-tf, AllenNLP and simple_elmo read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmokit.config import ElmoConfig
from elmokit.errors import ElmoError
from elmokit.formats.bilm_table import cell_names, rows
from elmokit.formats.checkpoint import Checkpoint
from elmokit.formats.hdf5 import write_datasets
from elmokit.formats.options import write_options
from elmokit.formats.source import FolderSource
from elmokit.storage.atomic import update_folder, write_text

# Files of other formats that `detect` looks for before options.json.
_FOUND_FIRST = ("config.json", "model.safetensors", "encoder.pkl", "checkpoint")


def write_bilm(checkpoint: Checkpoint, folder: Path) -> None:
    """Write options.json, weights.hdf5 and, where there is a vocabulary, vocab.txt into a folder."""
    config = checkpoint.config
    if not _can_hold(config):
        raise ElmoError(
            f"{checkpoint.where} has words or characters of its own kind, and the bilm format knows UTF-8 bytes or a "
            "plain word table only: convert it with --to elmokit"
        )
    checkpoint = checkpoint.in_floats()
    weights = {name: value.float().cpu().numpy() for name, value in checkpoint.weights.items()}
    if config.lstm.forget_bias != 1:
        _take_out_forget_bias(weights, 1 - config.lstm.forget_bias)
    arrays = {row.theirs[0]: row.write(tuple(weights[name] for name in row.ours)) for row in rows(config, "hdf5")}
    arrays |= _identities(config)
    if checkpoint.head:
        # Older readers look datasets up by name and never see these two; ours get the language model back.
        arrays["softmax/W"] = checkpoint.head["weight"].float().cpu().numpy()
        arrays["softmax/b"] = checkpoint.head["bias"].float().cpu().numpy()
    with update_folder(folder, last="options.json", optional=("vocab.txt",)) as staging:
        _refuse_beside_another(folder)
        write_datasets(staging / "weights.hdf5", arrays, _second_names(config))
        if checkpoint.vocab is not None:
            write_text(staging / "vocab.txt", checkpoint.vocab.to_text())
        write_text(staging / "options.json", json.dumps(write_options(config), indent=2) + "\n")


def _can_hold(config: ElmoConfig) -> bool:
    if config.characters is not None:
        return config.characters.alphabet == "bytes" and config.words is None
    return config.words is not None and config.words.max_characters is None and not config.token_projection


def _refuse_beside_another(folder: Path) -> None:
    """Refuse a folder with a model of another format, which `detect` would find in place of this one."""
    if found := [name for name in FolderSource(folder).names() if name in _FOUND_FIRST or name.endswith(".index")]:
        raise ElmoError(f"{folder} holds another model ({found[0]}), which would be found first: choose another folder")


def _take_out_forget_bias(weights: dict[str, NDArray[Any]], amount: float) -> None:
    for name, value in weights.items():
        if name.endswith(".bias") and "_lstm." in name:
            size = len(value) // 4
            weights[name] = np.concatenate([value[:size], value[size : 2 * size] - amount, value[2 * size :]])


def _identities(config: ElmoConfig) -> dict[str, NDArray[Any]]:
    """Projections that bilm-tf leaves out and AllenNLP insists on, as products that change nothing."""
    arrays: dict[str, NDArray[Any]] = {}
    size = config.lstm.output_size
    identity = np.eye(size, dtype=np.float32)
    if config.characters is not None and not config.token_projection:
        arrays["CNN_proj/W_proj"], arrays["CNN_proj/b_proj"] = identity, np.zeros(size, np.float32)
    if config.bidirectional and not config.lstm.projection:
        for direction in range(2):
            for layer in range(config.lstm.n_layers):
                names = cell_names(
                    "hdf5", bidirectional=True, direction=direction, layer=layer, n_layers=config.lstm.n_layers
                )
                arrays[names[0][2]] = identity
    return arrays


def _second_names(config: ElmoConfig) -> dict[str, str]:
    """A one-layer model under bilm-tf's name and under the one where AllenNLP looks."""
    if config.lstm.n_layers != 1 or not config.bidirectional:
        return {}
    links = {}
    for direction in range(2):
        single, stacked = cell_names("hdf5", bidirectional=True, direction=direction, layer=0, n_layers=1)
        links[stacked[0].rpartition("/")[0]] = single[0].rpartition("/")[0]
    return links

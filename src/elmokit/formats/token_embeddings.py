"""bilm-tf's token embeddings: a table `embedding` [V, P] in vocabulary order, which replaces the character encoder.

The file is only a part of a model: `Elmo.load(model, token_embeddings=FILE)` reads it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from elmokit.config import WordConfig
from elmokit.errors import ElmoError
from elmokit.formats.bilm import HDF5_SUFFIXES, hdf5_files, is_embedding_table
from elmokit.formats.checkpoint import Checkpoint, as_tensors, check_shape
from elmokit.formats.hdf5 import Hdf5Tensors, write_datasets
from elmokit.formats.registry import Format, ModelFiles
from elmokit.formats.source import Source
from elmokit.text.vocab import Vocabulary


def with_token_embeddings(checkpoint: Checkpoint, source: Source, name: str, vocab: Vocabulary | None) -> Checkpoint:
    """The model with a table of the vocabulary's words instead of its token encoder."""
    where = source.describe(name)
    if vocab is None:
        raise ElmoError(f"{where} has a row for each word of a vocabulary: give its vocab.txt as vocab", "vocab")
    with Hdf5Tensors(source, name) as tensors:
        if "embedding" not in tensors.names():
            raise ElmoError(
                f"{where} must contain the dataset embedding, got {', '.join(tensors.names()[:5]) or 'nothing'}"
            )
        shape = (len(vocab), checkpoint.config.token_size)
        check_shape(tensors.shape("embedding"), shape, "embedding", where)
        rows = as_tensors({"rows": tensors.read("embedding")})["rows"]
    weights = {key: value for key, value in checkpoint.weights.items() if not key.startswith("token_encoder.")}
    weights["token_encoder.words.weight"] = torch.cat([torch.zeros_like(rows[:1]), rows])
    config = replace(checkpoint.config, characters=None, words=WordConfig(len(vocab), shape[1]), token_projection=False)
    kind = f"{checkpoint.kind}+tokens"
    return Checkpoint(config, weights, kind=kind, where=where, vocab=vocab, head=checkpoint.head)


def detect(source: Source, name: str | None) -> str | None:
    """The HDF5 file that has the table and no network."""
    return next((file for file in hdf5_files(source, name) if is_embedding_table(source, file)), None)


def read(files: ModelFiles) -> Checkpoint:
    """Raise an error: the file is not a model on its own."""
    raise ElmoError(
        f"{files.where} contains only token embeddings: load the model that they were made from and give this file as "
        "token_embeddings",
        "token_embeddings",
    )


@torch.no_grad()
def write(checkpoint: Checkpoint, path: Path) -> None:
    """Write the context-free vector of each word of the vocabulary in bilm-tf's format."""
    if checkpoint.vocab is None:
        raise ElmoError(
            f"token embeddings need a vocabulary, and {checkpoint.where} has none: give its vocab.txt as vocab",
            "vocab",
        )
    ids = checkpoint.indexer()(list(checkpoint.vocab))
    parts = (None if part is None else torch.from_numpy(part) for part in (ids.characters, ids.words))
    rows = checkpoint.network().eval().encode_types(*parts)  # [V, P]
    write_datasets(path, {"embedding": rows.cpu().numpy()}, {})


FORMAT = Format("tokens", "", detect, read, write, contexts=("lstm",), files=("*.hdf5", "*.h5"), suffixes=HDF5_SUFFIXES)

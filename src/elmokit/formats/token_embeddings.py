"""bilm-tf's token embeddings: `embedding` [V, P] in vocabulary order, computed once to replace the characters.

Such a file is a part of a model: `Elmo.load(model, token_embeddings=FILE)` reads it.
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
    """The model with its token encoder replaced by a table with a row for each word of the vocabulary."""
    where = source.describe(name)
    if vocab is None:
        raise ElmoError(f"{where} has a row for each word of a vocabulary: name its vocab.txt with vocab", "vocab")
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
    """An HDF5 file that has the table and no network."""
    return next((file for file in hdf5_files(source, name) if is_embedding_table(source, file)), None)


def read(files: ModelFiles) -> Checkpoint:
    """Refuse the file, which is no model on its own."""
    raise ElmoError(
        f"{files.where} contains token embeddings alone: load the model they were made from and name this file with "
        "token_embeddings",
        "token_embeddings",
    )


@torch.no_grad()
def write(checkpoint: Checkpoint, path: Path) -> None:
    """Write the vector without context of each word of the vocabulary, as bilm-tf reads them."""
    if checkpoint.vocab is None:
        raise ElmoError(
            f"token embeddings need a vocabulary, and {checkpoint.where} has none: name its vocab.txt with vocab",
            "vocab",
        )
    ids = checkpoint.indexer()(list(checkpoint.vocab))
    parts = (None if part is None else torch.from_numpy(part) for part in (ids.characters, ids.words))
    rows = checkpoint.network().eval().encode_types(*parts)  # [V, P]
    write_datasets(path, {"embedding": rows.cpu().numpy()}, {})


FORMAT = Format("tokens", "", detect, read, write, contexts=("lstm",), files=("*.hdf5", "*.h5"), suffixes=HDF5_SUFFIXES)

"""Token embeddings computed ahead: `embedding` [V, P] in vocabulary order, in place of the characters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from elmokit.config import WordConfig
from elmokit.errors import ElmoError
from elmokit.formats.checkpoint import Checkpoint, as_tensors, check_shape
from elmokit.formats.hdf5 import Hdf5Tensors, write_datasets
from elmokit.formats.source import Source
from elmokit.text.vocab import Vocabulary


def with_token_embeddings(checkpoint: Checkpoint, source: Source, name: str, vocab: Vocabulary | None) -> Checkpoint:
    """The model with its token part replaced by a table of rows for the vocabulary's words."""
    where = source.describe(name)
    if vocab is None:
        raise ElmoError(f"{where} has a row for each word of a vocabulary: give its vocab.txt with vocab=")
    with Hdf5Tensors(source, name) as tensors:
        if "embedding" not in tensors.names():
            raise ElmoError(
                f"{where} must hold the dataset embedding, got {', '.join(tensors.names()[:5]) or 'nothing'}"
            )
        shape = (len(vocab), checkpoint.config.lstm.output_size)
        check_shape(tensors.shape("embedding"), shape, "embedding", where)
        rows = as_tensors({"rows": tensors.read("embedding")})["rows"]
    weights = {key: value for key, value in checkpoint.weights.items() if not key.startswith("token_encoder.")}
    weights["token_encoder.words.weight"] = torch.cat([torch.zeros_like(rows[:1]), rows])
    config = replace(checkpoint.config, characters=None, words=WordConfig(len(vocab), shape[1]), token_projection=False)
    return Checkpoint(
        config,
        weights,
        kind=f"{checkpoint.kind}+tokens",
        where=where,
        vocab=vocab,
        head=checkpoint.head,
    )


def write_token_embeddings(path: Path, rows: Tensor) -> None:
    """rows [V, P] in vocabulary order, as bilm-tf reads them."""
    write_datasets(path, {"embedding": rows.float().cpu().numpy().astype(np.float32)}, {})

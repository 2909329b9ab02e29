"""AllenNLP's `ElmoEmbedder` (to version 0.9): sentences to numpy arrays, and files to HDF5."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Literal

import h5py
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from elmokit.compat.allennlp_bilm import Words, _ElmoBiLm
from elmokit.compat.allennlp_errors import ConfigurationError
from elmokit.compat.allennlp_ids import distinct, remove_sentence_boundaries
from elmokit.model.placement import choose_device
from elmokit.output.writers.hdf5 import create_hdf5
from elmokit.storage.atomic import atomic_file

_ORIGINAL = (
    "https://allennlp.s3.amazonaws.com/models/elmo/2x4096_512_2048cnn_2xhighway/elmo_2x4096_512_2048cnn_2xhighway_"
)
DEFAULT_OPTIONS_FILE = f"{_ORIGINAL}options.json"
DEFAULT_WEIGHT_FILE = f"{_ORIGINAL}weights.hdf5"
DEFAULT_BATCH_SIZE = 64

Vectors = NDArray[np.float32]


def default_files(
    options_file: str | Path | None, weight_file: str | Path | None
) -> tuple[str | Path | None, str | Path | None]:
    """The files that were given, or the original English model's where none were."""
    if options_file is None and weight_file is None:
        return DEFAULT_OPTIONS_FILE, DEFAULT_WEIGHT_FILE
    return options_file, weight_file


class ElmoEmbedder:
    """All layers of sentences that are lists of words.

    State is carried over every call, as in AllenNLP; `stateful=False` gives a sentence the same vectors every time.
    """

    def __init__(
        self,
        options_file: str | Path | None = None,
        weight_file: str | Path | None = None,
        cuda_device: int = -1,
        *,
        stateful: bool = True,
    ) -> None:
        """Without any file the original English model is downloaded; `cuda_device` -1 is the CPU."""
        self.elmo_bilm = _ElmoBiLm(*default_files(options_file, weight_file), stateful=stateful)
        self.cuda_device = cuda_device
        if cuda_device >= 0:
            self.elmo_bilm = self.elmo_bilm.to(choose_device(f"cuda:{cuda_device}"))

    def reset_states(self) -> None:
        """Forget the carried state: the next call starts from zero."""
        self.elmo_bilm.reset_states()

    def batch_to_embeddings(self, batch: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """Sentences → layers [B, L+1, T, D] and mask [B, T]."""
        rows, words = distinct(batch)
        table = self.elmo_bilm._token_embedder.encode_words(words)
        lengths = torch.tensor([len(row) for row in rows], dtype=torch.long)
        real = torch.arange(max(map(len, rows), default=0)) < lengths.unsqueeze(1)
        index = torch.tensor([place for row in rows for place in row], dtype=torch.long)
        output = self.elmo_bilm.contextualise(Words(table, real.to(table.device), index.to(table.device)))
        pairs = [remove_sentence_boundaries(layer, output["mask"]) for layer in output["activations"]]
        return torch.stack([layer for layer, _ in pairs], dim=1), pairs[0][1]

    def embed_sentence(self, sentence: Sequence[str]) -> Vectors:
        """A sentence of T words → [L+1, T, D]."""
        return self.embed_batch([sentence])[0]

    def embed_batch(self, batch: Sequence[Sequence[str]]) -> list[Vectors]:
        """Sentences → an array [L+1, T, D] each, computed as one batch."""
        sentences = [list(sentence) for sentence in batch]
        if not any(sentences):
            empty = (self.elmo_bilm.num_layers, 0, self.elmo_bilm.get_output_dim())
            return [np.zeros(empty, np.float32) for _ in sentences]
        with torch.no_grad():
            layers = self.batch_to_embeddings(sentences)[0].float().cpu().numpy()
        return [row[:, : len(sentence)].copy() for row, sentence in zip(layers, sentences, strict=True)]

    def embed_sentences(
        self, sentences: Iterable[Sequence[str]], batch_size: int = DEFAULT_BATCH_SIZE
    ) -> Iterator[Vectors]:
        """Any number of sentences → their arrays [L+1, T, D] one by one, in batches in the order they come."""
        if batch_size < 1:
            raise ConfigurationError(f"batch_size must be at least 1, got {batch_size}")
        stream = iter(sentences)
        batches = iter(lambda: list(islice(stream, batch_size)), [])
        return (vectors for batch in batches for vectors in self.embed_batch(batch))

    def embed_file(
        self,
        input_file: IO[str],
        output_file_path: str | Path,
        output_format: Literal["all", "top", "average"] = "all",
        batch_size: int = DEFAULT_BATCH_SIZE,
        forget_sentences: bool = False,
        use_sentence_keys: bool = False,
    ) -> None:
        """An open text file, a sentence a line with words between white space → HDF5, whole or not at all.

        A dataset for each line, named by its number from 0 (`use_sentence_keys`: by the line itself): [L+1, T, D], or
        [T, D] for the "top" layer and the "average" of all. Without sentence keys, and unless `forget_sentences`, also
        `sentence_to_index`: JSON {line: "number"}. The input is closed at the end.
        """
        if output_format not in ("all", "top", "average"):
            raise ConfigurationError(f"output_format must be all, top or average, got {output_format!r}")
        with input_file:
            lines = [line.strip() for line in input_file]
        _check_lines(lines, unique=use_sentence_keys)
        vectors = self.embed_sentences((line.split() for line in lines), batch_size)
        bar = tqdm(zip(lines, vectors, strict=True), total=len(lines), unit=" sentences", disable=None)
        with atomic_file(Path(output_file_path)) as temporary, create_hdf5(temporary) as (file, check):
            for number, (line, layers) in enumerate(bar):
                chosen = {"all": layers, "top": layers[-1], "average": layers.mean(axis=0)}[output_format]
                _store(file, line if use_sentence_keys else str(number), chosen)
                check()
            if not (forget_sentences or use_sentence_keys):
                listing = json.dumps({line: str(number) for number, line in enumerate(lines)})
                file.create_dataset("sentence_to_index", shape=(1,), dtype=h5py.string_dtype("utf-8"))[0] = listing


def _check_lines(lines: list[str], *, unique: bool) -> None:
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line:
            raise ConfigurationError(f"a line must hold a sentence, and line {number} of the input is blank: remove it")
        if unique and line in seen:
            raise ConfigurationError(
                f"lines that are keys must differ, and line {number} repeats {seen[line]}: leave use_sentence_keys out"
            )
        seen[line] = number


def _store(file: h5py.File, key: str, values: Vectors) -> None:
    try:
        if "\0" in key:
            raise ValueError("a key ends at NUL")
        file.create_dataset(key, data=values)
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise ConfigurationError(f"HDF5 cannot have the key {key!r} ({error}): leave use_sentence_keys out") from error

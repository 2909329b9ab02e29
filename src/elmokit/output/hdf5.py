"""HDF5 output in three layouts, and reading it back.

elmokit   one flat array, made for slicing:
            vectors    float32 [tokens, D], or [tokens, L+1, D] with all layers; pooled [N, D] or [N, L+1, D]
            offsets    int64 [N+1]; sentence i has the tokens, and unless pooled the vectors, offsets[i]:offsets[i+1]
            tokens     strings [tokens]
            sentences  strings [N]
          and the attributes format "elmokit-vectors" and version 1.
          A sentence is one contiguous read; tokens come before layers for that reason.
bilm      a dataset for each sentence, named "0", "1", ...: [L+1, T, D], or [T, D] for one layer.
allennlp  as bilm, and sentence_to_index [1]: JSON {sentence: "index"}, where the last of equal sentences counts.
          That one string is built in memory, which grows with the text of the input in this layout alone.

All have the attributes pooled, and settings as JSON, which readers of the old layouts never see.

HDF5 strings end at NUL and are UTF-8: stored strings have U+2400 for NUL and U+FFFD for lone surrogates. In
sentence_to_index JSON escapes keep both, and sentences are stripped of white space at both ends, as AllenNLP did.
"""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from elmokit.errors import ElmoError
from elmokit.output.guarded_hdf5 import create
from elmokit.output.shape import Shape, Vectors
from elmokit.output.stored import Stored
from elmokit.output.strings import without_nul

FORMAT, VERSION = "elmokit-vectors", 1
INDEX = "sentence_to_index"
# Sentences handled together: large enough to spare calls, small enough that their text is nothing.
BATCH = 1024


def write_elmokit(stored: Stored, target: Path) -> None:
    """Write the flat layout."""
    text = h5py.string_dtype("utf-8")
    with create(target) as (file, check):
        _describe(file, stored)
        file.attrs["format"] = FORMAT
        file.attrs["version"] = VERSION
        vectors = file.create_dataset("vectors", shape=(stored.rows, *stored.shape.row), dtype="<f4")
        offsets = file.create_dataset("offsets", shape=(stored.sentences + 1,), dtype="<i8")
        tokens = file.create_dataset("tokens", shape=(stored.tokens,), dtype=text)
        sentences = file.create_dataset("sentences", shape=(stored.sentences,), dtype=text)
        row = 0
        for block in stored.blocks():
            vectors[row : row + len(block)] = block
            row += len(block)
            check()
        offsets[0] = 0
        texts = stored.texts()
        first = token = 0
        while batch := list(itertools.islice(texts, BATCH)):
            last = first + len(batch)
            ends = token + np.cumsum([len(words) for _, words in batch])
            offsets[first + 1 : last + 1] = ends
            sentences[first:last] = _strings(sentence for sentence, _ in batch)
            if ends[-1] > token:
                tokens[token : ends[-1]] = _strings(word for _, words in batch for word in words)
            first, token = last, int(ends[-1])
            check()


def write_bilm(stored: Stored, target: Path, *, index: bool = False) -> None:
    """Write a dataset for each sentence; with index also AllenNLP's sentence_to_index."""
    places: dict[str, str] = {}
    with create(target) as (file, check):
        _describe(file, stored)
        for number, (sentence, _, rows) in enumerate(stored.items()):
            file.create_dataset(str(number), data=stored.shape.from_rows(rows))
            check()
            if index:
                places[sentence.strip()] = str(number)
        if index:
            listing = json.dumps(places)
            if len(listing) >= 1 << 32:
                raise ElmoError(
                    f"--format allennlp keeps all sentences in one HDF5 string of at most 4 GiB, got {len(listing)} "
                    f"bytes: run the same command with --resume and --format bilm or elmokit"
                )
            file.create_dataset(INDEX, shape=(1,), dtype=h5py.string_dtype("utf-8"))[0] = listing


def write_allennlp(stored: Stored, target: Path) -> None:
    """Write AllenNLP's layout."""
    write_bilm(stored, target, index=True)


def _describe(file: h5py.File, stored: Stored) -> None:
    file.attrs["pooled"] = stored.shape.pooled
    file.attrs["settings"] = json.dumps(stored.settings)


def _strings(texts: Iterator[str]) -> "np.ndarray[Any, np.dtype[np.object_]]":
    return np.array([without_nul(text) for text in texts], dtype=object)


def read(path: Path) -> Iterator[tuple[list[str], Vectors]]:
    """The tokens and vectors of each sentence, from any of the three layouts."""
    with h5py.File(path, "r") as file:
        if file.attrs.get("format") == FORMAT:
            yield from _read_elmokit(file)
        else:
            yield from _read_keys(file)


def _read_elmokit(file: h5py.File) -> Iterator[tuple[list[str], Vectors]]:
    if file.attrs["version"] != VERSION:
        raise ElmoError(f"{file.filename} must be of version {VERSION}, got {file.attrs['version']}: update elmokit")
    vectors, offsets, tokens = file["vectors"], file["offsets"], file["tokens"].asstr()
    layers = vectors.shape[1] if vectors.ndim == 3 else None
    shape = Shape(bool(file.attrs["pooled"]), layers, vectors.shape[-1])
    for first in range(0, len(offsets) - 1, BATCH):
        bounds = offsets[first : first + BATCH + 1].tolist()
        words = tokens[bounds[0] : bounds[-1]].tolist()
        for number, (start, end) in enumerate(itertools.pairwise(bounds), first):
            rows = vectors[number : number + 1] if shape.pooled else vectors[start:end]
            yield words[start - bounds[0] : end - bounds[0]], shape.from_rows(rows)


def _read_keys(file: h5py.File) -> Iterator[tuple[list[str], Vectors]]:
    # Only the sentence is in the file. Its words are the tokens, as AllenNLP split it, where there are as many of them.
    sentences: dict[str, str] = {}
    if INDEX in file:
        sentences = {place: sentence for sentence, place in json.loads(file[INDEX].asstr()[0]).items()}
    pooled = bool(file.attrs.get("pooled", False))
    for number in range(len(file) - (INDEX in file)):
        if str(number) not in file:
            raise ElmoError(
                f"the keys of {file.filename} must be sentence numbers from 0, but {number} is missing: "
                f"is this a file of vectors?"
            )
        vectors = file[str(number)][()].astype(np.float32, copy=False)
        words = sentences.get(str(number), "").split()
        known = vectors.ndim == 1 or pooled or len(words) == vectors.shape[-2]
        yield (words if known else []), vectors

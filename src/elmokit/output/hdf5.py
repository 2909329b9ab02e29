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
from typing import Any, BinaryIO

import h5py
import numpy as np

from elmokit.errors import ElmoError
from elmokit.output.guarded_hdf5 import create
from elmokit.output.shape import Shape, Vectors
from elmokit.output.stored import Stored
from elmokit.output.strings import without_nul
from elmokit.storage.hostile_hdf5 import Strings, check_numbers, find, whole_number

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
    # The attribute `format` is not looked at: it is text of variable length, which HDF5 cannot read safely.
    with path.open("rb") as raw, h5py.File(path, "r") as file:
        parts = [find(file, name) for name in ("vectors", "offsets", "tokens")]
        if all(part is not None for part in parts):
            yield from _read_elmokit(file, raw, *parts)
        else:
            yield from _read_keys(file, raw)


def _read_elmokit(
    file: Any,  # noqa: ANN401 - h5py has no types
    raw: BinaryIO,
    vectors: Any,  # noqa: ANN401
    offsets: Any,  # noqa: ANN401
    token_strings: Any,  # noqa: ANN401
) -> Iterator[tuple[list[str], Vectors]]:
    version = whole_number(file, "version")
    if version != VERSION:
        raise ElmoError(f"{file.filename} must be of version {VERSION}, got {version}: update elmokit")
    size = raw.seek(0, 2)
    check_numbers(vectors, f"{file.filename}: vectors", size)
    check_numbers(offsets, f"{file.filename}: offsets", size)
    tokens = Strings(token_strings, raw, f"{file.filename}: tokens")
    layers = vectors.shape[1] if vectors.ndim == 3 else None
    shape = Shape(bool(whole_number(file, "pooled")), layers, vectors.shape[-1])
    rows_in_all = len(offsets) - 1 if shape.pooled else len(tokens)
    if len(vectors) < rows_in_all or vectors.ndim not in (2, 3) or offsets.ndim != 1:
        raise ValueError(f"vectors of the shape {vectors.shape} for {rows_in_all} rows")
    for first in range(0, len(offsets) - 1, BATCH):
        bounds = offsets[first : first + BATCH + 1].tolist()
        if bounds != sorted(bounds) or bounds[0] < 0 or bounds[-1] > len(tokens):
            raise ValueError(f"offsets of the sentences from {first} on do not fit {len(tokens)} tokens")
        words = tokens.read(bounds[0], bounds[-1])
        for number, (start, end) in enumerate(itertools.pairwise(bounds), first):
            rows = vectors[number : number + 1] if shape.pooled else vectors[start:end]
            yield words[start - bounds[0] : end - bounds[0]], shape.from_rows(rows.astype(np.float32, copy=False))


def _read_keys(file: Any, raw: BinaryIO) -> Iterator[tuple[list[str], Vectors]]:  # noqa: ANN401
    # Only the sentence is in the file. Its words are the tokens, as AllenNLP split it, where there are as many of them.
    sentences: dict[str, str] = {}
    listing = find(file, INDEX)
    if listing is not None:
        [text] = Strings(listing, raw, f"{file.filename}: {INDEX}").read(0, 1)
        sentences = {place: sentence for sentence, place in json.loads(text).items()}
    pooled = bool(whole_number(file, "pooled"))
    size = raw.seek(0, 2)
    for number in range(len(file) - (listing is not None)):
        dataset = find(file, str(number))
        if dataset is None:
            raise ElmoError(
                f"the keys of {file.filename} must be sentence numbers from 0, but {number} is missing: "
                f"is this a file of vectors?"
            )
        check_numbers(dataset, f"{file.filename}: {number}", size)
        vectors = dataset[()].astype(np.float32, copy=False)
        if vectors.ndim not in (1, 2, 3):
            raise ValueError(f"vectors of the shape {vectors.shape}")
        words = sentences.get(str(number), "").split()
        known = vectors.ndim == 1 or pooled or len(words) == vectors.shape[-2]
        yield (words if known else []), vectors

"""HDF5 files of vectors: writers for four layouts, and their reader.

elmokit   one flat array, made for slicing:
            vectors    float32 or float16 [tokens, D], or [tokens, L+1, D] with all layers; pooled [N, D] or [N, L+1, D]
            offsets    int64 [N+1]; sentence i has the tokens (and vectors, unless pooled) offsets[i]:offsets[i+1]
            tokens     strings [tokens]
            sentences  strings [N]
          and the attributes format "elmokit-vectors" and version 1.
          Tokens come before layers, so that a sentence is one contiguous read.
bilm      a dataset for each sentence, named "0", "1", ...: [L+1, T, D], or [T, D] for one layer.
allennlp  as bilm, and sentence_to_index [1]: JSON {sentence: "index"}, with the index of the last of equal sentences.
          This one string is built in memory, so only in this layout memory grows with the text of the input.
manylangs a dataset for each distinct sentence, named by its tokens with tabs between them, as in ELMoForManyLangs:
          "$period$" for ".", "$backslash$" for "/". A sentence without tokens has no name and is left out.

All files have the attributes pooled, and settings as JSON, which readers of the old layouts ignore.

HDF5 strings end at NUL and are UTF-8: stored strings have U+2400 for NUL and U+FFFD for lone surrogates. In
sentence_to_index JSON escapes preserve both, and sentences are stripped of white space at both ends, as AllenNLP did.

When a write fails, as on a full disk, the HDF5 library ignores the error (h5py can only print errors while an object is
closed) or crashes the process when the file is closed. So it writes through a file object that records the first error,
stores the data that could not be written, and reports success. check() raises the error between two writes. Ctrl-C also
waits for check(), because it must not interrupt the library.
"""

from __future__ import annotations

import io
import itertools
import json
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, BinaryIO

import h5py
import numpy as np
from numpy.typing import NDArray

from elmokit.errors import ElmoError
from elmokit.output.sentence_vectors import SentenceVectors, Vectors, VectorShape, without_surrogates
from elmokit.output.writers import Writer, register_writer
from elmokit.storage.hostile_hdf5 import VariableLengthStrings, check_numbers, find, has, integer_attribute

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

FORMAT, VERSION = "elmokit-vectors", 1
INDEX = "sentence_to_index"
SENTENCE_KEYS = "sentence_keys"
"""The attribute of files whose keys are sentences; files by ELMoForManyLangs itself have no attributes."""
_SIGNS = {"$period$": ".", "$backslash$": "/"}
"""The replacements in the keys of ELMoForManyLangs for characters that have a meaning in HDF5."""
BATCH = 1024
"""Sentences written or read together."""
# Every HDF5 since 1.8 (2008) reads this version, whose groups may have millions of keys.
LIBVER = ("v108", "v108")


def write_elmokit(stored: SentenceVectors, target: Path) -> None:
    """Write one flat array of all vectors."""
    text = h5py.string_dtype("utf-8")
    with create_hdf5(target) as (file, check):
        _describe(file, stored)
        file.attrs["format"] = FORMAT
        file.attrs["version"] = VERSION
        vectors = file.create_dataset("vectors", shape=(stored.rows, *stored.shape.row), dtype=stored.shape.dtype)
        offsets = file.create_dataset("offsets", shape=(stored.sentences + 1,), dtype="<i8")
        tokens = file.create_dataset("tokens", shape=(stored.tokens,), dtype=text)
        sentences = file.create_dataset("sentences", shape=(stored.sentences,), dtype=text)
        row = 0
        for block in stored.blocks():
            vectors[row : row + len(block)] = block
            row += len(block)
            check()
        offsets[0] = first = token = 0
        for texts, words, ends in stored.batches():
            last, end = first + len(texts), int(ends[-1])
            offsets[first + 1 : last + 1] = ends
            sentences[first:last] = _strings(texts)
            if end > token:
                tokens[token:end] = _strings(itertools.chain.from_iterable(words))
            first, token = last, end
            check()


def write_bilm(stored: SentenceVectors, target: Path, *, index: bool = False) -> None:
    """Write a dataset for each sentence; with `index` also sentence_to_index."""
    numbers: dict[str, str] = {}
    with create_hdf5(target) as (file, check):
        _describe(file, stored)
        for number, (sentence, _, rows) in enumerate(stored.items()):
            file.create_dataset(str(number), data=stored.shape.from_rows(rows), dtype=stored.shape.dtype)
            check()
            if index:
                numbers[sentence.strip()] = str(number)
        if index:
            listing = json.dumps(numbers)
            if len(listing) >= 1 << 32:
                raise ElmoError(
                    f"the layout allennlp stores all sentences in one HDF5 string of at most 4 GiB, got {len(listing)} "
                    "bytes: resume with another layout, bilm or elmokit",
                    "resume",
                )
            file.create_dataset(INDEX, shape=(1,), dtype=h5py.string_dtype("utf-8"))[0] = listing


def _describe(file: h5py.File, stored: SentenceVectors) -> None:
    file.attrs["pooled"] = stored.shape.pooled
    file.attrs["settings"] = json.dumps(stored.settings)


def _strings(texts: Iterable[str]) -> NDArray[np.object_]:
    return np.array([without_nul(text) for text in texts], dtype=object)


def without_nul(text: str) -> str:
    """The text with U+2400 for NUL, at which HDF5 would end the string, and without surrogates."""
    return without_surrogates(text).replace("\0", "\u2400")


def read(path: Path) -> Iterator[tuple[list[str], Vectors]]:
    """The tokens and vectors of each sentence, from any of the layouts."""
    # The attribute `format` is not read: it has variable length, which HDF5 cannot read safely.
    with path.open("rb") as raw, h5py.File(path, "r") as file:
        flat = all(has(file, name) for name in ("vectors", "offsets", "tokens"))
        numbered = has(file, "0") or has(file, INDEX) or not len(file)
        named = integer_attribute(file, SENTENCE_KEYS) or not (flat or numbered)
        yield from (_read_sentence_keys if named else _read_elmokit if flat else _read_keys)(file, raw)


def _read_elmokit(file: Any, raw: BinaryIO) -> Iterator[tuple[list[str], Vectors]]:  # noqa: ANN401 - h5py has no types
    version = integer_attribute(file, "version")
    if version != VERSION:
        raise ElmoError(f"{file.filename} must be of version {VERSION}, got {version}: update elmokit")
    vectors, offsets = file["vectors"], file["offsets"]
    size = raw.seek(0, 2)
    check_numbers(vectors, f"{file.filename}: vectors", size)
    check_numbers(offsets, f"{file.filename}: offsets", size)
    tokens = VariableLengthStrings(file["tokens"], raw, f"{file.filename}: tokens")
    layers = vectors.shape[1] if vectors.ndim == 3 else None
    shape = VectorShape(bool(integer_attribute(file, "pooled")), layers, vectors.shape[-1])
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
            yield words[start - bounds[0] : end - bounds[0]], shape.from_rows(rows)


def _read_keys(file: Any, raw: BinaryIO) -> Iterator[tuple[list[str], Vectors]]:  # noqa: ANN401
    # The file has sentences, not tokens: as in AllenNLP, the words of a sentence are its tokens if their number fits.
    sentences: dict[str, str] = {}
    listing = find(file, INDEX)
    if listing is not None:
        [text] = VariableLengthStrings(listing, raw, f"{file.filename}: {INDEX}").read(0, 1)
        sentences = {number: sentence for sentence, number in json.loads(text).items()}
    pooled = bool(integer_attribute(file, "pooled"))
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


def write_manylangs(stored: SentenceVectors, target: Path) -> None:
    """Write a dataset for each distinct sentence, named by its tokens."""
    with create_hdf5(target) as (file, check):
        _describe(file, stored)
        file.attrs[SENTENCE_KEYS] = True
        for _, tokens, rows in stored.items():
            key = without_nul("\t".join(tokens))
            for written, sign in _SIGNS.items():
                key = key.replace(sign, written)
            if key and key not in file:
                file.create_dataset(key, data=stored.shape.from_rows(rows))
                check()


def _read_sentence_keys(file: Any, raw: BinaryIO) -> Iterator[tuple[list[str], Vectors]]:  # noqa: ANN401
    size, pooled = raw.seek(0, 2), bool(integer_attribute(file, "pooled"))
    for key in file:  # in alphabetical order, not in the order of the input
        dataset, name = find(file, key), key
        for written, sign in _SIGNS.items():
            name = name.replace(written, sign)
        words = name.split("\t")
        if (
            not isinstance(dataset, h5py.Dataset)
            or dataset.ndim not in (1, 2, 3)
            or (not pooled and (dataset.ndim == 1 or dataset.shape[-2] != len(words)))
        ):
            raise ElmoError(
                f"the keys of {file.filename} must be sentence numbers from 0, or sentences with their vectors, "
                f"got {key[:60]!r}: is this a file of vectors?"
            )
        check_numbers(dataset, f"{file.filename}: {key[:60]!r}", size)
        yield words, dataset[()].astype(np.float32, copy=False)


class _ErrorCollectingFile(io.FileIO):
    """A file whose writes always seem to succeed."""

    failure: OSError | None = None

    def __init__(self, path: Path) -> None:
        super().__init__(path, "w+")
        self._unwritten: list[tuple[int, bytes]] = []

    def write(self, data: ReadableBuffer) -> int:
        view = memoryview(data).cast("B")
        start, done = self.tell(), 0
        try:
            while done < len(view) and self.failure is None:
                done += super().write(view[done:])
        except OSError as error:
            self.failure = error
        if done < len(view):
            self._unwritten.append((start, bytes(view)))
            self.seek(start + len(view))
        return len(view)

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        start = self.tell()
        got = super().readinto(view) or 0
        for offset, data in self._unwritten:  # the library may read data that it believes to be on the disk
            low, high = max(start, offset), min(start + len(view), offset + len(data))
            if low < high:
                view[low - start : high - start] = data[low - offset : high - offset]
                got = max(got, high - start)
        self.seek(start + got)
        return got

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size)
        except OSError as error:
            self.failure = self.failure or error
            return size or 0


@contextmanager
def _held_interrupt() -> Iterator[Callable[[], None]]:
    """Delays SIGINT in the block until the yielded function is called, or the block ends."""
    held: list[tuple[int, FrameType | None]] = []
    handler: Any = signal.getsignal(signal.SIGINT)
    # Only the main thread is interrupted; if SIGINT is ignored or kills the process, there is no Python handler.
    holds = threading.current_thread() is threading.main_thread() and callable(handler)

    def raise_held() -> None:
        if held:
            handler(*held.pop())

    if holds:
        signal.signal(signal.SIGINT, lambda *given: held.append(given))
    try:
        yield raise_held
    finally:
        if holds:
            signal.signal(signal.SIGINT, handler)
    raise_held()


@contextmanager
def create_hdf5(path: Path) -> Iterator[tuple[h5py.File, Callable[[], None]]]:
    """A new HDF5 file, and check(), which raises the error of an earlier write; call it after each batch."""
    with _held_interrupt() as raise_held, _ErrorCollectingFile(path) as raw:

        def check() -> None:
            if raw.failure is not None:
                raise raw.failure
            raise_held()

        with h5py.File(raw, "w", libver=LIBVER) as file:
            yield file, check
        check()


_write_allennlp = partial(write_bilm, index=True)
_LAYOUTS: dict[str, Writer] = {"elmokit": write_elmokit, "bilm": write_bilm, "allennlp": _write_allennlp}
for _layout, _write in _LAYOUTS.items():
    register_writer(".h5", ".hdf5", write=_write, read=read, magic=b"\x89HDF\r\n\x1a\n", layout=_layout)

register_writer(".h5", ".hdf5", write=write_manylangs, read=read, magic=b"\x89HDF\r\n\x1a\n", layout="manylangs")

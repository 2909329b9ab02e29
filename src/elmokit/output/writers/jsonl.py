"""JSON lines: {"index", "dim", "tokens", "vectors": [[...], ...]} for each sentence.

With all layers "layers" [L+1][T][D] replaces "vectors"; if pooled "vector" [D] or [L+1][D] does. "dim" is D, which an
empty sentence would not show otherwise. Numbers are the shortest that give the same float32 or float16 again; NaN is
null and infinity 1e999, since JSON has neither. All other characters than ASCII are escaped, which preserves NUL and
lone surrogates.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import ElmoError
from elmokit.output.sentence_vectors import SentenceVectors, Vectors, VectorShape, as_tokens, shortest_decimals
from elmokit.output.writers import register_writer

_NOT_IN_JSON = {"nan": "null", "inf": "1e999", "-inf": "-1e999"}


def write(stored: SentenceVectors, target: Path) -> None:
    """Write one line per sentence, vector by vector."""
    with target.open("w", encoding="ascii", newline="\n") as file:
        for index, (_, tokens, rows) in enumerate(stored.items()):
            write_sentence(file, index, tokens, stored.shape.from_rows(rows), stored.shape)


def write_sentence(file: TextIO, index: int, tokens: list[str], vectors: Vectors, shape: VectorShape) -> None:
    """Write the line of one sentence."""
    key = "vector" if shape.pooled else "vectors" if shape.layers is None else "layers"
    head = json.dumps({"index": index, "dim": shape.dim, "tokens": tokens}, separators=(",", ":"))
    file.write(f'{head[:-1]},"{key}":')
    _write_nested(file, vectors.astype(shape.dtype, copy=False))
    file.write("}\n")


def _write_nested(file: TextIO, vectors: NDArray[Any]) -> None:
    if vectors.ndim == 1:
        numbers = shortest_decimals(vectors)
        if not np.isfinite(vectors).all():
            numbers = [_NOT_IN_JSON.get(number, number) for number in numbers]
        file.write(f"[{','.join(numbers)}]")
        return
    file.write("[")
    for number, part in enumerate(vectors):
        if number:
            file.write(",")
        _write_nested(file, part)
    file.write("]")


def read(path: Path) -> Iterator[tuple[list[str], Vectors]]:
    """The tokens and vectors of each sentence."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            entry = json.loads(line)
            if not isinstance(entry, dict):
                raise ValueError(f"line {number} must be a JSON object, got {type(entry).__name__}")
            key = next((key for key in ("vectors", "layers", "vector") if key in entry), None)
            if key is None or "tokens" not in entry or "dim" not in entry:
                raise ElmoError(
                    f"line {number} of {path} must have tokens, dim and vectors, got {', '.join(entry)}: "
                    f"is this a file of vectors?"
                )
            tokens, nested, dim = as_tokens(entry["tokens"]), entry[key], entry["dim"]
            if type(dim) is not int or dim < 0:
                raise ValueError(f"dim in line {number} must be the size of a vector, got {type(dim).__name__}")
            with np.errstate(over="ignore"):  # 1e999 is an infinity
                vectors = np.array(nested, dtype=np.float32)
            if key == "vectors":
                vectors = vectors.reshape(len(tokens), dim)
            elif key == "layers":
                vectors = vectors.reshape(len(nested), len(tokens), dim)
            elif vectors.ndim not in (1, 2) or vectors.shape[-1] != dim:
                raise ValueError(f"a vector in line {number} has the shape {vectors.shape}, not {dim} numbers")
            yield tokens, vectors


register_writer(".jsonl", write=write, read=read, magic=b"{")

"""Parquet: a row for each sentence.

    index      int64
    sentence   string
    tokens     list<string>
    vectors    list<fixed_size_list<float32>[D]>, pooled fixed_size_list<float32>[D];
               with all layers the columns layer_0 ... layer_L instead, each of that type

The file's metadata hold `elmokit` as JSON: format, version, pooled, settings. Strings have U+FFFD for lone surrogates.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from elmokit.errors import ElmoError, MissingExtraError
from elmokit.output.shape import Shape, Vectors
from elmokit.output.stored import Stored
from elmokit.output.strings import without_surrogates

FORMAT, VERSION = "elmokit-vectors", 1
GROUP_BYTES = 32 << 20
GROUP_ROWS = 1 << 16
READ_ROWS = 64


def load_pyarrow(purpose: str) -> tuple[Any, Any]:
    """The modules pyarrow and pyarrow.parquet, or an error that says how to install them."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "parquet", purpose) from error
    return pyarrow, pyarrow.parquet


def write(stored: Stored, target: Path) -> None:
    """Write row groups of bounded size."""
    pa, pq = load_pyarrow("Writing parquet")
    shape = stored.shape
    vector = pa.list_(pa.float32(), max(1, shape.dim))  # Arrow has no lists of size 0, which an empty output would need
    column = vector if shape.pooled else pa.list_(vector)
    names = ["vectors"] if shape.layers is None else [f"layer_{layer}" for layer in range(shape.layers)]
    head = {"format": FORMAT, "version": VERSION, "pooled": shape.pooled, "settings": stored.settings}
    schema = pa.schema(
        [("index", pa.int64()), ("sentence", pa.string()), ("tokens", pa.list_(pa.string()))]
        + [(name, column) for name in names],
        metadata={"elmokit": json.dumps(head)},
    )
    with target.open("wb") as file, pq.ParquetWriter(file, schema, use_dictionary=["tokens.list.element"]) as writer:
        for first, texts, tokens, rows in _groups(stored):
            flat = rows.reshape(len(rows), len(names), shape.dim)
            ends = np.cumsum([0, *map(len, tokens)]).astype(np.int32)
            columns = [
                pa.array(range(first, first + len(texts)), pa.int64()),
                pa.array(texts, pa.string()),
                pa.array(tokens, pa.list_(pa.string())),
            ]
            for layer in range(len(names)):
                values = pa.FixedSizeListArray.from_arrays(pa.array(flat[:, layer].ravel()), type=vector)
                columns.append(values if shape.pooled else pa.ListArray.from_arrays(ends, values, type=column))
            writer.write_table(pa.table(columns, schema=schema), row_group_size=len(texts))


def _groups(stored: Stored) -> Iterator[tuple[int, list[str], list[list[str]], Vectors]]:
    """Number of the first sentence, texts, tokens and rows of as many sentences as make a row group."""
    first, size = 0, 0
    texts: list[str] = []
    tokens: list[list[str]] = []
    rows: list[Vectors] = []
    for text, words, vectors in stored.items():
        texts.append(without_surrogates(text))
        tokens.append([without_surrogates(word) for word in words])
        rows.append(vectors)
        size += vectors.nbytes
        if size >= GROUP_BYTES or len(texts) >= GROUP_ROWS:
            yield first, texts, tokens, np.concatenate(rows)
            first, size = first + len(texts), 0
            texts, tokens, rows = [], [], []
    if texts:
        yield first, texts, tokens, np.concatenate(rows)


def read(path: Path) -> Iterator[tuple[list[str], Vectors]]:
    """The tokens and vectors of each sentence."""
    _, pq = load_pyarrow("Reading parquet")
    with pq.ParquetFile(path) as file:
        head = json.loads((file.schema_arrow.metadata or {}).get(b"elmokit", b"{}"))
        if head.get("format") != FORMAT:
            raise ElmoError(
                f"{path} must be a parquet file written by elmokit, got other columns: {file.schema_arrow.names}"
            )
        names = [name for name in file.schema_arrow.names if name == "vectors" or name.startswith("layer_")]
        layers = None if names == ["vectors"] else len(names)
        for batch in file.iter_batches(READ_ROWS, columns=["tokens", *names]):
            tokens = batch.column("tokens").to_pylist()
            shape, columns = None, []
            for name in names:
                column = batch.column(name)
                vectors = column if head["pooled"] else column.flatten()
                dim = vectors.type.list_size
                columns.append(vectors.flatten().to_numpy(zero_copy_only=False).reshape(-1, dim))
                shape = Shape(head["pooled"], layers, dim)
            assert shape is not None
            rows = columns[0] if layers is None else np.stack(columns, axis=1)
            row = 0
            for words in tokens:
                end = row + shape.rows(len(words))
                yield words, shape.from_rows(rows[row:end])
                row = end

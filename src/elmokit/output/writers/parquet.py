"""Parquet: one row per sentence.

    index      int64
    sentence   string
    tokens     list<string>
    vectors    list<fixed_size_list<float32>[D]>, or fixed_size_list<float32>[D] if pooled; or the same with float16;
               with all layers, the columns layer_0 ... layer_L of this type instead

The file's metadata contain the key `elmokit` with JSON: format, version, pooled, settings. Lone surrogates become
U+FFFD.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from elmokit.errors import ElmoError, MissingExtraError
from elmokit.output.sentence_vectors import SentenceVectors, Vectors, VectorShape, as_tokens, without_surrogates
from elmokit.output.writers import register_writer
from elmokit.storage.trusted import check_decompressed_size

FORMAT, VERSION = "elmokit-vectors", 1
GROUP_BYTES = 8 << 20
GROUP_ROWS = 1 << 16
READ_ROWS = 64
_LONGEST = 1 << 24


def load_pyarrow(purpose: str) -> tuple[Any, Any]:
    """The modules pyarrow and pyarrow.parquet, or an error that says how to install them."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "parquet", purpose) from error
    return pyarrow, pyarrow.parquet


def write(stored: SentenceVectors, target: Path) -> None:
    """Write row groups of bounded size."""
    pa, pq = load_pyarrow("Writing parquet")
    shape = stored.shape
    number = pa.float16() if shape.store == "float16" else pa.float32()
    vector = pa.list_(number, max(1, shape.dim))  # Arrow has no lists of size 0, which an empty output would need
    column = vector if shape.pooled else pa.list_(vector)
    names = ["vectors"] if shape.layers is None else [f"layer_{layer}" for layer in range(shape.layers)]
    head = {"format": FORMAT, "version": VERSION, "pooled": shape.pooled, "settings": stored.settings}
    schema = pa.schema(
        [("index", pa.int64()), ("sentence", pa.string()), ("tokens", pa.list_(pa.string()))]
        + [(name, column) for name in names],
        metadata={"elmokit": json.dumps(head)},
    )
    with target.open("wb") as file, pq.ParquetWriter(file, schema, use_dictionary=["tokens.list.element"]) as writer:
        first = 0
        for group in _groups(stored):
            texts, tokens, rows = zip(*group, strict=True)
            flat = np.concatenate(rows).reshape(-1, len(names), shape.dim)
            ends = np.cumsum([0, *map(len, tokens)]).astype(np.int32)
            columns = [
                pa.array(range(first, first + len(group)), pa.int64()),
                pa.array(map(without_surrogates, texts), pa.string()),
                pa.array([list(map(without_surrogates, words)) for words in tokens], pa.list_(pa.string())),
            ]
            for layer in range(len(names)):
                values = pa.FixedSizeListArray.from_arrays(pa.array(flat[:, layer].ravel()), type=vector)
                columns.append(values if shape.pooled else pa.ListArray.from_arrays(ends, values, type=column))
            writer.write_table(pa.table(columns, schema=schema), row_group_size=len(group))
            first += len(group)
            pa.default_memory_pool().release_unused()  # otherwise it grows with the number of groups


def _groups(stored: SentenceVectors) -> Iterator[list[tuple[str, list[str], Vectors]]]:
    """The sentences of each row group."""
    group, size = [], 0
    for item in stored.items():
        group.append(item)
        size += item[2].nbytes
        if size >= GROUP_BYTES or len(group) >= GROUP_ROWS:
            yield group
            group, size = [], 0
    if group:
        yield group


def read(path: Path) -> Iterator[tuple[list[str], Vectors]]:
    """The tokens and vectors of each sentence."""
    pa, pq = load_pyarrow("Reading parquet")
    try:
        with pq.ParquetFile(path) as file:
            yield from _read(path, file, pa)
    except pa.ArrowException as error:
        raise ValueError(str(error)) from error


def _read(path: Path, file: Any, pa: Any) -> Iterator[tuple[list[str], Vectors]]:  # noqa: ANN401 - pyarrow has no types
    schema = file.schema_arrow
    head = json.loads((schema.metadata or {}).get(b"elmokit", b"{}"))
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise ElmoError(f"{path} must be a parquet file written by elmokit, got other columns: {schema.names}")
    names = [name for name in schema.names if name == "vectors" or name.startswith("layer_")]
    pooled, layers = bool(head.get("pooled")), None if names == ["vectors"] else len(names)
    dims = {_vector_size(schema.field(name).type, pooled, pa) for name in names}
    if len(dims) != 1 or schema.field("tokens").type != pa.list_(pa.string()):
        raise ValueError(f"columns of other types: {', '.join(f'{field.name} {field.type}' for field in schema)}")
    shape = VectorShape(pooled, layers, dims.pop())
    _refuse_bomb(path)
    for batch in file.iter_batches(READ_ROWS, columns=["tokens", *names]):
        tokens = [as_tokens(words) for words in batch.column("tokens").to_pylist()]
        columns = []
        for name in names:
            vectors = batch.column(name) if pooled else batch.column(name).flatten()
            columns.append(vectors.flatten().to_numpy(zero_copy_only=False).reshape(-1, shape.dim))
        rows = columns[0] if layers is None else np.stack(columns, axis=1)
        if len(rows) != sum(shape.rows(len(words)) for words in tokens):
            raise ValueError("the numbers of vectors and tokens differ")
        row = 0
        for words in tokens:
            end = row + shape.rows(len(words))
            yield words, shape.from_rows(rows[row:end])
            row = end


def _vector_size(kind: Any, pooled: bool, pa: Any) -> int:  # noqa: ANN401
    """D of a column of vectors, which must be of the type that `write` uses."""
    if not pooled:
        kind = kind.value_type if pa.types.is_list(kind) else None
    if kind is None or not pa.types.is_fixed_size_list(kind) or kind.value_type not in (pa.float32(), pa.float16()):
        raise ValueError("a column of vectors is not lists of a fixed size of float32 or float16")
    return int(kind.list_size)


def _refuse_bomb(path: Path) -> None:
    """Refuse a small file that would unpack to far too much data.

    The sizes are in the footer, which is read here because pyarrow crashes the process if the footer is damaged.
    """
    with path.open("rb") as file:
        size = file.seek(-8, 2) + 8
        length = int.from_bytes(file.read(4), "little")
        file.seek(max(0, size - 8 - length))
        footer = _thrift(file, _STRUCT, 0)
    columns = [column.get(3, {}) for group in footer.get(4, []) for column in group.get(1, [])]
    unpacked = sum(max(0, column.get(6, 0), 4 * column.get(5, 0)) for column in columns)
    check_decompressed_size(unpacked, size, str(path))


_STRUCT = 12


def _thrift(file: BinaryIO, kind: int, depth: int) -> Any:  # noqa: ANN401 - numbers, bytes, lists, and dicts by field
    """A value in Thrift's compact protocol, the encoding of parquet's footer."""
    if depth > 16:
        raise ValueError("a footer that is nested too deeply")
    match kind:
        case 3:
            return _byte(file)
        case 4 | 5 | 6:
            number = _varint(file)
            return number >> 1 ^ -(number & 1)
        case 7:
            return file.read(8)
        case 8:
            return file.read(min(_varint(file), _LONGEST))
        case 9 | 10:
            head = _byte(file)
            count = head >> 4 if head < 0xF0 else _varint(file)
            return [_thrift(file, 3 if head & 15 < 3 else head & 15, depth + 1) for _ in range(count)]
        case 12:
            fields, number = {}, 0
            while head := _byte(file):
                number = number + (head >> 4) if head >> 4 else _thrift(file, 4, depth)
                fields[number] = head & 15 == 1 if head & 15 < 3 else _thrift(file, head & 15, depth + 1)
            return fields
    raise ValueError(f"a footer with a value of type {kind}")


def _byte(file: BinaryIO) -> int:
    return file.read(1)[0]


def _varint(file: BinaryIO) -> int:
    value = shift = 0
    while shift < 70:
        byte = _byte(file)
        value |= (byte & 127) << shift
        if byte < 128:
            return value
        shift += 7
    raise ValueError("a number of more than 64 bits")


register_writer(".parquet", write=write, read=read, magic=b"PAR1", check=lambda: load_pyarrow("Writing parquet"))

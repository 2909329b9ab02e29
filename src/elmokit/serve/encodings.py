"""Vectors in the body of a response: JSON numbers, base64, npy, npz, Arrow or safetensors.

A body contains everything that is needed to read it.
"""

from __future__ import annotations

import asyncio
import io
import json
import zipfile
from base64 import b64encode
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import orjson
from numpy.lib import format as npy
from numpy.typing import NDArray

from elmokit.serve.errors import RequestError

if TYPE_CHECKING:
    from elmokit.layers import Vectors
    from elmokit.text.tokens import Token

Encoding = Literal["float", "base64"]
Format = Literal["json", "npz", "arrow", "safetensors"]
Offsets = Literal["characters", "utf16", "bytes"]

MEDIA_TYPES: dict[Format, str] = {
    "json": "application/json",
    "npz": "application/x-npz",
    "arrow": "application/vnd.apache.arrow.stream",
    "safetensors": "application/safetensors",
}
NPY_MEDIA_TYPE = "application/x-npy"
_VALUES_AT_ONCE = 1 << 18
"""After encoding this number of values, the event loop serves other requests."""
_BYTES_PER_VALUE = {"float": 16, "base64": 10, "json": 16, "npz": 8, "arrow": 8, "safetensors": 8, "npy": 8}
"""Memory for one value: as float32 and in the body."""


def response_bytes(values: int, encoding: str) -> int:
    """An estimate of the largest memory that a response with this number of values needs."""
    return values * _BYTES_PER_VALUE[encoding]


def normalised(vector: Vectors) -> Vectors:
    """Vectors [..., D] scaled to length 1; a zero vector stays zero."""
    length = np.sqrt(np.square(vector, dtype=np.float64).sum(axis=-1, keepdims=True))
    return np.asarray(vector / np.where(length > 0, length, 1.0), np.float32)


async def fragments(vectors: Sequence[NDArray[Any]], encoding: Encoding) -> list[bytes]:
    """Each array as a JSON value: nested lists of numbers, or its bytes in base64 (little-endian)."""
    found, values = [], 0
    for vector in vectors:
        if encoding == "base64":
            found.append(b'"%b"' % b64encode(vector.tobytes()))
        else:
            found.append(orjson.dumps(np.ascontiguousarray(vector), option=orjson.OPT_SERIALIZE_NUMPY))
        values += vector.size
        if values > _VALUES_AT_ONCE:
            values = 0
            await asyncio.sleep(0)
    return found


def npy_bytes(vectors: NDArray[Any]) -> bytes:
    """One array as a .npy file."""
    file = io.BytesIO()
    npy.write_array(file, vectors, allow_pickle=False)
    return file.getvalue()


def unit_offsets(text: str | list[str], tokens: Sequence[Token], unit: Offsets) -> list[tuple[int, int]]:
    """The start and end of each token in characters, UTF-16 code units (as in JavaScript) or UTF-8 bytes."""
    whole = text if isinstance(text, str) else " ".join(text)
    if unit == "characters" or whole.isascii():
        return [(token.start, token.end) for token in tokens]
    code, width = ("utf-16-le", 2) if unit == "utf16" else ("utf-8", 1)
    offsets, last_end, units = [], 0, 0
    for token in tokens:
        units += len(whole[last_end : token.start].encode(code, "surrogatepass")) // width
        length = len(whole[token.start : token.end].encode(code, "surrogatepass")) // width
        offsets.append((units, units + length))
        last_end, units = token.end, units + length
    return offsets


def flat_rows(vectors: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The arrays of each text, [T, D] or [L+1, T, D] → one array of all tokens, [N, D] or [N, L+1, D]."""
    rows = [each if each.ndim == 2 else each.transpose(1, 0, 2) for each in vectors]
    return np.ascontiguousarray(np.concatenate(rows))


def packed(
    kind: Format,
    head: dict[str, Any],
    tokens: Sequence[Sequence[str]],
    spans: Sequence[Sequence[tuple[int, int]]],
    vectors: Sequence[NDArray[Any]],
) -> bytes:
    """The tokens of all texts with their offsets and vectors, in one of the binary formats.

    In a file, `offsets` are the ends of the texts among the tokens, and `places` the offsets of the tokens in a text.
    """
    rows = flat_rows(vectors)
    ends = np.cumsum([0, *map(len, tokens)], dtype=np.int64)
    places = np.array([span for row in spans for span in row], np.int64).reshape(-1, 2)
    if kind == "npz":
        return _npz(head, tokens, rows, ends, places)
    if kind == "safetensors":
        from safetensors.numpy import save

        facts = {"elmokit": json.dumps(head), "tokens": json.dumps(list(map(list, tokens)))}
        return save({"vectors": rows, "offsets": ends, "places": places}, metadata=facts)
    return _arrow(head, tokens, rows, ends, places)


def _npz(
    head: dict[str, Any],
    tokens: Sequence[Sequence[str]],
    rows: NDArray[Any],
    ends: NDArray[np.int64],
    places: NDArray[np.int64],
) -> bytes:
    """An archive with the members of the .npz files that `elmo embed` writes, and `places` [N, 2]."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        settings = {"format": "elmokit-vectors", "version": 1, "settings": head}
        archive.writestr("settings.json", json.dumps(settings))
        for name, array in (("vectors.npy", rows), ("offsets.npy", ends), ("places.npy", places)):
            archive.writestr(name, npy_bytes(array))
        archive.writestr("tokens.jsonl", "".join(json.dumps(list(row)) + "\n" for row in tokens))
    return file.getvalue()


def _arrow(
    head: dict[str, Any],
    tokens: Sequence[Sequence[str]],
    rows: NDArray[Any],
    ends: NDArray[np.int64],
    places: NDArray[np.int64],
) -> bytes:
    """An Arrow stream with one row per text: lists of its tokens, their starts and ends, and the vectors per layer."""
    try:
        import pyarrow as pa
    except ImportError:
        raise RequestError(422, "this server cannot write Arrow (extra parquet): ask for another format") from None
    layers = rows[:, None] if rows.ndim == 2 else rows  # [N, layers, D]
    names = ["vectors"] if rows.ndim == 2 else [f"layer_{number}" for number in range(layers.shape[1])]
    starts = pa.array(ends.astype(np.int32))
    columns = {
        "index": pa.array(range(len(tokens)), pa.int64()),
        "tokens": pa.array([list(row) for row in tokens], pa.list_(pa.string())),
        "start": pa.ListArray.from_arrays(starts, pa.array(places[:, 0])),
        "end": pa.ListArray.from_arrays(starts, pa.array(places[:, 1])),
    }
    for number, name in enumerate(names):
        flat = pa.array(np.ascontiguousarray(layers[:, number]).reshape(-1))
        columns[name] = pa.ListArray.from_arrays(starts, pa.FixedSizeListArray.from_arrays(flat, layers.shape[-1]))
    table = pa.table(columns).replace_schema_metadata({"elmokit": json.dumps(head)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())

"""ELMo for tables: a function from Arrow batches to Arrow batches, for pyarrow, Spark, Dask and Ray.

    embed = EmbedBatch(column="text", model="en")
    table = embed(pa.table({"id": [1, 2], "text": ["a river bank", "a bank account"]}))

The function can be pickled: it is sent to other processes without the model, which each process loads once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from elmokit.elmo import Elmo
from elmokit.errors import ElmoError, MissingExtraError
from elmokit.formats.bundled import DEFAULT
from elmokit.layers import Layer, Pool, Vectors, check_layer
from elmokit.options import check_value
from elmokit.output.sentence_vectors import without_surrogates
from elmokit.text.tokens import SegmenterName

try:
    import pyarrow as pa
except ImportError as error:
    raise MissingExtraError("pyarrow", "parquet", "EmbedBatch") from error


_TEXT_TYPES = (pa.types.is_string, pa.types.is_large_string, pa.types.is_null)
"""The types of a text column; a column whose texts are all missing may have the type null."""


class EmbedBatch:
    """Adds the columns `tokens` and `vectors` to a batch with a column of texts, or of lists of tokens.

    | column | type |
    | --- | --- |
    | `tokens` | large_list<large_string>, one token for each vector; absent if the vectors are pooled |
    | `vectors` | large_list<fixed_size_list<float>[D]>, or fixed_size_list<float>[D] if pooled |
    | `layer_0` … | with `layer="all"`: one column of the same type per layer, instead of `vectors` |

    A missing text has missing vectors. A text has the same vectors in any batch, as in `Elmo.encode`.
    """

    def __init__(
        self,
        *,
        column: str = "text",
        model: str | Path = DEFAULT,
        layer: Layer | None = None,
        pool: Pool | None = None,
        segment: SegmenterName | None = None,
        device: str | None = None,
        dtype: str | None = None,
        batch_tokens: int | None = None,
        threads: int | None = None,
        plain_lists: bool = False,
    ) -> None:
        """Store the arguments, which are those of `Elmo.load` and `Elmo.encode`; the model is loaded at first use.

        `pool` gives one vector per text: "mean", "max", "first" or "last". `threads` is the number of CPU threads of
        torch. `plain_lists` writes list<list<float>> and list<string>, the only lists that Spark reads.
        """
        if pool is not None:
            check_value("pool", pool, Pool)
        if threads is not None:
            check_value("threads", threads, int, {"least": 1})
        if not isinstance(model, str | Path):
            raise ElmoError(f"model must be a path or a name that other processes can load, got {model!r}", "model")
        self.column, self.layer, self.pool, self.segment = column, layer, pool, segment
        # An absolute path, because another process may have another working folder.
        self.model = str(Path(model).absolute()) if Path(model).exists() else str(model)
        self.device, self.dtype, self.batch_tokens, self.threads = device, dtype, batch_tokens, threads
        self.plain_lists = plain_lists

    @property
    def elmo(self) -> Elmo:
        """The model, loaded once in this process."""
        if self.threads is not None and torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        elmo = _load(self.model, self.device, self.dtype)
        check_layer(self._layer(elmo), elmo.config.n_outputs)
        return elmo

    def _layer(self, elmo: Elmo) -> Layer:
        return elmo.default_layer if self.layer is None else self.layer

    def settings(self) -> dict[str, str | None]:
        """The settings that determine the vectors: the model, the layer and so on."""
        elmo = self.elmo
        return {
            "model": elmo.fingerprint(mixes=True),
            "layer": str(self._layer(elmo)),
            "pool": self.pool,
            "segment": elmo.text_policy.override(self.segment).name_in_files,
            "dtype": elmo.dtype,
            "column": self.column,
        }

    def fields(self) -> list[Any]:
        """The fields that are added to the schema of a batch."""
        elmo = self.elmo
        vector, outer, text = pa.list_(pa.float32(), elmo.config.vector_size), pa.large_list, pa.large_string()
        if self.plain_lists:
            vector, outer, text = pa.list_(pa.float32()), pa.list_, pa.string()
        kind = outer(vector) if self.pool is None else vector
        all_layers = self._layer(elmo) == "all"
        names = [f"layer_{number}" for number in range(elmo.config.n_outputs)] if all_layers else ["vectors"]
        tokens = [pa.field("tokens", outer(text))] if self.pool is None else []
        return [*tokens, *(pa.field(name, kind) for name in names)]

    def schema(self, schema: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
        """The schema of the result for batches with this schema."""
        fields = self.fields()
        if taken := [each.name for each in fields if each.name in schema.names]:
            raise ElmoError(f"a batch must not have the new columns, got {', '.join(taken)}: rename or drop them")
        return pa.schema([*schema, *fields], metadata=schema.metadata)

    def __call__(self, batch: Any) -> Any:  # noqa: ANN401
        """A pyarrow Table or RecordBatch → the same batch with the new columns."""
        schema, elmo = self.schema(batch.schema), self.elmo
        texts = self._texts(batch)
        missing = np.array([text is None for text in texts], bool)
        policy = elmo.text_policy.override(self.segment)
        rows = [[] if text is None else policy.tokens_of(text) for text in texts]
        found = list(elmo.stream(rows, layer=self._layer(elmo), pool=self.pool, batch_tokens=self.batch_tokens))
        columns = self._columns(rows, found, missing)
        added = [column.cast(schema.field(len(batch.schema) + n).type) for n, column in enumerate(columns)]
        kind = pa.Table if isinstance(batch, pa.Table) else pa.RecordBatch
        return kind.from_arrays([*batch.columns, *added], schema=schema)

    def _texts(self, batch: Any) -> list[str | list[str] | None]:  # noqa: ANN401
        if self.column not in batch.schema.names:
            raise ElmoError(f"column must be one of {', '.join(batch.schema.names)}, got {self.column!r}", "column")
        kind = batch.schema.field(self.column).type
        inner = getattr(kind, "value_type", kind)  # of a list, or of a dictionary
        if not any(fits(inner) for fits in _TEXT_TYPES):
            raise ElmoError(f"column {self.column} must have texts or lists of tokens, got {kind}", "column")
        texts: list[str | list[str] | None] = batch.column(self.column).to_pylist()
        return texts

    def _columns(
        self, rows: Sequence[Sequence[str]], found: Sequence[Vectors], missing: NDArray[np.bool_]
    ) -> Iterator[Any]:
        """The new columns for texts with the tokens `rows` and the vectors `found`."""
        elmo, mask = self.elmo, pa.array(missing) if missing.any() else None
        size, layers = elmo.config.vector_size, elmo.config.n_outputs if self._layer(elmo) == "all" else 1
        if self.pool is None:
            words = [
                None if gone else list(map(without_surrogates, row)) for gone, row in zip(missing, rows, strict=True)
            ]
            yield pa.array(words, pa.large_list(pa.large_string()))
        # [L+1, N, D], or [1, N, D] for one layer; N texts if pooled, otherwise the tokens of all texts.
        vectors = [each.reshape(layers, -1, size) for each in found]
        flat = np.concatenate(vectors, axis=1) if vectors else np.zeros((layers, 0, size), np.float32)
        ends = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        for layer in flat:
            values = pa.array(np.ascontiguousarray(layer).reshape(-1))
            if self.pool is not None:
                yield pa.FixedSizeListArray.from_arrays(values, size, mask=mask)
                continue
            inner = pa.FixedSizeListArray.from_arrays(values, size)
            yield pa.LargeListArray.from_arrays(pa.array(ends), inner, mask=mask)


@lru_cache(maxsize=2)
def _load(model: str, device: str | None, dtype: str | None) -> Elmo:
    return Elmo.load(model, device=device, dtype=dtype)

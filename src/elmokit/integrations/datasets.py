"""ELMo vectors as columns of a Hugging Face dataset.

    ds = embed(ds, "text", model="en")                         # one vector per text
    ds = embed(ds, "text", model="en", output="tokens", num_proc=4)  # one vector per word
    ds = ds.map(EmbedColumns("en", column="text"), batched=True)  # the same as the first line

Each process of `map` loads the model itself. The fingerprint under which `datasets` caches a result consists of the
model's own fingerprint and the options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from elmokit.elmo import Elmo
from elmokit.errors import ElmoError, MissingExtraError
from elmokit.formats.bundled import DEFAULT
from elmokit.layers import Layer, Pool, Vectors, check_layer
from elmokit.options import check_value
from elmokit.text.tokens import SegmenterName

try:
    from datasets import Dataset, DatasetDict, Features, IterableDataset, IterableDatasetDict, LargeList, List, Value
except ImportError as error:
    raise MissingExtraError("datasets", "datasets", "embed for datasets") from error

AnyDataset = TypeVar("AnyDataset", Dataset, DatasetDict, IterableDataset, IterableDatasetDict)
Output = Literal["sentence", "tokens"]
"""One vector per text, or one per token."""


def embed(
    dataset: AnyDataset,
    column: str = "text",
    *,
    model: str = DEFAULT,
    output: Output = "sentence",
    layer: Layer | None = None,
    pool: Pool = "mean",
    segment: SegmenterName | None = None,
    into: str = "elmo",
    device: str | None = None,
    batch_tokens: int | None = None,
    **map_options: Any,  # noqa: ANN401 - those of Dataset.map
) -> AnyDataset:
    """The dataset with the vectors of a column of texts or token lists.

    The arguments are those of `EmbedColumns`; all others go to `Dataset.map`. With `num_proc` each process computes in
    one thread.
    """
    function = EmbedColumns(
        model,
        column=column,
        output=output,
        layer=layer,
        pool=pool,
        segment=segment,
        into=into,
        device=device,
        batch_tokens=batch_tokens,
    )
    if isinstance(dataset, DatasetDict | IterableDatasetDict):
        return type(dataset)({name: _mapped(part, function, map_options) for name, part in dataset.items()})
    return _mapped(dataset, function, map_options)


def _mapped(dataset: Any, function: EmbedColumns, map_options: Mapping[str, Any]) -> Any:  # noqa: ANN401
    known: Features | None = dataset.features
    if known is not None:
        if function.column not in known:
            raise ElmoError(f"column must be one of {', '.join(known)}, got {function.column!r}", "column")
        removed = map_options.get("remove_columns") or ()
        removed = [removed] if isinstance(removed, str) else removed
        remaining = {name: kind for name, kind in known.items() if name not in removed}
        features = Features({**remaining, **function.features})
        if isinstance(dataset, Dataset) and not len(dataset):  # `map` would not call the function
            return Dataset.from_dict({name: [] for name in features}, features=features, split=dataset.split)
        map_options = {"features": features, **map_options}
    return dataset.map(function, batched=True, **map_options)


class EmbedColumns:
    """A batch of rows → new columns with their vectors, for `Dataset.map(…, batched=True)`."""

    def __init__(
        self,
        model: str = DEFAULT,
        *,
        column: str = "text",
        output: Output = "sentence",
        layer: Layer | None = None,
        pool: Pool = "mean",
        segment: SegmenterName | None = None,
        into: str = "elmo",
        device: str | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        """Load the model once, for its fingerprint and to check the options.

        `column` has strings, or lists of tokens. The vectors go into the column `into`; with output="tokens" the
        tokens go into the column `into` + "_tokens". The other arguments are as in `Elmo.load` and `Elmo.encode`.
        """
        check_value("output", output, Output)
        check_value("pool", pool, Pool)
        self.model, self.column, self.output, self.layer, self.pool = model, column, output, layer, pool
        self.segment, self.into, self.device, self.batch_tokens = segment, into, device, batch_tokens
        self._elmo: Elmo | None = Elmo.load(model, device=device)
        if layer is not None:
            check_layer(layer, self._elmo.config.n_outputs, single=True)
        self._elmo.stream([], layer=layer, batch_tokens=batch_tokens, segment=segment)  # checks the arguments
        self.fingerprint = self._elmo.fingerprint(mixes=True)
        self.size = self._elmo.config.vector_size

    @property
    def features(self) -> Features:
        """The types of the columns that are added."""
        vector = List(Value("float32"), length=self.size)
        if self.output == "sentence":
            return Features({self.into: vector})
        # 64-bit offsets, because a batch of long texts can have more than 2^31 values.
        return Features({f"{self.into}_tokens": List(Value("string")), self.into: LargeList(vector)})

    def __call__(self, batch: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        """The new columns of a batch."""
        if hasattr(batch, "to_pydict"):  # the dataset has the format arrow
            batch = batch.to_pydict()
        if self.column not in batch:
            raise ElmoError(f"column must be one of {', '.join(batch)}, got {self.column!r}", "column")
        elmo = self._model()
        for number, text in enumerate(batch[self.column]):
            if text is None:
                raise ElmoError(f"column {self.column!r} must have a text in each row, got None in row {number}")
        rows = elmo.text_policy.override(self.segment).sentences_of(batch[self.column])
        pool = self.pool if self.output == "sentence" else None
        vectors: list[Vectors] = list(elmo.stream(rows, layer=self.layer, pool=pool, batch_tokens=self.batch_tokens))
        return {self.into: vectors} if pool else {f"{self.into}_tokens": rows, self.into: vectors}

    def _model(self) -> Elmo:
        """The model, loaded once per process."""
        if self._elmo is None:
            self._elmo = Elmo.load(self.model, device=self.device)
            if self._elmo.fingerprint(mixes=True) != self.fingerprint:
                raise ElmoError(f"{self.model} has changed since EmbedColumns was created: create it again")
        return self._elmo

    def __getstate__(self) -> dict[str, Any]:
        """The options and the model's fingerprint without the model, which `datasets` hashes."""
        return {**vars(self), "_elmo": None}

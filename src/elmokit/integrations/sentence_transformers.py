"""ELMo in Sentence Transformers: an input module, and functions that build and load a whole model.

from elmokit.integrations.sentence_transformers import sentence_transformer
model = sentence_transformer("en", pool="mean")
model.encode(["A river bank.", "A bank account."])
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from elmokit.elmo import Elmo
from elmokit.errors import ElmoError, MissingExtraError
from elmokit.formats.bundled import DEFAULT
from elmokit.layers import Layer, Pool, check_layer
from elmokit.model.scalar_mix import ScalarMix
from elmokit.options import check_value

try:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import InputModule
except ImportError as error:
    raise MissingExtraError("sentence-transformers 6 or newer", "sentence-transformers", "ElmoModule") from error

Features = dict[str, Any]


class ElmoModule(InputModule):  # type: ignore[misc]  # sentence-transformers is not annotated
    """The first module of a SentenceTransformer or a MultiVectorEncoder: texts → one vector per token.

    With `pool` it also gives one vector per text, and no further module is needed.
    """

    config_file_name = "elmo_module.json"
    config_keys: ClassVar[list[str]] = ["layer", "pool", "max_seq_length"]

    def __init__(
        self,
        model: str | Path | Elmo = DEFAULT,
        *,
        layer: Layer | None = None,
        pool: Pool | None = None,
        max_seq_length: int | None = None,
        **options: Any,  # noqa: ANN401 - those of Elmo.load
    ) -> None:
        """Use a model, or load one by its name or path with the `options` of `Elmo.load`.

        `layer`: "mix", "top" or a number; by default as in `Elmo.encode`. `pool`: "mean", "max", "first" or "last" for
        `sentence_embedding`. `max_seq_length`: the largest number of tokens read of a text; by default all are read.
        """
        super().__init__()
        if isinstance(model, Elmo) and options:
            raise ElmoError(f"{next(iter(options))} must be given to Elmo.load if model is an Elmo: leave it out here")
        self.elmo = model if isinstance(model, Elmo) else Elmo.load(model, **options)
        if self.elmo.state == "carry":
            raise ElmoError("ElmoModule needs vectors that depend only on the text: load the model with state='zero'")
        self.layer: Layer = self.elmo.default_layer if layer is None else layer
        check_layer(self.layer, self.elmo.config.n_outputs, single=True)
        self.pool: Pool | None = None if pool is None else check_value("pool", pool, Pool)
        if max_seq_length is not None:
            check_value("max_seq_length", max_seq_length, int, {"least": 1})
        self.max_seq_length = max_seq_length

    def preprocess(self, inputs: Iterable[str], prompt: str | None = None, **_: object) -> Features:
        """Texts → their tokens by the model's text policy.

        `words` are the distinct tokens of the batch. `input_ids` [B, T] contains their numbers from 1, and 0 for
        padding, so that the losses of Sentence Transformers can split a batch.
        """
        texts = list(inputs)
        if wrong := [text for text in texts if not isinstance(text, str)]:
            raise ElmoError(f"ElmoModule reads strings, got {wrong[0]!r}")
        rows = self.elmo.text_policy.sentences_of([(prompt or "") + text for text in texts])
        rows = [row[: self.max_seq_length] for row in rows]
        words = list(dict.fromkeys(chain.from_iterable(rows)))
        numbers = {word: number for number, word in enumerate(words, start=1)}
        width = max(map(len, rows), default=0)
        ids = [[numbers[word] for word in row] + [0] * (width - len(row)) for row in rows]
        input_ids = torch.tensor(ids, dtype=torch.long).reshape(len(rows), width)
        return {"input_ids": input_ids, "attention_mask": (input_ids != 0).long(), "words": words}

    def forward(self, features: Features, **_: object) -> Features:
        """Add `token_embeddings` [B, T, D] and, with `pool`, `sentence_embedding` [B, D]."""
        words, ids = features["words"], features["input_ids"].tolist()
        layers = self.elmo.layers_of([[words[number - 1] for number in row if number] for row in ids], self.layer)
        layers = layers if self.elmo.boundaries else layers.without_boundaries()
        layers = layers.widened(features["input_ids"].shape[1] + 2 * self.elmo.boundaries)
        mix = self.elmo.mixes[0]
        assert isinstance(mix, ScalarMix)
        vectors: Tensor = self.elmo.dropout(layers.select(self.layer, mix))
        features |= {"token_embeddings": vectors, "attention_mask": layers.mask.long()}
        if self.pool is not None:
            features["sentence_embedding"] = pooled(vectors, layers.mask, self.pool)
        return features

    def get_embedding_dimension(self) -> int:
        """D, the size of a vector."""
        return self.elmo.config.vector_size

    def save(self, output_path: str, *_: object, safe_serialization: bool = True, **__: object) -> None:
        """Write an elmokit model, which `Elmo.load` can also read, and the options of this module."""
        self.elmo.save(output_path)
        self.save_config(output_path)

    @classmethod
    def load(
        cls,
        model_name_or_path: str,
        subfolder: str = "",
        token: bool | str | None = None,
        cache_folder: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        model_kwargs: dict[str, Any] | None = None,
        **_: object,
    ) -> Self:
        """Load a saved module; `model_kwargs` are options of `Elmo.load`."""
        location = (model_name_or_path, subfolder)
        hub: Features = {"token": token, "cache_folder": cache_folder, "revision": revision}
        hub["local_files_only"] = local_files_only
        folder = cls.load_dir_path(*location, **hub)
        return cls(folder, **cls.load_config(*location, **hub), **(model_kwargs or {}))


def pooled(vectors: Tensor, mask: Tensor, pool: Pool) -> Tensor:
    """vectors [B, T, D], mask [B, T] → [B, D], equal to `Elmo.encode(output="sentence")`; 0 without tokens."""
    counts = mask.sum(dim=1, keepdim=True)
    if not vectors.shape[1]:
        return vectors.new_zeros(len(vectors), vectors.shape[2])
    if pool == "mean":
        # One token at a time, so that a sum does not depend on the padding.
        return sum(vectors.unbind(dim=1)[1:], start=vectors[:, 0]) / counts.clamp(min=1)
    if pool == "max":
        return vectors.masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(dim=1).masked_fill(counts == 0, 0)
    position = 0 if pool == "first" else (counts[:, 0] - 1).clamp(min=0)
    return vectors[torch.arange(len(vectors), device=vectors.device), position]


def sentence_transformer(
    model: str | Path | Elmo = DEFAULT,
    *,
    pool: Pool = "mean",
    layer: Layer | None = None,
    max_seq_length: int | None = None,
    **options: Any,  # noqa: ANN401
) -> SentenceTransformer:
    """A SentenceTransformer that gives the vectors of `Elmo.encode(output="sentence")`.

    `options` are those of `Elmo.load`, such as `device` or `trainable`.
    """
    module = ElmoModule(model, layer=layer, pool=pool, max_seq_length=max_seq_length, **options)
    return SentenceTransformer(modules=[module], device=str(module.elmo.device))


def load(folder: str | Path, *, device: str | None = None, **options: Any) -> SentenceTransformer:  # noqa: ANN401
    """A SentenceTransformer that was saved with an ElmoModule, from a folder or from the Hugging Face Hub.

    Sentence Transformers needs `trust_remote_code` for classes of other packages such as this one. So load only folders
    whose other modules you also trust. `options` are those of `Elmo.load`.
    """
    return SentenceTransformer(
        str(folder), device=device, trust_remote_code=True, model_kwargs={"device": device, **options}
    )

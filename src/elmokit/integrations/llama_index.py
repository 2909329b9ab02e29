"""ELMo in LlamaIndex: vectors of texts for its indexes and retrievers.

from elmokit.integrations.llama_index import ElmoEmbedding
index = VectorStoreIndex.from_documents(documents, embed_model=ElmoEmbedding(model_name="en"))
"""

from __future__ import annotations

import asyncio
from typing import Any

from elmokit.errors import MissingExtraError
from elmokit.formats.bundled import DEFAULT
from elmokit.integrations.models import PooledTexts
from elmokit.layers import Layer, Pool
from elmokit.text.tokens import SegmenterName

try:
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.bridge.pydantic import Field, PrivateAttr
except ImportError as error:
    raise MissingExtraError("llama-index-core", "llama-index", "ElmoEmbedding") from error


class ElmoEmbedding(BaseEmbedding):  # type: ignore[misc]  # llama-index-core may not be installed
    """Texts → one pooled vector each; `to_dict` and pickles contain the model's name, not its weights.

    >>> len(ElmoEmbedding(model_name="en").get_query_embedding("Where does the river end?"))  # doctest: +SKIP
    384
    """

    model_name: str = Field(default=DEFAULT, description="A folder, a file or the name of a bundled model.")
    layer: Layer | None = Field(default=None, description="As in Elmo.encode: mix, top or a number.")
    pool: Pool = Field(default="mean", description="How the vectors of a text's tokens are pooled.")
    normalize: bool = Field(default=True, description="Whether each vector is scaled to length 1.")
    segment: SegmenterName | None = Field(default=None, description="How a text becomes tokens.")
    batch_tokens: int | None = Field(default=None, description="Largest number of tokens in a batch.")
    device: str | None = Field(default=None, description="cpu or cuda.")
    embed_batch_size: int = Field(
        default=256, gt=0, le=2048, description="Texts per call; a call computes them in batches of batch_tokens."
    )
    _texts: PooledTexts = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:  # noqa: ANN401 - pydantic's own signature
        """Load the model, so that a wrong argument is found here and not at the first text."""
        super().model_post_init(context)
        self._texts = PooledTexts(
            self.model_name, self.layer, self.pool, self.normalize, self.segment, self.batch_tokens, self.device
        )

    @classmethod
    def class_name(cls) -> str:
        """The name of the class in saved indexes."""
        return cls.__name__

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._texts.vectors(texts)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._texts.vectors([text])[0]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._texts.vectors([query])[0]

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await asyncio.to_thread(self._texts.vectors, texts)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return (await self._aget_text_embeddings([text]))[0]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return (await self._aget_text_embeddings([query]))[0]

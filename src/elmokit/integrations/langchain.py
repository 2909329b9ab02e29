"""ELMo in LangChain: vectors of texts for vector stores and retrievers.

from elmokit.integrations.langchain import ElmoEmbeddings
store = InMemoryVectorStore.from_texts(texts, ElmoEmbeddings("en"))
"""

from __future__ import annotations

from dataclasses import dataclass

from elmokit.errors import MissingExtraError
from elmokit.integrations.models import PooledTexts

try:
    from langchain_core.embeddings import Embeddings
except ImportError as error:
    raise MissingExtraError("langchain-core", "langchain", "ElmoEmbeddings") from error


@dataclass(frozen=True)
class ElmoEmbeddings(PooledTexts, Embeddings):  # type: ignore[misc]  # langchain-core may not be installed
    """Texts → one pooled vector each; queries are embedded like documents.

    The arguments are those of `PooledTexts`. The methods that begin with `a` run in a thread.

    >>> len(ElmoEmbeddings("en").embed_query("Where does the river end?"))  # doctest: +SKIP
    384
    """

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """N texts → N vectors."""
        return self.vectors(texts)

    def embed_query(self, text: str) -> list[float]:
        """A text → its vector."""
        return self.vectors([text])[0]

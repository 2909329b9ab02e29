"""ElmoEmbeddings in LangChain: its own test suite, vector stores, and vectors that are those of Elmo.encode."""

import asyncio
import pickle
import sys
from importlib import import_module

import numpy as np
import pytest
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tests.integration_tests import EmbeddingsIntegrationTests
from langchain_tests.unit_tests import EmbeddingsUnitTests

from elmokit import Elmo, ElmoError
from elmokit.errors import MissingExtraError
from elmokit.integrations.langchain import ElmoEmbeddings
from elmokit.integrations.models import forget_models
from support.doc_pages import run_page

TEXTS = ["The bank raised rates.", "We sat on the river bank.", "", "rates"]


class TestLangChainUnit(EmbeddingsUnitTests):
    @property
    def embeddings_class(self):
        return ElmoEmbeddings

    @property
    def embedding_model_params(self):
        return {"model": "en"}


@pytest.mark.asyncio
class TestLangChainIntegration(EmbeddingsIntegrationTests):
    @property
    def embeddings_class(self):
        return ElmoEmbeddings

    @property
    def embedding_model_params(self):
        return {"model": "en-lstm", "layer": 1, "pool": "max", "normalize": False}


def test_vectors_are_those_of_encode(model_folder):
    elmo = Elmo.load(model_folder)
    for layer, pool in ((None, "mean"), ("top", "max"), (0, "last"), ("mix", "first")):
        found = ElmoEmbeddings(model_folder, layer=layer, pool=pool, normalize=False).embed_documents(TEXTS)
        assert found == elmo.encode(TEXTS, output="sentence", layer=layer, pool=pool).tolist()
    assert ElmoEmbeddings(elmo, segment="english").embed_query("a.") == ElmoEmbeddings(elmo).embed_query("a .")


def test_normalized_vectors_have_length_1_and_an_empty_text_zeros(model_folder):
    found = np.array(ElmoEmbeddings(model_folder).embed_documents(TEXTS))
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), [1, 1, 0, 1], rtol=1e-6)
    assert ElmoEmbeddings(model_folder).embed_documents([]) == []


def test_a_text_has_the_same_vector_alone_and_in_many_threads(model_folder):
    embeddings = ElmoEmbeddings(model_folder)
    expected = embeddings.embed_documents(TEXTS)

    async def queries():
        return await asyncio.gather(*(embeddings.aembed_query(text) for text in TEXTS * 20))

    assert asyncio.run(queries()) == expected * 20


def test_a_pickle_has_the_name_and_not_the_weights(model_folder):
    embeddings = ElmoEmbeddings(model_folder, pool="max")
    expected, stored = embeddings.embed_documents(TEXTS), pickle.dumps(embeddings)
    assert len(stored) < 1000
    forget_models()
    assert pickle.loads(stored).embed_documents(TEXTS) == expected


def test_a_vector_store_finds_the_nearest_text():
    texts = ["The bank raised its interest rates.", "Children were swimming near the river bank.", "She sings opera."]
    store = InMemoryVectorStore.from_texts(texts, ElmoEmbeddings("en"))
    for text in texts:
        assert store.similarity_search(text, k=1)[0].page_content == text


@pytest.mark.parametrize(
    ("arguments", "value"),
    [({"layer": "all"}, "'all'"), ({"layer": 7}, "7"), ({"pool": "sum"}, "sum"), ({"segment": "words"}, "words")],
)
def test_a_mistake_shows_when_it_is_made(model_folder, arguments, value):
    with pytest.raises(ElmoError, match=value):
        ElmoEmbeddings(model_folder, **arguments)


def test_other_mistakes(model_folder, make_elmo):
    with pytest.raises(ElmoError, match="no-such-model"):
        ElmoEmbeddings("no-such-model")
    with pytest.raises(ElmoError, match="state"):
        ElmoEmbeddings(make_elmo(state="carry"))
    with pytest.raises(ElmoError, match="None at position 1"):
        ElmoEmbeddings(model_folder).embed_documents(["a", None])


@pytest.mark.parametrize(
    ("module", "library", "extra"),
    [("langchain", "langchain_core.embeddings", "langchain"), ("llama_index", "llama_index.core", "llama-index")],
)
def test_without_the_library_the_extra_is_named(monkeypatch, module, library, extra):
    monkeypatch.delitem(sys.modules, f"elmokit.integrations.{module}", raising=False)
    for name in [name for name in sys.modules if name.startswith(library)]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtraError, match=rf"elmokit\[{extra}\]"):
        import_module(f"elmokit.integrations.{module}")


def test_the_page_runs_as_printed():
    run_page("langchain.md")

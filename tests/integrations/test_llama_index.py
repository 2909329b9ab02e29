"""ElmoEmbedding in LlamaIndex: vectors in batches, an index, and settings that are saved without weights."""

import asyncio
import json
import pickle

import pytest
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from pydantic import ValidationError

from elmokit import Elmo
from elmokit.integrations.langchain import ElmoEmbeddings
from elmokit.integrations.llama_index import ElmoEmbedding

TEXTS = ["The bank raised rates.", "We sat on the river bank.", "rates", "money of the bank"]


def test_vectors_are_those_of_encode_whatever_the_batch(model_folder):
    elmo = Elmo.load(model_folder)
    expected = elmo.encode(TEXTS, output="sentence", layer=1, pool="max").tolist()
    embedding = ElmoEmbedding(model_name=str(model_folder), layer=1, pool="max", normalize=False, embed_batch_size=3)
    assert embedding.get_text_embedding_batch(TEXTS) == expected
    assert [embedding.get_text_embedding(text) for text in TEXTS] == expected
    assert embedding.get_query_embedding(TEXTS[0]) == expected[0]
    assert asyncio.run(embedding.aget_text_embedding_batch(TEXTS)) == expected
    assert asyncio.run(embedding.aget_query_embedding(TEXTS[1])) == expected[1]
    assert asyncio.run(embedding.aget_text_embedding(TEXTS[1])) == expected[1]


def test_a_batch_is_one_call_of_the_model(model_folder, monkeypatch):
    sizes = []
    plain = Elmo.encode
    monkeypatch.setattr(Elmo, "encode", lambda self, texts, **kw: sizes.append(len(texts)) or plain(self, texts, **kw))
    ElmoEmbedding(model_name=str(model_folder), embed_batch_size=3).get_text_embedding_batch(TEXTS)
    assert sizes == [3, 1]


def test_both_libraries_get_the_same_vectors(model_folder):
    ours = ElmoEmbedding(model_name=str(model_folder)).get_text_embedding_batch(TEXTS)
    assert ours == ElmoEmbeddings(model_folder).embed_documents(TEXTS)


def test_it_is_saved_by_name_without_weights(model_folder):
    embedding = ElmoEmbedding(model_name=str(model_folder), pool="max", layer=0)
    expected = embedding.get_text_embedding_batch(TEXTS)
    for copy in (
        ElmoEmbedding.from_dict(json.loads(json.dumps(embedding.to_dict()))),
        ElmoEmbedding.from_json(embedding.to_json()),
        pickle.loads(pickle.dumps(embedding)),
    ):
        assert isinstance(copy, BaseEmbedding)
        assert copy.get_text_embedding_batch(TEXTS) == expected
    assert len(pickle.dumps(embedding)) < 5000


def test_an_index_finds_the_nearest_text():
    texts = ["The bank raised its interest rates.", "Children were swimming near the river bank.", "She sings opera."]
    index = VectorStoreIndex.from_documents([Document(text=text) for text in texts], embed_model=ElmoEmbedding())
    retriever = index.as_retriever(similarity_top_k=1)
    for text in texts:
        assert retriever.retrieve(text)[0].text == text


def test_a_mistake_shows_when_it_is_made(model_folder):
    """As pydantic's error, which is a ValueError as ElmoError is, with our sentence in it."""
    folder = str(model_folder)
    for arguments, value in (
        ({"model_name": folder, "layer": 7}, "0 to 2, got 7"),
        ({"model_name": folder, "layer": "all"}, "got 'all'"),
        ({"model_name": folder, "pool": "sum"}, "input_value='sum'"),
        ({"model_name": "no-such-model"}, "no-such-model"),
    ):
        with pytest.raises(ValidationError, match=value):
            ElmoEmbedding(**arguments)

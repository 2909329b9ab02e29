"""huggingface_hub, LangChain, LlamaIndex and MTEB as their users call them."""

import mteb
import numpy as np
import pytest
from huggingface_hub import InferenceClient
from langchain_openai import OpenAIEmbeddings
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
from mteb.models.openai_wrappers import OpenAIAPIEncodeWrapper, OpenAIAPITokenEmbedWrapper

from elmokit.serve.encodings import normalised

TEXTS = ["A river bank.", "The bank raised rates.", "money"]


@pytest.fixture(scope="module")
def units(server):
    return np.stack([normalised(row) for row in server.elmo.encode(TEXTS, output="sentence")])


@pytest.mark.parametrize("path", ["", "/embed"])
def test_hugging_face(url, server, units, path):
    client = InferenceClient(model=url + path, token="secret")
    assert np.asarray(client.feature_extraction(TEXTS[0]), np.float32).tolist() == [units[0].tolist()]
    raw = client.feature_extraction(TEXTS[0], normalize=False, truncate=True, truncation_direction="right")
    assert np.asarray(raw, np.float32).tolist() == server.elmo.encode(TEXTS[:1], output="sentence").tolist()


def test_hugging_face_similarity(url, units):
    client = InferenceClient(model=f"{url}/similarity", token="secret")
    found = client.sentence_similarity(TEXTS[0], other_sentences=TEXTS[1:])
    assert np.allclose(found, units[1:] @ units[0], atol=1e-5)


def test_langchain(url, units):
    embeddings = OpenAIEmbeddings(
        base_url=f"{url}/v1", api_key="secret", model="tiny", check_embedding_ctx_length=False
    )
    found = embeddings.embed_documents([*TEXTS, ""])
    assert np.array(found[:3], np.float32).tolist() == units.tolist()
    assert not any(found[3])
    assert np.array(embeddings.embed_query(TEXTS[0]), np.float32).tolist() == units[0].tolist()


def test_llama_index(url, units):
    client = TextEmbeddingsInference(base_url=url, model_name="tiny", auth_token="secret")
    found = client.get_text_embedding_batch(TEXTS)
    assert np.array(found, np.float32).tolist() == units.tolist()
    assert np.allclose(client.get_query_embedding(TEXTS[0]), client.get_query_embedding(TEXTS[0]))


@pytest.mark.parametrize(("wrapper", "tasks"), [(OpenAIAPIEncodeWrapper, 28), (OpenAIAPITokenEmbedWrapper, 9)])
def test_mteb(url, wrapper, tasks):
    model = wrapper(url, "tiny", "secret", use_chat_template=False, modalities=["text"])
    results = mteb.mock_run(model)
    status = results.task_results
    done = [name for name, result in status.items() if type(result).__name__ == "TaskResult"]
    failed = {name: result for name, result in status.items() if type(result).__name__ == "TaskError"}
    assert not failed, failed
    assert len(done) >= tasks

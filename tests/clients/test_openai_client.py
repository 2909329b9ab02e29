"""The official client: base64 by default, async, errors by their class, retries."""

import asyncio
import threading

import numpy as np
import openai
import pytest

from elmokit.serve.encodings import normalised
from support.serving import serving, slow_elmo, wait_for


@pytest.fixture
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="secret") as made:
        yield made


def unit(elmo, text, size=None):
    return normalised(elmo.encode([text], output="sentence")[0][:size]).tolist()


def test_one_text_and_many(client, server):
    answer = client.embeddings.create(model="tiny", input="A river bank.")
    assert answer.data[0].embedding == unit(server.elmo, "A river bank.")
    assert answer.usage.total_tokens == 4
    many = client.embeddings.create(model="tiny", input=["bank", "", "a river"], encoding_format="float")
    assert [item.index for item in many.data] == [0, 1, 2]
    assert np.array(many.data[2].embedding, np.float32).tolist() == unit(server.elmo, "a river")


def test_dimensions_and_fields_of_ours(client, server):
    answer = client.embeddings.create(model="tiny", input="bank", dimensions=5, user="me", extra_body={"layer": 0})
    want = normalised(server.elmo.encode(["bank"], output="sentence", layer=0)[0][:5])
    assert answer.data[0].embedding == want.tolist()


def test_async(url, server):
    async def main():
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="secret") as client:
            calls = [client.embeddings.create(model="tiny", input=f"bank {n}") for n in range(50)]
            return await asyncio.gather(*calls)

    answers = asyncio.run(main())
    assert [answer.data[0].embedding for answer in answers] == [unit(server.elmo, f"bank {n}") for n in range(50)]


def test_models(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert openai.OpenAI(base_url=client.base_url, api_key="other").models.list().data[0].id == "tiny"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"model": "other", "input": "a"}, openai.NotFoundError),
        ({"model": "tiny", "input": [1, 2, 3]}, openai.BadRequestError),
        ({"model": "tiny", "input": []}, openai.BadRequestError),
        ({"model": "tiny", "input": "a", "dimensions": 1000}, openai.BadRequestError),
        ({"model": "tiny", "input": "a " * 9000}, openai.BadRequestError),
    ],
)
def test_errors_by_their_class(client, arguments, error):
    with pytest.raises(error) as raised:
        client.embeddings.create(**arguments)
    assert raised.value.body["message"]


def test_a_wrong_key(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="wrong") as client, pytest.raises(openai.AuthenticationError):
        client.embeddings.create(model="tiny", input="a")


def test_it_comes_back_when_the_server_is_busy():
    elmo, gate, slow = slow_elmo()
    with serving(elmo, max_queue_tokens=10) as server:
        elmo.stream = slow
        busy = threading.Thread(target=server.post, args=("/embed", {"inputs": "a b c d e f g h"}))
        busy.start()
        wait_for(lambda: server.service.batcher.tokens == 10)
        with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none") as client:
            with pytest.raises(openai.RateLimitError):
                client.with_options(max_retries=0).embeddings.create(model="tiny", input="a")
            threading.Timer(0.2, gate.set).start()
            answer = client.embeddings.create(model="tiny", input="a")
        assert answer.data[0].embedding == unit(elmo, "a")
        busy.join()

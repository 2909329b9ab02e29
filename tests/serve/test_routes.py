"""The routes, each against `Elmo.encode` to the bit."""

import io
import json
import random
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
from safetensors.numpy import load as load_safetensors

from elmokit import Elmo
from elmokit.config import TransformerConfig
from elmokit.serve.encodings import normalised
from support.serving import serving
from support.tiny_models import tiny_checkpoint, transformer_config

TEXTS = ["A river bank.", "The bank raised rates, of course.", "", "naïve 河 bank 🏦 money"]


def floats(text: str, size: int = 12) -> np.ndarray:
    return np.frombuffer(b64decode(text), "<f4").reshape(-1, size)


def test_embed_gives_the_vectors_of_encode(server):
    want = server.elmo.encode(TEXTS, output="sentence")
    answer = server.post("/embed", {"inputs": TEXTS, "normalize": False})
    assert answer.status == 200
    assert np.array(answer.json, np.float32).tobytes() == want.tobytes()
    unit = np.array(server.post("/embed", {"inputs": TEXTS}).json, np.float32)
    assert unit.tobytes() == np.stack([normalised(row) for row in want]).tobytes()
    assert np.allclose(np.linalg.norm(unit, axis=1), [1, 1, 0, 1], atol=1e-6)


@pytest.mark.parametrize("path", ["/", "/invocations", "/embed"])
def test_one_string_gives_a_list_of_one_vector(server, path):
    answer = server.post(path, {"inputs": "A river bank."})
    assert (len(answer.json), len(answer.json[0])) == (1, 12)
    assert answer.headers["x-compute-tokens"] == "4"
    assert int(answer.headers["x-total-time"]) >= int(answer.headers["x-inference-time"])


@pytest.mark.parametrize("layer", [0, 2, "top", "mix"])
@pytest.mark.parametrize("pool", ["mean", "max", "first", "last"])
def test_layers_and_pooling(server, layer, pool):
    want = server.elmo.encode(TEXTS, output="sentence", layer=layer, pool=pool)
    fields = {"inputs": TEXTS, "layer": layer, "pool": pool, "normalize": False, "encoding_format": "npy"}
    answer = server.post("/embed", fields)
    assert answer.headers["content-type"] == "application/x-npy"
    assert np.load(io.BytesIO(answer.body)).tobytes() == want.tobytes()


def test_tokens_are_taken_as_they_are(server):
    rows = [["A", "river bank"], ["."]]
    answer = server.post("/embed", {"inputs": rows, "normalize": False, "encoding_format": "base64"})
    want = server.elmo.encode(rows, output="sentence")
    assert np.concatenate([floats(text) for text in answer.json]).tobytes() == want.tobytes()


def test_embed_all(server):
    answer = server.post("/embed_all", {"inputs": TEXTS})
    for found, want in zip(answer.json, server.elmo.encode(TEXTS), strict=True):
        assert np.array(found, np.float32).reshape(want.shape).tobytes() == want.tobytes()


def test_places_in_a_long_text_whose_beginning_is_cut():
    text = "a " * 400 + "river bank"
    with serving(max_input_tokens=2) as other:
        [found] = other.post("/tokens", {"inputs": text, "truncation_direction": "left"}).json["data"]
    assert [text[token["start"] : token["end"]] for token in found["tokens"]] == ["river", "bank"]


@pytest.mark.parametrize(("truncate", "direction", "kept"), [(True, "right", "a river"), (None, "left", "bank .")])
def test_long_texts_are_cut(server, truncate, direction, kept):
    text = "a river " + "of " * 8190 + "bank ."
    answer = server.post("/embed", {"inputs": text, "truncate": truncate, "truncation_direction": direction})
    words = text.split()[:8192] if direction == "right" else text.split()[-8192:]
    assert " ".join(words).startswith(kept) or " ".join(words).endswith(kept)
    want = normalised(server.elmo.encode([words], output="sentence")[0])
    assert np.array(answer.json[0], np.float32).tobytes() == want.tobytes()
    assert answer.headers["x-truncated-texts"] == "1"


def test_dimensions_are_the_first_numbers(server):
    want = normalised(server.elmo.encode(TEXTS[:1], output="sentence")[0][:5])
    answer = server.post("/embed", {"inputs": TEXTS[0], "dimensions": 5})
    assert np.array(answer.json[0], np.float32).tobytes() == want.tobytes()


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings"])
@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_openai_embeddings(server, path, encoding):
    fields = {"model": "tiny", "input": TEXTS, "encoding_format": encoding, "user": "x", "unknown": {"a": 1}}
    answer = server.post(path, fields).json
    assert (answer["object"], answer["model"]) == ("list", "tiny")
    assert [item["index"] for item in answer["data"]] == [0, 1, 2, 3]
    assert {item["object"] for item in answer["data"]} == {"embedding"}
    count = sum(len(server.elmo.tokenize(text)) for text in TEXTS)
    assert answer["usage"] == {"prompt_tokens": count, "total_tokens": count}
    want = [normalised(row) for row in server.elmo.encode(TEXTS, output="sentence")]
    for item, row in zip(answer["data"], want, strict=True):
        value = item["embedding"]
        found = floats(value)[0] if encoding == "base64" else np.array(value, np.float32)
        assert found.tobytes() == row.tobytes()


def test_models_name_the_model_and_its_limit(server):
    [model] = server.get("/v1/models").json["data"]
    assert (model["id"], model["object"], model["max_model_len"]) == ("tiny", "model", 8192)


def test_pooling_gives_a_vector_per_token(server):
    data = server.post("/pooling", {"model": "tiny", "input": TEXTS[:2], "normalize": False}).json["data"]
    for item, want in zip(data, server.elmo.encode(TEXTS[:2]), strict=True):
        assert item["object"] == "pooling"
        assert np.array(item["data"], np.float32).tobytes() == want.tobytes()


@pytest.mark.parametrize("unit", ["characters", "utf16", "bytes"])
def test_tokens_have_their_places_in_the_text(server, unit):
    answer = server.post("/tokens", {"inputs": TEXTS, "offsets": unit}).json
    assert (answer["offsets"], answer["dtype"]) == (unit, "float32")
    cut = {
        "characters": lambda text, a, b: text[a:b],
        "utf16": lambda text, a, b: text.encode("utf-16-le")[2 * a : 2 * b].decode("utf-16-le"),
        "bytes": lambda text, a, b: text.encode()[a:b].decode(),
    }[unit]
    for text, item, want in zip(TEXTS, answer["data"], server.elmo.encode(TEXTS), strict=True):
        assert floats(item["vectors"]).tobytes() == want.tobytes()
        assert [token["text"] for token in item["tokens"]] == [token.text for token in server.elmo.tokenize(text)]
        assert all(cut(text, token["start"], token["end"]) == token["text"] for token in item["tokens"])


@pytest.mark.parametrize("layer", ["all", 1])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_tokens_in_binary_formats(server, layer, dtype):
    fields = {"inputs": TEXTS, "layer": layer, "dtype": dtype}
    want = [
        (each.transpose(1, 0, 2) if layer == "all" else each).astype(dtype)
        for each in server.elmo.encode(TEXTS, layer=layer)
    ]
    flat = np.concatenate(want)
    words = [[token.text for token in server.elmo.tokenize(text)] for text in TEXTS]

    npz = np.load(io.BytesIO(server.post("/tokens", fields, Accept="application/x-npz").body))
    assert npz["vectors"].tobytes() == flat.tobytes()
    assert npz["offsets"].tolist() == np.cumsum([0, *map(len, words)]).tolist()
    assert [json.loads(line) for line in npz["tokens.jsonl"].splitlines()] == words

    tensors = load_safetensors(server.post("/tokens", {**fields, "format": "safetensors"}).body)
    assert tensors["vectors"].tobytes() == flat.tobytes()
    assert tensors["places"].shape == (sum(map(len, words)), 2)

    table = pa.ipc.open_stream(server.post("/tokens", {**fields, "format": "arrow"}).body).read_all()
    assert table["tokens"].to_pylist() == words
    names = [f"layer_{number}" for number in range(3)] if layer == "all" else ["vectors"]
    for number, name in enumerate(names):
        rows = np.array(table[name].combine_chunks().flatten().flatten(), dtype).reshape(-1, 12)
        assert rows.tobytes() == (flat[:, number] if layer == "all" else flat).tobytes()


def test_similarity(server):
    inputs = {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}
    cosines = server.post("/similarity", {"inputs": inputs, "parameters": {}}).json
    units = [normalised(row) for row in server.elmo.encode(TEXTS, output="sentence")]
    assert np.allclose(cosines, [units[0] @ unit for unit in units[1:]], atol=1e-6)
    words = server.post("/similarity", {"inputs": inputs, "parameters": {"words": True, "layer": 1}}).json
    assert words["tokens"] == ["A", "river", "bank", "."]
    assert np.array(words["sentences"][0]["similarity"]).shape == (4, len(words["sentences"][0]["tokens"]))


@pytest.mark.parametrize("chosen", [None, "1"])
def test_similarity_compares_the_layer_that_elmo_does(chosen):
    """For a Transformer the prediction, where /embed gives the last block; the option `layer` is for both."""
    shape = TransformerConfig(12, 2, 3, 10, window=4, softmax_size=6, prediction_layer=True)
    elmo = Elmo(tiny_checkpoint(transformer_config(context=shape), head=True), segment="english")
    with serving(elmo, layer=chosen) as server:
        cosines = server.post("/similarity", {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}}).json
    layer = None if chosen is None else int(chosen)
    assert np.allclose(cosines, elmo.similarity(TEXTS[0], TEXTS[1:], layer=layer), atol=1e-5)


def test_tokenize_counts_bytes_as_tei_does(server):
    [[first, second]] = server.post("/tokenize", {"inputs": "河 bank"}).json
    assert first == {"id": 0, "text": "河", "special": False, "start": 0, "stop": 3}
    assert (second["start"], second["stop"]) == (4, 8)


def test_substitutes(server):
    answer = server.post("/substitutes", {"inputs": "A river bank .", "position": 2, "k": 3}).json
    want = server.elmo.substitutes(["A", "river", "bank", "."], 2, 3)
    assert [each["word"] for each in answer["substitutes"]] == [word for word, _ in want]
    assert answer["tokens"][2] == {"text": "bank", "start": 8, "end": 12}


def test_info_has_the_keys_that_clients_read(server):
    facts = server.get("/info").json
    assert facts["model_id"] == "tiny"
    assert facts["max_client_batch_size"] == 2048
    assert (facts["layers"], facts["dimensions"], facts["segment"]) == (3, 12, "english")


def test_health_and_page(server):
    for path in ("/health", "/ping", "/live", "/"):
        answer = server.get(path)
        assert (answer.status, answer.body) == (200, b""), path
    page = server.get("/", Accept="text/html,*/*")
    assert page.status == 200
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert server.get("/page/index.html").body == page.body
    assert server.get("/page/../service.py").status == 404
    assert server.get("/page/%2e%2e/service.py").status == 404


def test_metrics_count_requests_and_tokens(server):
    def value(name: str) -> float:
        lines = server.get("/metrics").body.decode().splitlines()
        return float(next(line.split()[-1] for line in lines if line.startswith(name)))

    before = value("elmokit_tokens_total")
    server.post("/embed", {"inputs": ["A river bank.", "bank"]})
    assert value("elmokit_tokens_total") == before + 5
    assert value('elmokit_requests_total{route="/embed",status="200"}') >= 1
    assert value("elmokit_ready") == 1
    assert value("elmokit_queue_tokens") == 0


def test_many_requests_at_the_same_time_have_the_bits_of_encode(server):
    """Mixed lengths, layers and routes: what else is in a batch does not change a vector."""
    random.seed(1)
    words = ["bank", "river", "money", "of", "the", "a", "naïve", "."]
    requests = []
    for number in range(300):
        texts = [
            " ".join(random.choices(words, k=random.choice([0, 1, 5, 20, 200])))
            for _ in range(random.choice([1, 1, 1, 3, 40]))
        ]
        requests.append((number % 3, texts, random.choice(["top", "mix", 1])))
    want = [server.elmo.encode(texts, layer=layer) for _, texts, layer in requests]

    def ask(request) -> list[bytes]:
        kind, texts, layer = request
        if kind == 0:
            answer = server.post("/tokens", {"inputs": texts, "layer": layer})
            return [b64decode(item["vectors"]) for item in answer.json["data"]]
        fields = {"layer": layer, "normalize": False, "encoding_format": "base64"}
        if kind == 1:
            return [b64decode(each) for each in server.post("/embed", {**fields, "inputs": texts}).json]
        answer = server.post("/v1/embeddings", {**fields, "input": texts})
        return [b64decode(item["embedding"]) for item in answer.json["data"]]

    with ThreadPoolExecutor(24) as pool:
        found = list(pool.map(ask, requests))
    for (kind, texts, layer), vectors, answer in zip(requests, want, found, strict=True):
        expected = vectors if kind == 0 else server.elmo.encode(texts, output="sentence", layer=layer)
        assert answer == [vector.tobytes() for vector in expected]

"""Refusals: the status, the dialect of the route, and nothing that a client should not see."""

import json
import logging
import threading
import time
from contextlib import suppress

import pytest

from support.serving import serving, slow_elmo, tiny_elmo, wait_for

TEI = ["/embed", "/embed_all", "/tokens", "/tokenize"]
OPENAI = ["/v1/embeddings", "/pooling"]


def check(answer, status, path):
    """A refusal in the dialect of its route."""
    assert answer.status == status, answer
    assert answer.headers["content-type"] == "application/json"
    error = answer.json["error"]
    if path in OPENAI or path.startswith("/v1/"):
        assert error.keys() >= {"message", "type", "param", "code"}
        message = error["message"]
    else:
        message = error
        assert answer.json["error_type"][0].isupper()
    assert "Traceback" not in message
    assert "site-packages" not in message
    return error


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, 400),
        ({"inputs": []}, 400),
        ({"inputs": None}, 400),
        ({"inputs": 3}, 400),
        ({"inputs": [1, 2]}, 400),
        ({"inputs": [[1, 2]]}, 400),
        ({"inputs": ["a", 1]}, 400),
        ({"inputs": [["a", ""]]}, 400),
        ({"inputs": {"a": 1}}, 400),
        ({"inputs": "a", "truncate": "yes"}, 400),
        ({"inputs": "a", "layer": 3}, 422),
        ({"inputs": "a", "layer": -1}, 422),
        ({"inputs": "a", "layer": True}, 422),
        ({"inputs": "a", "layer": [1]}, 422),
        ({"inputs": "a", "layer": 10**30}, 422),
        ({"inputs": ["a"] * 2049}, 422),
        ({"inputs": "a " * 9000, "truncate": False}, 422),
        ({"inputs": "a" * 3_000_000, "truncate": False}, 422),
    ],
    ids=lambda value: str(value)[:40],
)
@pytest.mark.parametrize("path", ["/embed", "/v1/embeddings", "/tokens"])
def test_what_is_wrong_in_a_request_is_said(server, path, fields, status):
    if path in OPENAI:
        fields = {"input" if name == "inputs" else name: value for name, value in fields.items()}
        status = 400
    error = check(server.post(path, fields), status, path)
    if path in OPENAI:
        assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(("path", "name"), [("/v1/embeddings", "input"), ("/pooling", "input")])
def test_a_text_that_is_too_long_names_its_field(server, path, name):
    error = check(server.post(path, {name: "a " * 9000}), 400, path)
    assert (error["code"], error["param"]) == ("context_length_exceeded", name)


@pytest.mark.parametrize(
    ("path", "fields", "status"),
    [
        ("/embed", {"inputs": "a", "dimensions": 0}, 422),
        ("/embed", {"inputs": "a", "dimensions": 13}, 422),
        ("/embed", {"inputs": "a", "dimensions": 1.5}, 400),
        ("/embed", {"inputs": "a", "pool": "sum"}, 422),
        ("/embed", {"inputs": "a", "layer": "all"}, 422),
        ("/embed", {"inputs": "a", "prompt_name": "query"}, 422),
        ("/embed", {"inputs": "a", "truncation_direction": "up"}, 422),
        ("/tokens", {"inputs": "a", "format": "csv"}, 422),
        ("/tokens", {"inputs": "a", "offsets": "words"}, 422),
        ("/similarity", {"inputs": "a"}, 400),
        ("/similarity", {"inputs": {"source_sentence": "a"}}, 400),
        ("/substitutes", {"inputs": "a"}, 400),
        ("/substitutes", {"inputs": "a", "position": 1}, 422),
        ("/substitutes", {"inputs": "", "position": 0}, 422),
        ("/neighbours", {"inputs": "a", "position": 0}, 404),
        ("/senses", {"word": "bank"}, 404),
        ("/v1/embeddings", {"input": "a", "model": "gpt"}, 404),
        ("/v1/embeddings", {"input": "a", "encoding_format": "npy"}, 400),
    ],
)
def test_values_that_a_route_refuses(server, path, fields, status):
    check(server.post(path, fields), status, path)


def test_a_value_of_any_depth(server):
    body = b'{"inputs": "a", "layer": %s}' % (b"[" * 500 + b"]" * 500)
    check(server.send("POST", "/embed", body, {"Content-Type": "application/json"}), 422, "/embed")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"text"', b"null", b"\xff", b'{"inputs": "\\ud800"}', b"NaN"])
@pytest.mark.parametrize("path", ["/embed", "/v1/embeddings"])
def test_a_body_that_is_not_a_json_object(server, path, body):
    check(server.send("POST", path, body, {"Content-Type": "application/json"}), 400, path)


def test_content_types(server):
    check(server.send("POST", "/embed", b"{}", {"Content-Type": "text/plain"}), 415, "/embed")
    check(server.send("POST", "/embed", b"{}", {}), 415, "/embed")
    packed = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    check(server.send("POST", "/embed", b"{}", packed), 415, "/embed")
    good = {"Content-Type": "application/json; charset=utf-8"}
    assert server.send("POST", "/embed", b'{"inputs": "a"}', good).status == 200


@pytest.mark.parametrize("path", ["/nothing", "/v1/nothing"])
def test_unknown_routes_and_methods(server, path):
    check(server.get(path), 404, path)
    check(server.get("/embed"), 405, "/embed")
    check(server.get("/v1/embeddings"), 405, "/v1/embeddings")
    check(server.send("DELETE", "/embed", b"", {}), 405, "/embed")


def test_the_request_id_is_echoed(server):
    assert server.get("/health", X_Request_Id="abc-1").headers["x-request-id"] == "abc-1"
    other = server.get("/health", X_Request_Id="a b\tc").headers["x-request-id"]
    assert len(other) == 16


def test_the_host_must_be_this_machine():
    with serving(host="127.0.0.2", allow_host=("My.example",)) as server:
        assert server.get("/health", Host="my.example:80").status == 200
        assert server.get("/health", Host="127.0.0.2:80").status == 200
        assert server.get("/health", Host="LOCALHOST").status == 200
        check(server.get("/health", Host="evil.example"), 421, "/health")
        check(server.get("/v1/models", Host="127.0.0.1.evil.example"), 421, "/v1/models")


def test_the_api_key():
    with serving(api_key="secret") as server:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic secret"}):
            answer = server.post("/embed", {"inputs": "a"}, **headers)
            check(answer, 401, "/embed")
            assert answer.headers["www-authenticate"] == "Bearer"
        error = check(server.post("/v1/embeddings", {"input": "a"}), 401, "/v1/embeddings")
        assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
        check(server.get("/info"), 401, "/info")
        assert server.post("/embed", {"inputs": "a"}, Authorization="Bearer secret").status == 200
        assert server.post("/embed", {"inputs": "a"}, Authorization="bearer secret").status == 200
        assert server.get("/info", Authorization="Bearer secret").status == 200
        for path in ("/health", "/live", "/metrics", "/v1/models"):
            assert server.get(path).status == 200, path


def test_no_other_origin_unless_asked(server):
    origin = {"Origin": "https://page.example"}
    assert "access-control-allow-origin" not in server.post("/embed", {"inputs": "a"}, **origin).headers
    with serving(cors=("https://page.example",), api_key="secret") as other:
        answer = other.post("/embed", {"inputs": "a"}, **origin)
        assert answer.status == 401
        assert answer.headers["access-control-allow-origin"] == "https://page.example"
        # OpenAI's JavaScript client sends headers of its own.
        asks = {**origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-stainless-lang"}
        assert other.send("OPTIONS", "/embed", None, asks).status == 200
        asks["Origin"] = "https://other.example"
        assert other.send("OPTIONS", "/embed", None, asks).status == 400


def test_a_large_body_is_refused(caplog):
    with serving(max_body=0.01) as server:
        for path in ("/embed", "/v1/embeddings"):
            answer = server.post(path, {"inputs": "a" * 20_000})
            check(answer, 413, path)
            assert answer.headers["connection"] == "close"
        with server.connect() as client:  # a body whose length is not announced
            client.sendall(b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
            client.sendall(b"Transfer-Encoding: chunked\r\n\r\n" + b"4000\r\n" + b"a" * 0x4000 + b"\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 413")
        assert server.post("/embed", {"inputs": "a"}).status == 200
    assert not caplog.records


def test_short_bodies_without_a_length_reserve_little_memory():
    elmo, gate, slow = slow_elmo()
    with serving(elmo, max_memory=20, max_body=4) as server:
        elmo.stream = slow
        clients = [server.connect() for _ in range(8)]
        for client in clients:
            client.sendall(b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
            client.sendall(b'Transfer-Encoding: chunked\r\n\r\ne\r\n{"inputs":"a"}\r\n0\r\n\r\n')
        wait_for(lambda: server.service.accepted == 8)
        assert server.service._reserved < 100_000
        gate.set()
        for client in clients:
            with client:
                assert client.recv(100).startswith(b"HTTP/1.1 200")


def test_a_large_answer_is_refused():
    with serving(max_memory=1) as server:
        check(server.post("/tokens", {"inputs": "a " * 8000, "layer": "all"}), 422, "/tokens")
        assert server.post("/tokens", {"inputs": "a " * 100, "layer": "all"}).status == 200
        wait_for(lambda: server.service._reserved == 0)


def test_an_overloaded_server_says_when_to_come_back():
    elmo, gate, slow = slow_elmo()
    with serving(elmo, max_queue_tokens=20) as server:
        elmo.stream = slow
        waiting = [threading.Thread(target=server.post, args=("/embed", {"inputs": "a b c"})) for _ in range(4)]
        for thread in waiting:
            thread.start()
        wait_for(lambda: server.service.batcher.tokens == 20)
        for path in ("/embed", "/v1/embeddings"):
            answer = server.post(path, {"inputs": "a b", "input": "a b"})
            error = check(answer, 429, path)
            assert 1 <= int(answer.headers["retry-after"]) <= 30
        assert (error["type"], error["code"]) == ("rate_limit_error", "overloaded")
        assert server.get("/health").status == 200
        gate.set()
        for thread in waiting:
            thread.join()
        wait_for(lambda: server.post("/embed", {"inputs": "a b"}).status == 200)


def test_not_ready_while_the_model_is_loaded():
    elmo, gate = tiny_elmo(), threading.Event()

    def load():
        gate.wait(30)
        return elmo

    with serving(elmo, load=load, wait=False) as server:
        assert server.get("/live").status == 200
        assert server.get("/metrics").status == 200
        for path in ("/health", "/info"):
            answer = server.get(path)
            check(answer, 503, path)
            assert answer.headers["retry-after"] == "2"
        answer = server.post("/v1/embeddings", {"input": "a"})
        error = check(answer, 503, "/v1/embeddings")
        assert (error["type"], error["code"]) == ("server_error", "not_ready")
        gate.set()
        wait_for(lambda: server.get("/health").status == 200)
        assert server.post("/v1/embeddings", {"input": "a"}).status == 200


def test_a_failed_computation_shows_in_the_status_and_not_in_the_text(caplog):
    elmo = tiny_elmo()
    with serving(elmo) as server:
        plain, elmo.stream = elmo.stream, lambda rows, **named: 1 / 0
        check(server.post("/embed", {"inputs": "a"}), 424, "/embed")
        error = check(server.post("/v1/embeddings", {"input": "a"}), 500, "/v1/embeddings")
        assert "division" not in json.dumps(error)
        assert error["type"] == "server_error"
        check(server.get("/health"), 503, "/health")
        elmo.stream = plain
        assert server.post("/embed", {"inputs": "a"}).status == 200
        assert server.get("/health").status == 200
    assert any("division by zero" in str(record.exc_info[1]) for record in caplog.records if record.exc_info)


def test_an_error_of_ours_is_a_500_without_a_trace(caplog, monkeypatch):
    with serving() as server:
        monkeypatch.setattr(server.service, "tokenise", lambda *_, **__: 1 / 0)
        error = check(server.post("/embed", {"inputs": "a"}), 500, "/embed")
        assert "division" not in error
    assert any(record.levelno == logging.ERROR for record in caplog.records)


def test_the_work_of_a_client_that_has_gone_is_dropped():
    elmo, gate, seen = tiny_elmo(), threading.Event(), []
    plain = elmo.stream

    def slow(rows, **named):
        seen.extend(rows)
        gate.wait(30)
        return plain(rows, **named)

    with serving(elmo, max_batch_tokens=4) as server:
        elmo.stream = slow
        first = threading.Thread(target=server.post, args=("/embed", {"inputs": "first"}))
        first.start()
        wait_for(lambda: seen)
        with server.connect() as client:
            body = json.dumps({"inputs": ["gone"] * 50}).encode()
            client.sendall(b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
            client.sendall(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
            wait_for(lambda: server.service.batcher.tokens > 100)
        wait_for(lambda: server.service.batcher.tokens < 10)
        gate.set()
        first.join()
        assert server.post("/embed", {"inputs": "next"}).status == 200
    assert ["gone"] not in seen


def test_slow_clients_are_closed(monkeypatch):
    monkeypatch.setattr("elmokit.serve.server.HEADER_SECONDS", 0.5)
    monkeypatch.setattr("elmokit.serve.gate.BODY_SECONDS", 0.5)
    with serving() as server:
        silent, partial, body, second = (server.connect() for _ in range(4))
        partial.sendall(b"POST /embed HTTP/1.1\r\nHost: lo")
        head = (
            b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n"
        )
        body.sendall(head + b'{"in')
        second.sendall(head + b'{"inputs": "a"}')
        time.sleep(0.2)
        assert second.recv(4000).startswith(b"HTTP/1.1 200")
        second.sendall(b"GE")
        assert b"408" in body.recv(4000)
        for client in (silent, partial, second):
            with client, suppress(ConnectionResetError):
                assert client.recv(100) == b""
        body.close()
        assert server.post("/embed", {"inputs": "a"}).status == 200


@pytest.mark.parametrize(
    "bytes_sent",
    [b"\r\n\r\n", b"GARBAGE\r\n\r\n", b"POST /embed HTTP/1.1\r\nContent-Length: -5\r\n\r\n", b"\x16\x03\x01" * 50,
     b"POST /embed HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000],
    ids=["empty", "garbage", "length", "tls", "header"],
)  # fmt: skip
def test_malformed_requests_leave_the_server_healthy(server, bytes_sent):
    with server.connect() as client, suppress(ConnectionError):
        client.sendall(bytes_sent)
        client.recv(1000)
    assert server.post("/embed", {"inputs": "a"}).status == 200

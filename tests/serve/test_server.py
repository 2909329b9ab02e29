"""The start and the end of a server."""

import errno
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading

import pytest

import elmokit.serve.server as server_module
from elmokit import ElmoError
from elmokit.serve.server import bind, serve
from elmokit.serve.service import Service
from elmokit.serve.settings import ServeSettings
from support.serving import send, serving, slow_elmo, wait_for

HEAD = b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n"
BODY = b'{"inputs": "a"}'


def answer_of(client):
    """All that a server sends until it closes the connection."""
    with client:
        return b"".join(iter(lambda: client.recv(65536), b""))


def is_refusal(answer):
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.startswith(b"HTTP/1.1 503") and b"connection: close" in head.lower() and b"stopping" in body


def refuses_connections(server):
    try:
        server.connect().close()
    except ConnectionRefusedError:
        return True
    return False


def test_the_end_waits_for_accepted_requests_and_refuses_new_ones():
    elmo, gate, slow = slow_elmo()
    with serving(elmo) as server:
        elmo.stream = slow
        answers = []
        waiting = [
            threading.Thread(target=lambda: answers.append(server.post("/embed", {"inputs": ["a", "b"]})))
            for _ in range(5)
        ]
        for thread in waiting:
            thread.start()
        wait_for(lambda: server.service.accepted == 5)
        late, health, live, half = (server.connect() for _ in range(4))
        server.call(server.server.handle_exit, signal.SIGTERM, None)
        wait_for(lambda: refuses_connections(server))
        late.sendall(HEAD + BODY)
        assert is_refusal(answer_of(late))
        for client, path, status in ((health, b"health", b"503"), (live, b"live", b"200")):
            client.sendall(b"GET /%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path)
            assert answer_of(client).startswith(b"HTTP/1.1 " + status)
        half.sendall(HEAD)  # the rest comes after the last answer
        gate.set()
        for thread in waiting:
            thread.join()
        half.sendall(BODY)
        assert is_refusal(answer_of(half))
        assert [answer.status for answer in answers] == [200] * 5
        server.thread.join(30)
        assert not server.thread.is_alive()


def test_connections_that_wait_in_the_listening_socket_get_an_answer():
    """They were opened before the end and nobody has taken them: a socket that is simply closed would reset them."""
    clients = []
    with serving() as server:
        plain = server.server._stop_listening

        async def stop(listening):
            for _ in range(100):  # the event loop does nothing meanwhile
                clients.append(server.connect())
                clients[-1].sendall(HEAD + BODY)
            await plain(listening)

        server.server._stop_listening = stop
        server.call(server.server.handle_exit, signal.SIGTERM, None)
        server.thread.join(30)
        assert len(clients) == 100
        assert all(is_refusal(answer_of(client)) for client in clients)


@pytest.mark.skipif(sys.platform != "linux", reason="the filter is Linux's")
def test_a_connection_cannot_begin_while_the_last_ones_are_taken(monkeypatch):
    """It is refused as soon as the socket is closed; otherwise it would be opened and then reset."""
    client = socket.socket()
    client.setblocking(False)
    plain = server_module._is_readable

    def begin(listening):
        if client.connect_ex(listening.getsockname()) == errno.EINPROGRESS:
            assert not select.select([], [client], [], 0)[1]
        return plain(listening)

    with client, serving() as server:
        monkeypatch.setattr(server_module, "_is_readable", begin)
        server.call(server.server.handle_exit, signal.SIGTERM, None)
        server.thread.join(30)
        assert select.select([], [client], [], 30)[1]
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED


def test_after_the_time_of_the_drain_the_queue_is_refused():
    elmo, gate, slow = slow_elmo()
    with serving(elmo, drain=0.2) as server:
        elmo.stream = slow
        answers = {}

        def ask(name):
            answers[name] = server.post("/embed", {"inputs": name}).status

        running, waiting = (threading.Thread(target=ask, args=(name,)) for name in ("running", "waiting"))
        running.start()
        wait_for(lambda: server.service.accepted == 1)
        waiting.start()
        wait_for(lambda: server.service.accepted == 2)
        server.call(server.server.handle_exit, signal.SIGTERM, None)
        waiting.join(30)
        assert answers == {"waiting": 503}
        gate.set()
        running.join(30)
        assert answers["running"] == 200
        server.thread.join(30)
        assert not server.thread.is_alive()


def test_a_model_that_cannot_be_loaded_ends_the_server():
    def load():
        raise ElmoError("no such model")

    with pytest.raises(ElmoError, match="no such model"):
        serve(Service(load, ServeSettings(), "none"), bind("127.0.0.1", 0))


def test_a_port_in_use_is_refused():
    with bind("127.0.0.1", 0) as taken, pytest.raises(ElmoError, match=str(taken.getsockname()[1])):
        bind("127.0.0.1", taken.getsockname()[1])


def test_small_answers_are_sent_at_once():
    """Without TCP_NODELAY each answer to a client that keeps its connection waits 40 ms for an acknowledgement."""
    options = []
    with serving() as server:
        plain = server.server.on_tick

        async def look(counter):
            for connection in server.server.server_state.connections:
                sock = connection.transport.get_extra_info("socket")
                options.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            return await plain(counter)

        server.server.on_tick = look
        with server.connect():
            wait_for(lambda: options)
    assert all(options)


def test_the_command_serves_until_a_signal(model_folder):
    """A process of its own: it prints its address, answers, finishes at SIGTERM and exits with 0."""
    command = [sys.executable, "-m", "elmokit", "serve", str(model_folder), "--port", "0", "--log-requests", "json"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "ELMOKIT_API_KEY": "k"})
    try:
        line = process.stderr.readline()
        port = int(re.search(r"serving model on http://127\.0\.0\.1:(\d+)", line)[1])
        headers = {"Content-Type": "application/json", "Authorization": "Bearer k"}

        wait_for(lambda: send(port, "GET", "/health", None, {}).status == 200, 60)
        answer = send(port, "POST", "/embed", b'{"inputs": ["A river bank."]}', headers)
        assert (answer.status, len(answer.json)) == (200, 1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        records = [json.loads(line.removeprefix("elmo: ")) for line in process.stderr if "{" in line]
        assert {"path": "/embed", "status": 200}.items() <= records[-1].items()
        assert "river" not in json.dumps(records)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


BUSY = """
import sys, torch
from elmokit.cli import main
from elmokit.cli.shared import ModelOptions

def compute(*_):
    print("loading", flush=True)
    square = torch.ones(100, 100)
    while True:
        square = square @ square / 100

ModelOptions.load = compute
main(["serve", "--port", "0"])
"""


def test_a_signal_while_the_model_is_loaded(tmp_path):
    """A thread that computes would abort the process when Python ends."""
    process = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with process:
        try:
            assert process.stdout.readline() == "loading\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
            assert "terminate" not in process.stderr.read()
        finally:
            process.kill()

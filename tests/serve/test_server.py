"""The start and the end of a server."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from elmokit import ElmoError
from elmokit.serve.server import bind, serve
from elmokit.serve.service import Service
from elmokit.serve.settings import ServeSettings
from support.serving import send, serving, slow_elmo, wait_for


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
        server.call(server.server.handle_exit, signal.SIGTERM, None)
        wait_for(lambda: server.service.state == "draining")
        late = server.post("/embed", {"inputs": "late"})
        assert (late.status, late.headers["connection"]) == (503, "close")
        assert server.get("/health").status == 503
        assert server.get("/live").status == 200
        gate.set()
        for thread in waiting:
            thread.join()
        assert [answer.status for answer in answers] == [200] * 5
        server.thread.join(30)
        with pytest.raises(ConnectionRefusedError):
            server.get("/live")


def test_the_end_does_not_wait_longer_than_it_should():
    elmo, gate, slow = slow_elmo()
    with serving(elmo, drain=0.2) as server:
        elmo.stream = slow
        answers = []
        waiting = threading.Thread(target=lambda: answers.append(server.post("/embed", {"inputs": "a"})))
        running = threading.Thread(target=server.post, args=("/embed", {"inputs": "first"}))
        running.start()
        wait_for(lambda: server.service.accepted == 1)
        waiting.start()
        wait_for(lambda: server.service.accepted == 2)
        server.call(server.server.handle_exit, signal.SIGTERM, None)
        time.sleep(0.5)
        gate.set()
        waiting.join(30)
        running.join(30)
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

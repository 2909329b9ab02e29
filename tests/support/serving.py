"""A server of a tiny model in a thread, and a client that nobody could mistake for more than HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any, NamedTuple

from elmokit import Elmo
from elmokit.serve.server import Server, bind
from elmokit.serve.service import Service
from elmokit.serve.settings import ServeSettings
from support.tiny_models import tiny_checkpoint


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def send(port: int, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Answer:
    """One request on a connection of its own; a header may be written with _ for -."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): each for name, each in headers.items()})
        response = connection.getresponse()
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()


class RunningServer(NamedTuple):
    """A server that runs in a thread."""

    port: int
    elmo: Elmo
    service: Service
    server: Server
    thread: threading.Thread

    def get(self, path: str, **headers: str) -> Answer:
        return self.send("GET", path, None, headers)

    def post(self, path: str, value: object, **headers: str) -> Answer:
        return self.send("POST", path, json.dumps(value).encode(), {"Content-Type": "application/json", **headers})

    def send(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Answer:
        return send(self.port, method, path, body, headers)

    def call(self, function, *arguments) -> None:
        """Call a function in the thread of the server."""
        self.server.loop.call_soon_threadsafe(function, *arguments)  # type: ignore[attr-defined]

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)


def tiny_elmo(**arguments: Any) -> Elmo:
    return Elmo(tiny_checkpoint(head=True), segment="english", **arguments)


def slow_elmo():
    """A model, an event, and a `stream` for the model that waits for the event before each batch."""
    elmo, gate = tiny_elmo(), threading.Event()
    plain = elmo.stream

    def slow(rows, **named):
        gate.wait(30)
        return plain(rows, **named)

    return elmo, gate, slow


@contextmanager
def serving(elmo: Elmo | None = None, *, load=None, wait: bool = True, **settings: Any) -> Iterator[RunningServer]:
    """A server on a free port; `load` replaces what loads the model."""
    elmo = elmo or tiny_elmo()
    service = Service(load or (lambda: elmo), ServeSettings(port=0, **settings), "tiny")
    listening = bind("127.0.0.1", 0)
    server = Server(service)

    def run() -> None:
        async def main() -> None:
            server.loop = asyncio.get_running_loop()  # type: ignore[attr-defined]
            await server.serve([listening])

        asyncio.run(main())

    thread = threading.Thread(target=run)
    port = listening.getsockname()[1]
    thread.start()
    try:
        wait_for(lambda: server.started and (not wait or service.state != "loading"))
        yield RunningServer(port, elmo, service, server, thread)
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive(), "the server did not end"


def wait_for(condition, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)

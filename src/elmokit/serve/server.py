"""uvicorn with three additions: the port is open while the model loads, a graceful shutdown, limits on slow clients."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Generator
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from elmokit.errors import ElmoError
from elmokit.serve.app import create_app
from elmokit.serve.service import Service

HEADER_SECONDS = 15.0
"""A connection that has not sent the headers of a request within this time is closed."""
WRITE_SECONDS = 60.0
"""A connection whose client does not read its response for this time is closed."""
KEEP_ALIVE_SECONDS = 65
_BACKLOG = 2048
_HANDSHAKE_SECONDS = 0.2
"""At shutdown, connections that have begun get this time to reach the queue of the listening socket."""
_LAST_SECONDS = 2.0
"""At shutdown, connections that have not sent a whole request get this time to send it; then they get an error."""
_SO_ATTACH_FILTER = 26
_NO_NEW_CONNECTIONS = (
    (0x30, 0, 0, 13),  # load the flags of the TCP header
    (0x54, 0, 0, 0x12),  # of them SYN and ACK
    (0x15, 0, 1, 0x02),  # SYN alone begins a connection:
    (0x06, 0, 0, 0),  # discard it
    (0x06, 0, 0, 0xFFFF),  # accept everything else
)
"""A socket filter for Linux (BPF): operation, jump if true, jump if false, operand."""


class Server(uvicorn.Server):
    """Serves until a signal, then finishes accepted requests and refuses new ones; a second signal stops it at once."""

    def __init__(self, service: Service) -> None:
        config = uvicorn.Config(
            _WithLifespan(create_app(service), service),
            http="h11",
            ws="none",
            lifespan="on",
            log_config=None,
            log_level="error",  # otherwise every malformed request would write a line
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=2,
        )
        super().__init__(config)
        self.service = service
        self._silent: dict[Any, float] = {}
        """Connections without a request → the time since which this is so."""
        self._stuck: dict[Any, tuple[int, float]] = {}
        """Connections with unsent data → its size, and the time since which the size has not changed."""
        service.on_failure = self._end

    def _end(self) -> None:
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """As in uvicorn, but the signal is not raised again, so that a graceful shutdown has exit status 0."""
        with super().capture_signals():
            yield
            self._captured_signals.clear()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain; at the second signal stop at once."""
        del frame
        self._captured_signals.append(sig)
        self.force_exit = self.should_exit
        self.should_exit = True
        self.service.begin_drain()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no new connections, finish accepted requests, refuse all others, then close the connections."""
        if self.service.state == "draining":
            for listening in sockets or []:
                await self._stop_listening(listening)
            await self._wait_until(lambda: not self.service.accepted, self.service.settings.drain)
            self.service.batcher.close()
            await self._wait_until(lambda: not self._has_open_requests(), _LAST_SECONDS)
        await super().shutdown(sockets)

    async def _stop_listening(self, listening: socket.socket) -> None:
        """Close a listening socket when its queue is empty, since closing it resets the connections in the queue.

        The connections are in the queue until the event loop takes them. On Linux no new ones can begin in that time.
        Elsewhere a connection that begins in the last moment may be reset.
        """
        if sys.platform == "linux":
            code = b"".join(struct.pack("HBBI", *line) for line in _NO_NEW_CONNECTIONS)
            buffer = ctypes.create_string_buffer(code)
            program = struct.pack("HL", len(_NO_NEW_CONNECTIONS), ctypes.addressof(buffer))
            with contextlib.suppress(OSError):  # a system without socket filters
                listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
        await asyncio.sleep(_HANDSHAKE_SECONDS)
        await self._wait_until(lambda: not _is_readable(listening), _LAST_SECONDS)
        for server in self.servers:
            server.close()
        listening.close()

    async def _wait_until(self, is_done: Callable[[], bool], seconds: float) -> None:
        """Wait for a condition, a time limit or the second signal."""
        end = time.monotonic() + seconds
        while not is_done() and time.monotonic() < end and not self.force_exit:
            await asyncio.sleep(0.02)

    def _has_open_requests(self) -> bool:
        """Whether a connection waits for a response, or has not sent its first request yet."""
        return any(each.timeout_keep_alive_task is None for each in self.server_state.connections)  # type: ignore[union-attr]

    async def on_tick(self, counter: int) -> bool:
        """Once per second, close the connections of clients that neither send nor read."""
        if counter % 10 == 0:
            self._close_slow_clients(time.monotonic())
        return await super().on_tick(counter)

    def _close_slow_clients(self, now: float) -> None:
        silent, stuck = self._silent, self._stuck
        self._silent, self._stuck = {}, {}
        for connection in list(self.server_state.connections):
            cycle, transport = connection.cycle, connection.transport  # type: ignore[union-attr]
            if unsent := transport.get_write_buffer_size():
                size, since = stuck.get(connection, (-1, now))
                self._stuck[connection] = (unsent, since if size == unsent else now)
                if now - self._stuck[connection][1] > WRITE_SECONDS:
                    transport.abort()
            # uvicorn itself closes a connection that is idle between two requests, but not after half a request.
            elif (cycle is None or cycle.response_complete) and connection.timeout_keep_alive_task is None:  # type: ignore[union-attr]
                since = self._silent[connection] = silent.get(connection, now)
                if now - since > HEADER_SECONDS:
                    transport.abort()


def _is_readable(listening: socket.socket) -> bool:
    """Whether connections wait to be accepted."""
    return bool(select.select([listening], [], [], 0)[0])


class _WithLifespan:
    """Starts and stops the service with the server."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self.app(scope, receive, send)
            return
        await receive()
        self.service.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self.service.batcher.stop()
        await send({"type": "lifespan.shutdown.complete"})


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens on an address; an address that cannot be used is a user's error."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends small responses at once (TCP_NODELAY) only on a socket whose protocol is given explicitly.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise ElmoError(
            f"host {host} and port {port} cannot be used ({error.strerror}): choose another host or port",
            "host",
            "port",
        ) from error
    return listening


def serve(service: Service, listening: socket.socket) -> None:
    """Serve until a signal; raises the error if the model cannot be loaded."""
    Server(service).run([listening])
    if service.failure is not None:
        raise service.failure

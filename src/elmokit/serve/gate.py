"""The checks of every request: the Host header, the API key, limits of size and time, metrics, errors as JSON."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import re
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import ExitStack, suppress

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from elmokit.serve.errors import RequestError, dialect_of
from elmokit.serve.fields import Fields
from elmokit.serve.service import Service

log = logging.getLogger(__name__)

Handler = Callable[["Call"], Awaitable[Response]]

BODY_SECONDS = 30.0
"""A request whose body takes longer to arrive is refused."""
_WATCH_SECONDS = 0.05
"""A request that takes longer than this is dropped if its client disconnects."""
_MAX_DISCARDED, _DISCARD_SECONDS = 8, 1.0
"""The part of a refused request's body that is read before the response: up to this multiple of the body limit, for up
to this time."""
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
_REQUEST_ID = re.compile(rb"[\w.:-]{1,128}")
_GZIP_ADVICE = "send the body without Content-Encoding"


def json_response(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON response."""
    return Response(orjson.dumps(value), status, headers, "application/json")


def error_response(error: RequestError, path: str) -> Response:
    """An error in the dialect of the route."""
    dialect = dialect_of(path)
    return json_response(error.body_for(dialect), error.status_for(dialect), error.headers)


def crash_response(request: Request, _: Exception) -> Response:
    """The response to a request in which our own code failed."""
    error = RequestError(500, "the server failed; its log says why", "Backend", code="server_error")
    return error_response(error, request.url.path)


class Gate:
    """The outermost application: counts and logs requests, gives them an id, and refuses an unknown Host."""

    def __init__(self, app: ASGIApp, service: Service, routes: Collection[str]) -> None:
        self.app, self.service, self.routes = app, service, frozenset(routes)
        settings = service.settings
        hosts = (*_LOCAL_HOSTS, settings.host, *settings.allow_host)
        self.hosts = frozenset(map(str.lower, hosts)) if settings.is_loopback else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begin, status = time.perf_counter(), 0
        path: str = scope["path"]
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        request_id = given if _REQUEST_ID.fullmatch(given) else os.urandom(8).hex().encode()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                added = [(b"x-request-id", request_id)]
                if self.service.state == "draining":
                    added.append((b"connection", b"close"))
                message["headers"] = [*message.get("headers", ()), *added]
            await send(message)

        try:
            if self._is_unknown_host(headers.get(b"host", b"").decode("latin-1")):
                error = RequestError(421, "the Host header names another server: start this one with --allow-host NAME")
                await error_response(error, path)(scope, receive, send_with_id)
            else:
                await self.app(scope, receive, send_with_id)
        except Exception:  # `crash_response` answers it, unless the response had begun
            log.exception("request %s failed", request_id.decode())
        finally:
            seconds = time.perf_counter() - begin
            route = path if path in self.routes else "other"
            self.service.metrics.requests.labels(route, str(status or 499)).inc()
            self.service.metrics.request_seconds.labels(route).observe(seconds)
            self._log(request_id.decode(), scope["method"], path, status or 499, seconds)

    def _is_unknown_host(self, host: str) -> bool:
        """Whether a server on loopback was called by an unknown name: another site's page can do so (DNS rebinding)."""
        return self.hosts is not None and re.sub(r":\d*$", "", host).lower() not in self.hosts

    def _log(self, request_id: str, method: str, path: str, status: int, seconds: float) -> None:
        kind = self.service.settings.log_requests
        if kind == "text":
            log.warning("%s %s %d %.1f ms %s", method, path, status, seconds * 1e3, request_id)
        elif kind == "json":
            facts = {"time": time.time(), "id": request_id, "method": method, "path": path, "status": status}
            log.warning("%s", orjson.dumps({**facts, "seconds": round(seconds, 6)}).decode())


class Call:
    """One request to a route that computes."""

    def __init__(self, service: Service, request: Request, stack: ExitStack) -> None:
        self.service, self.request = service, request
        self.fields = Fields({})
        self.begin = time.perf_counter()
        self._stack = stack

    def reserve(self, size: int) -> None:
        """Reserve memory until the response is sent."""
        self._stack.enter_context(self.service.reserve(size, "the response"))


class Endpoint:
    """A route with a JSON body: API key, body, handler, errors; work stops if the client disconnects."""

    def __init__(self, service: Service, handle: Handler) -> None:
        self.service, self.handle = service, handle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        task, watcher, body = asyncio.current_task(), _Watcher(receive), None
        assert task is not None
        with ExitStack() as stack:
            try:
                check_key(self.service, dict(scope["headers"]))
                stack.enter_context(self.service.accept())
                call = Call(self.service, Request(scope), stack)
                body = await self._read(call, receive)
                watcher.start(task)
                call.fields = Fields.parse(body)
                body = b""  # to free its memory while the request waits
                response = await self.handle(call)
            except RequestError as error:
                response = error_response(error, scope["path"])
                if body is None and not any(name == b"expect" for name, _ in scope["headers"]):
                    await self._discard_body(receive)
            except asyncio.CancelledError:
                if not watcher.gone:
                    raise
                task.uncancel()
                self.service.metrics.dropped.inc()
                return
            finally:
                watcher.stop()
            await response(scope, receive, send)

    async def _read(self, call: Call, receive: Receive) -> bytes:
        """The body, within the limits of size and time."""
        headers, limit = call.request.headers, self.service.settings.body_bytes
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json" and not kind.endswith("+json"):
            raise RequestError(
                415, "the body must be JSON with the header Content-Type: application/json", headers=CLOSE
            )
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise RequestError(415, _GZIP_ADVICE, headers=CLOSE)
        announced = headers.get("content-length", "")
        if announced.isdigit() and int(announced) > limit:
            raise self._too_large(limit)
        reserved = call._stack.enter_context(ExitStack())
        parts, size = [], 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise RequestError(400, "the client disconnected")
                    part = message.get("body", b"")
                    size += len(part)
                    if size > limit:
                        raise self._too_large(limit)
                    reserved.close()  # reserve only what has arrived: a client may announce any size, or none
                    reserved.enter_context(self.service.reserve(size, "the request"))
                    parts.append(part)
                    if not message.get("more_body", False):
                        return parts[0] if len(parts) == 1 else b"".join(parts)
        except TimeoutError:
            raise RequestError(408, f"the body must arrive within {BODY_SECONDS:g} seconds", headers=CLOSE) from None

    def _too_large(self, limit: int) -> RequestError:
        self.service.metrics.rejected.labels("body").inc()
        return RequestError(413, f"a request may have {limit / 1e6:g} MB: send several requests", headers=CLOSE)

    async def _discard_body(self, receive: Receive) -> None:
        """Read and drop a part of the body, because a client that is still sending would not see the response."""
        left = _MAX_DISCARDED * self.service.settings.body_bytes
        with suppress(TimeoutError):
            async with asyncio.timeout(_DISCARD_SECONDS):
                while left > 0 and (message := await receive())["type"] == "http.request":
                    left -= len(message.get("body", b""))
                    if not message.get("more_body", False):
                        break


CLOSE = {"Connection": "close"}
"""For errors after which the rest of the body is not read."""


def check_key(service: Service, headers: dict[bytes, bytes]) -> None:
    """Refuse a request without the API key."""
    key = service.settings.api_key
    if key is None:
        return
    scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), key.encode()):
        service.metrics.rejected.labels("key").inc()
        raise RequestError(
            401, "the header Authorization: Bearer KEY must have the server's API key", "Unauthorized",
            code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"},
        )  # fmt: skip


class _Watcher:
    """Cancels a task if its client disconnects; watching short requests would cost more than it saves."""

    def __init__(self, receive: Receive) -> None:
        self.gone = False
        self._receive = receive
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, task: asyncio.Task[object]) -> None:
        """Begin to watch after a short time."""
        self._timer = asyncio.get_running_loop().call_later(_WATCH_SECONDS, self._begin, task)

    def stop(self) -> None:
        """Stop watching: the request is answered."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _begin(self, task: asyncio.Task[object]) -> None:
        self._task = asyncio.ensure_future(self._watch(task))

    async def _watch(self, task: asyncio.Task[object]) -> None:
        with suppress(asyncio.CancelledError):
            while (await self._receive())["type"] != "http.disconnect":
                pass
            self.gone = True
            task.cancel()

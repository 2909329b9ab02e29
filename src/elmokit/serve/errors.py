"""The errors of requests, as JSON in the dialect of the route and without paths or tracebacks.

TEI's routes answer {"error": message, "error_type": kind}, OpenAI's {"error": {"message", "type", "param", "code"}}.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

Dialect = Literal["tei", "openai"]
Kind = Literal["Validation", "Empty", "Overloaded", "Unhealthy", "Backend", "Unauthorized", "NotFound", "Method"]

_OPENAI_PATHS = ("/v1/", "/embeddings", "/pooling")
_OPENAI_STATUS = {422: 400, 424: 500}
"""OpenAI's clients expect 400 and 500 for these errors."""
_OPENAI_TYPES = {401: "authentication_error", 429: "rate_limit_error"}


class RequestError(Exception):
    """A request that is refused or failed: a status, a sentence for the client and the kind of error."""

    def __init__(
        self,
        status: int,
        message: str,
        kind: Kind = "Validation",
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        """`param`: the wrong field. `more`: further values in the body, such as words to try instead."""
        super().__init__(message)
        self.status, self.message, self.kind = status, message, kind
        self.param, self.code = param, code
        self.headers, self.more = dict(headers or {}), dict(more or {})

    def status_for(self, dialect: Dialect) -> int:
        """The status that clients of this dialect understand."""
        return _OPENAI_STATUS.get(self.status, self.status) if dialect == "openai" else self.status

    def body_for(self, dialect: Dialect) -> dict[str, Any]:
        """The JSON object that clients of this dialect expect."""
        if dialect == "tei":
            return {"error": self.message, "error_type": self.kind, **self.more}
        usual = "server_error" if self.status >= 500 or self.status == 424 else "invalid_request_error"
        kind = _OPENAI_TYPES.get(self.status, usual)
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code, **self.more}}


def dialect_of(path: str) -> Dialect:
    """The dialect in which a route answers."""
    return "openai" if path.startswith(_OPENAI_PATHS) else "tei"


def overloaded(message: str, retry_after: int) -> RequestError:
    """The error for too much work, with the time after which the client should try again."""
    return RequestError(
        429, message, "Overloaded", code="overloaded", headers={"Retry-After": str(min(max(retry_after, 1), 30))}
    )


def not_ready(message: str, retry_after: int = 2) -> RequestError:
    """The error while the server is loading or draining."""
    headers = {"Retry-After": str(retry_after), "Connection": "close"}
    return RequestError(503, message, "Unhealthy", code="not_ready", headers=headers)

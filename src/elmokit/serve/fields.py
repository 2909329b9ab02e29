"""The fields of a request, each checked when it is read; null means the default, unknown ones are ignored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from elmokit.serve.errors import RequestError

Text = str | list[str]
"""A string, or a list of tokens."""

_TOKEN_IDS = (
    "got token ids, which are those of another tokenizer: send text (with LangChain's OpenAIEmbeddings, set "
    "check_embedding_ctx_length=False)"
)


class Fields:
    """The values of one JSON object."""

    def __init__(self, values: dict[str, Any], where: str = "") -> None:
        self._values, self._where = values, where

    @classmethod
    def parse(cls, body: bytes) -> Fields:
        """The object in the body of a request."""
        try:
            values = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise RequestError(400, f"the body must be JSON: {error}") from None
        if not isinstance(values, dict):
            raise RequestError(400, f"the body must be a JSON object, got {_kind(values)}")
        return cls(values)

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def inner(self, name: str, *, required: bool = False) -> Fields:
        """An object inside this one."""
        value = self._values.get(name)
        if value is None and not required:
            value = {}
        if not isinstance(value, dict):
            raise self.wrong_type(name, "an object", value)
        return Fields(value, f"{self._where}{name}.")

    def flag(self, name: str, default: bool) -> bool:
        """A boolean value."""
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong_type(name, "true or false", value)
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """A string; required if there is no default."""
        value = self._values.get(name, default)
        value = default if value is None else value
        if not isinstance(value, str):
            raise self.wrong_type(name, "a string", value)
        return value

    def choice(self, name: str, default: str, allowed: Sequence[str]) -> str:
        """One of the allowed strings."""
        value = self.text(name, default)
        if value not in allowed:
            raise self.refused(name, f"must be one of {', '.join(allowed)}, got {_shown(value)}")
        return value

    def integer(self, name: str, default: int | None = None, *, least: int = 0, most: int | None = None) -> int | None:
        """A whole number within bounds, or the default."""
        value = self._values.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong_type(name, "a whole number", value)
        if value < least or (most is not None and value > most):
            rule = f"at least {least}" if most is None else f"from {least} to {most:,}"
            raise self.refused(name, f"must be {rule}, got {_shown(value)}")
        return value

    def required_integer(self, name: str, *, least: int, most: int) -> int:
        """A whole number within bounds; refused if it is missing."""
        value = self.integer(name, least=least, most=most)
        if value is None:
            raise self.wrong_type(name, "a whole number", None)
        return value

    def layer(self, name: str = "layer", *, layers: int, allow_all: bool) -> str | int | None:
        """mix, top, the number of a layer or, with `allow_all`, all; None if the request names no layer."""
        value = self._values.get(name)
        names = ("mix", "top", "all") if allow_all else ("mix", "top")
        if value is None or value in names:
            return value if isinstance(value, str) else None
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < layers:
            return value
        raise self.refused(name, f"must be {', '.join(names)} or 0 to {layers - 1}, got {_shown(value)}")

    def texts(self, name: str, most: int) -> list[Text]:
        """One text or a list of them, each a string or a list of tokens."""
        value = self._values.get(name)
        if isinstance(value, str):
            return [value]
        if not isinstance(value, list):
            raise self.wrong_type(name, "a string or a list of strings", value)
        if not value:
            raise RequestError(400, f"{self._where}{name} must not be empty", "Empty", param=name)
        if len(value) > most:
            raise self.refused(name, f"may have {most:,} texts, got {len(value):,}: send several requests")
        for each in value:
            if not isinstance(each, str):
                self._check_tokens(name, each)
        return value

    def sentence(self, name: str) -> Text:
        """One text: a string or a list of tokens."""
        value = self._values.get(name)
        if not isinstance(value, str):
            self._check_tokens(name, value)
        return value  # type: ignore[return-value]  # checked

    def _check_tokens(self, name: str, value: object) -> None:
        items = value if isinstance(value, list) else [value]
        if items and all(isinstance(each, int) and not isinstance(each, bool) for each in items):
            raise RequestError(400, f"{self._where}{name}: {_TOKEN_IDS}", param=name)
        if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
            raise self.wrong_type(name, "text: strings, or lists of tokens that are not empty", value)

    def wrong_type(self, name: str, rule: str, value: object) -> RequestError:
        """The error for a value of the wrong type."""
        got = "nothing" if name not in self._values else _kind(value)
        return RequestError(400, f"{self._where}{name} must be {rule}, got {got}", param=name)

    def refused(self, name: str, rule: str) -> RequestError:
        """The error for a value that has the right type but is not allowed."""
        return RequestError(422, f"{self._where}{name} {rule}", param=name)


def _kind(value: object) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")


def _shown(value: object) -> str:
    if isinstance(value, list | dict):  # of any depth
        return _kind(value)
    text = orjson.dumps(value).decode() if not isinstance(value, int) else str(value)
    return text if len(text) <= 60 else f"{text[:60]}…"

"""Which implementation of an operation runs, and why; `forced` selects one in order to compare implementations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

from elmokit.errors import ElmoError

PathName = Literal["packed", "native", "cuda"]
_forced: ContextVar[PathName | None] = ContextVar("forced", default=None)


@dataclass(frozen=True)
class PathChoice:
    """A path and the reason for it."""

    path: PathName
    reason: Callable[[], str]

    @property
    def why(self) -> str:
        """The reason in words for the user, computed only when it is needed."""
        return self.reason()


def forced_choice() -> PathChoice | None:
    """The path that `forced` selects here, or None."""
    path = _forced.get()
    return None if path is None else PathChoice(path, lambda: "asked for")


@contextmanager
def forced(path: PathName) -> Iterator[None]:
    """Use this path and no other inside the block, in order to compare paths."""
    if path not in ("packed", "native", "cuda"):
        raise ElmoError(f"a path must be packed, native or cuda, got {path!r}")
    token = _forced.set(path)
    try:
        yield
    finally:
        _forced.reset(token)

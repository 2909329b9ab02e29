"""What a mistake ends in, and a disk that is full."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from elmokit import ElmoError
from elmokit.storage import atomic


def refusal(call: Callable[[], object], *facts: str) -> str:
    """The one sentence of the ElmoError that a call ends in, which contains the facts."""
    with pytest.raises(ElmoError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for fact in facts:
        assert fact in message, message
    return message


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """No file may grow beyond this size: the kernel refuses it."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def full_disk(size: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The same, and what the kernel says counts as a full disk."""
    monkeypatch.setattr(atomic, "_FULL", (*atomic._FULL, errno.EFBIG))
    with files_of_at_most(size):
        yield

"""Strings for file formats that cannot store every Python string."""

import re
from typing import Any

_SURROGATE = re.compile("[\ud800-\udfff]")


def without_surrogates(text: str) -> str:
    """The text with U+FFFD for each lone surrogate, which UTF-8 cannot encode."""
    return _SURROGATE.sub("\ufffd", text)


def without_nul(text: str) -> str:
    """The text with U+2400 for NUL, where HDF5 would end the string, and without surrogates."""
    return without_surrogates(text).replace("\0", "\u2400")


def as_tokens(value: Any) -> list[str]:  # noqa: ANN401 - from a file
    """A list of words that was read from a file, refused where it is something else."""
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise ValueError(f"tokens must be a list of words, got {type(value).__name__}")
    return value

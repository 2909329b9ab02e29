"""What a task is trained on, one example of each kind; `line` is its line in the file, for messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Tokens = tuple[str, ...]
Kind = Literal["classify", "tag", "pair"]


@dataclass(frozen=True)
class TextExample:
    """A text and its class."""

    tokens: Tokens
    label: str | None = None
    line: int = 0


@dataclass(frozen=True)
class TaggedExample:
    """A sentence and a tag for each of its tokens, as the file spells them."""

    tokens: Tokens
    tags: Tokens | None = None
    line: int = 0


@dataclass(frozen=True)
class PairExample:
    """Two sentences and their relation: a class, or a number where it is a similarity."""

    first: Tokens
    second: Tokens
    label: str | None = None
    line: int = 0


Example = TextExample | TaggedExample | PairExample

"""Sentences on a terminal: the word marked, the rest cut to the width that there is."""

from __future__ import annotations

import shutil
import sys
import unicodedata
from collections.abc import Sequence

_BOLD, _PLAIN = "\033[1m", "\033[0m"
_NARROW = 40
_WIDE = frozenset("WF")
_CUT = "…"
_JOINERS = "\u200c\u200d"
"""Invisible, and part of emoji and of the shapes of letters."""


def width_of(text: str) -> int:
    """The columns that a text takes on a terminal.

    >>> width_of("bank"), width_of("银行")
    (4, 4)
    """
    return sum(
        0 if unicodedata.combining(c) or unicodedata.category(c) in ("Mn", "Me", "Cf") else 1 + _is_wide(c)
        for c in text
    )


def terminal_width() -> int | None:
    """The columns of the terminal that is written to; None where there is none, and nothing is to be cut."""
    return max(shutil.get_terminal_size().columns, _NARROW) if sys.stdout.isatty() else None


def joined(tokens: Sequence[str]) -> str:
    """Tokens as text: a space between them, but none between Chinese, Japanese or full-width ones.

    >>> joined(["we", "like", "tea"]), joined(["我", "爱", "喝茶", "。"])
    ('we like tea', '我爱喝茶。')
    """
    parts: list[str] = []
    for token in tokens:
        if parts and not (parts[-1] and token and _is_wide(parts[-1][-1]) and _is_wide(token[0])):
            parts.append(" ")
        parts.append(token)
    return "".join(parts)


def in_context(tokens: Sequence[str], position: int, *, width: int | None = None, bold: bool = False) -> str:
    """A sentence with one token marked, cut on both sides to so many columns.

    >>> in_context("the boys play in the park".split(), 2)
    'the boys [play] in the park'
    >>> in_context("all the boys play in the old park".split(), 3, width=24)
    '…he boys [play] in the…'
    """
    before, after = _glued(tokens[:position], tokens[position], tokens[position + 1 :])
    word = _printable(tokens[position])
    marked = f"{_BOLD}{word}{_PLAIN}" if bold else f"[{word}]"
    before, after = _printable(before), _printable(after)
    if width is not None:
        room = max(width - width_of(word) - 2 * (not bold), 2)
        # A side that is short leaves its room to the other.
        left = min(width_of(before), max(room // 2, room - width_of(after)))
        before, after = _cut_left(before, left), _cut_right(after, room - left)
    return f"{before}{marked}{after}"


def _glued(before: Sequence[str], word: str, after: Sequence[str]) -> tuple[str, str]:
    """The two sides of a word as text, with the space towards it where there is one."""
    left, right = joined(before), joined(after)
    left += joined([left[-1:], word])[len(left[-1:]) : -len(word) or None] if left else ""
    right = (joined([word, right[:1]])[len(word) : -1] if right else "") + right
    return left, right


def _cut_right(text: str, width: int) -> str:
    if width_of(text) <= width:
        return text
    kept, used = [], 1
    for character in text:
        used += width_of(character)
        if used > width:
            break
        kept.append(character)
    return "".join(kept).rstrip() + _CUT if width > 0 else ""


def _cut_left(text: str, width: int) -> str:
    if width_of(text) <= width:
        return text
    kept, used = [], 1
    for character in reversed(text):
        used += width_of(character)
        if used > width:
            break
        kept.append(character)
    return _CUT + "".join(reversed(kept)) if width > 0 else ""


def _is_wide(character: str) -> bool:
    return unicodedata.east_asian_width(character) in _WIDE


def _printable(text: str) -> str:
    """The text without characters that would move the cursor or turn the line around."""
    return "".join(c if c.isprintable() or c in _JOINERS else "\ufffd" for c in text)

"""Sentences on a terminal, with one word marked and cut to the width of the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from elmokit.messages import display_width, is_wide, printable

_BOLD, _PLAIN = "\033[1m", "\033[0m"
_CUT = "…"


def join_tokens(tokens: Sequence[str]) -> str:
    """Tokens as text, joined by spaces except between Chinese, Japanese and full-width characters.

    >>> join_tokens(["we", "like", "tea"]), join_tokens(["我", "爱", "喝茶", "。"])
    ('we like tea', '我爱喝茶。')
    """
    parts: list[str] = []
    for token in tokens:
        if parts and not (parts[-1] and token and is_wide(parts[-1][-1]) and is_wide(token[0])):
            parts.append(" ")
        parts.append(token)
    return "".join(parts)


def plain_sentence(tokens: Sequence[str], width: int | None = None) -> str:
    """A sentence without control characters, cut to a width in terminal columns."""
    text = printable(join_tokens(tokens))
    return text if width is None else _cut_end(text, width)


def mark_token(tokens: Sequence[str], position: int, *, width: int | None = None, bold: bool = False) -> str:
    """A sentence with one token marked, cut on both sides to a width in terminal columns.

    >>> mark_token("the boys play in the park".split(), 2)
    'the boys [play] in the park'
    >>> mark_token("all the boys play in the old park".split(), 3, width=24)
    '…he boys [play] in the…'
    """
    # Both parts include the space next to the word, if there is one.
    before = join_tokens(tokens[: position + 1])[: -len(tokens[position]) or None]
    after = join_tokens(tokens[position:])[len(tokens[position]) :]
    before, word, after = map(printable, (before, tokens[position], after))
    marked = f"{_BOLD}{word}{_PLAIN}" if bold else f"[{word}]"
    if width is not None:
        free = max(width - display_width(word) - 2 * (not bold), 2)
        # Columns that the shorter part does not need are for the other part.
        left = min(display_width(before), max(free // 2, free - display_width(after)))
        before, after = _cut_end(before[::-1], left)[::-1], _cut_end(after, free - left)
    return f"{before}{marked}{after}"


def _cut_end(text: str, width: int) -> str:
    if display_width(text) <= width:
        return text
    end, used = 0, 1
    while end < len(text) and used + display_width(text[end]) <= width:
        used += display_width(text[end])
        end += 1
    return text[:end].rstrip() + _CUT if width > 0 else ""

"""Sentences on a terminal: never wider than it, the word always there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit.analyse.sentence_display import join_tokens, mark_token
from elmokit.messages import display_width

TOKENS = st.lists(st.sampled_from(["a", "bank", "river", "银行", "。", "long-winded", "é"]), min_size=1, max_size=40)


@given(tokens=TOKENS, place=st.integers(0, 39), width=st.integers(20, 60))
def test_it_fits_and_has_the_word(tokens, place, width) -> None:
    place %= len(tokens)
    text = mark_token(tokens, place, width=width)
    assert display_width(text) <= width
    assert f"[{tokens[place]}]" in text
    whole = mark_token(tokens, place)
    assert whole.replace("[", "").replace("]", "") == join_tokens(tokens)
    if display_width(whole) <= width:
        assert text == whole


def test_what_would_move_the_cursor_is_not_printed() -> None:
    text = mark_token(["a\x1b[2J", "bank", "\u202eright\r"], 1)
    assert text == "a\ufffd[2J [bank] \ufffdright\ufffd"


def test_marks_on_a_terminal() -> None:
    assert mark_token(["a", "bank"], 1, width=20, bold=True) == "a \033[1mbank\033[0m"


@pytest.mark.parametrize(("text", "width"), [("bank", 4), ("银行", 4), ("e\u0301", 1), ("", 0), ("ｗ", 2)])
def test_columns(text, width) -> None:
    assert display_width(text) == width

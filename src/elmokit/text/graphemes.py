r"""Character classes for the tokenisers, as the content of the brackets in a regular expression.

Python's `\w` has no combining marks and cannot exclude a script, so the classes are collected from `unicodedata`.
"""

import re
import unicodedata
from collections.abc import Callable
from functools import cache

HAN = r"々〆〇\u3021-\u3029\u3038-\u303b\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
KANA = r"\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9d\U0001aff0-\U0001b16f"
HANGUL = r"\u3131-\u318e\uac00-\ud7a3"
BOPOMOFO = r"\u02ea\u02eb\u3105-\u312f\u31a0-\u31bf"
JAMO = (
    r"[\u1100-\u115f\ua960-\ua97c]+[\u1160-\u11a7\ud7b0-\ud7c6]*[\u11a8-\u11ff\ud7cb-\ud7fb]*"
    r"|[\u1160-\u11ff\ud7b0-\ud7c6\ud7cb-\ud7fb]"
)
"""One Hangul syllable in decomposed letters (an expression, not a class)."""

_PICTOGRAPHS = (
    r"©®‼⁉™ℹ〰〽㊗㊙\u2190-\u21ff\u2300-\u23ff\u2460-\u24ff\u25a0-\u27bf\u2900-\u297f\u2b00-\u2bff"
    r"\U0001f000-\U0001fbff"
)
_MODIFIERS = r"[\ufe0e\ufe0f\u20e3\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]*"
EMOJI = (
    r"[\U0001f1e6-\U0001f1ff]{2}"  # a flag: two regional indicators
    r"|[0-9#*]\ufe0f?\u20e3"  # a keycap
    rf"|[{_PICTOGRAPHS}]{_MODIFIERS}(?:\u200d[{_PICTOGRAPHS}]{_MODIFIERS})*"  # a picture, skin tone, joined pictures
)
"""One emoji or pictograph with its modifiers (an expression, not a class)."""

_JOINERS = "\u00ad\u200c\u200d\u2060\uff9e\uff9f"
"""Soft hyphen, zero-width joiners and half-width voicing marks: they do not separate words."""

_ENCLOSED = frozenset([*range(0x2460, 0x2500), *range(0x2776, 0x2794), *range(0x3200, 0x3400)])
"""Numbers in circles and brackets, which `str.isalnum` counts as digits but readers see as symbols."""

# Whole blocks above the basic plane: hundreds of exact ranges would slow down every lookup.
_ASTRAL_WORDS = r"\U00010000-\U0001afef\U0001b170-\U0001cfff\U0001d400-\U0001d7ff\U0001df00-\U0001efff"
_ASTRAL_MARKS = r"\U0001d165-\U0001d1ad\U000e0100-\U000e01ef"


def _collect(belongs: Callable[[str], bool]) -> str:
    """The characters of the basic plane for which `belongs` is true, as ranges."""
    ranges: list[list[int]] = []
    for code in range(0x10000):
        if belongs(chr(code)):
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
    return "".join(f"\\u{first:04x}-\\u{last:04x}" for first, last in ranges)


def _is_mark(char: str) -> bool:
    return unicodedata.category(char)[0] == "M" or char in _JOINERS


@cache
def marks() -> str:
    """The class of characters that are never a token alone: combining marks, variation selectors, joiners."""
    return _collect(_is_mark) + _ASTRAL_MARKS


@cache
def word_characters(*without: str) -> str:
    r"""The class of letters, digits and marks of all scripts, without the classes in `without`.

    >>> import re
    >>> re.findall(f"[{word_characters(HAN)}]+", "naïve 東京 नमस्ते")
    ['naïve', 'नमस्ते']
    """
    excluded = re.compile(f"[{''.join(without)}]" if without else "(?!)")

    def belongs(char: str) -> bool:
        if excluded.match(char):
            return False
        return (char.isalnum() and ord(char) not in _ENCLOSED) or _is_mark(char)

    return _collect(belongs) + _ASTRAL_WORDS + _ASTRAL_MARKS

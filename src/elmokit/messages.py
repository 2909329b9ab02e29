"""Numbers, times, names and tables as messages show them.

Columns are counted by our own code: wcwidth would be a dependency for one line.
"""

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence

_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that move the cursor, change colours or change the direction of writing."""


def printable(text: str) -> str:
    r"""A line for the terminal without control characters, since names of files, tensors and labels are not trusted.

    >>> printable("a\x1b[31m red name")
    'a\ufffd[31m red name'
    """
    return _CONTROLS.sub("\ufffd", text)


def json_line(record: Mapping[str, object]) -> str:
    r"""A record as one line of JSON with control characters escaped, since texts are not trusted.

    >>> print(json_line({"word": "naïve \u202e"}))
    {"word": "naïve \u202e"}
    """
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(record, ensure_ascii=False))


def is_wide(character: str) -> bool:
    """Whether a character takes two columns on a terminal, as Chinese ones do."""
    return unicodedata.east_asian_width(character) in ("W", "F")


def display_width(text: str) -> int:
    """The number of columns that a text takes on a terminal.

    >>> display_width("bank"), display_width("银行")
    (4, 4)
    """
    return sum(
        0 if unicodedata.combining(c) or unicodedata.category(c) in ("Mn", "Me", "Cf") else 1 + is_wide(c) for c in text
    )


def padded(text: str, width: int, *, right: bool = False) -> str:
    """The text padded with spaces to this number of columns: after it or, with `right`, before it."""
    spaces = " " * (width - display_width(text))
    return spaces + text if right else text + spaces


def aligned(rows: Sequence[Sequence[object]], *, right: bool = False) -> list[str]:
    """Rows with aligned columns, printable; with `right`, all columns but the first are aligned to the right.

    >>> aligned([["word", "count"], ["银行", 7]], right=True)
    ['word  count', '银行      7']
    """
    table = [[printable(str(cell)) for cell in row] for row in rows]
    widths = [max(map(display_width, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(
            padded(cell, width, right=right and number > 0)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]


def counted(number: int, noun: str) -> str:
    """The number and the noun: 1 sentence, 2,000 sentences."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """A length of time.

    >>> [duration(seconds) for seconds in (7.6, 200, 3780, 100_000)]
    ['8 s', '3 min 20 s', '1 h 03 min', '1 d 03 h']
    """
    whole = round(seconds)
    for size, unit, part, part_unit in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // part:02d} {part_unit}"
    return f"{whole} s"


def quantity(value: float) -> str:
    """A large number in about three digits.

    >>> [quantity(value) for value in (7.25, 999.7, 12_345, 999_960, 2_500_000, 1e10)]
    ['7.2', '1k', '12.3k', '1M', '2.5M', '10G']
    """
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * size:
            digits = max(0, 2 - len(str(int(value / size + 0.0005))) + 1)
            return f"{float(f'{value / size:.{digits}f}'):g}{unit}"
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}"


def perplexity(value: float) -> str:
    """A perplexity in four digits.

    >>> [perplexity(value) for value in (12.3456, 281.04, 50_002.7, 3.2e7, float("nan"))]
    ['12.35', '281.0', '50,003', '3.2e+07', 'nan']
    """
    if value >= 1e6:
        return f"{value:.3g}"
    return f"{value:.2f}" if value < 100 else f"{value:.1f}" if value < 1000 else f"{value:,.0f}"

"""Wording that messages share."""


def counted(number: int, noun: str) -> str:
    """The number and the noun: 1 sentence, 2,000 sentences."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"

"""Options as fields of a dataclass: one function checks their types and bounds."""

from dataclasses import dataclass
from typing import Literal

import pytest

from elmokit import ElmoError
from elmokit.options import check_options, option


@dataclass(frozen=True)
class Options:
    size: int = option(3, "A size.", least=1)
    share: float = option(0.5, "A share.", least=0, most=1)
    dropout: float = option(0.1, "A probability.", least=0, below=1)
    kind: Literal["a", "b"] = option("a", "A kind.")
    on: bool = option(True, "A switch.")
    name: str | None = option(None, "A name.")

    def __post_init__(self) -> None:
        check_options(self)


def test_values_get_the_type_of_their_field():
    options = Options(size=4.0, share=1, name="x")
    assert (options.size, type(options.size)) == (4, int)
    assert (options.share, type(options.share)) == (1.0, float)
    assert Options().name is None


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("size", 0, "must be at least 1, got 0"),
        ("size", 1.5, "must be a whole number, got 1.5"),
        ("size", True, "must be a whole number, got True"),
        ("size", None, "must be a whole number, got None"),
        ("share", 2, "must be from 0 to 1, got 2"),
        ("share", float("nan"), "must be a finite number, got nan"),
        ("share", 10**400, "must be a finite number"),
        ("dropout", 1, "must be at least 0 and below 1, got 1"),
        ("kind", "c", "must be one of a, b, got 'c'"),
        ("on", 1, "must be true or false, got 1"),
        ("name", 3, "must be a text, got 3"),
    ],
)
def test_what_is_refused(name, value, rule):
    with pytest.raises(ElmoError, match=f"{name} {rule}") as caught:
        Options(**{name: value})
    assert caught.value.arguments == (name,)

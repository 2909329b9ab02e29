"""Options as fields of a dataclass, each with a default, its help and its bounds, and one function that checks them.

@dataclass(frozen=True)
class TrainOptions:
    epochs: int = option(10, "Number of passes over the data.", least=1)

    def __post_init__(self) -> None:
        check_options(self)
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import MISSING, field, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from elmokit.errors import ElmoError

REQUIRED = MISSING
"""The default of an option that must be given."""


def option(
    default: Any,  # noqa: ANN401
    help: str,
    *,
    least: float | None = None,
    most: float | None = None,
    below: float | None = None,
    **more: Any,  # noqa: ANN401
) -> Any:  # noqa: ANN401
    """A field with its help and the bounds of its value; `more` is further metadata, such as for the command line.

    The command line reads `metavar`; `shown`, the default in words; `names`, such as "--fast/--slow"; and `blank`,
    true if the value may be an empty text.
    """
    return field(default=default, metadata={"help": help, "least": least, "most": most, "below": below, **more})


def argument(help: str, metavar: str, default: Any = REQUIRED, **more: Any) -> Any:  # noqa: ANN401
    """A field that is a positional argument on the command line."""
    return option(default, help, metavar=metavar, positional=True, **more)


def check_options(options: Any) -> None:  # noqa: ANN401 - any dataclass
    """Refuse a value of the wrong type or outside the bounds of its field; convert numbers to the type of the field."""
    for item in fields(options):
        value = getattr(options, item.name)
        base, optional = base_type(type(options), item.name)
        if "help" in item.metadata and not (optional and value is None):
            object.__setattr__(options, item.name, check_value(item.name, value, base, item.metadata))


def check_value(name: str, value: Any, kind: Any, bounds: Mapping[str, Any] = {}) -> Any:  # noqa: ANN401
    """The value, a number converted to its type; refused if it has another type or is outside its bounds."""
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise ElmoError(f"{name} must be one of {', '.join(get_args(kind))}, got {value!r}", name)
        return value
    if kind is bool or kind is str:
        if not isinstance(value, kind):
            raise ElmoError(f"{name} must be {'true or false' if kind is bool else 'a text'}, got {value!r}", name)
        return value
    if kind is not int and kind is not float:
        return value
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and not abs(value) <= sys.float_info.max:  # nan compares false
        raise ElmoError(f"{name} must be a finite number, got {value!r}", name)
    if not number or (kind is int and value != int(value)):
        raise ElmoError(f"{name} must be a {'whole ' if kind is int else ''}number, got {value!r}", name)
    least, most, below = (bounds.get(name) for name in ("least", "most", "below"))
    low, high = least is not None and value < least, most is not None and value > most
    if low or high or (below is not None and value >= below):
        at_least = shown_value(least)
        rule = f"at least {at_least}" if most is None else f"from {at_least} to {shown_value(most)}"
        and_below = "" if below is None else f" and below {shown_value(below)}"
        raise ElmoError(f"{name} must be {rule}{and_below}, got {value!r}", name)
    return kind(value)


def base_type(owner: type, name: str) -> tuple[Any, bool]:
    """The type of a field without `| None`, and whether it had `| None`."""
    hint = _hints(owner)[name]
    if get_origin(hint) in (Union, UnionType):
        inner = [each for each in get_args(hint) if each is not NoneType]
        return (inner[0] if len(inner) == 1 else hint), NoneType in get_args(hint)
    return hint, False


@cache
def _hints(owner: type) -> dict[str, Any]:
    return get_type_hints(owner)


def shown_value(value: object) -> str:
    """A default as `--help` shows it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)

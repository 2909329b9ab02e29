"""A griffe extension for the API reference: examples become code blocks, and options get their help texts."""

import ast
import re
from typing import Any

import griffe

DOCTEST = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", flags=re.DOTALL | re.MULTILINE)
FLAG = re.compile(r"  # doctest: \+\w+")


class Docstrings(griffe.Extension):
    """Fences the doctest lines of every docstring, and documents dataclass fields made by `option`."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:  # noqa: ANN401 - whatever griffe passes
        """Fence the examples of one object."""
        if obj.docstring:
            obj.docstring.value = DOCTEST.sub(lambda found: _fenced(found[0]), obj.docstring.value)

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:  # noqa: ANN401
        """Show `option(default, help)` as a field with this default and the help text as its docstring."""
        call = attr.value
        if isinstance(call, griffe.ExprCall) and str(call.function) == "option":
            default, text = call.arguments[:2]
            attr.value = default
            if isinstance(text, str):  # a literal, not the name of one
                attr.docstring = griffe.Docstring(ast.literal_eval(text), parent=attr)


def _fenced(example: str) -> str:
    return f"```pycon\n{FLAG.sub('', example)}\n```"

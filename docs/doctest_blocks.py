"""A griffe extension for the API reference: doctest lines in docstrings become code blocks, without their flags."""

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", flags=re.DOTALL | re.MULTILINE)
FLAG = re.compile(r"  # doctest: \+\w+")


class DoctestBlocks(griffe.Extension):
    """Fences the examples of every docstring."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:  # noqa: ANN401 - whatever griffe passes
        """Fence the examples of one object."""
        if obj.docstring:
            obj.docstring.value = DOCTEST.sub(lambda found: _fenced(found[0]), obj.docstring.value)


def _fenced(example: str) -> str:
    return f"```pycon\n{FLAG.sub('', example)}\n```"

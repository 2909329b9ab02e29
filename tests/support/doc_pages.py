"""Running a page of the docs as a reader does: each block in order, and what it prints is what the page shows."""

import io
import re
import shlex
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from elmokit.cli import main

PAGES = Path(__file__).parent.parent.parent / "docs" / "integrations"
_BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)


def run_page(name: str) -> dict[str, object]:
    """Run the Python and the commands of docs/integrations/NAME, compare what they print, and return their names."""
    namespace: dict[str, object] = {"__name__": "example"}
    compared = 0
    for kind, body, shown in _BLOCK.findall((PAGES / name).read_text(encoding="utf-8")):
        printed = io.StringIO()
        with redirect_stdout(printed):
            if kind == "python":
                exec(compile(body, name, "exec"), namespace)
            else:
                for line in body.replace("\\\n", " ").splitlines():
                    _run(line)
        if shown:
            assert printed.getvalue() == shown, body
            compared += 1
    assert compared, f"{name} shows no output"
    return namespace


def _run(line: str) -> None:
    if line.startswith("pip install "):
        return
    assert line.startswith("elmo "), line
    with pytest.raises(SystemExit) as stop:
        main(shlex.split(line)[1:])
    assert not stop.value.code, line

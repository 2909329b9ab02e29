"""The examples of a page in docs/integrations, run as printed."""

import re
from pathlib import Path

import pytest

PAGES = Path(__file__).parent.parent.parent / "docs" / "integrations"
# A block of text directly below an example is what it prints.
EXAMPLE = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<printed>.*?)```\n)?", re.DOTALL)


def run_page(name: str, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    """Run the examples of a page in order, compare what each prints, and return their names."""
    namespace: dict[str, object] = {"__name__": "example"}
    examples = list(EXAMPLE.finditer((PAGES / name).read_text(encoding="utf-8")))
    assert examples, f"{name} has no example"
    for number, example in enumerate(examples):
        capsys.readouterr()
        exec(compile(example["code"], f"{name} example {number}", "exec"), namespace)
        if example["printed"] is not None:
            assert capsys.readouterr().out == example["printed"]
    return namespace

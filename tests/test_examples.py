"""The examples run; what they print is looked at by people."""

import re
import sys
from pathlib import Path

import pytest
import torch

from elmokit import Elmo

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def demo(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import demo

    monkeypatch.setattr(demo, "RECIPE", {**demo.RECIPE, "steps": 3, "heldout_fraction": 0.001})
    monkeypatch.setattr(demo, "MODEL", tmp_path / "model")
    yield demo
    sys.modules.pop("demo", None)


def test_the_demo_trains_saves_and_shows(demo, capsys):
    threads = torch.get_num_threads()
    try:
        demo.show(demo.model())
    finally:
        torch.set_num_threads(threads)
    out = capsys.readouterr().out
    assert "every cosine is 1.00" in out
    assert len(re.findall(r"^    [01]\.\d{3}  .* bank ", out, re.MULTILINE)) == len(demo.SENTENCES)
    assert Elmo.load(demo.MODEL).vocab is not None

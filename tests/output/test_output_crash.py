"""Runs that are killed and resumed end with the same file as runs that are not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.output_samples import FORMATS

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the runs to kill are forked")


def crash(folder: Path, mode: str, name: str, layout: str) -> int:
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    here = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, here / "support" / "crash_runner.py", folder, mode, name, layout],
        env={**os.environ, "PYTHONPATH": f"{here.parent / 'src'}{os.pathsep}{here}"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


# The formats differ in the last step alone, from the stored vectors to the output.
@pytest.mark.parametrize(
    ("name", "layout"), [FORMATS[0], *(pytest.param(*each, marks=pytest.mark.slow) for each in FORMATS[1:])]
)
def test_killed_at_random_moments(tmp_path, name, layout):
    assert crash(tmp_path, "random", name, layout) > 3


@pytest.mark.parametrize("name", [pytest.param("out.h5", marks=pytest.mark.slow), "out.jsonl"])
def test_killed_at_every_step(tmp_path, name):
    assert crash(tmp_path, "every", name, "elmokit") > 30

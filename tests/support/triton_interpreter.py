"""Triton's kernels on the CPU: a script of test cases in a process in which Triton interprets them.

The kernels for the CPU are off: what a GPU leaves to torch is torch's here too.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton: run make test-triton")


def run_interpreted(script: str) -> None:
    """Run a script of this folder, which fails if a kernel is wrong."""
    path = Path(__file__).with_name(script)
    folders = os.pathsep.join([str(path.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {
        **os.environ,
        "PYTHONPATH": folders,
        "TRITON_INTERPRET": "1",
        "ELMOKIT_NATIVE": "0",
        "OMP_NUM_THREADS": "1",
    }
    result = subprocess.run(
        [sys.executable, "-W", "ignore", path], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr

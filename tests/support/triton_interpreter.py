"""Triton's kernels on the CPU: a script of test cases in a process in which Triton interprets them."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton; the GPU tests have the same cases")


def run_interpreted(script: str) -> None:
    """Run a script of this folder, which fails if a kernel is wrong."""
    path = Path(__file__).with_name(script)
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    result = subprocess.run([sys.executable, path], env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr

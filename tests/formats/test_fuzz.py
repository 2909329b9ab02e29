"""Every file of every format, damaged at random: Elmo.load gives a model that encodes, or an ElmoError."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.fuzz_loaders import PARTS, build, outcome, run_case

CASES = [(kind, name) for kind in PARTS for name in PARTS[kind]]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return build(tmp_path_factory.mktemp("fuzz"))


def test_undamaged(models):
    assert {kind: outcome(path) for kind, path in models.items()} == dict.fromkeys(PARTS, "vectors")


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_damaged(models, kind, name):
    @settings(max_examples=5)
    @given(st.integers(0, 2**32))
    def check(seed):
        assert run_case(models[kind], name, seed) in ("vectors", "refused")

    check()


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has no limit of memory for a process")
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_damaged_within_bounds(kind, name):
    """In a process that may take a gigabyte of memory, and ten seconds for a file."""
    command = [sys.executable, "-m", "support.fuzz_loaders", f"{kind}/{name}", "0", "300"]
    done = subprocess.run(command, cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=True)
    tally = json.loads(done.stdout.splitlines()[-1].partition(": ")[2])
    assert tally.keys() <= {"vectors", "refused"}, done.stdout
    assert sum(tally.values()) == 300

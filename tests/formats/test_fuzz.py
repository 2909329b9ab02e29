"""Every file of every format, damaged at random: Elmo.load gives a model that encodes, or an ElmoError."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.fuzz_loaders import PARTS, build, outcome, run_case


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return build(tmp_path_factory.mktemp("fuzz"))


def test_undamaged(models):
    assert {kind: outcome(path) for kind, path in models.items()} == dict.fromkeys(PARTS, "vectors")


@pytest.mark.parametrize("examples", [5, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in PARTS for name in PARTS[kind]])
def test_damaged(models, kind, name, examples):
    @settings(max_examples=examples)
    @given(st.integers(0, 2**32))
    def check(seed):
        assert run_case(models[kind], name, seed) in ("vectors", "refused")

    check()

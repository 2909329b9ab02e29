"""Attention inside segments: what each token sees, and the Triton kernels in Triton's interpreter."""

from itertools import accumulate

import pytest
import torch

from elmokit.ops.attention import Segments, attend
from support.attention_cases import CASES
from support.triton_interpreter import needs_triton, run_interpreted


@pytest.mark.parametrize("case", CASES)
def test_what_each_token_sees_is_one_run_of_tokens(case):
    """The plain reference sees exactly the tokens from the first to the last that the kernels are given."""
    lengths, ways, heads, size, window = CASES[case]
    segments = Segments(list(accumulate(lengths, initial=0)), ways)
    first, last, positions = segments.reach(window).tolist()
    q, k = torch.zeros(2, sum(lengths), heads, size)
    v = torch.eye(sum(lengths)).unsqueeze(1).expand(-1, heads, -1)  # so that a mean of values says who was seen
    seen = attend(q, k, v, segments, window)[:, 0] > 0
    for token, row in enumerate(seen):
        assert row.nonzero()[:, 0].tolist() == list(range(first[token], last[token] + 1))
    assert positions == segments.positions.tolist()
    assert sorted(first) == first
    assert sorted(last) == last


@needs_triton
def test_the_kernels_in_the_interpreter():
    run_interpreted("attention_cases.py")

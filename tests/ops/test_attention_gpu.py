"""Attention inside segments on a CUDA device against the plain reference; `pytest -m gpu` runs it."""

import pytest
import torch

from support.attention_cases import CASES, compiled_block_error, errors

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_the_kernels_equal_the_reference_with_all_gradients(case, dtype, tolerance):
    assert max(errors(case, "cuda", dtype).values()) < tolerance


@pytest.mark.filterwarnings("ignore")  # what torch's compiler says about torch itself
def test_a_block_is_compiled_whole():
    assert compiled_block_error("cuda", "inductor") < 1e-4

"""Matrix products by the compiled kernels."""

import pytest
import torch

from elmokit.ops.int8 import Int8Matrix
from elmokit.ops.native.linear import linear_native
from support.native_cases import (
    draw,
    needs_kernels,
    quantised_rows,
    use_threads,
)

pytestmark = needs_kernels


@pytest.fixture
def every_thread(monkeypatch):
    return use_threads(monkeypatch)


@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("inputs", [1, 7, 100, 2050])
@pytest.mark.parametrize("outputs", [1, 15, 130])
def test_linear(inputs, outputs, int8, threads, every_thread):
    x, bias = draw(67, inputs, seed=1), draw(outputs, seed=2)
    plain = draw(outputs, inputs, seed=3)
    weight = Int8Matrix.of(plain) if int8 else plain
    dense = weight.dense() if isinstance(weight, Int8Matrix) else weight
    expected = torch.nn.functional.linear(quantised_rows(x) if int8 else x, dense, bias)
    every_thread(threads)
    together = linear_native(x, weight, bias)
    torch.testing.assert_close(together, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(linear_native(x, weight, None), expected - bias, rtol=1e-4, atol=1e-4)
    for rows in ([3], [0, 66], list(range(9, 28)), torch.randperm(67).tolist()):
        assert torch.equal(linear_native(x[rows], weight, bias), together[rows])
    assert linear_native(x[:0], weight, bias).shape == (0, outputs)


def test_linear_over_many_rows_is_the_same_row_by_row():
    x, weight = draw(600, 40, seed=1), draw(70, 40, seed=2)
    together = linear_native(x, weight, None)
    for row in (0, 255, 256, 599):
        assert torch.equal(linear_native(x[row : row + 1], weight, None), together[row : row + 1])


def test_the_largest_8_bit_products_do_not_saturate():
    x = torch.ones(3, 4096)
    weight = Int8Matrix(torch.full((5, 4096), 127, dtype=torch.int8), torch.ones(5))
    assert torch.equal(linear_native(x, weight, None), torch.full((3, 5), 4096.0 * 127))
    assert torch.equal(linear_native(-x, weight, None), torch.full((3, 5), -4096.0 * 127))

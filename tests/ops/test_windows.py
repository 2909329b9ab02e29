import gc
import weakref

import pytest
import torch

from elmokit.errors import ElmoError
from elmokit.ops.bilstm import lstm
from elmokit.ops.reference import lstm_windows_reference
from elmokit.ops.weights import LstmWeights
from elmokit.ops.windows import lstm_windows
from support.training_cases import KEEPS, SHAPES, window_case, window_results
from support.triton_interpreter import needs_triton, run_interpreted


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        (torch.float64, 1e-10),  # leaves no room for a mistake to hide
        (torch.float32, 2e-3),  # last digits grow over 63 steps of large random weights
    ],
)
def test_windows_equal_the_reference_with_all_gradients(dtype, tolerance, shape, keep):
    given = window_case(shape, keep, dtype=dtype)
    exact = window_case(shape, keep)
    for ours, plain in zip(
        window_results(lstm_windows, *given), window_results(lstm_windows_reference, *exact), strict=True
    ):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours.double(), plain, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[6] and shape[6] < 1], ids=str)
def test_the_clips_of_these_tests_really_clip(shape):
    y, _, c = lstm_windows(*window_case(shape, "ones"))
    assert (c.abs() == shape[6]).any()
    assert shape[7] is None or shape[5] is None or (y.abs() == shape[7]).any()


def test_a_number_at_its_bound_still_has_a_gradient():
    # As torch.clamp: 1 inside the bound and at it. Saturated gates bring the cell to exactly 1.
    size = 2
    bias = torch.tensor([60.0, 60.0, -60.0, -60.0, 60.0, 60.0, 0.0, 0.0], dtype=torch.float64, requires_grad=True)
    still = torch.zeros(8, size, dtype=torch.float64, requires_grad=True)
    identity = torch.eye(size, dtype=torch.float64, requires_grad=True)
    for bound in (1.0, 0.999):
        w = LstmWeights(still, still, bias, identity, forget_bias=0.0, cell_clip=bound, projection_clip=None)
        x, keep, state = torch.zeros(1, 2, 1, size).double(), torch.ones(2, 1), torch.zeros(1, 1, size).double()
        found = [
            torch.autograd.grad(run(x, keep, [w], state, state)[0].sum(), [bias, identity])
            for run in (lstm_windows, lstm_windows_reference)
        ]
        for ours, plain in zip(*found, strict=True):
            torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-30)


def test_windows_joined_by_their_state_equal_one_long_window():
    shape = (2, 9, 3, 5, 17, 6, 0.5, 0.3)
    x, keep, weights, h, c = window_case(shape, "random")
    whole, last_h, last_c = lstm_windows(x, keep, weights, h, c)
    parts = []
    for start in range(0, 9, 4):
        y, h, c = lstm_windows(x[:, start : start + 4], keep[start : start + 4], weights, h, c)
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(h, last_h, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(c, last_c, rtol=1e-12, atol=1e-12)


def test_a_window_reads_as_the_recurrence_of_inference_does():
    shape = (2, 11, 4, 6, 20, 6, 3.0, 3.0)
    x, keep, weights, h, c = window_case(shape, "ones", dtype=torch.float32, scale=1.0)
    y, last_h, last_c = lstm_windows(x, keep, weights, h, c)
    for d, w in enumerate(weights):
        out, h_d, c_d = lstm(x[d].transpose(0, 1), torch.full((4,), 11), w, h[d], c[d])
        torch.testing.assert_close(y[d], out.transpose(0, 1), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(last_h[d], h_d, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(last_c[d], c_d, rtol=1e-4, atol=1e-5)


def test_the_same_window_gives_the_same_bits_twice():
    given = window_case((2, 20, 33, 16, 70, 16, 3.0, 3.0), "random", dtype=torch.float32)
    for one, other in zip(window_results(lstm_windows, *given), window_results(lstm_windows, *given), strict=True):
        assert torch.equal(one, other)


def test_without_gradients_the_numbers_are_the_same_and_nothing_is_stored():
    x, keep, weights, h, c = window_case((2, 7, 3, 5, 17, 9, 0.5, 0.3), "random")
    with torch.no_grad():
        y, last_h, last_c = lstm_windows(x, keep, weights, h, c)
    assert not y.requires_grad
    for one, other in zip((y, last_h, last_c), lstm_windows(x, keep, weights, h, c), strict=True):
        assert torch.equal(one, other)


def test_inputs_without_gradients_and_half_precision():
    x, keep, weights, h, c = window_case((2, 7, 3, 5, 17, 9, None, None), "random", dtype=torch.float32, scale=1.0)
    y, last_h, last_c = lstm_windows(x.detach().bfloat16(), keep, weights, h, c)
    assert (y.dtype, last_h.dtype, last_c.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
    (gradient,) = torch.autograd.grad(y.float().sum(), [weights[0].input])
    assert gradient.dtype == torch.float32
    assert gradient.isfinite().all()


def test_gradients_can_be_taken_once():
    x, keep, weights, h, c = window_case((1, 2, 3, 7, 13, 6, 0.3, 0.2), "ones")
    y, _, _ = lstm_windows(x, keep, weights, h, c)
    y.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="once"):
        y.sum().backward()


@pytest.mark.parametrize("clip", [None, 0.2])
def test_nothing_of_a_window_outlives_it(clip):
    """Without the help of the garbage collector, which may come late for so much memory."""
    x, keep, weights, h, c = window_case((1, 2, 3, 7, 13, 6, clip, clip), "ones")
    gc.disable()
    try:
        y, _, _ = lstm_windows(x, keep, weights, h, c)
        saved = weakref.ref(y.grad_fn.saved_window)
        assert saved() is not None
        del y
        assert saved() is None
    finally:
        gc.enable()


@needs_triton
def test_the_kernels_in_the_interpreter():
    """With those of inference, of the softmax and of the characters."""
    run_interpreted("kernel_cases.py")


def test_inputs_written_over_before_the_backward_pass_are_noticed():
    x, keep, weights, h, c = window_case((1, 2, 3, 7, 13, 6, None, None), "ones")
    inputs = x * 1
    y, _, _ = lstm_windows(inputs, keep, weights, h, c)
    inputs.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_shapes_that_do_not_belong_together_are_named():
    x, keep, weights, h, c = window_case((2, 2, 3, 4, 5, 3, None, None), "ones")
    with pytest.raises(ElmoError, match=r"keep must have the shape \[2, 3\] for this window, got \[3, 2\]"):
        lstm_windows(x, keep.T, weights, h, c)
    with pytest.raises(ElmoError, match="weights must have the shape"):
        lstm_windows(x, keep, weights[:1], h, c)
    with pytest.raises(ElmoError, match="at least one token"):
        lstm_windows(x[:, :0], keep[:0], weights, h, c)

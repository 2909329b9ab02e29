"""The compiled kernels against the plain reference, at awkward sizes and with all instructions this CPU has."""

import platform
from dataclasses import replace

import pytest
import torch

from elmokit.ops import native
from elmokit.ops.bilstm import bilstm, bilstm_packed
from elmokit.ops.int8 import Int8Matrix
from elmokit.ops.native import bilstm as native_bilstm
from elmokit.ops.native import characters as native_characters
from elmokit.ops.native import linear as native_linear
from elmokit.ops.native.bilstm import bilstm_native
from elmokit.ops.native.linear import linear_native
from elmokit.ops.outputs import BiLstmOutput
from elmokit.ops.reference import lstm_reference
from elmokit.ops.weights import LstmWeights
from support.bilstm_cases import bilstm_reference
from support.native_cases import (
    as_int8,
    assert_equal,
    assert_near,
    draw,
    library_with,
    make_inputs,
    make_stacks,
    needs_kernels,
    quantised_rows,
    quantised_twice,
    use_threads,
)

pytestmark = needs_kernels
X86 = platform.machine() in ("x86_64", "AMD64")
FLAGS = ["-march=x86-64", "-march=x86-64-v3", "-march=skylake-avx512", "-march=native -mno-avx512f", "-march=native"]
"""128 bits, AVX2, AVX-512 without VNNI, AVX2 and what comes beside it, all there is."""


@pytest.fixture
def every_thread(monkeypatch):
    return use_threads(monkeypatch)


SIZES = [  # batch, time, cell, output, projection, clips, directions, skip connections, zero states
    (1, 1, 2, 1, True, (None, None), 2, True, False),
    (1, 63, 70, 33, True, (3.0, 3.0), 2, True, True),
    (3, 2, 13, 6, True, (0.3, 0.2), 2, False, False),
    (3, 63, 17, 17, False, (0.5, 0.1), 2, True, False),
    (5, 7, 129, 65, True, (0.5, None), 1, True, False),
    (33, 9, 70, 33, True, (None, 0.3), 2, True, True),
    (270, 3, 20, 10, True, (3.0, 3.0), 2, True, False),
]


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize(
    ("batch", "time", "cell", "output", "projection", "clips", "directions", "skip", "zero"), SIZES
)
def test_equals_reference(batch, time, cell, output, projection, clips, directions, skip, zero, threads, every_thread):
    stacks = make_stacks(cell, output, directions=directions, projection=projection, clips=clips)
    x, lengths, h, c = make_inputs(batch, time, output, cell, directions=directions, zero=zero)
    expected = bilstm_reference(x, lengths, stacks, h, c, skip_connections=skip)
    every_thread(threads)
    found = bilstm_native(x, lengths, stacks, h, c, skip_connections=skip)
    assert_near(found, expected, 1e-5)
    if clips[0] is not None and clips[0] < 1:
        assert (found.c.abs() == clips[0]).any(), "the clip must really clip in this test"
    if projection and clips[1] is not None and clips[1] < 1:
        assert (found.h.abs() == clips[1]).any(), "the clip must really clip in this test"


def test_int8_equal_the_reference_on_rounded_activations():
    """One step of one layer, where rounding is the same: what is left is float32's."""
    [[weights]] = as_int8(make_stacks(70, 33, directions=1, layers=1, clips=(None, None)))
    x, lengths, h, c = make_inputs(9, 1, 33, 70, directions=1, layers=1)
    lengths[:] = 1
    dense = replace(weights.dense(), projection=None)
    found = bilstm_native(x, lengths, [[weights]], h, c, skip_connections=True)
    hidden, _, cells = lstm_reference(quantised_rows(x), lengths, dense, quantised_rows(h[0, 0]), c[0, 0])
    torch.testing.assert_close(found.c[0, 0], cells, rtol=1e-5, atol=1e-5)
    assert weights.projection is not None
    projected = quantised_twice(hidden) @ weights.projection.dense().T
    torch.testing.assert_close(found.layers[0], projected, rtol=1e-4, atol=2e-2)
    assert (found.layers[0] - projected).abs().mean() < 1e-4  # few values fall on the other side of a half


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize(
    ("batch", "time", "cell", "output", "projection", "clips", "directions", "skip", "zero"), SIZES
)
def test_int8_stay_close_to_the_reference(
    batch, time, cell, output, projection, clips, directions, skip, zero, threads, every_thread
):
    stacks = as_int8(make_stacks(cell, output, directions=directions, projection=projection, clips=clips))
    x, lengths, h, c = make_inputs(batch, time, output, cell, directions=directions, zero=zero)
    dense = [[weights.dense() for weights in layers] for layers in stacks]
    expected = bilstm_reference(x, lengths, dense, h, c, skip_connections=skip)
    every_thread(threads)
    # Activations have 127 steps a side: an input of 9 is rounded by up to 0.035, a gate's sum by about as much.
    assert_near(bilstm_native(x, lengths, stacks, h, c, skip_connections=skip), expected, 0.1)


@pytest.mark.parametrize("int8", [False, True])
def test_a_sentence_does_not_depend_on_its_batch_or_the_threads(int8, every_thread):
    plain = make_stacks(70, 33)
    stacks = as_int8(plain) if int8 else plain
    x, lengths, h, c = make_inputs(41, 12, 33, 70)
    every_thread(1)
    together = bilstm_native(x, lengths, stacks, h, c, skip_connections=True)
    for count in (2, 3, 8):
        every_thread(count)
        assert_equal(bilstm_native(x, lengths, stacks, h, c, skip_connections=True), together)
    for rows in ([0], [20, 3], list(range(13)), torch.randperm(41).tolist()):
        part = bilstm_native(x[rows], lengths[rows], stacks, h[:, :, rows], c[:, :, rows], skip_connections=True)
        expected = BiLstmOutput(
            [layer[rows] for layer in together.layers], together.h[:, :, rows], together.c[:, :, rows]
        )
        assert_equal(part, expected)


@pytest.mark.parametrize("int8", [False, True])
def test_nothing_to_do(int8):
    plain = make_stacks(6, 3)
    stacks = as_int8(plain) if int8 else plain
    for batch, time in ((0, 4), (2, 0), (2, 3)):
        h, c = draw(2, 2, batch, 3, seed=1), draw(2, 2, batch, 6, seed=2)
        none = torch.zeros(batch, dtype=torch.int64)
        found = bilstm_native(torch.ones(batch, time, 3), none, stacks, h, c, skip_connections=True)
        assert [layer.shape for layer in found.layers] == [(batch, time, 6)] * 2
        assert not any(layer.any() for layer in found.layers)
        assert torch.equal(found.h, h)
        assert torch.equal(found.c, c)


def test_views_and_other_strides_are_read_right():
    stacks = make_stacks(13, 6)
    x, lengths, h, c = make_inputs(4, 5, 6, 13)
    expected = bilstm_native(x, lengths, stacks, h, c, skip_connections=True)
    for view in (x.transpose(0, 1).contiguous().transpose(0, 1), x.transpose(1, 2).contiguous().transpose(1, 2)):
        h_view = h.transpose(0, 3).contiguous().transpose(0, 3)
        assert_equal(bilstm_native(view, lengths, stacks, h_view, c, skip_connections=True), expected)
    turned = [
        [replace(w, recurrent=w.recurrent.T.contiguous().T, bias=w.bias.repeat_interleave(2)[::2]) for w in layers]
        for layers in stacks
    ]
    assert_equal(bilstm_native(x, lengths, turned, h, c, skip_connections=True), expected)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_a_number_goes_where_the_reference_lets_it(value):
    stacks = make_stacks(21, 10)
    x, lengths, h, c = make_inputs(4, 5, 10, 21)
    lengths[:] = 5
    x[1, 2, 3], x[3, 0] = value, value
    found = bilstm_native(x, lengths, stacks, h, c, skip_connections=True)
    expected = bilstm_packed(x, lengths, stacks, h, c, skip_connections=True)
    for ours, plain in zip((*found.layers, found.h, found.c), (*expected.layers, expected.h, expected.c), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert found.layers[0][2].isfinite().all()
    small = bilstm_native(x, lengths, as_int8(stacks), h, c, skip_connections=True)
    assert small.layers[0][[0, 2]].isfinite().all()
    # A row with anything infinite has no 8-bit form at all.
    x[x.isinf()] = float("nan")
    expected = bilstm_packed(x, lengths, stacks, h, c, skip_connections=True)
    assert torch.equal(small.layers[0].isnan(), expected.layers[0].isnan())


@pytest.mark.parametrize("gate", ["candidate", "forget"])
def test_the_activations_are_exact_to_the_last_digits(gate):
    """One cell whose gate is its input, so that a new cell is the function of that gate alone."""
    grid = torch.cat([torch.linspace(-80, 80, 4001), torch.logspace(-20, 1, 500), -torch.logspace(-20, 1, 500)])
    n, at = len(grid), {"forget": 1, "candidate": 2}[gate]
    open_, shut = 200.0, -200.0
    bias = torch.tensor([open_, shut, 0.0, 0.0] if gate == "candidate" else [shut, 0.0, 0.0, 0.0])
    one = torch.zeros(4, 1)
    one[at] = 1
    weights = LstmWeights(one, torch.zeros(4, 1), bias, None, forget_bias=0.0)
    h, c = torch.zeros(1, 1, n, 1), torch.full((1, 1, n, 1), 0.0 if gate == "candidate" else 1.0)
    lengths = torch.ones(n, dtype=torch.int64)
    found = bilstm_native(grid.view(n, 1, 1), lengths, [[weights]], h, c, skip_connections=False).c.flatten()
    expected = torch.tanh(grid.double()) if gate == "candidate" else torch.sigmoid(grid.double())
    assert ((found - expected) / expected).abs().max() < 5e-7


@pytest.mark.skipif(not X86, reason="these instructions are an x86 CPU's")
@pytest.mark.parametrize("flags", FLAGS)
def test_every_set_of_instructions(flags, monkeypatch):
    if "avx512" in flags and "no-avx512" not in flags and "AVX-512" not in native.description():
        pytest.skip("this CPU has no AVX-512")
    other = library_with(flags)
    for module in (native_bilstm, native_characters, native_linear):
        monkeypatch.setattr(module, "library", lambda: other)
    stacks = make_stacks(70, 33, clips=(0.5, 0.3))
    x, lengths, h, c = make_inputs(9, 12, 33, 70)
    expected = bilstm_reference(x, lengths, stacks, h, c, skip_connections=True)
    assert_near(bilstm_native(x, lengths, stacks, h, c, skip_connections=True), expected, 1e-5)
    small = bilstm_native(x, lengths, as_int8(stacks), h, c, skip_connections=True)
    assert_near(small, expected, 0.15)
    largest = Int8Matrix(torch.full((5, 4096), 127, dtype=torch.int8), torch.ones(5))
    assert torch.equal(linear_native(torch.ones(3, 4096), largest, None), torch.full((3, 5), 4096.0 * 127))
    test_a_sentence_does_not_depend_on_its_batch_or_the_threads(True, lambda count: None)
    test_a_sentence_does_not_depend_on_its_batch_or_the_threads(False, lambda count: None)
    test_what_is_not_a_number_goes_where_the_reference_lets_it(float("nan"))
    test_the_activations_are_exact_to_the_last_digits("candidate")
    test_the_activations_are_exact_to_the_last_digits("forget")


def test_the_dispatcher_takes_it_and_says_so():
    assert native.reason_against(torch.float32, int8=True) is None
    assert native.description().startswith("kernels compiled for this CPU")
    assert native.reason_against(torch.float64, int8=False) == "the compiled kernels take float32, not float64"
    stacks = make_stacks(13, 6)
    x, lengths, h, c = make_inputs(2, 3, 6, 13)
    assert_equal(
        bilstm(x, lengths, stacks, h, c, skip_connections=True),
        bilstm_native(x, lengths, stacks, h, c, skip_connections=True),
    )

"""Weights that float16 stores exactly: the compiled kernels read them as float16, with the bits of float32."""

from dataclasses import replace

import pytest
import torch

from elmokit.ops import native
from elmokit.ops.bilstm import bilstm_packed
from elmokit.ops.native import bilstm as native_bilstm
from elmokit.ops.native import packed as native_packed
from elmokit.ops.native.bilstm import bilstm_native
from elmokit.ops.native.binding import library
from elmokit.ops.native.linear import linear_native
from elmokit.ops.native.packed import float16_is_exact, packed
from elmokit.ops.native.tensor_cache import TensorCache
from support.native_cases import assert_equal, assert_near, draw, make_inputs, make_stacks, needs_kernels, use_threads

pytestmark = [
    needs_kernels,
    pytest.mark.skipif(
        not needs_kernels.args[0] and not float16_is_exact(library(), torch.ones(1)),
        reason="this CPU does not convert float16",
    ),
]


@pytest.fixture
def every_thread(monkeypatch):
    return use_threads(monkeypatch)


@pytest.fixture
def in_float32(monkeypatch):
    """From here on all weights are packed in float32."""

    def begin():
        monkeypatch.setattr(library(), "float16_is_exact", lambda address, count: 0)
        monkeypatch.setattr(native_packed, "_packed_matrices", TensorCache())
        monkeypatch.setattr(native_bilstm, "_plans", TensorCache())

    return begin


def halved(stacks):
    """The same numbers in float16, some of them below its normal range."""

    def rounded(weight):
        if weight is None:
            return None
        weight[::3] *= 1e-5
        return weight.half().float()

    return [
        [
            replace(w, input=rounded(w.input), recurrent=rounded(w.recurrent), projection=rounded(w.projection))
            for w in layers
        ]
        for layers in stacks
    ]


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize(
    ("batch", "time", "cell", "output", "projection", "clips", "directions"),
    [
        (1, 1, 2, 1, True, (None, None), 2),
        (1, 63, 70, 33, True, (3.0, 3.0), 2),
        (3, 2, 13, 6, True, (0.3, 0.2), 2),
        (3, 63, 17, 17, False, (0.5, 0.1), 2),
        (5, 7, 129, 65, True, (0.5, None), 1),
        (33, 9, 70, 33, True, (None, 0.3), 2),
        (2, 3, 1100, 20, True, (3.0, 3.0), 2),
    ],
)
def test_the_bits_are_those_of_float32(
    batch, time, cell, output, projection, clips, directions, threads, every_thread, in_float32
):
    stacks = halved(make_stacks(cell, output, directions=directions, projection=projection, clips=clips))
    x, lengths, h, c = make_inputs(batch, time, output, cell, directions=directions)
    every_thread(threads)
    found = bilstm_native(x, lengths, stacks, h, c, skip_connections=True)
    assert packed(library(), stacks[0][0].recurrent, gates=4).matrix.float16
    assert_near(found, bilstm_packed(x, lengths, stacks, h, c, skip_connections=True), 1e-5)
    in_float32()
    assert_equal(bilstm_native(x, lengths, stacks, h, c, skip_connections=True), found)
    assert not packed(library(), stacks[0][0].recurrent, gates=4).matrix.float16


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 2050, 130), (3, 7, 1), (67, 100, 15)])
def test_products_with_one_matrix(rows, inputs, outputs, in_float32):
    x, weight, bias = draw(rows, inputs, seed=1), draw(outputs, inputs, seed=2).half().float(), draw(outputs, seed=3)
    found = linear_native(x, weight, bias)
    torch.testing.assert_close(found, torch.nn.functional.linear(x, weight, bias), rtol=1e-4, atol=1e-4)
    in_float32()
    assert torch.equal(linear_native(x, weight, bias), found)


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        (0.0, True),
        (-0.0, True),
        (2.0**-24, True),  # the smallest of float16
        (-(2.0**-14) + 2.0**-24, True),
        (65504.0, True),
        (float("inf"), True),
        (1 + 2.0**-10, True),
        (2.0**-25, False),
        (65520.0, False),
        (1 + 2.0**-11, False),
        (1e-42, False),
        (float("nan"), False),
    ],
)
def test_one_number_decides(value, fits):
    weight = draw(40, 70, seed=1).half().float()
    weight[33, 68] = value
    x = torch.ones(2, 70)
    assert float16_is_exact(library(), weight) == fits
    assert packed(library(), weight).matrix.float16 == fits
    torch.testing.assert_close(linear_native(x, weight, None), x @ weight.T, rtol=1e-5, atol=1e-4, equal_nan=True)


def test_each_number_of_16_bits_comes_out_as_it_was():
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.float16).float()
    weight = numbers[numbers.isfinite()].view(-1, 1)
    assert packed(library(), weight).matrix.float16
    assert torch.equal(linear_native(torch.ones(1, 1), weight, None)[0], weight[:, 0])


def test_weights_may_leave_16_bits_and_come_back():
    weight, x = draw(40, 70, seed=1).half().float(), draw(3, 70, seed=2)
    for factor in (1.0, 1 / 3, 3.0):
        weight *= factor
        torch.testing.assert_close(linear_native(x, weight, None), x @ weight.T, rtol=1e-5, atol=1e-4)
    assert not packed(library(), weight).matrix.float16
    weight.copy_(weight.half())
    assert packed(library(), weight).matrix.float16


def test_it_is_half_the_memory():
    kernels, weight = library(), draw(128, 70, seed=1)
    wide, narrow = packed(kernels, weight).matrix, packed(kernels, weight.half().float()).matrix
    assert kernels.panel_bytes(wide, 0) == 2 * kernels.panel_bytes(narrow, 0) == 4 * weight.numel()


def test_it_is_said():
    stacks = make_stacks(13, 6)
    assert "float16" not in native.description()
    assert "float16" not in native.description(stacks)
    assert "weights in float16" in native.description(halved(stacks))

"""Inference on a CUDA device against the equations, every way of it; run with `pytest -m gpu` where there is one."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from elmokit.ops.bilstm import bilstm, choose
from elmokit.ops.paths import forced
from elmokit.ops.weights import LstmWeights
from support.bilstm_cases import bilstm_case, bilstm_reference

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.usefixtures("full_float32"),
]
TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
# (cell, output): sizes that the persistent kernel takes, and sizes that are multiples of nothing
SIZES = [(512, 128), (74, 20)]


def moved(case, dtype):
    x, lengths, stacks, h, c = case
    there = [
        [
            LstmWeights(
                *(None if t is None else t.to("cuda", dtype) for t in (w.input, w.recurrent, w.bias, w.projection)),
                *(w.forget_bias, w.cell_clip, w.projection_clip),
            )
            for w in layers
        ]
        for layers in stacks
    ]
    return x.to("cuda", dtype), lengths, there, h.to("cuda", dtype), c.to("cuda", dtype)


def compare(found, expected, tolerance):
    for one, other in zip([*found.layers, found.h, found.c], [*expected.layers, expected.h, expected.c], strict=True):
        torch.testing.assert_close(one.double().cpu(), other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(("batch", "time"), [(1, 1), (3, 63), (9, 2), (33, 6), (600, 3)])
def test_every_way_equals_the_equations(dtype, size, batch, time):
    case = bilstm_case(batch, time, *size)
    expected = bilstm_reference(*case, skip_connections=True)
    given = moved(case, dtype)
    with torch.no_grad():
        assert choose(given[0], given[2], gradient=False).path == "cuda"
        for _ in range(3):  # launched, recorded, replayed
            compare(bilstm(*given, skip_connections=True), expected, TOLERANCE[dtype])


@pytest.mark.parametrize("change", [{"directions": 1}, {"layers": 3}, {"clips": False}])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_other_shapes_of_models(size, change):
    case = bilstm_case(5, 6, *size, **change)
    given = moved(case, torch.float16)
    with torch.no_grad():
        for skip in (False, True, True):
            expected = bilstm_reference(*case, skip_connections=skip)
            compare(bilstm(*given, skip_connections=skip), expected, TOLERANCE[torch.float16])


def test_a_recorded_batch_does_not_disturb_what_an_earlier_one_gave():
    first, second = (moved(bilstm_case(4, 6, 256, 128, seed=seed), torch.bfloat16) for seed in (1, 2))
    stacks = first[2]
    with torch.no_grad():
        runs = [bilstm(x, n, stacks, h, c, skip_connections=True) for x, n, _, h, c in (first, first, first)]
        before = [layer.clone() for layer in runs[2].layers]
        bilstm(second[0], second[1], stacks, *second[3:], skip_connections=True)
    for now, then in zip(runs[2].layers, before, strict=True):
        assert torch.equal(now, then)


def test_a_weight_that_changed_is_seen():
    x, lengths, stacks, h, c = moved(bilstm_case(2, 3, 256, 128), torch.float32)
    with torch.no_grad():
        for _ in range(3):
            old = bilstm(x, lengths, stacks, h, c, skip_connections=True)
        stacks[0][0].recurrent.mul_(0.5)
        new = bilstm(x, lengths, stacks, h, c, skip_connections=True)
        with forced("packed"):
            plain = bilstm(x, lengths, stacks, h, c, skip_connections=True)
    assert not torch.allclose(old.layers[0], new.layers[0])
    torch.testing.assert_close(new.layers[1], plain.layers[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [(256, 512), (768, 512)], ids=str)
def test_blocks_without_cells_do_not_hold_the_others_up(size):
    case = bilstm_case(2, 40, *size)
    expected = bilstm_reference(*case, skip_connections=True)
    given = moved(case, torch.float16)
    with torch.no_grad():
        for _ in range(10):
            found = bilstm(*given, skip_connections=True)
    compare(found, expected, TOLERANCE[torch.float16])


def test_a_graph_recorded_in_inference_mode_serves_outside_of_it():
    x, lengths, stacks, h, c = moved(bilstm_case(2, 3, 256, 128), torch.float32)
    with torch.inference_mode():
        for _ in range(2):
            inside = bilstm(x, lengths, stacks, h, c, skip_connections=True)
    with torch.no_grad():
        outside = bilstm(x, lengths, stacks, h, c, skip_connections=True)
    assert torch.equal(inside.layers[1], outside.layers[1])


def test_autocast_changes_nothing():
    x, lengths, stacks, h, c = moved(bilstm_case(2, 3, 256, 128), torch.float32)
    with torch.no_grad():
        plain = bilstm(x, lengths, stacks, h, c, skip_connections=True)
        with torch.autocast("cuda", torch.bfloat16):
            cast = bilstm(x, lengths, stacks, h, c, skip_connections=True)
    torch.testing.assert_close(cast.layers[1], plain.layers[1], rtol=1e-4, atol=1e-4)


def test_threads_on_their_own_streams_get_their_own_results():
    # Graphs of two sizes, which share their memory.
    cases = [moved(bilstm_case(3 + 9 * (seed % 2), 8, 256, 128, seed=seed), torch.float16) for seed in range(4)]
    stacks = cases[0][2]
    with forced("packed"), torch.no_grad():
        expected = [bilstm(x, n, stacks, h, c, skip_connections=True).layers[1] for x, n, _, h, c in cases]
    torch.cuda.synchronize()
    found = [[] for _ in cases]

    def work(number):
        x, lengths, _, h, c = cases[number]
        with torch.cuda.stream(torch.cuda.Stream()), torch.no_grad():
            for _ in range(20):
                found[number].append(bilstm(x, lengths, stacks, h, c, skip_connections=True).layers[1])
            torch.cuda.current_stream().synchronize()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    for results, wanted in zip(found, expected, strict=True):
        for result in results:
            torch.testing.assert_close(result, wanted, rtol=2e-2, atol=2e-2)


def test_what_is_no_number_stays_to_be_seen():
    x, lengths, stacks, h, c = moved(bilstm_case(2, 3, 256, 128), torch.float16)
    x[0, 0, 0] = float("nan")
    with torch.no_grad():
        found = bilstm(x, lengths, stacks, h, c, skip_connections=True)
    assert found.layers[0][0, 0].isnan().any()
    assert found.layers[0][1, 0].isfinite().all()

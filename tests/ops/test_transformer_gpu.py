"""The Transformer blocks on a CUDA device against the equations; run with `pytest -m gpu` where there is one."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from elmokit.ops.attention import BACKWARD, BOTH, FORWARD, Segments
from elmokit.ops.int8 import Int8Matrix
from elmokit.ops.paths import forced
from elmokit.ops.transformer import choose, transformer
from elmokit.ops.weights import HeadWeights
from support.transformer_cases import CASES, exact, moved, random_blocks, random_head, random_tokens, segments_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.usefixtures("full_float32"),
]
TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1.5e-1}
# (size, heads, inner): the bundled model's, and sizes that are multiples of nothing
SHAPES = [(384, 6, 960), (24, 3, 20), (80, 2, 50)]
LENGTHS = (1, 2, 300, 22, 0, 33, 64, 129, 7)


def close(found, expected, tolerance):
    """In the norm of each layer, and no number far off."""
    found = found.double().cpu()
    assert found.shape == expected.shape
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours - theirs).norm() <= tolerance * theirs.norm()
        torch.testing.assert_close(ours, theirs, rtol=4 * tolerance, atol=4 * tolerance)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("way", [BOTH, FORWARD, BACKWARD])
@pytest.mark.parametrize("window", [1, 64, 1000])
def test_the_equations(dtype, shape, way, window):
    size, heads, inner = shape
    x, blocks, ways = random_tokens(LENGTHS, size), random_blocks(2, size, heads, inner), [way] * len(LENGTHS)
    expected = exact(x, LENGTHS, ways, blocks, window=window, outputs=[0, 2])
    there, given = moved(blocks, "cuda", dtype), x.to("cuda", dtype)
    with torch.no_grad():
        assert choose(given, there, gradient=False).path == "cuda"
        found = [transformer(given, segments_of(LENGTHS, ways), there, window=window, outputs=[0, 2]) for _ in range(3)]
    assert found[0].dtype == dtype
    for result in found:  # launched, recorded, replayed
        close(result, expected, TOLERANCE[dtype])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("outputs", [(2,), (0,), (2, 0, 1, 2)], ids=str)
def test_segments_of_several_ways_and_any_outputs(case, outputs):
    lengths, ways, window = CASES[case]
    x, blocks = random_tokens(lengths), random_blocks()
    expected = exact(x, lengths, ways, blocks, window=window, outputs=outputs)
    there = moved(blocks, "cuda", torch.float32)
    with torch.no_grad():
        for _ in range(3):
            given = x.to("cuda", torch.float32)
            found = transformer(given, segments_of(lengths, ways), there, window=window, outputs=outputs)
            close(found, expected, TOLERANCE[torch.float32])


def test_more_tokens_than_are_recorded():
    lengths = [9000, 20, 3]
    blocks = moved(random_blocks(), "cuda", torch.float32)
    x = random_tokens(lengths).to("cuda", torch.float32)
    with torch.no_grad():
        found = transformer(x, Segments.of(lengths), blocks, window=64, outputs=[0, 2])
        with forced("packed"):
            plain = transformer(x, Segments.of(lengths), blocks, window=64, outputs=[0, 2])
    torch.testing.assert_close(found, plain, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_the_packed_path(dtype):
    """Eight blocks of the bundled shape: both paths round, each in its own places."""
    lengths = [22] * 32
    blocks = moved(random_blocks(8, 384, 6, 960), "cuda", dtype)
    x = random_tokens(lengths, 384).to("cuda", dtype)
    with torch.no_grad():
        for _ in range(3):
            found = transformer(x, Segments.of(lengths), blocks, window=64, outputs=[0, 2, 4, 6, 8])
        with forced("packed"):
            plain = transformer(x, Segments.of(lengths), blocks, window=64, outputs=[0, 2, 4, 6, 8])
    assert torch.nn.functional.cosine_similarity(found.double(), plain.double(), dim=-1).min() > 0.99
    if dtype == torch.float32:
        torch.testing.assert_close(found, plain, rtol=1e-3, atol=1e-3)


def test_a_sentence_has_the_same_bits_anywhere_in_batches_of_one_size():
    blocks = moved(random_blocks(2, 384, 6, 960), "cuda", torch.bfloat16)
    x = random_tokens([300, 22, 40], 384).to("cuda", torch.bfloat16)
    long, short, middle = x.split((300, 22, 40))
    with torch.no_grad():
        first = transformer(x, Segments.of([300, 22, 40]), blocks, window=64, outputs=[2])[0]
        turned = torch.cat([short, middle, long])
        for _ in range(3):
            second = transformer(turned, Segments.of([22, 40, 300]), blocks, window=64, outputs=[2])[0]
            assert torch.equal(second, torch.cat([first[300:322], first[322:], first[:300]]))


def test_what_an_earlier_batch_gave_stays():
    lengths = [5, 9]
    blocks = moved(random_blocks(), "cuda", torch.bfloat16)
    x = random_tokens(lengths).to("cuda", torch.bfloat16)
    with torch.no_grad():
        for _ in range(3):
            found = transformer(x, Segments.of(lengths), blocks, window=4, outputs=[0, 2])
        before = found.clone()
        transformer(x.flip(0), Segments.of(lengths), blocks, window=4, outputs=[0, 2])
    assert torch.equal(found, before)


@pytest.mark.parametrize("name", ["qkv", "out", "up", "down", "gate_weight", "gate_bias"])
def test_a_weight_that_changed_is_seen(name):
    blocks, lengths = moved(random_blocks(), "cuda", torch.float32), [5, 9]
    x = random_tokens(lengths).to("cuda", torch.float32)
    with torch.no_grad():
        for _ in range(3):
            old = transformer(x, Segments.of(lengths), blocks, window=4, outputs=[2])
        getattr(blocks[1], name).mul_(0.5)
        new = transformer(x, Segments.of(lengths), blocks, window=4, outputs=[2])
        with forced("packed"):
            plain = transformer(x, Segments.of(lengths), blocks, window=4, outputs=[2])
    assert not torch.allclose(old, new)
    torch.testing.assert_close(new, plain, rtol=1e-4, atol=1e-4)


def test_a_graph_recorded_in_inference_mode_serves_outside_of_it():
    blocks, lengths = moved(random_blocks(), "cuda", torch.float32), [5, 9]
    x = random_tokens(lengths).to("cuda", torch.float32)
    with torch.inference_mode():
        for _ in range(2):
            inside = transformer(x, Segments.of(lengths), blocks, window=4, outputs=[2])
    with torch.no_grad():
        outside = transformer(x, Segments.of(lengths), blocks, window=4, outputs=[2])
    assert torch.equal(inside, outside)


def test_autocast_changes_nothing():
    blocks, lengths = moved(random_blocks(), "cuda", torch.float32), [5, 9]
    x = random_tokens(lengths).to("cuda", torch.float32)
    with torch.no_grad():
        plain = transformer(x, Segments.of(lengths), blocks, window=4, outputs=[2])
        with torch.autocast("cuda", torch.bfloat16):
            cast = transformer(x, Segments.of(lengths), blocks, window=4, outputs=[2])
    torch.testing.assert_close(cast, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("outputs", [(0, 2), (2,), ()], ids=str)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_the_prediction_is_one_more_layer(dtype, outputs, autocast):
    lengths, ways, window = CASES["lengths around a tile"]
    x, blocks, head = random_tokens(lengths), random_blocks(), random_head()
    expected = exact(x, lengths, ways, blocks, window=window, outputs=outputs, head=head)
    there, given = moved(blocks, "cuda", dtype), x.to("cuda", dtype)
    head_there, segments = HeadWeights(*(part.to("cuda", dtype) for part in head)), segments_of(lengths, ways)
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, enabled=autocast):
        for _ in range(3):
            found = transformer(given, segments, there, window=window, outputs=outputs, head=head_there)
            assert found.dtype == dtype
            close(found, expected, TOLERANCE[dtype])


def test_threads_on_their_own_streams_get_their_own_results():
    # Graphs of several sizes, which share their memory.
    blocks = moved(random_blocks(), "cuda", torch.float32)
    cases = [[3 + seed] * (4 + 90 * (seed % 2)) for seed in range(4)]
    given = [random_tokens(lengths).to("cuda", torch.float32) * (1 + n) for n, lengths in enumerate(cases)]
    with forced("packed"), torch.no_grad():
        expected = [
            transformer(x, Segments.of(lengths), blocks, window=4, outputs=[0, 2])
            for x, lengths in zip(given, cases, strict=True)
        ]
    torch.cuda.synchronize()
    found = [[] for _ in cases]

    def work(number):
        with torch.cuda.stream(torch.cuda.Stream()), torch.no_grad():
            for _ in range(20):
                segments = Segments.of(cases[number])
                found[number].append(transformer(given[number], segments, blocks, window=4, outputs=[0, 2]))
            torch.cuda.current_stream().synchronize()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    for results, wanted in zip(found, expected, strict=True):
        assert len(results) == 20
        for result in results:
            torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-4)


def test_what_is_no_number_stays_in_its_sentence():
    blocks = moved(random_blocks(), "cuda", torch.float16)
    x = random_tokens([5, 9]).to("cuda", torch.float16)
    x[2, 0] = float("nan")
    with torch.no_grad():
        for _ in range(3):
            found = transformer(x, Segments.of([5, 9]), blocks, window=4, outputs=[2])[0]
            assert found[:5].isnan().any()
            assert found[5:].isfinite().all()


def test_what_the_kernels_cannot_take():
    blocks = moved(random_blocks(), "cuda", torch.float64)
    x = random_tokens([4]).cuda()
    assert choose(x, blocks, gradient=False).path == "packed"
    assert "float64" in choose(x, blocks, gradient=False).why
    int8 = [block._replace(qkv=Int8Matrix.of(block.qkv)) for block in moved(blocks, "cuda", torch.float32)]
    assert choose(x.float(), int8, gradient=False).path == "packed"
    assert choose(x.float(), moved(blocks, "cuda", torch.float32), gradient=True).path == "packed"
    with torch.no_grad():
        assert transformer(
            x[:0].float(), Segments.of([]), moved(blocks, "cuda", torch.float32), window=4, outputs=[2]
        ).shape == (1, 0, 24)

"""The compiled Transformer blocks against the equations in float64, at awkward sizes and with all instructions."""

import os
import platform
import threading
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from elmokit.errors import ElmoError
from elmokit.ops import native
from elmokit.ops.attention import Segments
from elmokit.ops.int8 import Int8Matrix, column_sizes
from elmokit.ops.native import packed as native_packed
from elmokit.ops.native import transformer as native_transformer
from elmokit.ops.native.binding import library
from elmokit.ops.native.tensor_cache import TensorCache
from elmokit.ops.native.transformer import reason_against, transformer_native
from elmokit.ops.transformer import prediction, transformer, transformer_packed
from elmokit.ops.weights import BlockWeights, HeadWeights
from support.native_cases import draw, library_with, needs_kernels

pytestmark = needs_kernels
X86 = platform.machine() in ("x86_64", "AMD64")
FLAGS = ["-march=x86-64", "-march=x86-64-v3", "-march=skylake-avx512", "-march=native -mno-avx512f", "-march=native"]


def small_columns(size: int) -> Tensor:
    """Some columns of `out` are so small that int8 rounds what they are multiplied by twice."""
    return torch.where(torch.arange(size) % 11 == 3, 0.2, 1.0)


def make_blocks(size: int, heads: int, inner: int, count: int = 2) -> list[BlockWeights]:
    return [
        BlockWeights(
            draw(3 * size, size, seed=10 * n) / size**0.5,
            draw(size, size, seed=10 * n + 1) / size**0.5 * small_columns(size),
            draw(2 * inner, size, seed=10 * n + 2) / size**0.5,
            draw(size, inner, seed=10 * n + 3) / inner**0.5,
            draw(heads, size, seed=10 * n + 4) / size**0.5,
            draw(heads, seed=10 * n + 5),
        )
        for n in range(count)
    ]


def to_int8(blocks: list[BlockWeights], *, factors: bool = True) -> list[BlockWeights]:
    return [
        BlockWeights(*(Int8Matrix.of(m, column_sizes(m) if factors else None) for m in weights[:4]), *weights[4:])
        for weights in blocks
    ]


def dense(blocks: list[BlockWeights]) -> list[BlockWeights]:
    return [BlockWeights(*(matrix.dense() for matrix in weights[:4]), *weights[4:]) for weights in blocks]


def norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


def reference(x: Tensor, segments: Segments, blocks: list[BlockWeights], window: int, outputs: list[int]) -> Tensor:
    """The equations, a segment and a head at a time."""
    starts, ways = segments.starts, segments.directions
    found = [
        _segment(x[start:stop].double(), way, blocks, window)
        for (start, stop), way in zip(pairwise(starts), ways, strict=True)
    ]
    return torch.cat(found, dim=1)[outputs].float() if found else x.new_zeros(len(outputs), *x.shape)


def _segment(x: Tensor, way: int, blocks: list[BlockWeights], window: int) -> Tensor:
    n, size = x.shape
    ahead = torch.arange(n) - torch.arange(n).unsqueeze(1)
    seen = (ahead.abs() <= window) & (ahead <= 0 if way == 1 else ahead >= 0 if way == 2 else ahead == ahead)
    x = norm(x)
    found = [x]
    for weights in blocks:
        qkv, out, up, down, gate_weight, gate_bias = (part.double() for part in weights)
        y, heads, size_each = norm(x), len(gate_bias), size // len(gate_bias)
        rates = 10_000.0 ** -(torch.arange(0, size_each, 2, dtype=torch.float64) / size_each)
        angles = torch.arange(n, dtype=torch.float64).unsqueeze(1) * rates

        def rotate(part: Tensor, angles: Tensor = angles) -> Tensor:
            part = part * (part.pow(2).mean(dim=1, keepdim=True) + torch.finfo(torch.float32).eps).rsqrt()
            a, b = part.chunk(2, dim=1)
            return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], dim=1)

        parts = []
        for head in range(heads):
            place = slice(head * size_each, (head + 1) * size_each)
            q, k, v = (y @ matrix[place].T for matrix in qkv.chunk(3))
            scores = (rotate(q) @ rotate(k).T / size_each**0.5).masked_fill(~seen, -torch.inf)
            gate = torch.sigmoid(y @ gate_weight[head] + gate_bias[head])
            parts.append(torch.softmax(scores, dim=1) @ v * gate.unsqueeze(1))
        x = x + norm(torch.cat(parts, dim=1)) @ out.T
        values, gates = (norm(x) @ up.T).chunk(2, dim=1)
        x = x + norm(values * F.gelu(gates)) @ down.T
        found.append(norm(x))
    return torch.stack(found)


@pytest.fixture
def every_thread(monkeypatch):
    """A function that makes so many threads work on any number of tokens, on the same tile or each on its own."""
    monkeypatch.setattr(native_transformer, "LEAST_PRODUCTS", 1)

    def use(count: int, few: int = 8) -> None:
        monkeypatch.setattr(native_transformer, "most_threads", lambda: count)
        monkeypatch.setattr(native_transformer, "FEW_TOKENS", few)

    return use


CASES = [  # size, heads, inner, window, lengths
    (2, 1, 1, 0, [1]),
    (6, 1, 5, 1, [3, 1]),
    (40, 2, 30, 2, [1, 9, 1, 7]),
    (64, 4, 96, 64, [22]),
    (66, 3, 100, 5, [13, 40, 1, 26]),
    (72, 6, 51, 7, [0, 30, 0, 5]),
    (200, 2, 36, 70, [100, 3]),
    (48, 2, 80, 3, [1] * 70 + [2, 3] * 30),
    (32, 2, 40, 20, [700, 5, 300]),
    (16, 4, 24, 500, [290, 600]),
]


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("way", [0, 1, 2])
@pytest.mark.parametrize(("size", "heads", "inner", "window", "lengths"), CASES)
def test_equals_the_equations(size, heads, inner, window, lengths, way, threads, every_thread):
    blocks, segments = make_blocks(size, heads, inner), Segments.of(lengths, way)
    x = 3 * draw(sum(lengths), size, seed=1)
    every_thread(threads)
    found = transformer_native(x, segments, blocks, window=window, outputs=[0, 1, 2])
    expected = reference(x, segments, blocks, window, [0, 1, 2])
    # Two numbers, or one inner number, are only a sign after the norm: their digits are lost.
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5 if size > 8 else 1e-2)


def test_each_segment_has_its_own_way():
    blocks, lengths = make_blocks(40, 2, 30), [9, 14, 6, 20]
    segments = Segments(Segments.of(lengths).starts, [2, 0, 1, 1])
    x = draw(sum(lengths), 40, seed=1)
    found = transformer_native(x, segments, blocks, window=4, outputs=[2])
    torch.testing.assert_close(found, reference(x, segments, blocks, 4, [2]), rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(
        found, transformer_packed(x, segments, blocks, window=4, outputs=[2]), rtol=1e-4, atol=2e-5
    )


@pytest.mark.parametrize("outputs", [[], [2], [0], [2, 0], [1, 1, 2]])
def test_outputs_come_in_the_order_asked_for(outputs):
    blocks, segments = make_blocks(40, 2, 30), Segments.of([9, 300])
    x = draw(309, 40, seed=1)
    everything = transformer_native(x, segments, blocks, window=4, outputs=[0, 1, 2])
    assert torch.equal(transformer_native(x, segments, blocks, window=4, outputs=outputs), everything[outputs])


def make_head(size: int, outputs: int) -> HeadWeights:
    return HeadWeights(draw(outputs, size, seed=90) / size**0.5, draw(outputs, seed=91))


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("outputs", [[], [0, 2]])
@pytest.mark.parametrize(
    ("size", "lengths", "head_size"), [(40, [9, 0, 1], 40), (68, [700, 3], 50), (200, [100] * 9, 131), (64, [1], 1)]
)
def test_a_head_reads_the_last_block(size, lengths, head_size, outputs, int8, threads, every_thread):
    blocks, head, segments = make_blocks(size, 2, 30), make_head(size, head_size), Segments.of(lengths)
    if int8:
        blocks, head = to_int8(blocks), HeadWeights(Int8Matrix.of(head.weight), head.bias)
    x = 3 * draw(sum(lengths), size, seed=1)
    every_thread(threads)
    found = transformer_native(x, segments, blocks, window=20, outputs=outputs, head=head)
    layers = transformer_native(x, segments, blocks, window=20, outputs=[*outputs, 2])
    assert torch.equal(found[:-1], layers[:-1])
    exact = HeadWeights(head.weight.dense(), head.bias) if int8 else head
    expected = prediction(layers[-1].double(), HeadWeights(exact.weight.double(), exact.bias.double())).float()
    if int8:
        assert F.cosine_similarity(found[-1], expected, dim=1).min() > 0.999 or head_size == 1
    else:
        torch.testing.assert_close(found[-1], expected, rtol=1e-4, atol=2e-5)
    assert not found[-1, :, head_size:].any()
    alone = transformer_native(x[: lengths[0]], Segments.of(lengths[:1]), blocks, window=20, outputs=[], head=head)
    assert torch.equal(alone[0], found[-1, : lengths[0]])


def test_a_head_that_does_not_fit_is_refused():
    x, segments, blocks = draw(5, 40, seed=1), Segments.of([5]), make_blocks(40, 2, 30)
    for head in (make_head(30, 20), make_head(40, 41), HeadWeights(draw(9, 40, seed=1), draw(8, seed=2))):
        with pytest.raises(ElmoError, match="head"):
            transformer_native(x, segments, blocks, window=4, outputs=[2], head=head)
    with pytest.raises(ElmoError, match="head"):
        transformer_native(x, segments, to_int8(blocks), window=4, outputs=[2], head=make_head(40, 20))


def test_changed_weights_of_a_head_are_noticed():
    x, segments, blocks, head = draw(5, 40, seed=1), Segments.of([5]), make_blocks(40, 2, 30), make_head(40, 20)
    before = transformer(x, segments, blocks, window=4, outputs=[], head=head)
    head.bias.add_(1.0)
    assert not torch.equal(transformer(x, segments, blocks, window=4, outputs=[], head=head), before)


def test_nothing_to_do():
    blocks = make_blocks(40, 2, 30)
    assert transformer_native(torch.ones(0, 40), Segments.of([]), blocks, window=4, outputs=[0, 2]).shape == (2, 0, 40)
    assert transformer_native(torch.ones(0, 40), Segments.of([0, 0]), blocks, window=4, outputs=[2]).shape == (1, 0, 40)


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize(("size", "heads", "inner"), [(66, 3, 100), (64, 1, 64)])
def test_a_sentence_does_not_depend_on_its_batch_or_the_threads(size, heads, inner, int8, every_thread):
    plain = make_blocks(size, heads, inner)
    blocks = to_int8(plain) if int8 else plain
    lengths = [7, 1, 22, 900, 3, 60, 22, 310, 48, 2, 130, 17]
    sentences = [draw(n, size, seed=n) for n in lengths]

    def run(rows: list[int]) -> list[Tensor]:
        segments = Segments([0], []) if not rows else Segments.of([lengths[row] for row in rows])
        x = torch.cat([sentences[row] for row in rows])
        found = transformer_native(x, segments, blocks, window=64, outputs=[0, 1, 2])
        return list(found.split([lengths[row] for row in rows], dim=1))

    every_thread(1)
    together = run(list(range(12)))
    for count, few in ((2, 10_000), (2, 1), (3, 1), (8, 10_000), (8, 100)):
        every_thread(count, few)
        assert all(map(torch.equal, run(list(range(12))), together))
        for rows in ([3], [0], [7, 3], [11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]):
            assert all(map(torch.equal, run(rows), (together[row] for row in rows)))


def test_callers_at_once_and_forks_in_between(every_thread):
    """One caller has the helping threads, the others do without; a child has none of its parent's."""
    every_thread(3)
    blocks, lengths = make_blocks(66, 3, 100), [[22], [5, 40], [300]]
    inputs = [draw(sum(rows), 66, seed=sum(rows)) for rows in lengths]

    def right(number: int) -> bool:
        found = transformer_native(inputs[number], Segments.of(lengths[number]), blocks, window=9, outputs=[1, 2])
        return torch.equal(found, expected[number])

    every_thread(1)
    expected = [
        transformer_native(x, Segments.of(rows), blocks, window=9, outputs=[1, 2])
        for x, rows in zip(inputs, lengths, strict=True)
    ]
    every_thread(3)
    found: list[bool] = []
    callers = [threading.Thread(target=lambda n=n: found.extend(right(n % 3) for _ in range(30))) for n in range(6)]
    for caller in callers:
        caller.start()
    for _ in range(3 if hasattr(os, "fork") else 0):
        child = os.fork()
        if child == 0:
            os._exit(0 if all(map(right, (0, 1, 2, 0))) else 1)
        assert os.waitpid(child, 0)[1] == 0
    for caller in callers:
        caller.join()
    assert found == [True] * 180


@pytest.mark.parametrize("factors", [False, True])
@pytest.mark.parametrize(("size", "heads", "inner", "window", "lengths"), CASES[2:])
def test_int8_stays_close_to_the_equations(size, heads, inner, window, lengths, factors):
    blocks, segments = to_int8(make_blocks(size, heads, inner), factors=factors), Segments.of(lengths)
    x = 3 * draw(sum(lengths), size, seed=1)
    found = transformer_native(x, segments, blocks, window=window, outputs=[1, 2])
    expected = reference(x, segments, dense(blocks), window, [1, 2])
    # Random weights do not average the rounding of so few numbers; trained ones of 384 have at least 0.9995.
    assert torch.cosine_similarity(found, expected, dim=-1).min() > 0.995
    assert torch.cosine_similarity(found, expected, dim=-1).mean() > 0.9993


def test_int8_rows_with_a_few_large_numbers():
    """Inner numbers as after training, a few 20 times as large as the others: each part of a row has a scale."""
    [weights], size = make_blocks(64, 4, 256, count=1), 64
    up = weights.up.clone()
    up[::37] *= 6
    blocks, x = to_int8([weights._replace(up=up)], factors=False), draw(50, size, seed=1)
    found = transformer_native(x, Segments.of([50]), blocks, window=8, outputs=[1])
    expected = reference(x, Segments.of([50]), dense(blocks), 8, [1])
    assert torch.cosine_similarity(found, expected, dim=-1).min() > 0.999


def test_int8_inputs_that_are_large_where_the_columns_are_small():
    """In every product: queries, keys and values from a state with large numbers, heads and inner numbers."""
    [weights], size, inner = make_blocks(64, 4, 256, count=1), 64, 256
    heads, inside = torch.ones(size), torch.ones(inner)
    heads[::9], inside[::9] = 100.0, 100.0
    qkv, up = weights.qkv.clone(), weights.up.clone()
    qkv[2 * size :] *= heads.unsqueeze(1)
    up[:inner] *= inside.unsqueeze(1)
    changed = weights._replace(qkv=qkv / heads, out=weights.out / heads, up=up, down=weights.down / inside)
    x = draw(50, size, seed=1) * heads
    closeness = {}
    for factors in (False, True):
        blocks = to_int8([changed], factors=factors)
        found = transformer_native(x, Segments.of([50]), blocks, window=8, outputs=[1])
        expected = reference(x, Segments.of([50]), dense(blocks), 8, [1])
        closeness[factors] = 1 - float(torch.cosine_similarity(found, expected, dim=-1).mean())
    assert closeness[True] < 0.1 * closeness[False]


def test_weights_that_float16_stores_exactly_have_the_results_of_float32(monkeypatch):
    blocks = [BlockWeights(*(part.half().float() for part in weights)) for weights in make_blocks(66, 3, 100)]
    x, segments = draw(40, 66, seed=1), Segments.of([30, 10])
    found = transformer_native(x, segments, blocks, window=9, outputs=[1, 2])
    monkeypatch.setattr(library(), "float16_is_exact", lambda address, count: 0)
    monkeypatch.setattr(native_packed, "_packed_matrices", TensorCache())
    monkeypatch.setattr(native_transformer, "_plans", TensorCache())
    assert torch.equal(found, transformer_native(x, segments, blocks, window=9, outputs=[1, 2]))


def test_changed_weights_are_packed_again():
    blocks, x, segments = make_blocks(40, 2, 30), draw(9, 40, seed=1), Segments.of([9])
    before = transformer_native(x, segments, blocks, window=9, outputs=[2])
    blocks[1].down.mul_(2)
    after = transformer_native(x, segments, blocks, window=9, outputs=[2])
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, reference(x, segments, blocks, 9, [2]), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("int8", [False, True])
def test_what_is_not_a_number_stays_in_its_sentence(int8):
    plain = make_blocks(40, 2, 30)
    blocks, lengths = to_int8(plain) if int8 else plain, [5, 7, 400]
    x = draw(412, 40, seed=1)
    clean = transformer_native(x, Segments.of(lengths), blocks, window=3, outputs=[0, 1, 2])
    x[6, 3] = torch.nan
    found = transformer_native(x, Segments.of(lengths), blocks, window=3, outputs=[0, 1, 2])
    assert torch.equal(found[:, :5], clean[:, :5])
    assert torch.equal(found[:, 12:], clean[:, 12:])
    assert found[2, 5:8].isnan().all()


def test_gelu_is_exact_to_the_last_digits():
    """A block whose inner numbers are gelu of a grid, and whose output is little else, after a norm."""
    size = 512
    grid = torch.cat([torch.linspace(-7, 1.5, 400), torch.linspace(-40, 10, 100), torch.logspace(-10, 0, 12)])
    x, [weights] = draw(1, size, seed=1), make_blocks(size, 4, size, count=1)
    first = norm(norm(x))[0, 0]
    up = torch.zeros(2 * size, size)
    up[:size, 0], up[size:, 0] = 1 / first, grid / first
    blocks = [weights._replace(out=torch.zeros(size, size), up=up, down=1e6 * torch.eye(size))]
    found = transformer_native(x, Segments.of([1]), blocks, window=0, outputs=[1])
    torch.testing.assert_close(found, reference(x, Segments.of([1]), blocks, 0, [1]), rtol=1e-6, atol=5e-7)


@pytest.mark.skipif(not X86, reason="these instructions are an x86 CPU's")
@pytest.mark.parametrize("flags", FLAGS)
def test_every_set_of_instructions(flags, monkeypatch, every_thread):
    if "avx512" in flags and "no-avx512" not in flags and "AVX-512" not in native.description():
        pytest.skip("this CPU has no AVX-512")
    other = library_with(flags)
    monkeypatch.setattr(native_transformer, "library", lambda: other)
    for case in CASES[2:7]:
        test_equals_the_equations(*case, 0, 2, every_thread)
        test_int8_stays_close_to_the_equations(*case, factors=True)
    test_a_sentence_does_not_depend_on_its_batch_or_the_threads(66, 3, 100, False, every_thread)
    test_a_sentence_does_not_depend_on_its_batch_or_the_threads(66, 3, 100, True, every_thread)
    test_what_is_not_a_number_stays_in_its_sentence(True)


@pytest.mark.parametrize(
    "change",
    [
        {"x": torch.ones(9, 42)},
        {"x": torch.ones(9, 40, dtype=torch.float64)},
        {"x": torch.ones(8, 40)},
        {"segments": Segments([0, 5, 4, 9], [0, 0, 0])},
        {"segments": Segments([0, 9], [3])},
        {"segments": Segments([0, 9], [0, 0])},
        {"window": -1},
        {"outputs": [3]},
        {"outputs": [-1]},
        {"blocks": [*make_blocks(40, 2, 30, count=1), *make_blocks(40, 2, 31, count=1)]},
        {"blocks": [*make_blocks(40, 2, 30, count=1), *to_int8(make_blocks(40, 2, 30, count=1))]},
        {
            "blocks": [
                block._replace(out=replace(block.out, columns=torch.ones(39)))
                for block in to_int8(make_blocks(40, 2, 30))
            ]
        },
    ],
)
def test_what_does_not_fit_is_refused(change):
    given = {"x": torch.ones(9, 40), "segments": Segments.of([9]), "blocks": make_blocks(40, 2, 30)}
    given |= {"window": 3, "outputs": [2], **change}
    x, segments, blocks = given.pop("x"), given.pop("segments"), given.pop("blocks")
    with pytest.raises(ElmoError):
        transformer_native(x, segments, blocks, **given)


def test_sizes_for_the_dispatcher():
    assert reason_against(torch.ones(1, 40), make_blocks(40, 2, 30)) is None
    assert "39 / 3" in str(reason_against(torch.ones(1, 39), make_blocks(39, 3, 30)))
    assert "8192" in str(reason_against(torch.ones(1, 8192), [make_blocks(2, 1, 1)[0]]))

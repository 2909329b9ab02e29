"""The torch path of the Transformer blocks against the equations, its gradients, and what a token sees."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from elmokit.ops.attention import BACKWARD, BOTH, FORWARD, Segments
from elmokit.ops.int8 import Int8Matrix, column_sizes
from elmokit.ops.native.binding import SWITCH
from elmokit.ops.paths import forced
from elmokit.ops.reference import transformer_reference
from elmokit.ops.transformer import choose, gelu, rotate_pairs, sigmoid, transformer
from elmokit.ops.weights import BlockWeights, HeadWeights
from support.transformer_cases import random_blocks, random_tokens
from support.triton_interpreter import needs_triton, run_interpreted

LENGTHS = (1, 7, 0, 300, 12)


def tokens(lengths=LENGTHS, dtype=torch.float64) -> torch.Tensor:
    return random_tokens(lengths, dtype=dtype)


@pytest.mark.parametrize("way", [BOTH, FORWARD, BACKWARD])
@pytest.mark.parametrize("window", [1, 5, 64, 1000])
def test_the_packed_path_is_the_equations(way, window):
    x, blocks = tokens(), random_blocks()
    found = transformer(x, Segments.of(LENGTHS, way), blocks, window=window, outputs=[0, 2])
    want = [
        transformer_reference(part, blocks, window=window, direction=way, outputs=[0, 2])
        for part in x.split(LENGTHS)
        if len(part)
    ]
    torch.testing.assert_close(found, torch.cat(want, dim=1), rtol=1e-6, atol=1e-6)  # angles are float32


class CountNumbers(TorchDispatchMode):
    """Counts the numbers that all operations write."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        self.numbers += sum(part.numel() for part in tree_leaves(found) if isinstance(part, torch.Tensor))
        return found


def test_gradients_of_twice_as_many_segments_are_twice_the_work():
    blocks = BlockWeights(
        *(part.requires_grad_() if isinstance(part, torch.Tensor) else part for part in random_blocks()[0])
    )
    counts = []
    for segments in (50, 100):
        lengths = [40] * segments
        with CountNumbers() as counter:
            found = transformer(tokens(lengths), Segments.of(lengths), [blocks], window=64, outputs=[1])
            torch.autograd.backward(found.sum())
        counts.append(counter.numbers)
    assert counts[1] < 2.1 * counts[0]


@pytest.mark.parametrize("outputs", [[], [0, 2]])
def test_a_head_gives_one_more_layer_with_gradients(outputs):
    x, blocks = tokens((5, 6)), random_blocks()
    head = HeadWeights(*(torch.randn(shape, dtype=x.dtype).requires_grad_() for shape in ((7, 24), (7,))))
    found = transformer(x, Segments.of((5, 6)), blocks, window=3, outputs=outputs, head=head)
    want = torch.cat(
        [transformer_reference(part, blocks, window=3, outputs=outputs, head=head) for part in x.split((5, 6))], dim=1
    )
    torch.testing.assert_close(found, want, rtol=1e-6, atol=1e-6)
    assert not found[-1, :, 7:].any()
    ours, plain = (torch.autograd.grad(given.cumsum(2).square().sum(), head) for given in (found, want))
    torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-5)


def test_segments_of_several_ways_in_one_batch():
    x, blocks = tokens((5, 6, 7)), random_blocks()
    mixed = Segments([0, 5, 11, 18], [FORWARD, BOTH, BACKWARD])
    found = transformer(x, mixed, blocks, window=3, outputs=[2])[0].split((5, 6, 7))
    for part, values, way in zip(x.split((5, 6, 7)), found, (FORWARD, BOTH, BACKWARD), strict=True):
        want = transformer_reference(part, blocks, window=3, direction=way, outputs=[2])[0]
        torch.testing.assert_close(values, want, rtol=1e-6, atol=1e-6)


def test_what_a_token_sees():
    """Through one block a token reaches exactly `window` tokens to the sides it sees."""
    blocks = random_blocks(count=1)
    x = tokens((40,))
    changed = x.clone()
    changed[20] = torch.flip(x[20], dims=[0])
    for way, first, last in ((BOTH, 14, 26), (FORWARD, 20, 26), (BACKWARD, 14, 20)):
        before, after = (
            transformer(given, Segments.of([40], way), blocks, window=6, outputs=[1])[0] for given in (x, changed)
        )
        moved = (before != after).any(dim=1).nonzero()[:, 0].tolist()
        assert moved == list(range(first, last + 1))


def test_gradients_against_the_equations():
    blocks = [BlockWeights(*(part.requires_grad_() for part in block)) for block in random_blocks()]
    x = tokens((9, 4)).requires_grad_()
    parameters = [x, *(part for block in blocks for part in block)]
    segments = Segments([0, 9, 13], [BOTH, FORWARD])
    ours = transformer(x, segments, blocks, window=3, outputs=[1, 2]).square().cumsum(2).sum()
    theirs = sum(
        transformer_reference(part, blocks, window=3, direction=way, outputs=[1, 2]).square().cumsum(2).sum()
        for part, way in zip(x.split((9, 4)), (BOTH, FORWARD), strict=True)
    )
    for mine, want in zip(torch.autograd.grad(ours, parameters), torch.autograd.grad(theirs, parameters), strict=True):
        torch.testing.assert_close(mine, want, rtol=1e-4, atol=1e-4)


def test_int8_matrices_are_taken_as_the_numbers_they_stand_for():
    dense = random_blocks(dtype=torch.float32)
    blocks = [
        BlockWeights(*(Int8Matrix.of(matrix, column_sizes(matrix)) for matrix in block[:4]), *block[4:])
        for block in dense
    ]
    x = tokens((9,), dtype=torch.float32)
    with forced("packed"):
        found = transformer(x, Segments.of([9]), blocks, window=4, outputs=[2])[0]
    close = torch.nn.functional.cosine_similarity(
        found, transformer_reference(x, blocks, window=4, outputs=[2])[0], dim=-1
    )
    assert close.min() > 0.999


@pytest.mark.parametrize(("heads", "size"), [(6, 32), (5, 20)])
def test_a_token_is_rotated_in_the_same_way_in_any_batch_with_any_threads(heads, size):
    """torch divides a long complex product among its threads, and rounds differently at the end of each part."""
    threads = torch.get_num_threads()
    pairs, rotations = (torch.randn(1201, parts, size, dtype=torch.complex64) for parts in (2 * heads, 1))
    alone = torch.cat([pair * rotation for pair, rotation in zip(pairs.split(1), rotations.split(1), strict=True)])
    try:
        for count in (1, 3, 5, 7):
            torch.set_num_threads(count)
            assert torch.equal(torch.view_as_real(rotate_pairs(pairs, rotations)), torch.view_as_real(alone)), count
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("half", [True, False])
def test_without_compiled_kernels_a_sentence_is_the_same_in_any_batch(half, monkeypatch):
    """Weights that are float16 numbers take torch's float16 products, which need no filled rows."""
    monkeypatch.setenv(SWITCH, "0")
    blocks = random_blocks(dtype=torch.float32)
    if half:
        blocks = [BlockWeights(*(part.half().float() for part in block)) for block in blocks]
    x = tokens(dtype=torch.float32)
    found = transformer(x, Segments.of(LENGTHS), blocks, window=64, outputs=[0, 1, 2])
    for part, values in zip(x.split(LENGTHS), found.split(LENGTHS, dim=1), strict=True):
        if len(part):
            alone = transformer(part, Segments.of([len(part)]), blocks, window=64, outputs=[0, 1, 2])
            assert torch.equal(alone, values)
            want = transformer_reference(part, blocks, window=64, outputs=[0, 1, 2])
            torch.testing.assert_close(alone, want, rtol=1e-4, atol=1e-4)
    blocks[1].gate_bias.add_(0.5)
    changed = transformer(x, Segments.of(LENGTHS), blocks, window=64, outputs=[1, 2])
    assert torch.equal(changed[0], found[1])
    assert not torch.equal(changed[1], found[2])


@pytest.mark.parametrize("function", [gelu, sigmoid])
@pytest.mark.parametrize("columns", [20, 32, 960])
def test_a_row_is_the_same_alone_and_among_others(function, columns):
    """Rows are half of wider ones, and more of them than one thread takes at a time."""
    wide = torch.randn(32_768 // columns + 2, 2 * columns, generator=torch.Generator().manual_seed(0))
    found = function(wide[:, columns:])
    assert torch.equal(found, torch.cat([function(row[None, columns:]) for row in wide]))


def test_gradients_need_the_packed_path():
    blocks, x = random_blocks(dtype=torch.float32), tokens((3,), dtype=torch.float32)
    assert choose(x, blocks, gradient=True).path == "packed"
    assert choose(x, blocks, gradient=True).why == "gradients are wanted"


def test_a_batch_without_tokens():
    found = transformer(tokens(())[:0], Segments.of([]), random_blocks(), window=4, outputs=[0, 2])
    assert found.shape == (2, 0, 24)


@needs_triton
def test_the_kernels_in_the_interpreter():
    run_interpreted("transformer_cases.py")


def test_tiles_cover_every_token_once():
    from elmokit.ops.gpu.transformer import BLOCK, bucket, tiles_of

    lengths, ways = (1, BLOCK, 0, BLOCK + 1, 3 * BLOCK), (0, 1, 2, 1, 2)
    segments = Segments([0, 1, 33, 33, 66, 162], ways)
    tiles = tiles_of(segments, fill=False).tolist()
    covered = [token for _, stop, first, _ in tiles for token in range(first, min(first + BLOCK, stop))]
    assert covered == list(range(sum(lengths)))
    assert {tuple(tile[:2]): tile[3] for tile in tiles} == {(0, 1): 0, (1, 33): 1, (33, 66): 1, (66, 162): 2}
    more = tiles_of(segments, fill=True)
    assert more[: len(tiles)].tolist() == tiles
    assert len(more) == 32
    assert not more[len(tiles) :].any()
    sizes = {bucket(tokens) for tokens in range(1, 8193)}
    assert all(tokens <= bucket(tokens) <= max(32, 1.25 * tokens + 32) for tokens in range(1, 10_000))
    assert len(sizes) < 36

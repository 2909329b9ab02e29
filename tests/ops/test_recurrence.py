import pytest
import torch

from elmokit.ops import bilstm
from elmokit.ops.bilstm import lstm
from elmokit.ops.linear import linear
from elmokit.ops.reference import lstm_reference
from elmokit.ops.weights import LstmWeights
from support.exactness import assert_same

# Doubles leave no room for rounding to hide a mistake; singles show that the order of sums does not matter much.
TOLERANCES = [(torch.float64, 1e-10), (torch.float32, 2e-4)]


def weights(
    cell: int, output: int, *, projection: bool, cell_clip, projection_clip, dtype, size_in=None
) -> LstmWeights:
    generator = torch.Generator().manual_seed(cell * 1000 + output)

    def draw(*shape):
        return (
            (torch.randn(*shape, generator=generator, dtype=torch.float64) / shape[-1] ** 0.5)
            .to(dtype)
            .requires_grad_()
        )

    return LstmWeights(
        draw(4 * cell, size_in or output),
        draw(4 * cell, output),
        draw(4 * cell),
        draw(output, cell) if projection else None,
        forget_bias=1.0,
        cell_clip=cell_clip,
        projection_clip=projection_clip,
    )


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("batch", "time", "cell", "output", "projection", "cell_clip", "projection_clip"),
    [
        (1, 1, 2, 1, True, None, None),
        (1, 2, 3, 3, False, None, None),
        (3, 7, 13, 6, True, 0.3, 0.2),
        (5, 63, 17, 5, True, 3.0, 3.0),
        (33, 9, 70, 33, True, 0.5, None),
        (4, 5, 16, 16, False, 0.1, 0.1),
    ],
)
def test_packed_equals_reference_with_all_gradients(
    dtype, tolerance, reverse, batch, time, cell, output, projection, cell_clip, projection_clip
):
    generator = torch.Generator().manual_seed(batch * 100 + time)
    w = weights(cell, output, projection=projection, cell_clip=cell_clip, projection_clip=projection_clip, dtype=dtype)
    lengths = torch.randint(0, time + 1, (batch,), generator=generator)
    lengths[batch // 2] = time
    x, h, c = (
        (3 * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype).requires_grad_()
        for shape in ((batch, time, output), (batch, output), (batch, cell))
    )
    leaves = [leaf for leaf in (x, h, c, w.input, w.recurrent, w.bias, w.projection) if leaf is not None]
    found = []
    for run in (lstm, lstm_reference):
        out, last_h, last_c = run(x, lengths, w, h, c, reverse=reverse)
        loss = (
            (out * torch.linspace(-1, 1, out.numel(), dtype=dtype).view_as(out)).sum()
            + last_h.sum()
            + (last_c**2).sum()
        )
        found.append([out, last_h, last_c, *torch.autograd.grad(loss, leaves)])
    for ours, plain in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=tolerance, atol=tolerance)
    if cell_clip and cell_clip < 1:
        assert (found[0][2].abs() == cell_clip).any(), "the clip must really clip in this test"


def test_blocks_of_time_change_nothing(monkeypatch):
    w = weights(13, 6, projection=True, cell_clip=3.0, projection_clip=3.0, dtype=torch.float32)
    x, lengths = torch.randn(3, 50, 6), torch.tensor([50, 20, 31])
    state = torch.zeros(3, 6), torch.zeros(3, 13)
    whole = lstm(x, lengths, w, *state)
    monkeypatch.setattr(bilstm, "BLOCK_TOKENS", 10)
    for one, many in zip(whole, lstm(x, lengths, w, *state), strict=True):
        assert torch.equal(one, many)


def test_outputs_after_the_end_are_zero_and_the_state_stays():
    w = weights(5, 4, projection=True, cell_clip=None, projection_clip=None, dtype=torch.float32)
    x, h, c = torch.randn(2, 6, 4), torch.randn(2, 4), torch.randn(2, 5)
    out, last_h, last_c = lstm(x, torch.tensor([2, 0]), w, h, c)
    assert out[0, 2:].abs().max() == 0
    assert out[1].abs().max() == 0
    torch.testing.assert_close(last_h[0], out[0, 1])
    assert torch.equal(last_h[1], h[1])
    assert torch.equal(last_c[1], c[1])


@pytest.mark.parametrize("size_in", [1, 7, 16, 100])
@pytest.mark.parametrize("size_out", [1, 3, 4, 15, 16, 130])
def test_a_row_of_a_product_does_not_depend_on_its_neighbours(size_in, size_out):
    x, weight, bias = torch.randn(67, size_in), torch.randn(size_out, size_in), torch.randn(size_out)
    together = linear(x, weight, bias)
    torch.testing.assert_close(together, torch.nn.functional.linear(x, weight, bias), rtol=1e-4, atol=1e-5)
    for rows in ([3], [0, 66], list(range(9, 28)), torch.randperm(67).tolist()):
        assert_same(linear(x[rows], weight, bias), together[rows])

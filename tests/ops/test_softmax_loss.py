import pytest
import torch

from elmokit.errors import ElmoError
from elmokit.ops import softmax_loss as module
from elmokit.ops.softmax_loss import chunk_rows, losses_in_place, softmax_loss
from support.training_cases import plain_softmax_loss, softmax_case


@pytest.fixture(params=[1, 7, 64, 10**6])
def _chunks(request, monkeypatch):
    """Chunks of so many rows, whatever the number of words."""
    monkeypatch.setattr(module, "chunk_rows", lambda device, words: request.param)


@pytest.mark.usefixtures("_chunks")
@pytest.mark.parametrize(("rows", "size", "words"), [(1, 1, 1), (1, 3, 2), (13, 5, 17), (64, 16, 33), (65, 7, 101)])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-10), (torch.float32, 1e-4)],  # doubles hide nothing; singles sum 100 terms in another order
)
def test_loss_and_gradients_equal_cross_entropy(dtype, tolerance, rows, size, words):
    found = []
    for run, number in ((softmax_loss, dtype), (plain_softmax_loss, torch.float64)):
        top, weight, bias, targets, row_weight = softmax_case(rows, size, words, dtype=number)
        arguments = {"row_weight": row_weight}
        total, losses = run(top, weight, bias, targets, **arguments)
        gradients = torch.autograd.grad(3.5 * total, [top, weight, bias])  # an upstream gradient that is not 1
        found.append([total, losses, *gradients])
    assert found[0][1].dtype == torch.float32
    assert not found[0][1].requires_grad
    for index, (ours, exact) in enumerate(zip(*found, strict=True)):
        bound = max(tolerance, 1e-6) if index == 1 else tolerance  # the losses are shown in float32
        torch.testing.assert_close(ours.double(), exact, rtol=bound, atol=bound)


def test_a_number_weighs_every_row_equally():
    top, weight, bias, targets, _ = softmax_case(13, 5, 17)
    total, losses = softmax_loss(top, weight, bias, targets, row_weight=0.25)
    torch.testing.assert_close(total, 0.25 * losses.double().sum(), rtol=1e-6, atol=0)


def test_ignored_rows_have_no_gradient():
    top, weight, bias, targets, row_weight = softmax_case(13, 5, 17, ignored=0.5)
    total, losses = softmax_loss(top, weight, bias, targets, row_weight=row_weight)
    (gradient,) = torch.autograd.grad(total, top)
    assert (targets < 0).any()
    assert gradient[targets < 0].abs().max() == 0
    assert losses[targets < 0].abs().max() == 0
    assert (losses[targets >= 0] > 0).all()


def test_all_rows_ignored_and_no_rows_at_all():
    top, weight, bias, targets, row_weight = softmax_case(5, 3, 7, ignored=1.1)
    total, _ = softmax_loss(top, weight, bias, targets, row_weight=row_weight)
    assert total == 0
    assert all(not gradient.any() for gradient in torch.autograd.grad(total, [top, weight, bias]))
    total, losses = softmax_loss(top[:0], weight, bias, targets[:0], row_weight=1.0)
    assert total == 0
    assert losses.shape == (0,)
    total.backward()


def test_large_scores_neither_overflow_nor_lose_the_loss():
    top, weight, bias, targets, row_weight = softmax_case(6, 3, 9, dtype=torch.float32)
    total, losses = softmax_loss(1e4 * top, weight, bias, targets, row_weight=row_weight)
    exact = plain_softmax_loss(1e4 * top.double(), weight.double(), bias.double(), targets, row_weight)[1]
    assert total.isfinite()
    torch.testing.assert_close(losses.double(), exact, rtol=1e-4, atol=1e-1)


def test_gradients_are_scaled_again_by_each_backward_pass():
    top, weight, bias, targets, row_weight = softmax_case(13, 5, 17)
    total, _ = softmax_loss(top, weight, bias, targets, row_weight=row_weight)
    (once,) = torch.autograd.grad(total, weight, retain_graph=True)
    (twice,) = torch.autograd.grad(2 * total, weight)
    torch.testing.assert_close(2 * once, twice, rtol=1e-12, atol=0)


def test_only_the_gradients_that_are_needed_are_given():
    top, weight, bias, targets, row_weight = softmax_case(13, 5, 17)
    total, _ = softmax_loss(top, weight.detach(), bias.detach(), targets, row_weight=row_weight)
    total.backward()
    assert top.grad is not None
    total, _ = softmax_loss(top.detach(), weight, bias.detach(), targets, row_weight=row_weight)
    total.backward()
    assert weight.grad is not None
    assert bias.grad is None


def test_the_same_bits_twice():
    for dtype in (torch.float32, torch.float64):
        top, weight, bias, targets, row_weight = softmax_case(300, 16, 101, dtype=dtype)
        runs = []
        for _ in range(2):
            total, losses = softmax_loss(top, weight, bias, targets, row_weight=row_weight)
            runs.append([total, losses, *torch.autograd.grad(total, [top, weight, bias])])
        assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))


def test_no_more_than_a_chunk_of_logits_is_held(monkeypatch):
    """The chunk function sees every logit that is ever computed."""
    seen = []

    def spy(logits, targets, row_weight, *, wanted):
        seen.append((tuple(logits.shape), wanted))
        return losses_in_place(logits, targets, row_weight, wanted=wanted)

    monkeypatch.setattr(module, "losses_in_place", spy)
    monkeypatch.setattr(module, "CPU_LOGITS", 128 * 300)
    top, weight, bias, targets, row_weight = softmax_case(300, 4, 300)
    softmax_loss(top, weight, bias, targets, row_weight=row_weight)
    assert seen == [((128, 300), True), ((128, 300), True), ((44, 300), True)]
    seen.clear()
    with torch.no_grad():
        softmax_loss(top, weight, bias, targets, row_weight=row_weight)
    assert {wanted for _, wanted in seen} == {False}


@pytest.mark.parametrize("words", [1, 1000, 50_000, 10**7])
def test_chunks_hold_a_bounded_number_of_logits(words):
    for device, held in (("cpu", module.CPU_LOGITS), ("cuda", module.CUDA_LOGITS)):
        rows = chunk_rows(torch.device(device), words)
        assert rows % 128 == 0
        assert rows == 128 or rows * words <= held


def test_shapes_that_do_not_belong_together_are_named():
    top, weight, bias, targets, row_weight = softmax_case(5, 3, 7)
    with pytest.raises(ElmoError, match=r"targets and bias must have the shapes \[5\] and \[7\]"):
        softmax_loss(top, weight, bias, targets[:4], row_weight=row_weight)
    with pytest.raises(ElmoError, match=r"row_weight must be a number or have the shape \[5\], got \[4\]"):
        softmax_loss(top, weight, bias, targets, row_weight=row_weight[:4])

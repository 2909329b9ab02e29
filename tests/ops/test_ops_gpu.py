"""The operations of training on a CUDA device against their references; run with `pytest -m gpu` where there is one."""

import warnings

import pytest
import torch

from elmokit import BiLM
from elmokit.config import CharacterConfig, LstmConfig
from elmokit.model.token_encoder import CharCnn
from elmokit.ops import kernels
from elmokit.ops import softmax_loss as softmax_module
from elmokit.ops.reference import lstm_windows_reference
from elmokit.ops.softmax_loss import softmax_loss
from elmokit.ops.windows import lstm_windows
from support.tiny_models import tiny_config
from support.training_cases import KEEPS, SHAPES, plain_softmax_loss, softmax_case, window_case, window_results

if torch.cuda.is_available():
    from elmokit.ops import windows_cuda

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.usefixtures("full_float32"),
]
PRECISIONS = [
    (torch.float64, 1e-10),  # the same sums in another order
    (torch.float32, 1e-4),  # the same, grown by the recurrence
    # bfloat16: an error of 4e-3 in every product, which the steps add up; and where a number is near its bound, a
    # whole gradient comes or goes with the last bit (the clips of these tests are tight).
    (torch.bfloat16, 8e-2),
]


def assert_close(found, exact, tolerance):
    """In the norm of the whole tensor: in float16 a small number next to large ones has no digits of its own."""
    found, exact = found.detach().double().cpu(), exact.detach().double().cpu()
    assert found.shape == exact.shape
    assert found.isfinite().all()
    assert (found - exact).norm() <= tolerance * exact.norm() + 1e-12


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("shape", [*SHAPES, (2, 9, 130, 64, 256, 64, 3.0, 3.0)], ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_windows_equal_the_reference_with_all_gradients(dtype, tolerance, shape, keep):
    x, flags, weights, h, c = window_case(shape, keep, dtype=torch.float64, device="cuda", scale=1.0)
    if dtype != torch.float64:
        x, h, c = x.detach().to(dtype).requires_grad_(), h.to(dtype), c.float()
        weights = [
            type(w)(
                *(
                    None if t is None else t.detach().float().requires_grad_()
                    for t in (w.input, w.recurrent, w.bias, w.projection)
                ),
                *(w.forget_bias, w.cell_clip, w.projection_clip),
            )
            for w in weights
        ]
    exact = window_results(lstm_windows_reference, *window_case(shape, keep, scale=1.0))
    found = window_results(lstm_windows, x, flags, weights, h, c)
    assert found[0].dtype == found[1].dtype == dtype
    assert {gradient.dtype for gradient in found[4:]} == {weights[0].bias.dtype}
    for ours, plain in zip(found, exact, strict=True):
        assert_close(ours, plain, tolerance)


def test_windows_give_the_same_bits_twice():
    given = window_case((2, 20, 130, 64, 256, 64, 3.0, 3.0), "random", dtype=torch.float32, device="cuda")
    for one, other in zip(window_results(lstm_windows, *given), window_results(lstm_windows, *given), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("shape", [(2, 5, 33, 16, 32, 16, 0.5, 0.5), (2, 3, 4, 10, 10, None, 0.2, None)], ids=str)
def test_recorded_windows_give_the_bits_of_the_first_ones(shape):
    """Two windows under way at once, as the layers of a model are, in changing order, with and without gradients."""
    windows_cuda.forget()
    cases = [window_case(shape, "random", dtype=torch.float32, device="cuda", seed=seed) for seed in (1, 2)]
    exact = [window_results(lstm_windows, *each) for each in cases]
    for number in range(windows_cuda.UNRECORDED + 3):
        ys = [lstm_windows(*each)[0] for each in cases]
        with torch.no_grad():
            assert torch.equal(lstm_windows(*cases[number % 2])[0], exact[number % 2][0])
        for index in (0, 1) if number % 2 else (1, 0):
            x, _, weights, _, _ = cases[index]
            leaves = [x, *(t for w in weights for t in (w.input, w.recurrent, w.bias, w.projection) if t is not None)]
            y = ys[index]
            towards = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view(y.shape).cos().to(y)
            assert torch.equal(y, exact[index][0])
            for ours, first in zip(torch.autograd.grad((y * towards).sum(), leaves), exact[index][3:], strict=True):
                assert torch.equal(ours, first)
    assert windows_cuda.recorded() >= 2


def test_windows_pass_on_what_is_no_number():
    x, keep, weights, h, c = window_case((2, 3, 5, 8, 16, 8, 3.0, 3.0), "ones", dtype=torch.float32, device="cuda")
    with torch.no_grad():
        x[0, 1, 2, 3] = float("nan")
    y, _, last_c = lstm_windows(x, keep, weights, h, c)
    assert y[0, 1:, 2].isnan().all()
    assert last_c[0, 2].isnan().all()
    assert y[1].isfinite().all()


@pytest.mark.parametrize("chunk", [1, 7, 10**6])
@pytest.mark.parametrize(
    ("rows", "size", "words"), [(1, 1, 1), (1, 3, 2), (13, 5, 17), (65, 16, 4097), (130, 64, 12345)]
)
@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_softmax_loss_equals_cross_entropy(monkeypatch, dtype, tolerance, rows, size, words, chunk):
    if chunk == 1 and rows > 20:
        pytest.skip("single rows are tested on few")
    monkeypatch.setattr(softmax_module, "chunk_rows", lambda device, words: chunk)
    top, weight, bias, targets, row_weight = softmax_case(rows, size, words, dtype=torch.float64, device="cuda")
    if dtype != torch.float64:
        top = top.detach().to(dtype).requires_grad_()
        weight, bias = weight.detach().float().requires_grad_(), bias.detach().float().requires_grad_()
    exact_of = [t.detach().double().requires_grad_() for t in (top, weight, bias)]
    total, losses = softmax_loss(top, weight, bias, targets, row_weight=row_weight)
    found = [total, losses, *torch.autograd.grad(3.5 * total, [top, weight, bias])]
    total, losses = plain_softmax_loss(*exact_of, targets, row_weight)
    exact = [total, losses, *torch.autograd.grad(3.5 * total, exact_of)]
    assert found[3].dtype == weight.dtype
    for index, (ours, plain) in enumerate(zip(found, exact, strict=True)):
        assert_close(ours, plain, max(tolerance, 1e-6) if index == 1 else tolerance)


def test_rows_that_are_ignored_have_no_gradient_whatever_they_hold():
    top, weight, bias, targets, row_weight = softmax_case(13, 8, 170, dtype=torch.float32, device="cuda", ignored=0.5)
    with torch.no_grad():
        top[targets < 0] = float("nan")
    total, losses = softmax_loss(top, weight, bias, targets, row_weight=row_weight)
    gradients = torch.autograd.grad(total, [top, bias])
    assert all(values.isfinite().all() for values in (total, losses, *gradients))


def test_a_gpu_without_triton_computes_the_same_with_the_operations_of_torch(monkeypatch):
    shape = (2, 7, 3, 5, 17, 9, 0.5, 0.3)
    exact = window_results(lstm_windows, *window_case(shape, "random", device="cuda"))
    top, weight, bias, targets, row_weight = softmax_case(65, 7, 101, device="cuda")
    exact += softmax_loss(top, weight, bias, targets, row_weight=row_weight)
    monkeypatch.setattr(kernels, "available", lambda device: False)
    found = window_results(lstm_windows, *window_case(shape, "random", device="cuda"))
    found += softmax_loss(top, weight, bias, targets, row_weight=row_weight)
    for ours, plain in zip(found, exact, strict=True):
        assert_close(ours, plain, 1e-6 if ours.dtype == torch.float32 else 1e-10)


@pytest.mark.parametrize("longest", [6, 20])
@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_the_character_part_has_the_gradients_of_the_cpu(dtype, tolerance, longest):
    torch.manual_seed(0)
    config = CharacterConfig(((1, 8), (2, 24), (4, 40), (7, 56)), max_characters=20, activation="tanh", n_highway=1)
    exact = CharCnn(config).double()
    other = CharCnn(config).to("cuda", torch.float64 if dtype == torch.float64 else torch.float32)
    other.load_state_dict(exact.state_dict())
    ids = torch.randint(1, 261, (40, 20))
    ids[torch.arange(20) >= torch.randint(1, longest + 1, (40, 1))] = 261
    trimmed = exact.trim(ids)
    found = []
    for network, given in ((other, trimmed.to("cuda")), (exact, ids)):
        with torch.autocast("cuda", dtype, enabled=network is other and dtype == torch.bfloat16):
            vectors = network(given)
        (vectors.double() * torch.linspace(-1, 1, vectors.shape[1], device=vectors.device)).sum().backward()
        found.append([vectors, *(p.grad for p in network.parameters())])
    # Where two positions are within rounding of each other, another one is the largest.
    for ours, plain in zip(*found, strict=True):
        assert_close(ours, plain, tolerance)


def test_a_training_step_never_waits_for_the_gpu():
    config = tiny_config(
        context=LstmConfig(64, 16), characters=CharacterConfig(((1, 8), (2, 8)), embedding_size=8, n_highway=1)
    )
    bilm = BiLM(config).to("cuda").train()
    ids = torch.randint(1, 261, (300, 50))
    ids[torch.arange(50) >= torch.randint(3, 20, (300, 1))] = 261
    places, targets = torch.randint(0, 300, (2, 5, 16)).cuda(), torch.randint(0, 99, (160,)).cuda()
    keep, h, c = torch.ones(5, 16).cuda(), torch.zeros(2, 16, 16).cuda(), torch.zeros(2, 16, 64).cuda()
    weight, bias = torch.randn(99, 16).cuda().requires_grad_(), torch.zeros(99).cuda().requires_grad_()

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            table = bilm.encode_types(ids, None)
        stacks = (bilm.context.forward_lstm, bilm.context.backward_lstm)
        x = torch.nn.functional.embedding(places, table)
        y, _, _ = lstm_windows(x, keep, [stack.layers[0].weights() for stack in stacks], h, c)
        softmax_loss(y.flatten(0, 2), weight, bias, targets, row_weight=0.1)[0].backward()

    step()
    with warnings.catch_warnings():  # torch calls the mode a prototype
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert weight.grad.isfinite().all()

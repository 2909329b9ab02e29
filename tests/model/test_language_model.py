"""The softmax in int8 against the same numbers in floats."""

import copy
import pickle

import pytest
import torch

from elmokit.errors import ElmoError
from elmokit.model.int8 import quantised
from elmokit.model.language_model import Int8LmHead, LmHead, head_shell
from support.exactness import assert_same


def heads(n_words, size, seed=0):
    """A softmax in int8, and one in floats of the same numbers."""
    torch.manual_seed(seed)
    weights = {"weight": torch.randn(n_words, size), "bias": torch.randn(n_words)}
    small = head_shell(quantised(weights, {"weight"}))
    small.load_state_dict(quantised(weights, {"weight"}), assign=True)
    plain = LmHead(n_words, size)
    plain.load_state_dict({"weight": small.weight.matrix().dense(), "bias": weights["bias"]})
    return small.requires_grad_(False), plain.requires_grad_(False)


@pytest.mark.parametrize("rows", [1, 3, 33])
@pytest.mark.parametrize(("n_words", "size"), [(10, 6), (17, 33), (130, 64), (5, 1)])
@pytest.mark.parametrize("compiled", [True, False])
def test_it_is_the_softmax_of_its_numbers(monkeypatch, rows, n_words, size, compiled):
    if not compiled:
        monkeypatch.setattr("elmokit.ops.native.reason_against", lambda *_, **__: "there are none")
    small, plain = heads(n_words, size)
    top = torch.randn(rows, size)
    assert isinstance(small, Int8LmHead)
    # The compiled product takes the inputs as two int8 parts.
    torch.testing.assert_close(small(top), plain(top), rtol=1e-4, atol=1e-4 * size**0.5)
    assert_same(small(top)[-1].numpy(), small(top[-1:])[0].numpy())


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-5), (torch.bfloat16, 0.2), (torch.float16, 0.02)])
def test_other_number_types_use_it_in_theirs(dtype, atol):
    small, plain = heads(17, 33)
    top = torch.randn(3, 33)
    small.to(dtype)
    assert (small.weight.values.dtype, small.weight.scales.dtype) == (torch.int8, torch.float32)
    assert small(top.to(dtype)).dtype == dtype
    torch.testing.assert_close(small(top.to(dtype)).float(), plain(top), rtol=0, atol=atol)


def test_copies_and_pickles():
    small, _ = heads(17, 33)
    top = torch.randn(3, 33)
    expected = small(top)
    for other in (copy.deepcopy(small), pickle.loads(pickle.dumps(small))):
        assert torch.equal(other(top), expected)
        assert sorted(other.state_dict()) == ["bias", "weight.scales", "weight.values"]


def test_numbers_are_looked_at_when_they_are_used():
    small, _ = heads(17, 33)
    small(torch.randn(1, 33))
    values = small.weight.values.clone()
    values[3, 4] = -128
    small.load_state_dict({**small.state_dict(), "weight.values": values}, assign=True)
    with pytest.raises(ElmoError, match=r"the softmax: weight\.values must be int8 values from -127 to 127"):
        small(torch.randn(1, 33))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 0.02), (torch.bfloat16, 0.2)])
def test_on_a_gpu(dtype, atol):
    small, plain = heads(17, 33)
    top = torch.randn(3, 33)
    expected = plain(top)
    small.to("cuda", dtype)
    found = small(top.to("cuda", dtype))
    assert (found.device.type, small.weight.scales.dtype) == ("cuda", torch.float32)
    torch.testing.assert_close(found.float().cpu(), expected, rtol=0, atol=atol)

"""The dispatcher of the LSTM layers: what it chooses, what it says of it, and its plain path against the equations."""

import pytest
import torch

from elmokit.errors import ElmoError
from elmokit.ops.bilstm import bilstm, choose, zero_states
from elmokit.ops.paths import forced
from elmokit.ops.weights import LstmWeights
from support.bilstm_cases import bilstm_case, bilstm_reference
from support.native_cases import missing


def compare(found, expected, tolerance):
    for one, other in zip([*found.layers, found.h, found.c], [*expected.layers, expected.h, expected.c], strict=True):
        torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=tolerance)


def in_floats(case):
    x, lengths, stacks, h, c = case
    floats = [
        [
            LstmWeights(
                *(None if t is None else t.float() for t in (w.input, w.recurrent, w.bias, w.projection)),
                *(w.forget_bias, w.cell_clip, w.projection_clip),
            )
            for w in layers
        ]
        for layers in stacks
    ]
    return x.float(), lengths, floats, h.float(), c.float()


@pytest.mark.parametrize(("batch", "time"), [(1, 1), (3, 2), (33, 3), (2, 63)])
@pytest.mark.parametrize("change", [{}, {"directions": 1, "clips": False}, {"projection": False, "layers": 1}])
def test_the_plain_path_equals_the_equations(batch, time, change):
    case = bilstm_case(batch, time, 13, 6, **change)
    for skip in (False, True):
        with forced("packed"):
            compare(bilstm(*case, skip_connections=skip), bilstm_reference(*case, skip_connections=skip), 1e-10)


@pytest.mark.parametrize("path", ["packed", "native"])
def test_without_a_state_all_start_from_zero(path):
    if path == "native" and missing is not None:
        pytest.skip("there is no C compiler here")
    x, lengths, stacks, _, _ = in_floats(bilstm_case(4, 5, 13, 6))
    zeros = zero_states(stacks, 4)
    with forced(path), torch.no_grad():
        with_zeros = bilstm(x, lengths, stacks, *zeros, skip_connections=True)
        without = bilstm(x, lengths, stacks, skip_connections=True)
    for one, other in zip(with_zeros.layers, without.layers, strict=True):
        assert torch.equal(one, other)
    assert torch.equal(with_zeros.c, without.c)


def test_autocast_gives_nearly_the_same():
    x, lengths, stacks, h, c = in_floats(bilstm_case(4, 5, 13, 6))
    with torch.no_grad(), forced("packed"):
        plain = bilstm(x, lengths, stacks, h, c, skip_connections=True)
        with torch.autocast("cpu", torch.bfloat16):
            cast = bilstm(x.bfloat16(), lengths, stacks, h, c, skip_connections=True)
    torch.testing.assert_close(cast.layers[1].float(), plain.layers[1], rtol=0.1, atol=0.05)


def test_the_choice_is_explained():
    x, _, stacks, _, _ = in_floats(bilstm_case(1, 2, 13, 6))
    wanted = choose(x, stacks, gradient=True)
    assert (wanted.path, wanted.why) == ("packed", "gradients are wanted")
    with forced("packed"):
        assert choose(x, stacks, gradient=False).why == "asked for"
    with pytest.raises(ElmoError, match="a path must be packed, native or cuda, got 'fast'"), forced("fast"):
        pass


def test_without_compiled_kernels_the_reason_is_given(monkeypatch):
    monkeypatch.setenv("ELMOKIT_NATIVE", "0")
    x, _, stacks, _, _ = in_floats(bilstm_case(1, 2, 13, 6))
    choice = choose(x, stacks, gradient=False)
    assert choice.path == "packed"
    assert "ELMOKIT_NATIVE is 0" in choice.why


def test_gradients_flow_where_they_are_wanted():
    x, lengths, stacks, h, c = in_floats(bilstm_case(2, 3, 13, 6))
    stacks[1][0].recurrent.requires_grad_()
    bilstm(x, lengths, stacks, h, c, skip_connections=True).layers[1].sum().backward()
    assert stacks[1][0].recurrent.grad.abs().sum() > 0


def test_a_model_explains_itself(make_elmo):
    elmo = make_elmo()
    assert elmo.explain().startswith(("native on cpu in float32: ", "packed on cpu in float32: "))
    with forced("packed"):
        assert elmo.explain(sentences=3, tokens=7) == "packed on cpu in float32: asked for"

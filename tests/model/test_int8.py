import pytest
import torch

from elmokit import BiLM
from elmokit.errors import ElmoError
from elmokit.model import int8
from elmokit.model.bilm import int8_names
from elmokit.model.int8 import Int8Weight, check_int8, dense, quantised
from elmokit.ops.int8 import Int8Matrix, column_sizes
from elmokit.ops.linear import linear
from elmokit.ops.weights import Int8LstmWeights
from support.exactness import assert_same
from support.tiny_models import tiny_config, word_config


def network(config=None, seed=0):
    """A network in floats and the same in int8."""
    torch.manual_seed(seed)
    config = config or tiny_config()
    plain = BiLM(config).eval()
    small = BiLM.shell(config, int8=True).eval()
    small.load_state_dict(quantised(plain.state_dict(), int8_names(config)), assign=True)
    return plain, small


def test_matrices_are_int8_and_nothing_else():
    names = int8_names(tiny_config())
    lstm = {
        f"{d}_lstm.layers.{layer}.{part}_weight"
        for d in ("forward", "backward")
        for layer in range(2)
        for part in ("input", "recurrent", "projection")
    }
    highway = {f"token_encoder.char_cnn.highways.0.{part}.weight" for part in ("gate", "transform")}
    assert names == lstm | highway | {"token_encoder.projection.weight"}
    assert not any("token_encoder" in name for name in int8_names(word_config()))


@pytest.mark.parametrize("block", [1, 6, 7, 1000])
def test_quantised_in_blocks_is_quantised(monkeypatch, block):
    monkeypatch.setattr(int8, "_BLOCK", block)
    weight = torch.randn(11, 3) * torch.logspace(-6, 6, 11).unsqueeze(1)
    weight[4] = 0
    found = quantised({"a": weight, "b": weight}, {"a"})
    whole = Int8Matrix.of(weight)
    assert torch.equal(found["a.values"], whole.values)
    assert torch.equal(found["a.scales"], whole.scales)
    assert found["b"] is weight
    assert sorted(found) == ["a.scales", "a.values", "b"]
    found, whole = quantised({"a": weight}, {"a"}, {"a"}), Int8Matrix.of(weight, column_sizes(weight))
    assert sorted(found) == ["a.columns", "a.scales", "a.values"]
    assert all(map(torch.equal, found.values(), whole.tensors()))


def test_dense_is_within_half_a_unit_of_each_row():
    weight = torch.randn(11, 30) * torch.logspace(-6, 6, 11).unsqueeze(1)
    back = dense(quantised({"a": weight, "b": weight}, {"a"}))
    assert sorted(back) == ["a", "b"]
    unit = weight.abs().amax(dim=1, keepdim=True) / 127
    assert ((back["a"] - weight).abs() <= 0.5001 * unit).all()
    assert ((back["a"] - weight).abs() > 0.3 * unit).any()


def test_dense_multiplies_the_factors_of_the_columns():
    plain, factors = torch.randn(11, 30), torch.logspace(-3, 3, 30)
    factors[4] = 0
    weight = plain * factors
    columns = column_sizes(weight)
    torch.testing.assert_close(columns[5:], weight.square().mean(dim=0).sqrt()[5:])
    back = dense(quantised({"a": weight}, {"a"}, {"a"}))["a"]
    unit = (weight / columns).abs().amax(dim=1, keepdim=True) / 127 * columns
    assert ((back - weight).abs() <= 0.5001 * unit).all()
    assert torch.equal(column_sizes(torch.zeros(3, 2)), torch.ones(2))


def test_a_matrix_is_the_same_object_until_its_numbers_change():
    weight = Int8Weight(3, 2)
    first = weight.matrix()
    assert weight.matrix() is first
    weight.load_state_dict({"values": torch.full((3, 2), 5, dtype=torch.int8), "scales": torch.ones(3)})
    second = weight.matrix()
    assert second is not first
    assert torch.equal(second.dense(), torch.full((3, 2), 5.0))
    weight.scales = torch.full((3,), 2.0)
    assert torch.equal(weight.matrix().dense(), torch.full((3, 2), 10.0))
    assert repr(weight) == "Int8Weight(3 x 2, int8)"
    assert weight.matrix().columns is None
    weight = Int8Weight(3, 2, factors=True)
    first = weight.matrix()
    assert weight.matrix() is first
    weight.load_state_dict({**weight.state_dict(), "columns": torch.tensor([3.0, 4.0])})
    assert weight.matrix() is not first
    weight.values.fill_(5)
    assert torch.equal(weight.half().matrix().dense(), torch.tensor([[15.0, 20.0]] * 3))


def test_the_network_is_that_of_its_dense_weights():
    plain, small = network()
    ids = torch.randint(1, 262, (2, 5, 50))
    plain.load_state_dict(dense(small.state_dict()))
    with torch.no_grad():
        found, expected = small(ids), plain(ids)
    assert all(isinstance(weights, Int8LstmWeights) for stack in small.context.stacks() for weights in stack)
    # Kernels round the activations to int8 too.
    cosine = torch.nn.functional.cosine_similarity(found, expected, dim=-1)
    assert cosine.min() > 0.999
    assert not torch.equal(found, network()[0](ids).detach())


def test_gradients_of_the_input_go_through():
    x = torch.randn(5, 7, requires_grad=True)
    matrix, bias = Int8Matrix.of(torch.randn(3, 7)), torch.randn(3)
    linear(x, matrix, bias).sum().backward()
    torch.testing.assert_close(x.grad, matrix.dense().sum(dim=0).expand(5, 7))
    torch.testing.assert_close(linear(x, matrix, bias), x @ matrix.dense().T + bias)


def test_without_compiled_kernels(monkeypatch):
    monkeypatch.setattr("elmokit.ops.native.reason_against", lambda *_, **__: "there are none")
    x, matrix, bias = torch.randn(33, 37), Int8Matrix.of(torch.randn(18, 37)), torch.randn(18)
    torch.testing.assert_close(linear(x, matrix, bias), x @ matrix.dense().T + bias)
    whole = linear(x, matrix, bias)
    torch.testing.assert_close(linear(x[:1], matrix, bias), whole[:1])
    matrix = Int8Matrix(matrix.values, matrix.scales, torch.rand(37))
    torch.testing.assert_close(linear(x, matrix, bias), x @ matrix.dense().T + bias)


def test_it_is_not_trained_moved_or_given_another_number_type():
    small = network()[1]
    with pytest.raises(ElmoError, match="int8 weights cannot be trained: load the model with dtype='float32'"):
        small.requires_grad_()
    for change in (small.half, small.double, small.bfloat16, lambda: torch.nn.Sequential(small).to(torch.float16)):
        with pytest.raises(ElmoError, match="int8 weights are for float32 computation on the CPU, got torch"):
            change()
    assert {value.dtype for value in small.state_dict().values()} == {torch.float32, torch.int8}
    assert small.requires_grad_(False).float().to("cpu").share_memory() is small


@pytest.mark.parametrize("value", [torch.full((2, 2), -128, dtype=torch.int8), torch.ones(2, 2)])
def test_values_that_are_not_int8_are_refused(value):
    with pytest.raises(ElmoError, match=r"a file: a\.values must be int8 values from -127 to 127"):
        check_int8(value, "a.values", "a file")


def test_large_numbers_do_not_round_small_ones_away():
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(n, 64, generator=generator) for n in (9, 20))
    x[:, 3] = 200.0
    weight[:, 3] = 0.0
    matrix = Int8Matrix.of(weight)
    found, expected = linear(x, matrix, torch.ones(20)), x @ matrix.dense().T + 1
    torch.testing.assert_close(found, expected, rtol=0, atol=0.05)  # int8 once would be off by 10 times as much


@pytest.mark.parametrize("factors", [False, True])
def test_large_inputs_of_small_columns(factors):
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(n, 64, generator=generator) for n in (9, 20))
    x[:, ::8], weight[:, ::8] = 2000 * x[:, ::8], weight[:, ::8] / 2000
    matrix = Int8Matrix.of(weight, column_sizes(weight) if factors else None)
    error = (linear(x, matrix) - x @ weight.T).abs().max()
    assert (error < 0.2) == factors


def test_rows_do_not_depend_on_their_neighbours():
    generator = torch.Generator().manual_seed(0)
    x, matrix = torch.randn(37, 70, generator=generator), Int8Matrix.of(torch.randn(33, 70, generator=generator))
    whole = linear(x, matrix, torch.ones(33))
    for rows in (1, 2, 3, 5, 16, 36):
        assert_same(linear(x[:rows], matrix, torch.ones(33)), whole[:rows])

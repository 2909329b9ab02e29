import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from elmokit.errors import ElmoError
from elmokit.pretrain.optimizer import (
    clip_gradients,
    make_optimizers,
    rate_at,
    restore_slots,
    set_rate,
    slots_of,
    start_from_sums,
)
from elmokit.pretrain.recipe import make_recipe

ADAGRAD, ADAM = make_recipe(recipe="paper"), make_recipe(recipe="modern")
MUON = replace(ADAM, optimizer="muon")


def weights(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((3, 4), (5,))]


def give_gradients(parameters, seed):
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def named(parameters):
    return {parameter: f"part.{number}" for number, parameter in enumerate(parameters)}


def take_step(optimizers):
    for optimizer in optimizers:
        optimizer.step()


def steps(optimizers, parameters, seeds, rate=0.2):
    for seed in seeds:
        give_gradients(parameters, seed)
        set_rate(optimizers, rate)
        take_step(optimizers)


def test_adagrad_is_the_formula_without_an_epsilon():
    parameters = weights()
    parameters[0].data *= 1e-6  # small enough that an epsilon in the root would show
    expected = [p.detach().double().clone() for p in parameters]
    sums = [torch.full_like(value, 1.0) for value in expected]
    optimizers = make_optimizers(ADAGRAD, named(parameters))
    for seed, rate in ((1, 0.2), (2, 0.2), (3, 0.05)):
        give_gradients(parameters, seed)
        for value, total, parameter in zip(expected, sums, parameters, strict=True):
            gradient = parameter.grad.double()
            total += gradient * gradient
            value -= rate * gradient / total.sqrt()
        set_rate(optimizers, rate)
        take_step(optimizers)
    for value, parameter in zip(expected, parameters, strict=True):
        torch.testing.assert_close(parameter.detach().double(), value, rtol=1e-5, atol=1e-9)


def test_adagrad_leaves_a_weight_without_gradient_alone():
    parameters = weights()
    before = parameters[0].detach().clone()
    optimizers = make_optimizers(replace(ADAGRAD, accumulator=1e-9), named(parameters))
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    set_rate(optimizers, 0.2)
    take_step(optimizers)
    assert torch.equal(parameters[0], before)


def test_adam_is_the_formula_and_only_matrices_decay():
    recipe = replace(ADAM, beta1=0.8, beta2=0.95, weight_decay=0.1)
    parameters = weights()
    expected = [p.detach().double().clone() for p in parameters]
    memory = [(torch.zeros_like(value), torch.zeros_like(value)) for value in expected]
    optimizers = make_optimizers(recipe, named(parameters))
    for step in (1, 2, 3):
        give_gradients(parameters, step)
        for value, (first, second), parameter in zip(expected, memory, parameters, strict=True):
            gradient = parameter.grad.double()
            first.mul_(0.8).add_(0.2 * gradient)
            second.mul_(0.95).add_(0.05 * gradient**2)
            if value.dim() > 1:
                value *= 1 - 0.01 * 0.1
            value -= 0.01 * (first / (1 - 0.8**step)) / ((second / (1 - 0.95**step)).sqrt() + 1e-9)
        set_rate(optimizers, 0.01)
        take_step(optimizers)
    for value, parameter in zip(expected, parameters, strict=True):
        torch.testing.assert_close(parameter.detach().double(), value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("recipe", [ADAGRAD, ADAM, MUON], ids=["adagrad", "adam", "muon"])
def test_frozen_weights_are_not_trained(recipe):
    parameters = weights()
    parameters[1].requires_grad_(False)
    optimizers = make_optimizers(recipe, named(parameters))
    assert [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]] == [
        parameters[0]
    ]


@pytest.mark.parametrize("bound", [0.0, 0.1, 1.0, 1e6])
def test_gradients_are_scaled_together_to_the_bound(bound):
    parameters = [*weights(), nn.Parameter(torch.ones(2))]
    give_gradients(parameters[:2], 1)  # the third has none
    before = [p.grad.clone() for p in parameters[:2]]
    norm = math.sqrt(sum(float((gradient.double() ** 2).sum()) for gradient in before))
    assert 1 < norm < 1e6
    assert clip_gradients(parameters, bound).item() == pytest.approx(norm, rel=1e-6)
    scale = bound / norm if 0 < bound < norm else 1.0
    for parameter, gradient in zip(parameters, before, strict=False):
        torch.testing.assert_close(parameter.grad, gradient * scale, rtol=1e-6, atol=0)
    assert parameters[2].grad is None


def test_gradients_of_exactly_the_bound_or_of_zero_stay():
    for value in (3.0, 0.0):
        parameter = nn.Parameter(torch.zeros(1))
        parameter.grad = torch.tensor([value])
        assert clip_gradients([parameter], 3.0).item() == value
        assert parameter.grad.item() == value


def test_a_gradient_that_is_not_finite_shows_in_the_norm():
    parameters = weights()
    for bad in (math.nan, math.inf):
        give_gradients(parameters, 1)
        parameters[1].grad[2] = bad
        assert not torch.isfinite(clip_gradients(parameters, 1.0))


def test_the_rate_rises_then_falls():
    linear = replace(ADAM, learning_rate=2.0, warmup=0.2, decay="linear", final_rate=0.1)
    cosine, level = replace(linear, decay="cosine"), replace(linear, decay="none")
    for recipe in (linear, cosine, level):
        assert rate_at(recipe, 0.0) == 0
        assert rate_at(recipe, 0.05) == pytest.approx(0.5)
        assert rate_at(recipe, 0.2) == pytest.approx(2.0)
    assert [rate_at(linear, done) for done in (0.6, 1.0, 1.1)] == pytest.approx([1.1, 0.2, 0.2])
    assert [rate_at(cosine, done) for done in (0.4, 0.6, 1.0)] == pytest.approx(
        [2.0 * (0.1 + 0.9 * (1 + math.cos(math.pi / 4)) / 2), 1.1, 0.2]
    )
    assert [rate_at(level, done) for done in (0.6, 1.0)] == [2.0, 2.0]


def test_the_rate_without_warm_up_starts_at_its_largest():
    for decay in ("none", "linear", "cosine"):
        recipe = replace(ADAM, learning_rate=0.5, warmup=0.0, decay=decay, final_rate=0.0)
        assert rate_at(recipe, 0.0) == pytest.approx(0.5)
        assert rate_at(recipe, 1.0) == pytest.approx(0.5 if decay == "none" else 0.0)
    assert {rate_at(ADAGRAD, done) for done in (0.0, 0.3, 1.0)} == {0.2}
    assert rate_at(replace(ADAM, warmup=1.0, learning_rate=1.0), 1.0) == pytest.approx(1.0)


@pytest.mark.parametrize("recipe", [ADAGRAD, ADAM, MUON], ids=["adagrad", "adam", "muon"])
def test_slots_put_back_go_on_bit_by_bit(recipe):
    parameters = weights()
    optimizers = make_optimizers(recipe, named(parameters))
    steps(optimizers, parameters, (1, 2, 3))
    slots = {name: value.clone() for name, value in slots_of(optimizers, named(parameters)).items()}
    assert {name.rpartition(".")[0] for name in slots} == {"part.0", "part.1"}
    later = [nn.Parameter(p.detach().clone()) for p in parameters]
    steps(optimizers, parameters, (4, 5))
    again = make_optimizers(recipe, named(later))
    restore_slots(again, named(later), slots)
    steps(again, later, (4, 5))
    for one, other in zip(parameters, later, strict=True):
        assert torch.equal(one, other)
    # The slots were copied: going on did not change what was given.
    assert float(slots["part.1.step"]) == 3


@pytest.mark.parametrize("recipe", [ADAGRAD, ADAM, MUON], ids=["adagrad", "adam", "muon"])
def test_slots_of_a_run_without_any_update_go_back_too(recipe):
    parameters = weights()
    optimizers = make_optimizers(recipe, named(parameters))
    slots = slots_of(optimizers, named(parameters))
    later = [nn.Parameter(p.detach().clone()) for p in parameters]
    again = make_optimizers(recipe, named(later))
    restore_slots(again, named(later), slots)
    steps(optimizers, parameters, (1,))
    steps(again, later, (1,))
    assert torch.equal(parameters[0], later[0])


def test_slots_that_do_not_fit_are_named():
    parameters = weights()
    optimizers = make_optimizers(ADAGRAD, named(parameters))
    slots = slots_of(optimizers, named(parameters))
    with pytest.raises(ElmoError, match=r"sum for part\.0 is missing or has another shape"):
        restore_slots(optimizers, named(parameters), {**slots, "part.0.sum": torch.ones(2, 2)})
    with pytest.raises(ElmoError, match=r"step for part\.1 is missing"):
        restore_slots(optimizers, named(parameters), {"part.1.sum": slots["part.1.sum"]})


def test_adagrad_begins_with_the_sums_of_another_system():
    parameters = weights()
    optimizers = make_optimizers(ADAGRAD, named(parameters))
    sums = {"part.0": torch.full((3, 4), 8.0), "part.1": torch.full((2,), 8.0), "other": torch.ones(1)}
    start_from_sums(optimizers, named(parameters), sums)
    before = [p.detach().clone() for p in parameters]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    set_rate(optimizers, 0.3)
    take_step(optimizers)
    torch.testing.assert_close(before[0] - parameters[0], torch.full((3, 4), 0.1))  # 0.3 / √(8 + 1)
    torch.testing.assert_close(before[1] - parameters[1], torch.full((5,), 0.3 / math.sqrt(2)))  # did not fit

import torch
from torch import nn

from elmokit.model.lstm import LstmEncoder
from elmokit.pretrain.optimizer import Muon, make_optimizers, orthogonal
from elmokit.pretrain.recipe import make_recipe


def matrices(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def muon(blocks, momentum=0.9, weight_decay=0.0):
    found = Muon(blocks, momentum=momentum, weight_decay=weight_decay, precision=torch.float32)
    for group in found.param_groups:
        group["lr"] = 0.1
    return found


def test_singular_values_come_near_one_and_their_vectors_stay():
    given = matrices(3, 8, 20)
    found = orthogonal(given)
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.5
    assert values.max() < 1.3
    left, _, right = torch.linalg.svd(given, full_matrices=False)
    rotated = left.mT @ found @ right.mT  # diagonal where the vectors are the same
    torch.testing.assert_close(rotated, torch.diag_embed(torch.diagonal(rotated, dim1=1, dim2=2)), atol=1e-4, rtol=0)


def test_a_matrix_of_zeros_stays_one():
    assert torch.equal(orthogonal(torch.zeros(2, 3, 4)), torch.zeros(2, 3, 4))


def test_the_step_is_the_formula_for_wide_and_tall_and_cut_matrices():
    shapes = {"wide": ((6, 10), 1), "tall": ((10, 6), 1), "gates": ((40, 6), 4)}
    parameters = {name: nn.Parameter(matrices(*shape, seed=3)) for name, (shape, _) in shapes.items()}
    optimizer = muon({parameters[name]: count for name, (_, count) in shapes.items()}, weight_decay=0.5)
    expected = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    memory = {name: torch.zeros_like(value) for name, value in expected.items()}
    for seed in (1, 2):
        for name, (shape, count) in shapes.items():
            gradient = parameters[name].grad = matrices(*shape, seed=seed)
            memory[name] = 0.9 * memory[name] + 0.1 * gradient
            ahead = 0.9 * memory[name] + 0.1 * gradient
            parts = [orthogonal(part.mT[None])[0].mT if name != "wide" else orthogonal(part[None])[0]
                     for part in ahead.chunk(count)]  # fmt: skip
            expected[name] -= 0.1 * (0.2 * 10**0.5 * torch.cat(parts) + 0.5 * expected[name])
        optimizer.step()
    for name, parameter in parameters.items():
        torch.testing.assert_close(parameter.detach(), expected[name], atol=1e-5, rtol=1e-5)


def test_nothing_moves_where_a_gradient_is_not_finite():
    parameter = nn.Parameter(matrices(4, 6))
    before, optimizer = parameter.detach().clone(), muon({parameter: 1})
    parameter.grad = torch.full((4, 6), torch.nan)
    optimizer.found_inf = torch.tensor(1.0)
    optimizer.step()
    assert torch.equal(parameter, before)
    parameter.grad = matrices(4, 6, seed=1)
    optimizer.found_inf = torch.tensor(0.0)
    optimizer.step()
    assert torch.isfinite(parameter).all()
    assert not torch.equal(parameter, before)


def test_tables_biases_and_convolutions_are_left_to_adam():
    shapes = {
        "bilm.forward_lstm.layers.0.input_weight": (16, 4),
        "bilm.forward_lstm.layers.0.projection_weight": (4, 8),
        "bilm.token_encoder.char_cnn.highways.0.gate.weight": (8, 8),
        "bilm.token_encoder.char_cnn.embedding.weight": (9, 4),
        "bilm.token_encoder.char_cnn.convolutions.0.weight": (8, 4, 3),
        "bilm.token_encoder.words.weight": (7, 4),
        "head.weight": (7, 4),
        "head.bias": (7,),
    }
    names = {nn.Parameter(torch.zeros(shape)): name for name, shape in shapes.items()}
    first, second = make_optimizers(
        make_recipe(changes={"optimizer": "muon"}), names, joined=LstmEncoder.joined_matrices
    )
    given = {names[group["params"][0]].rpartition(".")[2]: group["blocks"] for group in first.param_groups}
    assert isinstance(first, Muon)
    assert given == {"input_weight": 4, "projection_weight": 1, "weight": 1}
    assert sum(len(group["params"]) for group in second.param_groups) == 5


def several(seed=3):
    """Weights of three shapes once they are cut, two of them the same on their side, and their blocks."""
    shapes = {(40, 6): 4, (6, 10): 1, (7, 7): 1, (80, 6): 8, (10, 6): 1, (3, 4): 1}
    return {nn.Parameter(matrices(*shape, seed=seed + number)): n for number, (shape, n) in enumerate(shapes.items())}


def take_steps(optimizer, parameters, seeds):
    for seed in seeds:
        for number, parameter in enumerate(parameters):
            parameter.grad = matrices(*parameter.shape, seed=10 * seed + number)
        optimizer.step()


def test_weights_move_together_as_each_would_alone():
    together, alone = several(), several()
    take_steps(muon(together, weight_decay=0.1), together, (1, 2, 3))
    for number, (parameter, count) in enumerate(alone.items()):
        optimizer = muon({parameter: count}, weight_decay=0.1)
        for seed in (1, 2, 3):
            parameter.grad = matrices(*parameter.shape, seed=10 * seed + number)
            optimizer.step()
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_a_weight_without_a_gradient_stays_with_its_momentum():
    weights = several()
    optimizer, still = muon(weights), next(iter(weights))
    take_steps(optimizer, weights, (1, 2))
    before, momentum = still.detach().clone(), optimizer.state[still]["momentum"].clone()
    others = [weight for weight in weights if weight is not still]
    still.grad = None
    take_steps(optimizer, others, (3,))
    assert torch.equal(still, before)
    assert torch.equal(optimizer.state[still]["momentum"], momentum)
    take_steps(optimizer, weights, (4,))
    expected = 0.9 * momentum + 0.1 * still.grad
    torch.testing.assert_close(optimizer.state[still]["momentum"], expected)
    optimizer.zero_grad()
    optimizer.step()
    torch.testing.assert_close(optimizer.state[still]["momentum"], expected)


def test_a_momentum_that_is_put_back_is_gone_on_from():
    weights = several()
    optimizer = muon(weights)
    take_steps(optimizer, weights, (1, 2))
    stored = {weight: optimizer.state[weight]["momentum"].clone() for weight in weights}
    before = [weight.detach().clone() for weight in weights]
    take_steps(optimizer, weights, (3, 4))
    after = [weight.detach().clone() for weight in weights]
    for (weight, momentum), value in zip(stored.items(), before, strict=True):
        weight.data.copy_(value)
        optimizer.state[weight] = {"momentum": momentum.clone()}
    take_steps(optimizer, weights, (3, 4))
    assert all(torch.equal(weight, value) for weight, value in zip(weights, after, strict=True))


def test_a_step_that_is_left_out_keeps_every_momentum():
    weights = several()
    optimizer = muon(weights, weight_decay=0.1)
    take_steps(optimizer, weights, (1,))
    before = [tensor.clone() for weight in weights for tensor in (weight.detach(), optimizer.state[weight]["momentum"])]
    list(weights)[2].grad[0, 0] = torch.inf
    optimizer.found_inf = torch.tensor(1.0)
    optimizer.step()
    now = [tensor for weight in weights for tensor in (weight.detach(), optimizer.state[weight]["momentum"])]
    assert all(torch.equal(one, other) for one, other in zip(now, before, strict=True))

import pytest
import torch

from elmokit import ElmoError, ScalarMix


def test_a_fresh_mix_is_the_mean_of_the_layers():
    layers = torch.randn(3, 2, 4, 5)
    torch.testing.assert_close(ScalarMix(3)(layers), layers.mean(dim=0))


def test_weights_gamma_and_penalty():
    mix = ScalarMix(3, weights=[0.5, -1.0, 2.0])
    with torch.no_grad():
        mix.gamma.fill_(1.7)
    layers = torch.randn(3, 2, 4, 5)
    share = torch.softmax(torch.tensor([0.5, -1.0, 2.0]), dim=0)
    expected = 1.7 * sum(share[i] * layers[i] for i in range(3))
    torch.testing.assert_close(mix(layers), expected)
    assert mix.penalty().item() == pytest.approx(0.25 + 1 + 4)
    (mix(layers).square().sum() + mix.penalty()).backward()
    assert mix.weights.grad.abs().sum() > 0
    assert mix.gamma.grad.abs() > 0


@pytest.mark.parametrize("kind", [True, "batch"])
def test_layer_norm_takes_one_mean_over_all_unmasked_positions(kind):
    layers = torch.randn(2, 3, 4, 5, dtype=torch.float64) * 3 + 1
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]], dtype=torch.bool)
    expected = 0
    for layer in layers:
        stored = layer[mask]
        expected = expected + 0.5 * (layer - stored.mean()) / torch.sqrt(stored.var(unbiased=False) + 1e-12)
    torch.testing.assert_close(ScalarMix(2, layer_norm=kind).double()(layers, mask), expected)


def test_layer_norm_by_sentence_does_not_see_its_neighbours():
    mix = ScalarMix(2, layer_norm="sentence").double()
    layers = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]], dtype=torch.bool)
    together = mix(layers, mask)
    for row in range(3):
        n = int(mask[row].sum())
        alone = mix(layers[:, row : row + 1, :n])
        torch.testing.assert_close(together[row, :n], alone[0])


def test_mistakes_are_named():
    with pytest.raises(ElmoError, match="3 layers needs 3 weights, got 2"):
        ScalarMix(3, weights=[1, 2])
    with pytest.raises(ElmoError, match="weights for 3 layers, got 2"):
        ScalarMix(3)(torch.zeros(2, 1, 1, 1))
    with pytest.raises(ElmoError, match="layer_norm must be"):
        ScalarMix(3, layer_norm="token")

import pytest
import torch

from elmokit import BiLM
from elmokit.config import CharacterConfig, LstmConfig
from elmokit.model import bilm as bilm_module
from elmokit.model import token_encoder
from elmokit.model.token_encoder import CharCnn
from elmokit.ops.convolve import convolve, convolve_together
from support.tiny_models import tiny_config

CONFIG = CharacterConfig(((1, 8), (2, 12), (4, 20), (7, 28)), max_characters=20, embedding_size=5, n_highway=1)


def words(count, longest, config=CONFIG):
    generator = torch.Generator().manual_seed(count + longest)
    ids = torch.randint(1, 261, (count, config.max_characters), generator=generator)
    lengths = torch.randint(1, longest + 1, (count, 1), generator=generator)
    ids[torch.arange(config.max_characters) >= lengths] = config.padding_character
    return ids


def plain_convolve(characters, weight, bias):
    return torch.nn.functional.conv1d(characters.transpose(1, 2), weight, bias).amax(dim=2)


@pytest.mark.parametrize("longest", [3, 12, 20])
@pytest.mark.parametrize("together", [False, True])
def test_the_largest_products_have_the_values_and_gradients_of_a_convolution(together, longest):
    torch.manual_seed(0)
    network = CharCnn(CONFIG).double()
    ids = words(40, longest)
    filters = [(conv.weight, conv.bias) for conv in network.convolutions]
    found = []
    for ours in (True, False):
        characters = network.embedding(ids)
        if not ours:
            largest = torch.cat([plain_convolve(characters, *each) for each in filters], dim=1)
        elif together:
            lengths = (ids != CONFIG.padding_character).sum(dim=1)
            largest = convolve_together(characters, filters, lengths)
        else:
            largest = torch.cat([convolve(characters, *each) for each in filters], dim=1)
        leaves = [network.embedding.weight, *(number for each in filters for number in each)]
        found.append(
            [largest, *torch.autograd.grad((largest.sin() * torch.arange(len(ids)).view(-1, 1)).sum(), leaves)]
        )
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_no_gradient_changes_the_last_digits_at_most():
    network, ids = CharCnn(CONFIG), words(40, 12)
    with torch.no_grad():
        without = network(ids)
    torch.testing.assert_close(network(ids), without, rtol=1e-5, atol=1e-6)


def test_trimming_leaves_one_window_of_padding_of_each_width():
    network = CharCnn(CONFIG)
    assert network.trim(words(40, 12)).shape == (40, 19)
    assert network.trim(words(40, 20)).shape == (40, 20)
    assert network.trim(torch.full((3, 20), CONFIG.padding_character)).shape == (3, 7)


def test_words_sorted_for_training_have_the_vectors_of_inference(monkeypatch):
    monkeypatch.setattr(token_encoder, "PART", 5)
    monkeypatch.setattr(bilm_module, "TRAINING_TYPES", 13)
    bilm = BiLM(tiny_config(context=LstmConfig(16, 8), characters=CONFIG)).double()
    ids = words(41, 20)
    training = bilm.train().encode_types(ids, None)
    with torch.no_grad():
        inference = bilm.eval().encode_types(ids, None)
    assert training.requires_grad
    torch.testing.assert_close(training, inference, rtol=1e-12, atol=1e-12)
